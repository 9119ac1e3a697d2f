"""Finds what holds up the event loop of a sidecar, and for how long, under full load.

Six sensors send what they can, a tenth of the frames with labels, while /metrics is read. In the
sidecar's process a probe asks for its turn each millisecond; a turn that comes late is a pause.
Clocks of the processor tell what it was used for: the collector, the thread of the ledger, other
threads, the loop's own work, or nobody of ours. Prints the longest pauses by cause, as the sidecar
sets the collector, with Python's own settings and without it, and for some switch intervals.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.loads import SENSORS, Running, Sensor, going, serving
from benchmarks.machine import machine
from benchmarks.scene import frames
from monitor import cli, sidecar
from monitor.sidecar import Sidecar

CONFIG = """
[server]
shed_lag_seconds = 0.0
shed_rows = 0
[state]
folder = '{folder}/state'
{more}
"""
TURN = 0.001  # s
LABELLED = 10  # one frame in so many
SCRAPE = 5.0  # s
CAUSES = ("collector", "ledger", "other threads", "loop", "nobody")
SHOWN = (0.5, 0.99, 0.999, 1.0)


@dataclass(slots=True)
class Probe:
    """Takes turns on the loop that it watches.

    pauses  ms that each turn came late, and ms of them by cause
    """

    pauses: list[tuple[float, ...]] = field(default_factory=list)
    collected: float = 0.0
    longest_collection: float = 0.0
    _began: float = 0.0

    def collecting(self, phase: str, _: object) -> None:
        """Is told by the collector."""
        now = time.perf_counter()
        if phase == "start":
            self._began = now
        else:
            self.collected += now - self._began
            self.longest_collection = max(self.longest_collection, now - self._began)

    async def watch(self) -> None:
        """Takes turns until it is cancelled."""
        before = self._clocks()
        while True:
            await asyncio.sleep(TURN)
            now = self._clocks()
            spent = [1e3 * (one - other) for one, other in zip(now, before, strict=True)]
            self.pauses.append((spent[0] - 1e3 * TURN, *self._causes(spent)))
            before = self._clocks()

    def _clocks(self) -> tuple[float, ...]:
        ours = time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID)
        return time.perf_counter(), self.collected, _writer_cpu(), ours, time.process_time()

    @staticmethod
    def _causes(spent: list[float]) -> tuple[float, ...]:
        """Divides a pause: what two threads do at once is no pause of the loop's."""
        late, collected, ledger, loop, process = spent
        late -= 1e3 * TURN
        left = max(0.0, late - loop)  # the loop had no processor, or no interpreter
        by_ledger = min(left, ledger)
        by_others = min(left - by_ledger, max(0.0, process - loop - ledger))
        own = max(0.0, min(late, loop) - collected)
        return collected, by_ledger, by_others, own, left - by_ledger - by_others


def _writer_cpu() -> float:
    for thread in threading.enumerate():
        if thread.name.startswith("pending-writer") and thread.ident is not None:
            with contextlib.suppress(OSError):
                return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return 0.0


def probed(out: Path, collect: str, interval: float, arguments: list[str]) -> int:
    """Runs a sidecar with a probe; writes what that has seen."""
    probe, run = Probe(), Sidecar.run
    gc.callbacks.append(probe.collecting)

    async def watched(self: Sidecar, listening: Callable[[Sidecar], None]) -> None:
        watching: list[asyncio.Task[None]] = []

        def began(one: Sidecar) -> None:
            sys.setswitchinterval(interval)
            probe.longest_collection = probe.collected = 0.0
            if collect == "default":
                gc.set_threshold(700, 10, 10)
            elif collect == "off":
                gc.disable()
            watching.append(asyncio.get_running_loop().create_task(probe.watch()))
            listening(one)

        await run(self, began)
        for task in watching:
            task.cancel()

    sidecar.Sidecar.run = watched  # type: ignore[method-assign]
    code = cli.main(arguments)
    pauses = np.array(probe.pauses)
    seen = {
        "quantiles": np.quantile(pauses[:, 0], SHOWN).tolist(),
        "late": int(np.count_nonzero(pauses[:, 0] > 1.0)),
        "turns": len(pauses),
        "longest": pauses[:, 1:].max(axis=0).tolist(),
        "sums": pauses[:, 1:].sum(axis=0).tolist(),
        "collections": [1e3 * probe.collected, 1e3 * probe.longest_collection],
    }
    out.write_text(json.dumps(seen), encoding="utf-8")
    return code


async def load(running: Running, seconds: float) -> tuple[int, float]:
    """Loads a sidecar; returns the frames that it answered, and the s of processor it took."""
    bodies = [frames(truth=truth) for truth in (False, True)]
    mixed = [bodies[at % LABELLED == 0][at] for at in range(len(bodies[0]))]
    sensors = [Sensor(f"camera{i}", mixed) for i in range(SENSORS)]
    async with going(running.grpc, sensors, pace=False):
        await asyncio.sleep(2.0)
        before, cpu = sum(one.frames for one in sensors), running.cpu()
        ending = time.monotonic() + seconds
        while (left := ending - time.monotonic()) > 0:
            await asyncio.to_thread(running.metrics)
            await asyncio.sleep(min(left, SCRAPE))
        return sum(one.frames for one in sensors) - before, running.cpu() - cpu


@contextlib.contextmanager
def sidecar_with(out: Path, collect: str, interval: float, more: str) -> Iterator[Running]:
    """Runs a sidecar with a probe in a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        command = ["-m", "benchmarks.isolation", "--child", str(out), collect, str(interval)]
        config = CONFIG.format(folder=name, more=more)
        with serving(Path(name), config, command=command) as running:
            yield running


def show(name: str, seen: dict[str, list[float]], done: tuple[int, float]) -> None:
    """Prints a line."""
    frames_done, cpu = done
    shown = [*seen["quantiles"], *seen["longest"], *seen["collections"]]
    text = "".join(f"{value:9.2f}" for value in shown)
    print(f"{name:<24}{1e6 * cpu / max(1, frames_done):8.0f}{text}", flush=True)


def main() -> int:
    """Prints everything."""
    if sys.argv[1:2] == ["--child"]:
        seen_at, how, seconds, *arguments = sys.argv[2:]
        return probed(Path(seen_at), how, float(seconds), arguments)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--tracker", choices=("none", "embedded"), default="none")
    options = parser.parse_args()
    more = f"[tracker]\nkind = '{options.tracker}'"
    print(f"{machine()}; ms, of a turn each {1e3 * TURN:g} ms")
    quantiles = "".join(f"{name:>9}" for name in ("p50", "p99", "p99.9", "longest"))
    causes = "".join(f"{name.split()[0]:>9}" for name in CAUSES)
    print(f"{'':<24}{'µs/frame':>8}{quantiles}{causes}{'gc sum':>9}{'gc most':>9}")
    cases = [("default", 0.0005), ("ours", 0.0005), ("off", 0.0005)]
    cases += [("ours", 0.005), ("ours", 0.0001)]
    for _ in range(options.rounds):
        for collect, interval in cases:
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "seen.json"
                with sidecar_with(out, collect, interval, more) as running:
                    done = asyncio.run(load(running, options.seconds))
                seen = json.loads(out.read_text("utf-8"))
            show(f"gc {collect}, switch {1e3 * interval:g} ms", seen, done)
    return 0


if __name__ == "__main__":
    sys.exit(main())
