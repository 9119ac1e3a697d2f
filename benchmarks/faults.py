"""What clients and trackers that fail cost the others: six sensors x 20 Hz x 100 detections, and
beside them one fault after the other, each by a process of its own.

For each: resident memory before, at most and after; p99 of the six, and against the calm p99
measured just before in the same sidecar; how long after the end of the fault they are calm again;
and what the sidecar left undone. The machine has to run the faulty client too: what those that
push cost an echo in place of the sidecar is measured as well. Exits with 1 where the six are not
calm again in time, an answer is wrong, or the sidecar's log tells a fault of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.loads import SENSORS, Running, Sensor, going, percentile, serving, taken
from benchmarks.machine import machine
from benchmarks.scene import RATE, frames
from tests.deploy.scraping import free_port
from tests.faulty_clients import faulty

DETECTIONS = 100
CALM, STEP = 10.0, 1.0  # s of calm before each fault; s of each look at p99 afterwards
AGAIN = 75.0  # s that recovery may take at most: keepalive is 30 s and 10 s
REFRESHED = 2.5  # s after which metrics are of now
TOTALS = ("streams_dropped", "overloads", "internal_errors", "tracker_forwarded")
LEFT_UNDONE = ('detection_fates{fate="overload"}', *(f"{name}_total" for name in TOTALS))


@dataclass(frozen=True, slots=True)
class Case:
    """Describes a fault.

    client  kind of tests.faulty_clients, if any, and how many streams, or ms to an answer, it has
    then    signal that it gets a second after it began
    lasts   s; 0: as long as is asked for
    flaps   it comes and goes
    """

    name: str
    client: str = ""
    count: int = 0
    then: int = 0
    lasts: float = 0.0
    flaps: bool = False


PUSHES = (Case("pushes, 1 stream", "greedy", 1), Case("pushes, 6 streams", "greedy", 6))
CLIENTS = (
    Case("nothing at all"),
    Case("stops reading", "deaf", 4),
    Case("vanishes (kill -9)", "greedy", 4, signal.SIGKILL, lasts=5.0),
    Case("half-open (stopped)", "greedy", 4, signal.SIGSTOP),
    Case("1,000 idle streams", "idle", 1000),
    *PUSHES,
)
TRACKERS = (
    Case("tracker down"),
    Case("tracker slow (100 ms)", "tracker", 100),
    Case("tracker flapping", "tracker", flaps=True),
)


def begin(case: Case, address: str, seconds: float, ends: ExitStack) -> None:
    """Begins a fault; it ends with the stack."""
    if case.flaps:
        for _ in range(max(1, int(seconds / 6))):
            with faulty(case.client, address, case.count):
                time.sleep(1.5)
            time.sleep(1.0)
    elif case.client:
        process = ends.enter_context(faulty(case.client, address, case.count))
        if case.then:
            time.sleep(1.0)
            os.kill(process.pid, case.then)


@contextlib.asynccontextmanager
async def off_the_loop(context: AbstractContextManager[object]) -> AsyncIterator[None]:
    """Lets processes begin and end beside the sensors, which are of this one."""
    await asyncio.to_thread(context.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


@dataclass(slots=True)
class Watched:
    """Watches sensors and sidecar; calm is with a tracker that answers at once, if it has any."""

    sidecar: Running
    sensors: list[Sensor]
    tracker: str
    most: float = 0.0

    async def p99(self, seconds: float) -> float:
        """Returns that of the answers in so many seconds from now, in s."""
        taken(self.sensors)
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            await asyncio.sleep(min(0.2, left))
            self.most = max(self.most, self.sidecar.rss())
        return percentile(taken(self.sensors), 0.99)

    async def series(self, wait: float = REFRESHED) -> dict[str, float]:
        """Returns the metrics after a while."""
        await asyncio.sleep(wait)
        return await asyncio.to_thread(self.sidecar.metrics)

    def healthy(self) -> AbstractContextManager[object]:
        """Runs the tracker that answers at once, where there is one."""
        return faulty("tracker", self.tracker, 0) if self.tracker else contextlib.nullcontext()

    async def measured(self, case: Case, seconds: float) -> bool:
        """Prints what a fault did; returns whether all was well again in time."""
        async with off_the_loop(self.healthy()):
            calm = await self.p99(CALM)
        start, skipped = await self.series(), sum(one.skipped for one in self.sensors)
        before = self.most = self.sidecar.rss()
        ends, address = ExitStack(), self.tracker or self.sidecar.grpc
        async with off_the_loop(ends):
            beginning = asyncio.to_thread(begin, case, address, seconds, ends)
            during, _ = await asyncio.gather(self.p99(case.lasts or seconds), beginning)
        skipped = sum(one.skipped for one in self.sensors) - skipped
        again = await self._calm_again(calm)
        end = await self.series()
        undone = [
            f"{name} {more:.0f}"
            for name, value in end.items()
            if name.startswith(LEFT_UNDONE) and (more := value - start.get(name, 0.0))
        ]
        wrong = sum(one.wrong for one in self.sensors)
        print(
            f"{case.name:<24}{1e3 * calm:7.1f}ms{1e3 * during:6.1f}ms{during / calm:7.2f}"
            f"{before:9.0f}{self.most:7.0f}{self.sidecar.rss():7.0f}{again:10.0f} s  "
            f"{', '.join(undone) or 'nothing'}; frames skipped {skipped}, wrong {wrong}",
            flush=True,
        )
        return again < AGAIN and not wrong

    async def _calm_again(self, calm: float) -> float:
        """Returns s until answers come as before, and the sidecar has got over it."""
        ended = time.perf_counter()
        async with off_the_loop(self.healthy()):
            while (passed := time.perf_counter() - ended) < AGAIN:
                at, series = await self.p99(STEP), await self.series(0.0)
                well = not series.get("overload") and series.get("tracker_up", 1.0) == 1
                if at <= max(2 * calm, 0.01) and well:
                    break
        return passed


async def run(sidecar: Running, cases: Sequence[Case], seconds: float, tracker: str) -> bool:
    """Plays the cases one after the other over streams that go on."""
    bodies = frames(truth=False, objects=DETECTIONS)
    six = [Sensor(f"sensor{i}", bodies) for i in range(SENSORS)]
    async with going(sidecar.grpc, six):
        await asyncio.sleep(2.0)
        watched = Watched(sidecar, six, tracker)
        well = [await watched.measured(case, seconds) for case in cases]
    return all(well)


def main() -> int:
    """Prints a line for each fault; returns 1 where a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--only", default="", help="faults whose name has this in it")
    options = parser.parse_args()
    print(f"{machine()}; {SENSORS} sensors x {RATE:g} Hz x {DETECTIONS} detections")
    heads = f"{'calm p99':>9}{'during':>8}{'ratio':>7}{'RSS MB':>9}{'most':>7}{'after':>7}"
    print(f"{'':<24}{heads}{'calm again':>12}  left undone")
    well, address = True, f"127.0.0.1:{free_port()}"
    tracker = f'[tracker]\nkind = "grpc"\naddress = "{address}"\n'
    echoes = [replace(case, name=f"echo: {case.name}") for case in PUSHES]
    for cases, config, at in ((CLIENTS, "", ""), (echoes, None, ""), (TRACKERS, tracker, address)):
        chosen = [case for case in cases if options.only in case.name]
        if not chosen:
            continue
        state, echo = f'{config or ""}[state]\nfolder = "state"\n', config is None
        folder = tempfile.TemporaryDirectory()
        with folder as name, serving(Path(name), state, echo=echo) as server:
            well &= asyncio.run(run(server, chosen, options.seconds, at))
            if server.faults():
                well = False
                text = server.log.read_text("utf-8")
                print(text[max(0, text.index("Traceback") - 300) :][:4000])
    print("bounds hold" if well else "a bound is broken")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
