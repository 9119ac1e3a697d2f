"""Plays the scene against one tree and writes what it answers into a folder of documents.

The tree is driven by its command line, gRPC and files alone. One message goes at a time, and its
answer is awaited; what the sidecar does in the background is waited for by what /metrics says.
"""

from __future__ import annotations

import json
import os
import queue
import re
import select
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from monitor.v1 import perception_monitor_pb2 as pb
from monitor.v1 import recalibrator_admin_pb2 as admin_pb
from monitor.v1 import status_pb2
from tests.same.compare import is_left_out
from tests.same.scene import STREAMS, TRUTH, UNARY, Step, headers, live_steps

PATIENCE = 60.0  # s for one answer, one command of the live part, or one state that must come
_COMMAND_PATIENCE = 150.0  # s for a command
_REST = 0.6  # s; longer than any period of what the sidecar does in the background
_SERVICES = "/monitor.v1.PerceptionMonitor", "/monitor.v1.RecalibratorAdmin"

# Keys that both trees know; what is kept lies in the working directory.
SETTINGS = """
[metrics]
refresh_seconds = 0.1
[statistics]
slice_by = ["class", "stream"]
[drift]
hours_between_false_pages = 1e-3
hours_between_false_tickets = 1e-3
reference_tracks = 4
reference_detections = 100
reference_seconds = 2.0
[promotion]
mode = "manual"
fit_tracks = 5
[matching]
class_map = { "vehicle.car" = "car", "human" = "pedestrian", "bicycle" = "cyclist" }
[pending]
partition_minutes = 0.1
[tracker]
kind = "embedded"
"""

# Of a tree that has one folder for its state, and of one that has a file for each part.
ONE_FOLDER = '[state]\nfolder = "state"\nevery_seconds = 0.2\n'
FILES = "[snapshot]\nevery_seconds = 0.5\n[drift]\nevery_seconds = 0.2\n"


class CannotPlay(RuntimeError):
    """The tree did not do what the scene asks of it, so that there is nothing to compare."""


