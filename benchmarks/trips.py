"""Counts the files of a running sidecar that five trips enter: how far a reader must follow them.

    python -m benchmarks.trips [--tree FOLDER] [--list] [--json F]

A sidecar of the tree is started as a process and driven over gRPC and HTTP, so that two trees with
the same interface can be compared whatever their modules are called. A file below monitor/, without
v1/, counts if one of its functions is entered; what runs only because a module is imported does
not. Each trip is warm: messages like it came before.

Housekeeping does not count. Its intervals are an hour where a trip does not need them, and what
each task of the sidecar does in a window of IDLE seconds without messages is subtracted, function
by function: if a label makes that task do more, what is new counts. From a fit and its trial, what
the same traffic enters without a candidate is subtracted likewise. "Durable" leaves out the tasks
that also run while nothing is sent; drift and learning have it after 41 labels, 4 s of event time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from benchmarks.entered import READY, Entry, Records
from benchmarks.trip_traffic import Detector, Talk, as_objects, by_id
from monitor.v1 import recalibrator_admin_pb2
from monitor.v1.perception_monitor_pb2_grpc import PerceptionMonitorStub
from monitor.v1.recalibrator_admin_pb2_grpc import RecalibratorAdminStub

IDLE = 7.0  # s; the rarest housekeeping that cannot be set comes every 5 s
_SETTLED = 1.5  # s after a message in which the disk, drift and learning have it
_BREATH = 0.5  # s after a round of messages, in which learning has most of it
_NEVER = 3600.0  # s between two turns of housekeeping
_REFRESH = 4.0  # s between two preparations of the metrics, where they are scraped
_SCRAPED = 11.0  # s; windows of statistics are read anew after 10 s
_PATIENCE = 60.0  # s; far above what any answer takes

_WARM_UP, _ROUND = 150, 40  # frames; a round is four seconds of event time
# So many that statistics are folded, and windows and partitions roll over.
_STEADY_ROUNDS = 20
_MOST_ROUNDS = 50  # of traffic, in which a candidate must be proven

# Windows.
_IDLE, _FRAME, _BY_ID, _BY_IDS, _OBJECT, _OBJECTS = range(1, 7)
_SCRAPE, _STEADY, _FIT, _TRIAL, _RESTART = range(7, 12)


def settings(folder: Path, refresh: float = _NEVER) -> str:
    """Configures a sidecar that keeps all it can in a folder and promotes when it is asked to.

    refresh  s between two preparations of the metrics
    """
    return f"""
