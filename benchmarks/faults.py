"""What clients and trackers that fail cost the others: six sensors x 20 Hz x 100 detections, and
beside them one fault after the other, each by a process of its own.

For each: resident memory before, at most and after; p99 of the six, and against the calm p99
measured just before in the same sidecar; how long after the end of the fault they are calm again;
and what the sidecar left undone. The machine has to run the faulty client too: what those that
push cost an echo in place of the sidecar is printed below.

    python -m benchmarks.faults [--seconds 30] [--only NAME]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from benchmarks.loads import OPTIONS, SENSORS, Running, Sensor, percentile, serving
from benchmarks.machine import machine
from benchmarks.scene import RATE, frames
from monitor.v1 import frame_pb2
from tests.faulty_clients import faulty

DETECTIONS = 100
CALM = 10.0  # s of calm before each fault
AGAIN = 75.0  # s that recovery may take at most: keepalive is 30 s and 10 s
STEP = 1.0  # s of each look at p99 afterwards
LEFT_UNDONE = (
    "streams_dropped_total",
    'detection_fates{fate="overload"}',
    "overloads_total",
    "internal_errors_total",
)


@dataclass(slots=True)
class Row:
    """What one fault did."""

    name: str
    calm: float
    during: float
    before: float
    most: float
    after: float
    recovered: float | None
    undone: dict[str, float] = field(default_factory=dict)
    skipped: int = 0
    wrong: int = 0


@dataclass(slots=True)
class Watched:
    """The six sensors and their sidecar."""

    sidecar: Running
    sensors: list[Sensor]
    most: float = 0.0

    async def over(self, seconds: float) -> list[float]:
        """s of each answer in so many seconds from now."""
        for sensor in self.sensors:
            sensor.taken()
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            await asyncio.sleep(min(0.2, left))
            self.most = max(self.most, self.sidecar.rss())
        return [t for sensor in self.sensors for t in sensor.taken()]

    async def series(self) -> dict[str, float]:
        await asyncio.sleep(2.5)
        return await asyncio.to_thread(self.sidecar.metrics)

    @property
    def skipped(self) -> int:
        return sum(sensor.skipped for sensor in self.sensors)


@contextlib.asynccontextmanager
async def sensors(sidecar: Running, bodies: list[bytes]) -> AsyncIterator[Watched]:
    ending = asyncio.Event()
    six = [Sensor(f"sensor{i}", bodies) for i in range(SENSORS)]
    async with grpc.aio.insecure_channel(sidecar.grpc, options=OPTIONS) as channel:
        tasks = [
            asyncio.create_task(one.run(channel, ending, i / SENSORS / RATE))
            for i, one in enumerate(six)
        ]
        await asyncio.sleep(2.0)
        yield Watched(sidecar, six)
        ending.set()
        await asyncio.gather(*tasks)


@dataclass(frozen=True, slots=True)
class Fault:
    """How it begins and ends.

    begin    given the sidecar's address and a place for what must end with it
    ended    whether the sidecar has got over it, by its metrics
    lasts    s; None: as long as is asked for
    """

    name: str
    begin: Callable[[str, ExitStack], None]
    over: Callable[[dict[str, float]], bool] = lambda _: True
    lasts: float | None = None
    config: str = ""


def client(kind: str, count: int, then: Callable[[int], None] | None = None) -> Callable[..., None]:
    """A faulty client; and what is done to it at once, by its process number."""

    def begin(address: str, ends: ExitStack) -> None:
        process = ends.enter_context(faulty(kind, address, count))
        if then is not None:
            time.sleep(1.0)
            then(process.pid)

    return begin


def killed(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def stopped(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


async def measured(fault: Fault, watched: Watched, seconds: float) -> Row:
    calm = percentile(await watched.over(CALM), 0.99)
    start, skipped = await watched.series(), watched.skipped
    before = watched.most = watched.sidecar.rss()
    ends = ExitStack()
    async with off_the_loop(ends):
        await asyncio.to_thread(fault.begin, watched.sidecar.grpc, ends)
        during = percentile(await watched.over(fault.lasts or seconds), 0.99)
    skipped = watched.skipped - skipped
    ended = time.perf_counter()
    recovered = None
    while recovered is None and (now := time.perf_counter()) - ended < AGAIN:
        at = percentile(await watched.over(STEP), 0.99)
        series = await asyncio.to_thread(watched.sidecar.metrics)
        if at <= max(2 * calm, 0.01) and not series.get("overload") and fault.over(series):
            recovered = now - ended
    end = await watched.series()
    undone = {name: end.get(name, 0.0) - start.get(name, 0.0) for name in LEFT_UNDONE}
    return Row(
        fault.name,
        *(calm, during, before, watched.most, watched.sidecar.rss(), recovered),
        undone={name: count for name, count in undone.items() if count},
        skipped=skipped,
        wrong=sum(sensor.wrong for sensor in watched.sensors),
    )


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def bodies_of(detections: int) -> list[bytes]:
    """Of a scene, the first so many detections of each frame."""
    fewer = []
    for body in frames(truth=False):
        frame = frame_pb2.Frame.FromString(body)
        del frame.detections[detections:]
        fewer.append(frame.SerializeToString())
    return fewer


CLIENTS = (
    Fault("nothing at all", lambda _address, _ends: None),
    Fault("stops reading", client("deaf", 4)),
    Fault("vanishes (kill -9)", client("greedy", 4, killed), lasts=5.0),
    Fault("half-open (stopped)", client("greedy", 4, stopped)),
    Fault("1,000 idle streams", client("idle", 1000)),
    Fault("pushes, 1 stream", client("greedy", 1)),
    Fault("pushes, 6 streams", client("greedy", 6)),
)


def show(rows: list[Row]) -> None:
    print(
        f"{'':<24}{'calm p99':>9}{'during':>8}{'ratio':>7}{'RSS MB':>9}{'most':>7}{'after':>7}"
        f"{'calm again':>12}  left undone"
    )
    for row in rows:
        again = "no" if row.recovered is None else f"{row.recovered:.0f} s"
        undone = ", ".join(f"{name} {count:.0f}" for name, count in row.undone.items())
        print(
            f"{row.name:<24}{1e3 * row.calm:7.1f}ms{1e3 * row.during:6.1f}ms"
            f"{row.during / row.calm:7.2f}{row.before:9.0f}{row.most:7.0f}{row.after:7.0f}"
            f"{again:>12}  {undone or 'nothing'}; frames skipped {row.skipped}, wrong {row.wrong}"
        )


async def by_clients(sidecar: Running, chosen: list[Fault], seconds: float) -> list[Row]:
    rows = []
    async with sensors(sidecar, bodies_of(DETECTIONS)) as watched:
        for fault in chosen:
            rows.append(await measured(fault, watched, seconds))
            show(rows[-1:])
    return rows


def tracker(milliseconds: int, address: str) -> AbstractContextManager[object]:
    return faulty("tracker", address, milliseconds)


@contextlib.asynccontextmanager
async def off_the_loop(context: AbstractContextManager[object]) -> AsyncIterator[None]:
    """Processes begin and end beside the sensors, which are of this one."""
    await asyncio.to_thread(context.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


async def by_tracker(sidecar: Running, address: str, seconds: float) -> list[Row]:
    """Calm is with one that answers at once; it goes, is slow, and comes and goes."""
    rows = []

    def flapping(ends: ExitStack) -> None:
        for _ in range(max(1, int(seconds / 6))):
            with tracker(0, address):
                time.sleep(1.5)
            time.sleep(1.0)
        del ends

    async with sensors(sidecar, bodies_of(DETECTIONS)) as watched:
        async with off_the_loop(tracker(0, address)):
            await asyncio.sleep(5.0)
            calm = percentile(await watched.over(CALM), 0.99)
        for name, begin in (
            ("tracker down", lambda ends: None),
            ("tracker slow (100 ms)", lambda ends: ends.enter_context(tracker(100, address))),
            ("tracker flapping", flapping),
        ):
            start, before = await watched.series(), watched.sidecar.rss()
            watched.most, skipped = before, watched.skipped
            ends = ExitStack()
            async with off_the_loop(ends):
                beginning = asyncio.create_task(asyncio.to_thread(begin, ends))
                during = percentile(await watched.over(seconds), 0.99)
                await beginning
            ended, recovered = time.perf_counter(), None
            async with off_the_loop(tracker(0, address)):
                while recovered is None and (now := time.perf_counter()) - ended < AGAIN:
                    await watched.over(STEP)
                    series = await asyncio.to_thread(watched.sidecar.metrics)
                    recovered = now - ended if series.get("tracker_up") == 1 else None
            end = await watched.series()
            names = (n for n in end if n.startswith("tracker_forwarded_total"))
            undone = {n.partition('"')[2].rstrip('"}'): end[n] - start.get(n, 0) for n in names}
            row = Row(
                name, calm, during, before, watched.most, watched.sidecar.rss(), recovered,
                {n: count for n, count in undone.items() if count}, watched.skipped - skipped,
            )  # fmt: skip
            rows.append(row)
            show([row])
    return rows


def told(sidecar: Running) -> int:
    """Faults in its log, which are shown."""
    text = sidecar.log.read_text("utf-8")
    if found := sidecar.faults():
        print(text[max(0, text.index("Traceback") - 300) :][:4000])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}")
    rows: list[Row] = []
    chosen = [fault for fault in CLIENTS if options.only in fault.name]
    with tempfile.TemporaryDirectory() as name, serving(Path(name), "") as sidecar:
        if chosen:
            rows += asyncio.run(by_clients(sidecar, chosen, options.seconds))
        faults = told(sidecar)
    pushing = [fault for fault in chosen if fault.name.startswith("pushes")]
    if pushing:
        print("the same clients, and an echo in place of the sidecar:")
        with (
            tempfile.TemporaryDirectory() as name,
            serving(Path(name), "", echo=True) as server,
        ):
            floor = asyncio.run(by_clients(server, pushing, options.seconds))
        rows += [dataclasses.replace(row, name=f"echo: {row.name}") for row in floor]
    if options.only in "tracker":
        address = free_address()
        config = f'[tracker]\nkind = "grpc"\naddress = "{address}"\n'
        with tempfile.TemporaryDirectory() as name, serving(Path(name), config) as sidecar:
            rows += asyncio.run(by_tracker(sidecar, address, options.seconds))
            faults += told(sidecar)
    print(f"\n{SENSORS} sensors x {RATE:g} Hz x {DETECTIONS} detections")
    show(rows)
    print(f"faults in the logs: {faults}")


if __name__ == "__main__":
    main()