@dataclass(frozen=True, slots=True)
class Place:
    """Names a tree under test, and where it works.

    tree       has the package `monitor`
    files      working directory of every command and sidecar
    documents  what came of it
    """

    tree: Path
    files: Path
    documents: Path

    def write(self, name: str, text: str) -> None:
        path = self.documents / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    def write_json(self, name: str, value: object) -> None:
        self.write(name, json.dumps(value, indent=1) + "\n")

    @property
    def environment(self) -> dict[str, str]:
        """Gives sums one thread, puts the tree before what is installed, fixes the width."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return kept | {
            "PYTHONPATH": str(self.tree),
            "COLUMNS": "100",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "GRPC_VERBOSITY": "ERROR",
        }


def play(place: Place, parts: Sequence[str]) -> None:
    """Writes the documents of the parts that are named. Raises CannotPlay."""
    has_folder = (place.tree / "monitor/store/state.py").is_file()
    settings = SETTINGS + ONE_FOLDER if has_folder else SETTINGS.replace("[drift]\n", FILES)
    (place.files / "sidecar.toml").write_text(settings, "utf-8")
    with commands(place) as run:
        for part in parts:
            PARTS[part](place, run)


# ---- commands


@dataclass(slots=True)
class Commands:
    """Runs command lines of the tree, one after the other."""

    place: Place
    process: subprocess.Popen[str]

    def __call__(self, name: str, *argv: str) -> str:
        """Runs `python -m monitor ARGV`; its output and exit code become a document.

        Returns its standard output.
        """
        (said,) = self.all({name: argv})
        return said

    def all(self, wanted: Mapping[str, Sequence[str]]) -> list[str]:
        """Runs command lines in one process, each a document; returns their standard outputs."""
        folder = self.place.files
        files = [(folder / f"stdout{i}", folder / f"stderr{i}") for i in range(len(wanted))]
        request = [
            {"argv": argv, "stdout": str(stdout), "stderr": str(stderr)}
            for argv, (stdout, stderr) in zip(wanted.values(), files, strict=True)
        ]
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        readable, _, _ = select.select([self.process.stdout], [], [], _COMMAND_PATIENCE)
        code = self.process.stdout.readline().strip() if readable else "none: it did not end"
        told = "".join(path.read_text("utf-8") for _, path in files if path.exists())
        if (code != "0") is not next(iter(wanted)).startswith("refused/"):
            words = " ".join(next(iter(wanted.values())))
            raise CannotPlay(f"{self.place.tree}: `{words}` ended with code {code}.\n{told}")
        said = [path.read_text("utf-8") for path, _ in files]
        for name, text in zip(wanted, said, strict=True):
            self.place.write(f"{name}.{'json' if text.startswith('{') else 'txt'}", text)
        if told or code != "0":
            self.place.write(f"{next(iter(wanted))}.error.txt", f"exit code {code}\n{told}")
        return said

    def keep(self, name: str, file: str) -> None:
        """Makes a file that a command wrote a document."""
        path = self.place.files / file
        if not path.exists():
            self.place.write(name, "the command wrote no file\n")
        elif file.endswith(".npz"):
            self.place.write_json(name, _arrays(path))
        elif file.endswith(".json"):
            self.place.write(name, path.read_text("utf-8"))
        else:
            self.place.write(name, _hexadecimal(path.read_bytes()))


@contextmanager
def commands(place: Place) -> Iterator[Commands]:
    """Starts the process that the commands of a tree are forked from, for as long as the block."""
    program = Path(__file__).with_name("commands.py")
    process = subprocess.Popen(
        [sys.executable, "-P", str(program)],
        cwd=place.files,
        env=place.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Commands(place, process)
    finally:
        process.kill()
        process.communicate()


def _arrays(path: Path) -> dict[str, object]:
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return {
        name: {"type": str(each.dtype), "shape": list(each.shape), "values": each.tolist()}
        for name, each in arrays.items()
    }


def _hexadecimal(data: bytes) -> str:
    return "".join(f"{data[at : at + 32].hex()}\n" for at in range(0, len(data), 32))


def play_help(place: Place, run: Commands) -> None:
    """Asks for the help of every verb, and of every action of a verb."""
    run("help/version", "--version")
    for verb in _listed(run("help/all", "--help"), "VERB"):
        actions = _listed(run(f"help/{verb}", verb, "--help"), "ACTION")
        if actions:
            run.all({f"help/{verb}-{action}": (verb, action, "--help") for action in actions})


def _listed(text: str, what: str) -> list[str]:
    section = text.partition(f"\n  {what}\n")[2].partition("\n\n")[0]
    return re.findall(r"^ {4}(\w\S*)", section, re.MULTILINE)


_DRIVE, _ARRAYS, _CLASSES = "drive.csv.gz", "drive.npz", "classes.npz"
_FITS = {
    "variance-scaling": (_DRIVE, "--dimensions", "x,y,z", "--by", "class"),
    "covariance-scaling": (_DRIVE, "--where", "role=fit", "--full-input", "whiten"),
    "adaptive-scaling": (_DRIVE, "--dimensions", "x,y", "--label-delay", "1s"),
    "histogram-binning": (_ARRAYS, "--rows", "0:700"),
    "isotonic-std": (_ARRAYS,),
    "isotonic-quantiles": (_ARRAYS,),
    "gp-normal": (_ARRAYS, "--rows", "0:400", "--inducing", "5"),
    "gp-beta": (_ARRAYS, "--rows", "0:150", "--dimensions", "x", "--inducing", "4"),
    "temperature": (_CLASSES,),
    "vector-scaling": (_CLASSES, "--reject-above-error", "0.1"),
    "classwise-isotonic": (_CLASSES,),
    "auxiliary-scaling": ("opinions.npz",),
}
_EVALUATIONS = {
    "exact": (_DRIVE, "--json"),
    "streaming": (_DRIVE, "--engine", "streaming", "--json"),
    "table": (_DRIVE, "--class", "car", "--dimensions", "x,y"),
    "equal-width": (_ARRAYS, "--binning", "equal-width", "--range", "0:2", "--json"),
    "model": (_DRIVE, "--dimensions", "x,y,z", "--model", "variance-scaling.json", "--json"),
    "fault": (_DRIVE, "--fault", "variance=0.2@t=2s", "--engine", "streaming", "--json"),
    "classes-exact": (_CLASSES, "--json"),
    "classes-streaming": (_CLASSES, "--engine", "streaming", "--json"),
    "opinions": ("opinions.npz", "--model", "auxiliary-scaling.json", "--json"),
}
_APPLICATIONS = {
    "variance-scaling": (_DRIVE, "--dimensions", "x,y,z", "--rows", "0:150"),
    "covariance-scaling": (_DRIVE, "--rows", "0:150"),
    "isotonic-quantiles": (_ARRAYS, "--rows", "0:100", "--tau", "0.05,0.5,0.95"),
    "gp-normal": (_ARRAYS, "--rows", "400:500"),
    "gp-beta": (_ARRAYS, "--rows", "0:50", "--dimensions", "x"),
    "vector-scaling": (_CLASSES, "--rows", "0:150"),
}
_REFUSALS = {
    "no-such-verb": ("recalibrate",),
    "no-such-option": ("evaluate", _DRIVE, "--colour", "red"),
    "no-such-file": ("evaluate", "missing.npz"),
    "no-such-dimension": ("evaluate", _DRIVE, "--dimensions", "x,w"),
    "bad-cell": ("evaluate", "bad-cell.csv"),
    "bad-key": ("serve", "--config", "bad-key.toml", "--check"),
    "bad-value": ("serve", "--config", "bad-value.toml", "--check"),
    "bad-model": ("apply", "bad-model.json", _DRIVE, "--output", "never.npz"),
    "bad-fault": ("replay", _DRIVE, "--fault", "mean=2"),
    "no-such-state": ("merge", "missing.state", "-o", "merged.state"),
}


def play_files(place: Place, run: Commands) -> None:
    """Fits, applies, evaluates and replays recorded files; then everything that is refused."""
    for method, options in _FITS.items():
        run(f"fit/{method}-said", "fit", *options, "--method", method, "--output", f"{method}.json")
        run.keep(f"fit/{method}.json", f"{method}.json")
    for name, options in _EVALUATIONS.items():
        run(f"evaluate/{name}", "evaluate", *options)
    for method, options in _APPLICATIONS.items():
        run(f"apply/{method}-said", "apply", f"{method}.json", *options, "--output", "applied.npz")
        run.keep(f"apply/{method}.json", "applied.npz")
    run("reference/said", "reference", _DRIVE, "--config", "sidecar.toml", "--output", "usual.json")
    run.keep("reference/usual.json", "usual.json")
    tracked = ("--ground-truth", "labels.csv.gz", "--ground-truth-delay", "1s")
    faulty = ("--fault", "variance=0.2@t=2s", "--config", "sidecar.toml")
    run("replay/tracked", "replay", _DRIVE, *tracked, *faulty, "--json")
    recalibrated = ("--dimensions", "x,y,z", "--recalibrator", "variance-scaling.json")
    run("replay/recalibrated", "replay", _ARRAYS, *recalibrated, "--slice-by", "class,stream")
    # It would name a folder of the tree.
    run("configuration/valid", "serve", "--config", "sidecar.toml", "--check", "--no-snapshot")
    run("configuration/demo", "demo", "--print-config")
    for name, words in _REFUSALS.items():
        run(f"refused/{name}", *words)


# ---- a live sidecar


@dataclass(slots=True)
class Sidecar:
    """Runs `serve`, and keeps the addresses it told and a channel to it."""

    place: Place
    process: subprocess.Popen[bytes] = field(init=False)
    channel: grpc.Channel = field(init=False)
    address: str = field(init=False)
    http: str = field(init=False)

    def __post_init__(self) -> None:
        command = [sys.executable, "-m", "monitor", "serve", "--config", "sidecar.toml"]
        command += ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [*command, "--never-shed"],
            cwd=self.place.files,
            env=self.place.environment,
            stdout=subprocess.PIPE,
            stderr=(self.place.files / "sidecar.log").open("ab"),
        )
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline().decode() if readable else ""
        if not line.startswith("listening "):
            self.kill()
            log = (self.place.files / "sidecar.log").read_text("utf-8")
            raise CannotPlay(f"{self.place.tree}: the sidecar did not start.\n{log}")
        told = json.loads(line.removeprefix("listening "))
        self.address, self.http = told["grpc"], told["http"]
        self.channel = grpc.insecure_channel(
            self.address, options=[("grpc.max_receive_message_length", -1)]
        )

    def ask(self, service: int, method: str, request: Message) -> bytes:
        """Asks once; returns the bytes of the answer. Raises CannotPlay where it is refused."""
        try:
            call = self.channel.unary_unary(f"{_SERVICES[service]}/{method}")
            answer: bytes = call(request.SerializeToString(), timeout=PATIENCE)
        except grpc.RpcError as error:
            raise CannotPlay(f"{self.place.tree}: {method} was refused: {error}") from None
        return answer

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=PATIENCE) as response:
            text: str = response.read().decode()
        return text

    def kill(self) -> None:
        """Kills it with -9, and waits until nothing is left of it."""
        self.process.kill()
        self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> int:
        """Sends SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