[metrics]
refresh_seconds = {refresh}
[state]
folder = '{folder}/state'
every_seconds = {_NEVER}
[drift]
page_tolerance = 100.0
ticket_tolerance = 100.0
reference_tracks = 3
reference_detections = 100
reference_seconds = 2.0
[promotion]
mode = 'manual'
fit_tracks = 30
track_seconds = 4.0
"""


# ---- the sidecar


class Sidecar:
    """Starts `serve` of a tree, and records its functions."""

    def __init__(self, tree: Path, folder: Path, config: str, records: Records) -> None:
        path = folder / "sidecar.toml"
        path.write_text(config, encoding="utf-8")
        ports = ("--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0")
        command = (sys.executable, "-m", "monitor", "serve", "--config", str(path), *ports)
        with (folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                (*command, "--never-shed"),
                cwd=tree,
                env={**os.environ, **records.environment(tree)},
                stdout=subprocess.PIPE,
                stderr=log,
            )
        output = self.process.stdout
        assert output is not None
        readable, _, _ = select.select([output], [], [], _PATIENCE)
        line = output.readline().decode() if readable else ""
        if not line.startswith(READY):
            self.kill()
            raise RuntimeError(f"the sidecar did not start:\n{(folder / 'log').read_text()}")
        addresses = json.loads(line.removeprefix(READY))
        self._metrics = f"http://{addresses['http']}/metrics"
        self._channel = grpc.insecure_channel(addresses["grpc"])
        self.monitor = PerceptionMonitorStub(self._channel)
        self.admin = RecalibratorAdminStub(self._channel)

    def metrics(self) -> str:
        """Scrapes."""
        with urllib.request.urlopen(self._metrics, timeout=_PATIENCE) as response:
            text: str = response.read().decode()
        return text

    def stop(self) -> None:
        """Ends it in order."""
        self._channel.close()
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(_PATIENCE):
            raise RuntimeError(f"the sidecar ended with {self.process.returncode}.")

    def kill(self) -> None:
        """Ends it as a crash does; nothing happens where it has ended."""
        self.process.kill()
        self.process.wait(_PATIENCE)


@dataclass(slots=True)
class Journey:
    """Drives one sidecar after the other, all on one folder, through the trips."""

    tree: Path
    folder: Path
    records: Records
    by_id: Detector = field(default_factory=lambda: Detector("by_id", by_id))
    objects: Detector = field(default_factory=lambda: Detector("objects", as_objects))

    @contextlib.contextmanager
    def running(self, refresh: float = _NEVER) -> Iterator[Sidecar]:
        """Runs a sidecar for the block; it ends in order unless the block has killed it."""
        config = settings(self.folder, refresh)
        sidecar = Sidecar(self.tree, self.folder, config, self.records)
        try:
            yield sidecar
            if sidecar.process.poll() is None:
                sidecar.stop()
        finally:
            sidecar.kill()
            log = (self.folder / "log").read_text("utf-8")
            if sys.exc_info()[0] or "Traceback" in log:
                print(log, file=sys.stderr)

    @contextlib.contextmanager
    def window(self, number: int, rest: float = _SETTLED) -> Iterator[None]:
        """Records the block, and `rest` s behind it."""
        self.records.open(number)
        yield
        time.sleep(rest)
        self.records.close()

    def messages(self) -> None:
        """Sends a frame, its labels by id, and labels as objects; then more labels of each kind."""
        with self.running() as sidecar:
            talks = [Talk(sidecar.monitor, detector) for detector in (self.by_id, self.objects)]
            for talk in talks:
                talk.send(_WARM_UP)
            time.sleep(2 * _SETTLED)
            with self.window(_IDLE, IDLE):
                pass
            with self.window(_FRAME):
                first = talks[0].frame()
            windows = ((_BY_ID, _BY_IDS), (_OBJECT, _OBJECTS))
            waiting = ([first], [talks[1].frame()])
            for talk, labels, (one, more) in zip(talks, waiting, windows, strict=True):
                # Frames come outside of windows: only their labels are of the trip.
                labels += [talk.frame() for _ in range(_ROUND)]
                time.sleep(_SETTLED)
                with self.window(one):
                    talk.label(labels[0])
                with self.window(more):
                    for following in labels[1:]:
                        talk.label(following)
            for talk in talks:
                talk.close()

    def promotion(self) -> None:
        """Fits, tries and promotes a candidate, and sends the first tracks behind it."""
        self.by_id.variance = 0.25
        with self.running() as sidecar:
            talk = Talk(sidecar.monitor, self.by_id)
            # Both calls are admitted: what that takes belongs to no window.
            talk.send(2)
            for _ in range(_STEADY_ROUNDS):
                with self.window(_STEADY, _BREATH):
                    talk.send(_ROUND)
            with self.window(_FIT):
                sidecar.admin.Fit(recalibrator_admin_pb2.FitRequest(actor="trips"))
            for _ in range(_MOST_ROUNDS):
                if version := _proven(sidecar):
                    break
                with self.window(_TRIAL, _BREATH):
                    talk.send(_ROUND)
            else:
                raise RuntimeError(f"no candidate was proven within {_MOST_ROUNDS} rounds.")
            with self.window(_TRIAL):
                request = recalibrator_admin_pb2.PromoteRequest(version=version, actor="trips")
                sidecar.admin.Promote(request)
            # Not at once: drift would be kept now before and now after the disk has the frames.
            with self.window(_TRIAL):
                talk.send(_ROUND)
            talk.close()

    def restart_and_scrape(self) -> None:
        """Kills a sidecar with messages that no checkpoint has, starts it again, and scrapes it."""
        with self.running() as sidecar:
            for detector in (self.by_id, self.objects):
                Talk(sidecar.monitor, detector).send(_ROUND)
            sidecar.kill()
        self.records.open(_RESTART)
        with self.running(refresh=_REFRESH) as sidecar:
            talks = [Talk(sidecar.monitor, detector) for detector in (self.by_id, self.objects)]
            before = sidecar.metrics()
            while sidecar.metrics() == before:
                time.sleep(0.05)
            for talk in talks:
                talk.send(2)
                talk.close()
            time.sleep(_SETTLED)
            with self.window(_SCRAPE, 0.1):
                time.sleep(_SCRAPED)
                sidecar.metrics()


def _proven(sidecar: Sidecar) -> str:
    """Names the version of a candidate that waits for its promotion; empty if none does."""
    trials = sidecar.admin.List(recalibrator_admin_pb2.ListRequest()).trials
    proven = recalibrator_admin_pb2.TRIAL_STATE_PROVEN
    return next((trial.version for trial in trials if trial.state == proven), "")


# ---- what was entered


def trips(records: Records) -> dict[str, list[str]]:
    """Lists the files of each trip, by its name in the table, in order of first entry."""
    idle, steady = records.entries(_IDLE), records.entries(_STEADY)
    tasks = {entry.unit for entry in idle}

    def entered(*numbers: int, beside: Iterable[Entry] = ()) -> list[Entry]:
        known = {(entry.unit, entry.function) for entry in (*idle, *beside)}
        every = (entry for number in numbers for entry in records.entries(number))
        return [entry for entry in every if (entry.unit, entry.function) not in known]

    def of_requests(entries: list[Entry]) -> list[Entry]:
        return [entry for entry in entries if entry.unit not in tasks]

    frame = entered(_FRAME)
    found = {
        "a   frame, on the loop": [entry for entry in of_requests(frame) if entry.on_loop],
        "a   frame, and the disk": frame,
        "b   label by id, durable": of_requests(entered(_BY_ID)),
        "b   labels by id, drift and learning": entered(_BY_ID, _BY_IDS),
        "b2  label as objects, durable": of_requests(entered(_OBJECT)),
        "b2  labels as objects, drift and learning": entered(_OBJECT, _OBJECTS),
        "c   scrape": entered(_SCRAPE),
        "d   fit": entered(_FIT, beside=steady),
        "d   trial and promotion": entered(_TRIAL, beside=steady),
        "d   fit, trial and promotion": entered(_FIT, _TRIAL, beside=steady),
        "e   restart after kill -9": entered(_RESTART),
    }
    return {
        name: list(dict.fromkeys(entry.file for entry in entries))
        for name, entries in found.items()
    }


def main() -> int:
    """Prints a line for each trip."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1], metavar="FOLDER")
    parser.add_argument("--list", action="store_true", help="name the files of each trip")
    parser.add_argument("--json", type=Path, metavar="F", help="write all of it to a file")
    arguments = parser.parse_args()
    tree = arguments.tree.resolve()
    with tempfile.TemporaryDirectory() as name:
        journey = Journey(tree, Path(name), Records(Path(name) / "records"))
        journey.messages()
        journey.promotion()
        journey.restart_and_scrape()
        found = trips(journey.records)
    rows = {}
    print(f"{'trip':<44}{'files':>7}{'lines':>8}")
    for trip, files in found.items():
        lines = sum(len((tree / file).read_text("utf-8").splitlines()) for file in files)
        rows[trip] = {"files": len(files), "lines": lines, "entered": files}
        print(f"{trip:<44}{len(files):>7}{lines:>8}")
        if arguments.list:
            print("".join(f"    {file}\n" for file in files))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
