"""CPU of each stage of a frame, in µs: by dimensions, detections of a frame and labelled share.

A sidecar runs with a clock of the thread's processor time around the functions of each stage; what
a stage calls of another stage is that one's. `loop` is the loop's own callbacks and its waiting,
which read and write gRPC's messages, and `gRPC` its threads. `sum/it` compares the sum with what
the system accounts to the process in the same seconds. The echo beside it carries the same
messages. At the end straight lines: what a frame costs, and what a detection adds.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
import signal
import sys
import tempfile
import threading
import time
from asyncio.events import Handle
from collections import Counter
from collections.abc import Callable, Generator
from functools import wraps
from importlib import import_module
from pathlib import Path
from selectors import EpollSelector
from typing import Any

import numpy as np

from benchmarks.loads import COUNT_ALL, SENSORS, Running, Sensor, going, serving
from benchmarks.machine import machine
from benchmarks.scene import frames, space_of
from monitor.commands.sidecar_client import Client
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import Selection

RUN = ("-m", "benchmarks.stages")
TOLD = "stages.json"

# By stage, the functions whose time is its own.
STAGES = {
    "decode": ("service.handlers:decode_process_request", "service.handlers:decode_truth_request"),
    "examine": ("pipeline.frame_path:examine", "pipeline.together:examine_together"),
    "recalibrate": (
        "frames.slices:StreamSlices.of",
        "pipeline.frame_path:prepared_together",
        "pipeline.frame_path:Pipeline._recalibrated",
        "pipeline.frame_path:Pipeline._recalibrated_classes",
    ),
    "track": ("pipeline.frame_path:Pipeline._track",),
    "answer": ("pipeline.frame_path:Pipeline.answer_all",),
    "encode": ("service.handlers:encode_process_response",),
    "remember": ("pipeline.frame_path:Pipeline.remember_answered",),
    "labels": (
        "pipeline.frame_path:inline_record",
        "pipeline.truth:TruthLedger.count",
        "pipeline.truth:TruthLedger.report",
    ),
    "ledger": ("store.journal:Journal.note", "store.ledger:LedgerWriter.commit"),
    "statistics": (
        "pipeline.live_statistics:LiveStatistics.count",
        "pipeline.live_statistics:LiveStatistics.fold_some",
    ),
    "drift": (
        "pipeline.drift_watch:DriftWatch.add",
        "pipeline.drift_watch:DriftWatch.catch_up",
    ),
    "learning": (
        "pipeline.learning:LabelledTracks.take",
        "pipeline.learning:LabelledTracks.whole",
        "pipeline.learning:LabelledTracks.decide",
    ),
    "metrics": ("service.http:Exporting.refresh", "service.http:_Handler.do_GET"),
}
LOOP, GRPC, OTHER = "loop", "gRPC", "other"
COLUMNS = (*STAGES, LOOP, GRPC, OTHER)

# Names of Python's threads, whose time is counted by function; every other thread is gRPC's.
PYTHON = ("python", "pending-writer", "pending-reader")


# ---- in the process that is measured


class Clock:
    """Counts the processor time of stages, by thread, each without the stages that it calls."""

    def __init__(self) -> None:
        """Begins with nothing counted."""
        self.spent = Counter[str]()
        self._of_thread = threading.local()

    def enter(self) -> None:
        """Begins a call of a stage."""
        inside = getattr(self._of_thread, "inside", None)
        if inside is None:
            inside = self._of_thread.inside = []
        inside.append(0)
        inside.append(time.thread_time_ns())

    def leave(self, stage: str) -> None:
        """Ends the innermost call."""
        # By turns what the stages within a call took, and when it began.
        inside: list[int] = self._of_thread.inside
        took = time.thread_time_ns() - inside.pop()
        self.spent[stage] += took - inside.pop()
        if inside:
            inside[-2] += took

    def around(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that does the same and is counted."""

        def steps(work: Any) -> Generator[Any, Any, Any]:
            """Drives a generator or coroutine; each of its steps is a call."""
            value = None
            while True:
                self.enter()
                try:
                    asked = work.send(value)
                except StopIteration as stopped:
                    return stopped.value
                finally:
                    self.leave(stage)
                value = yield asked

        if inspect.iscoroutinefunction(function):

            class Awaited:
                def __init__(self, work: Any) -> None:
                    self.work = work

                def __await__(self) -> Generator[Any, Any, Any]:
                    return steps(self.work)

            @wraps(function)
            async def call(*arguments: Any, **named: Any) -> Any:
                return await Awaited(function(*arguments, **named))

        elif inspect.isgeneratorfunction(function):

            @wraps(function)
            def call(*arguments: Any, **named: Any) -> Any:
                return steps(function(*arguments, **named))

        else:

            @wraps(function)
            def call(*arguments: Any, **named: Any) -> Any:
                self.enter()
                try:
                    return function(*arguments, **named)
                finally:
                    self.leave(stage)

        return call

    def wind(self) -> None:
        """Puts a clock around every function of every stage, and around callbacks of the loop."""
        for stage, names in STAGES.items():
            for name in names:
                module, _, path = name.partition(":")
                owner: Any = import_module(f"monitor.{module}")
                *classes, last = path.split(".")
                for one in classes:
                    owner = getattr(owner, one)
                setattr(owner, last, self.around(stage, getattr(owner, last)))
        EpollSelector.select = self.around(LOOP, EpollSelector.select)  # type: ignore[method-assign]
        run = Handle._run
        Handle._run = self.around(LOOP, run)  # type: ignore[method-assign]

    def tell(self, *_: object) -> None:
        """Writes what was counted so far, for whoever sent the signal."""
        ticks, threads = os.sysconf("SC_CLK_TCK"), Counter[str]()
        for task in Path("/proc/self/task").iterdir():
            fields = (task / "stat").read_text()
            name = fields.partition("(")[2].rpartition(")")[0]
            used = fields.rpartition(")")[2].split()
            kind = "" if name.startswith(PYTHON) else GRPC
            threads[kind] += (int(used[11]) + int(used[12])) * 10**9 // ticks
        found = {**self.spent, GRPC: threads[GRPC], "process": time.process_time_ns()}
        beside = Path(TOLD + ".new")
        beside.write_text(json.dumps(found), "utf-8")
        beside.rename(TOLD)