class Conversation:
    """Sends bytes on a stream, on which each message waits for its answer."""

    def __init__(self, sidecar: Sidecar, method: str) -> None:
        self._requests: queue.Queue[bytes | None] = queue.Queue()
        open_stream = sidecar.channel.stream_stream(f"{_SERVICES[0]}/{method}")
        self._answers = open_stream(iter(self._requests.get, None), timeout=10 * PATIENCE)

    def ask(self, data: bytes) -> bytes:
        self._requests.put(data)
        answer: bytes = next(self._answers)
        return answer

    def close(self) -> int:
        """Ends the stream in order; returns how many answers nobody had asked for."""
        self._requests.put(None)
        return sum(1 for _ in self._answers)


class Events:
    """Hears all that WatchEvents tells from now on."""

    def __init__(self, sidecar: Sidecar) -> None:
        call = sidecar.channel.unary_stream(f"{_SERVICES[0]}/WatchEvents")
        self._call = call(pb.WatchEventsRequest().SerializeToString(), timeout=10 * PATIENCE)
        self.heard = [_as_dict(pb.WatchEventsResponse.FromString(next(self._call)))]
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        try:
            for data in self._call:
                self.heard.append(_as_dict(pb.WatchEventsResponse.FromString(data)))
        except grpc.RpcError:
            pass  # the sidecar is gone

    def close(self) -> list[Any]:
        self._call.cancel()
        self._thread.join(PATIENCE)
        return self.heard


