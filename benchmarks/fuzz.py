"""A million messages that went wrong, through decoder, validator, pipeline and back, and a hundred
thousand through a sidecar that serves, beside a stream that must not notice.

Every message is one of a valid kind with something changed: bits, lengths, values, tags, order,
fields of no one. All hangs on the seed: what fails is printed in hex, with how to have it again.

    python -m benchmarks.fuzz [--frames 1000000] [--live 100000] [--seed 0] [--processes 2]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from benchmarks.loads import serving
from benchmarks.machine import machine
from tests.fuzzed import Fuzz, worlds
from tests.fuzzed_live import CONFIG, besieged

# Messages of one pipeline, which begins anew behind them.
ROUND = 5_000
# Of as many frames one goes through the pipeline too, and one label message comes.
PROCESSED = 8
UNARY = 16


def fuzzed(world: int, seed: int, frames: int) -> tuple[Counter[str], Counter[str]]:
    """So many frames of one world: what became of them, and what was changed in them."""
    fuzz = Fuzz(worlds()[world], random.Random(f"{world} {seed}"))
    for i in range(frames):
        data = fuzz.frames.valid() if i % 30 == 0 else fuzz.frames.next()
        try:
            (fuzz.processed if i % PROCESSED == 0 else fuzz.frame)(data)
            if i % UNARY == 1:
                fuzz.unary(data)
            if i % PROCESSED == 0:
                data = fuzz.labels.next()
                fuzz.label(data)
        except BaseException as error:
            raise AssertionError(
                f"world {world}, seed {seed}, message {i}: {error!r}: {data.hex()}"
            ) from error
    try:
        fuzz.assert_sound()
    except AssertionError as error:
        raise AssertionError(f"world {world}, seed {seed}, at the end: {error}") from error
    return fuzz.outcomes, Counter(fuzz.frames.told)


def rounds(frames: int, seed: int) -> Iterator[tuple[int, int, int]]:
    count = len(worlds())
    for i in range(-(-frames // ROUND)):
        yield i % count, seed + i // count, min(ROUND, frames - i * ROUND)


def decoded(frames: int, seed: int, processes: int) -> None:
    outcomes: Counter[str] = Counter()
    changes: Counter[str] = Counter()
    began = time.perf_counter()
    with ProcessPoolExecutor(processes) as pool:
        running = [pool.submit(fuzzed, *arguments) for arguments in rounds(frames, seed)]
        for done in as_completed(running):
            for total, part in zip((outcomes, changes), done.result(), strict=True):
                total.update(part)
    took = time.perf_counter() - began
    print(f"{frames} mutated frames in {took:.0f} s, {frames / took:.0f}/s; nothing was raised")
    show("what was changed first", changes)
    show("what became of them", outcomes)


def show(title: str, counts: Counter[str]) -> None:
    print(f"{title}:")
    for name, count in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"  {count:9d}  {name}")


def served(messages: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as name, serving(Path(name), CONFIG) as sidecar:
        before, began = sidecar.rss(), time.perf_counter()
        siege = asyncio.run(besieged(sidecar.grpc, messages, seed))
        took = time.perf_counter() - began
        faults = sidecar.faults()
        print(
            f"\n{siege.sent} messages to a sidecar that serves in {took:.0f} s, "
            f"{siege.sent / took:.0f}/s; {siege.streams} streams opened, {siege.beside} frames of "
            f"the stream beside them answered as they should be; {sidecar.rss() - before:+.0f} MB; "
            f"{faults} faults in the log"
        )
        if faults:
            print(sidecar.log.read_text("utf-8")[-4000:])
        show("what became of them", siege.outcomes)
    assert not faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--live", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}; seed {options.seed}")
    if options.frames:
        decoded(options.frames, options.seed, options.processes)
    if options.live:
        served(options.live, options.seed)


if __name__ == "__main__":
    main()