def serve(arguments: list[str]) -> int:
    """Runs a sidecar with clocks in it, which tells their counts at SIGUSR1."""
    from monitor.cli import main as monitor

    clock = Clock()
    clock.wind()
    signal.signal(signal.SIGUSR1, clock.tell)
    return monitor(arguments)


# ---- beside it


def told(server: Running) -> Counter[str]:
    """Asks a sidecar for its counts, in ns."""
    path = server.log.parent / TOLD
    path.unlink(missing_ok=True)
    server.process.send_signal(signal.SIGUSR1)
    while not path.exists():
        time.sleep(0.01)
    return Counter(json.loads(path.read_text("utf-8")))


async def measured(
    server: Running, k: int, n: int, share: float, seconds: float, scaled: bool
) -> tuple[dict[str, float], float]:
    """Returns µs a frame by stage, and the detections that a core carries in a second."""
    space = space_of(k)
    bodies = frames(truth=False, objects=n, space=space)
    labelled = frames(truth=True, objects=n, space=space) if share else None
    sensors = [
        Sensor(f"sensor{i}", bodies, space=space, labelled=labelled, share=share)
        for i in range(SENSORS)
    ]
    if scaled:
        document = Selection(space.names, VarianceScaling((1.1,) * k)).to_json()
        async with Client(server.grpc) as admin:
            await admin.promote("benchmark", document=document)
    async with going(server.grpc, sensors, pace=False):
        await asyncio.sleep(1.0)
        before = told(server) if scaled else Counter[str]()
        cpu, frames_before = server.cpu(), sum(sensor.frames for sensor in sensors)
        await asyncio.sleep(seconds)
        came = sum(sensor.frames for sensor in sensors) - frames_before
        used = server.cpu() - cpu
        spent = told(server) if scaled else Counter[str]()
    spent.subtract(before)
    per_frame = {stage: spent[stage] / 1e3 / came for stage in (*STAGES, LOOP, GRPC)}
    per_frame[OTHER] = spent["process"] / 1e3 / came - sum(per_frame.values())
    per_frame["system"] = 1e6 * used / came
    return per_frame, n * came / used


def main() -> None:
    """Prints a line for each case, beside an echo of the same messages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dimensions", type=int, nargs="+", default=[2, 4, 7, 8])
    parser.add_argument("--detections", type=int, nargs="+", default=[1, 32, 200, 500])
    parser.add_argument("--labelled", type=float, nargs="+", default=[0.0, 0.1, 1.0])
    parser.add_argument("--tracker", choices=("none", "embedded"), default="none")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", help="a file for the figures")
    options = parser.parse_args()
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}; tracker {options.tracker}; CPU, µs a frame")
    heads = "".join(f"{name[:8]:>9}" for name in COLUMNS)
    print(f"{'K':>2}{'n':>5}{'labels':>7}{heads}{'system':>9}{'sum/it':>7}{'det/s':>9}{'/echo':>6}")
    rows = []
    for k in options.dimensions:
        for n in options.detections:
            for share in options.labelled:
                found = []
                for echo in (True, False):
                    folder = tempfile.TemporaryDirectory()
                    config = COUNT_ALL.format(options.tracker)
                    with (
                        folder as name,
                        serving(Path(name), config, echo=echo, command=RUN) as server,
                    ):
                        case = server, k, n, share, options.seconds, not echo
                        found.append(asyncio.run(measured(*case)))
                (_, floor), (spent, rate) = found
                counted = sum(spent[stage] for stage in COLUMNS if stage != OTHER)
                cells = "".join(f"{spent[stage]:9.1f}" for stage in COLUMNS)
                total = spent["system"]
                print(
                    f"{k:2}{n:5}{share:7.2f}{cells}{total:9.1f}{counted / total:7.2f}"
                    f"{rate:9.0f}{rate / floor:6.2f}",
                    flush=True,
                )
                rows.append(
                    {"K": k, "n": n, "labelled": share, "echo": floor, "rate": rate, **spent}
                )
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1), "utf-8")
    for k in options.dimensions:
        for share in options.labelled:
            alike = [row for row in rows if (row["K"], row["labelled"]) == (k, share)]
            sizes, costs = (np.array([row[name] for row in alike]) for name in ("n", "system"))
            if sizes.size > 1:
                each, fixed = np.polyfit(sizes, costs, 1, w=1 / costs)
                print(f"K {k}, labels {share:.2f}: {fixed:.0f} µs a frame + {each:.2f} a detection")
    totals = [sum(row[s] for s in COLUMNS if s != OTHER) / row["system"] for row in rows]
    print(f"stages add up to {min(totals):.2f} to {max(totals):.2f} of what the system accounts")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        sys.exit(serve(sys.argv[1:]))
    main()