_PROMOTED = {
    "covariance-scaling": (_DRIVE, "--by", "class"),
    "vector-scaling": _FITS["vector-scaling"],
}


def play_live(place: Place, run: Commands) -> None:
    """Drives a sidecar, kills it behind a checkpoint, starts it again and drives on."""
    for method, options in _PROMOTED.items():
        file = f"promoted-{method}.json"
        run(f"live/fit-{method}", "fit", *options, "--method", method, "--output", file)
    steps = live_steps()
    sidecar = Sidecar(place)
    try:
        events = Events(sidecar)
        _send(place, sidecar, "live/1-alone", steps[:30])
        _look(place, sidecar, run, "live/1-alone")
        for method in _PROMOTED:
            _administer(
                run, sidecar, "live/2-promoted", "promote", "--file", f"promoted-{method}.json"
            )
        _send(place, sidecar, "live/2-promoted", steps[30:75])
        _look(place, sidecar, run, "live/2-promoted")
        _checkpoint(sidecar)
        sidecar.kill()
        place.write_json("live/events-before-kill.json", events.close())
        sidecar = Sidecar(place)
        events = Events(sidecar)
        _look(place, sidecar, run, "live/3-restarted")
        _send(place, sidecar, "live/4-goes-on", steps[75:105])
        _look(place, sidecar, run, "live/4-goes-on")
        at = ("--address", sidecar.address)
        run("live/4-goes-on/alarms", "alarms", "list", "--json", *at)
        run("live/4-goes-on/alarms-table", "alarms", "list", *at)
        actor = ("--actor", "same")
        run("live/4-goes-on/acknowledge", "alarms", "acknowledge", *actor, "--json", *at)
        _administer(run, sidecar, "live/4-goes-on", "fit")
        _send(place, sidecar, "live/5-on-trial", steps[105:])
        _look(place, sidecar, run, "live/5-on-trial")
        for action in ("pin", "rollback", "unpin"):
            _administer(run, sidecar, "live/6-administered", action)
        run("live/6-administered/list", "recalibrators", "list", *at)
        _look(place, sidecar, run, "live/6-administered")
        code = sidecar.stop()
        # A restart costs evidence of drift what was open: alarms come at other moments.
        told = [one for one in events.close() if "drift" not in one["event"]]
        place.write_json("live/events-after-kill.json", told)
        place.write("live/exit.txt", f"exit code {code}\n")
    finally:
        sidecar.kill()
    states = [f"{name}.state" for name in ("1-alone", "6-administered")]
    run("live/merge", "merge", *states, "-o", "merged.state", "--json")
    run.keep("live/merged.txt", "merged.state")


def _administer(run: Commands, sidecar: Sidecar, name: str, action: str, *words: str) -> None:
    """Changes recalibrators as a person does; what is said becomes a document."""
    suffix = "".join(f"-{Path(word).stem}" for word in words if word[0] != "-")
    words = (*words, "--actor", "same", "--address", sidecar.address)
    run(f"{name}/{action}{suffix}", "recalibrators", action, *words)


def _send(place: Place, sidecar: Sidecar, name: str, steps: Iterable[list[Step]]) -> None:
    """Sends frames and labels, and writes all answers; then waits until all is taken in."""
    streams = {stream: Conversation(sidecar, "Process") for stream in STREAMS}
    streams[TRUTH] = Conversation(sidecar, "ReportGroundTruth")
    answers: dict[str, list[Any]] = {to: [] for to in (*streams, UNARY)}
    for stream in STREAMS:
        header = pb.ProcessRequest(header=headers()[stream])
        answer = streams[stream].ask(header.SerializeToString())
        answers[stream].append(_with_bytes(pb.ProcessResponse, answer))
    for step in (step for of_period in steps for step in of_period):
        if step.to == UNARY:
            request = pb.ProcessFrameRequest.FromString(step.data)
            answer = sidecar.ask(0, "ProcessFrame", request)
            answers[UNARY].append(_with_bytes(pb.ProcessFrameResponse, answer))
        else:
            kind = pb.ReportGroundTruthResponse if step.to == TRUTH else pb.ProcessResponse
            answers[step.to].append(_with_bytes(kind, streams[step.to].ask(step.data)))
    for to, found in answers.items():
        place.write_json(f"{name}/answers-{to}.json", found)
    left = {to: stream.close() for to, stream in streams.items()}
    place.write_json(f"{name}/unasked-answers.json", left)


def _look(place: Place, sidecar: Sidecar, run: Commands, name: str) -> None:
    """Writes everything that the sidecar tells of itself."""
    place.write(f"{name}/metrics.txt", _settled(sidecar))
    for window, suffix in (("", ""), ("5m", "-5m")):
        request = pb.GetCalibrationRequest(include_bins=True, window=window)
        found = _with_bytes(pb.GetCalibrationResponse, sidecar.ask(0, "GetCalibration", request))
        place.write_json(f"{name}/calibration{suffix}.json", found)
    status = sidecar.ask(0, "GetStatus", status_pb2.GetStatusRequest())
    told = _as_dict(status_pb2.GetStatusResponse.FromString(status))
    place.write_json(f"{name}/status.json", told)
    listed = sidecar.ask(1, "List", admin_pb.ListRequest(records=1000))
    told = _as_dict(admin_pb.ListResponse.FromString(listed))
    place.write_json(f"{name}/recalibrators.json", told)
    export = sidecar.channel.unary_stream(f"{_SERVICES[0]}/ExportStatistics")
    parts = export(pb.ExportStatisticsRequest().SerializeToString(), timeout=PATIENCE)
    exported = [_with_bytes(pb.ExportStatisticsResponse, part) for part in parts]
    place.write_json(f"{name}/state.json", exported)
    file = f"{name.rpartition('/')[2]}.state"
    run(f"{name}/export", "export", "--address", sidecar.address, "-o", file, "--json")
    run.keep(f"{name}/exported.txt", file)


# ---- waiting


def _settled(sidecar: Sidecar) -> str:
    """Returns the metrics once nothing in them changes, but what depends on the clock."""

    def steady() -> str:
        text = sidecar.metrics()
        return "\n".join(line for line in text.splitlines() if not is_left_out("metrics.txt", line))

    time.sleep(_REST)
    end, before = time.monotonic() + PATIENCE, steady()
    while time.monotonic() < end:
        time.sleep(_REST)
        now = steady()
        if now == before:
            return sidecar.metrics()
        before = now
    raise CannotPlay(f"{sidecar.place.tree}: its metrics never come to rest.")


def _checkpoint(sidecar: Sidecar) -> None:
    """Waits until a checkpoint has been written three times: whatever was being written when we
    began is over, and what a tree writes more often has been written as well.
    """
    pattern = re.compile(r"^calibration_checkpoint_age_seconds (\S+)$", re.MULTILINE)
    end, before, written = time.monotonic() + PATIENCE, 0.0, 0
    while written < 3:
        found = pattern.search(sidecar.metrics())
        if found is None or time.monotonic() > end:
            raise CannotPlay(f"{sidecar.place.tree}: no checkpoint was written.")
        age = float(found[1])
        written += age < before
        before = age
        time.sleep(0.05)


# ---- documents


def _as_dict(message: Message) -> Any:
    return MessageToDict(message, preserving_proto_field_name=True)


def _with_bytes(kind: type[Message], data: bytes) -> Any:
    """Joins the fields, which tell what differs, and the bytes, in which everything does."""
    return {**_as_dict(kind.FromString(data)), "bytes": data.hex()}


PARTS: dict[str, Callable[[Place, Commands], None]] = {
    "files": play_files,
    "live": play_live,
    "help": play_help,
}
