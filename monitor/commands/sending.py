"""Plays recorded sequences to a sidecar, one started here in a process of its own if need be.

Each sequence is a stream, no frame left out: frames go out, answers come in, labels follow when
they are due. Tracks that come back are kept until the end of the replay.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from monitor.commands.sidecar_client import Client, Conversation, SidecarFailed
from monitor.frames.detections import IdArray
from monitor.frames.frame import Header, TrackIds, TrackStatus
from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.frames.status import TruthAccount
from monitor.store.recordings import Recording
from monitor.store.tables import NO_TRACK
from monitor.tracking.quality import FrameTracks
from monitor.wire.client_messages import (
    OutgoingFrame,
    decode_answer,
    decode_truth_answer,
    encode_frames,
    encode_truths,
    refused_or_shed,
)

_START_SECONDS = 30.0
_STOP_SECONDS = 15.0  # above [server] grace_seconds
_LISTENING = "listening "
_TAIL_LINES = 10

# Rows in a frame where the file does not say which rows belong together.
ROWS_WITHOUT_FRAMES = 200

# Rows whose frames are encoded at once: some megabytes.
_BLOCK = 8192

# Seconds between frames where the file has no times.
PERIOD = 0.1

# Frames on their way at a time.
WINDOW = 16

# Sequences played at a time.
SIDE_BY_SIDE = 8


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a sidecar listens, each as host:port."""

    grpc: str
    http: str


@dataclass(frozen=True, slots=True)
class PlayedFrame:
    """A frame with its truth, both encoded.

    classes  of its detections, as positions in the header's names
    labels   how many detections have truth, told in the message `label`
    ignore   (N,) which detections are neither true nor false
    """

    number: int
    time_s: float
    message: bytes
    classes: frozenset[int]
    labels: int
    label: bytes
    ignore: BoolArray


@dataclass(frozen=True, slots=True)
class RecordedSequence:
    """One sequence of a recording: the rows of each frame, from frame 0 to its last."""

    name: str
    recording: Recording
    header: Header
    rows: IntArray
    frame_of_row: IntArray
    times: FloatArray

    @property
    def frames(self) -> int:
        """Number of frames, empty ones included."""
        return int(self.times.size)

    def play(self) -> Iterator[PlayedFrame]:
        """Yields the frames in order. Many are encoded at once, which takes a third of the time."""
        ends = np.searchsorted(self.frame_of_row, np.arange(self.frames), side="right")
        first = 0
        while first < self.frames:
            begin = int(ends[first - 1]) if first else 0
            last = int(np.searchsorted(ends, begin + _BLOCK, side="right"))
            yield from self._encoded(first, ends[first : max(last, first + 1)] - begin, begin)
            first = max(last, first + 1)

    def _encoded(self, first: int, ends: IntArray, begin: int) -> Iterator[PlayedFrame]:
        """Encodes consecutive frames.

        ends   where each ends among their rows
        begin  how many rows lie before them
        """
        recording, track = self.recording, self.recording.track
        rows = self.rows[begin : begin + int(ends[-1])]
        numbers = range(first, first + ends.size)
        times = self.times[first : first + ends.size].tolist()
        begins = np.append(0, ends[:-1])
        ids = (np.arange(rows.size) - np.repeat(begins, ends - begins)).astype(np.uint64)
        stamps = [round(time_s * 1e9) for time_s in times]
        listed = ends.tolist()
        if recording.assumed[rows].any():
            # Frames differ in whether they have any covariance.
            messages = [
                encode_frames([number], [stamp], [end - at], self.sent(rows[at:end], ids[at:end]))[
                    0
                ]
                for number, stamp, at, end in zip(
                    numbers, stamps, begins.tolist(), listed, strict=True
                )
            ]
        else:
            messages = encode_frames(numbers, stamps, listed, self.sent(rows, ids))
        labelled = np.flatnonzero(np.isfinite(recording.truth[rows, 0]))
        true = rows[labelled]
        # Different ids for different tracks, negative ones too.
        objects = None
        if track is not None:
            objects = TrackIds(track[true].astype(np.uint64), track[true] != NO_TRACK)
        label_ends = np.searchsorted(labelled, ends)
        labels = encode_truths(
            self.header.stream,
            numbers,
            label_ends.tolist(),
            ids[labelled],
            recording.truth[true],
            objects,
        )
        counts = np.diff(label_ends, prepend=0).tolist()
        ignore = np.zeros(rows.size, bool) if recording.ignore is None else recording.ignore[rows]
        index = recording.class_index[rows]
        one_class = len(recording.classes) == 1
        for i, (at, end) in enumerate(zip(begins.tolist(), listed, strict=True)):
            classes = index[at : min(end, at + 1)] if one_class else index[at:end]
            yield PlayedFrame(
                first + i,
                times[i],
                messages[i],
                frozenset(classes.tolist()),
                counts[i],
                labels[i],
                ignore[at:end],
            )

    def sent(self, rows: IntArray, ids: IdArray) -> OutgoingFrame:
        """Gives what is sent of some rows, with ids (n,) of the detections."""
        recording = self.recording
        return OutgoingFrame(
            frame_id=0,
            stamp_ns=0,
            id=ids,
            class_index=recording.class_index[rows],
            mean=recording.mean[rows],
            covariance=_sent(recording, rows),
            score=None if recording.score is None else recording.score[rows],
        )


def _sent(recording: Recording, rows: IntArray) -> FloatArray | None:
    """(n, K, K), or variances (n, K), to be sent; None where no row of the frame has a covariance.

    Where some have one, zeros stand for none.
    """
    assumed = recording.assumed[rows]
    if assumed.all():
        return None
    covariance = recording.covariance[rows]
    covariance[assumed] = 0.0
    return np.einsum("nkk->nk", covariance) if recording.diagonal else covariance


@dataclass(slots=True)
class TrackRecord:
    """The tracks of one sequence.

    dimensions  of their states, as the sidecar names them; empty where it does not track
    frames      of each frame that was answered, from frame 0 on
    """

    sequence: RecordedSequence
    dimensions: tuple[str, ...]
    frames: list[FrameTracks] = field(default_factory=list)

    def add(self, played: PlayedFrame, answer: bytes) -> None:
        """Keeps the tracks of the next frame that stand for an object in it."""
        if not self.dimensions:
            return
        tracks = decode_answer(answer, self.sequence.header.space.k).tracks
        rows = np.flatnonzero((tracks.status == TrackStatus.CONFIRMED) & tracks.has_detection)
        s = len(self.dimensions)
        self.frames.append(
            FrameTracks(
                id=tracks.id[rows],
                class_index=tracks.class_index[rows],
                # Ids of detections are their positions in the frame.
                ignore=played.ignore[tracks.detection_id[rows].astype(np.int64)],
                nis=tracks.nis[rows],
                # Where there is no track at all, the state has no dimensions either.
                state=tracks.state[rows].reshape(rows.size, s),
                covariance=tracks.covariance[rows].reshape(rows.size, s, s),
            )
        )


def first_error(error: Exception) -> Exception:
    """The first error of a group of tasks, groups in groups included; or the error itself."""
    return first_error(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


@contextlib.contextmanager
def running_sidecar(config_toml: str) -> Iterator[Addresses]:
    """Starts a sidecar with this configuration on free ports, for as long as the context lasts.

    What it counts ends with it, whatever [state] says. At the end it is asked to
    stop by SIGTERM and must end with code 0. It never outlives this process, however
    that ends: its standard input closes with us. An error of the body that comes from
    the sidecar's own end is replaced by one that says so.

    Raises SidecarFailed, with the end of the sidecar's log.
    """
    with tempfile.TemporaryDirectory(prefix="calibration-monitor-") as folder:
        config, log = Path(folder) / "sidecar.toml", Path(folder) / "log"
        config.write_text(config_toml, encoding="utf-8")
        process = _start(config, log)
        try:
            yield _addresses(process, log)
            if process.poll() is not None:
                raise _ended(process, log)
            _stop(process, log)
        except ConnectionError as error:
            # The stream breaks a moment before the process is gone.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            if process.returncode is None or isinstance(error, SidecarFailed):
                raise
            raise _ended(process, log) from error
        finally:
            with process:  # waits for it, and closes its pipes
                process.kill()


def _start(config: Path, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "monitor", "serve", "--config", str(config)]
    command += ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
    with log.open("wb") as stderr:
        return subprocess.Popen(
            [*command, "--exit-with-parent", "--no-state", "--never-shed"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            process_group=0,  # Ctrl-C in the terminal is for us; we stop the sidecar
        )


def _addresses(process: subprocess.Popen[bytes], log: Path) -> Addresses:
    assert process.stdout is not None
    too_late = threading.Timer(_START_SECONDS, process.kill)
    too_late.start()
    try:
        line = process.stdout.readline().decode("utf-8", "replace")
    finally:
        too_late.cancel()
    if not line.startswith(_LISTENING):
        code = process.wait()
        raise _failed(log, f"did not start (exit code {code})")
    return Addresses(**json.loads(line.removeprefix(_LISTENING)))


def _stop(process: subprocess.Popen[bytes], log: Path) -> None:
    process.terminate()
    try:
        code = process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        raise _failed(log, f"did not stop within {_STOP_SECONDS:g} s of SIGTERM") from None
    if code != 0:
        raise _failed(log, f"stopped with exit code {code}")


def _ended(process: subprocess.Popen[bytes], log: Path) -> SidecarFailed:
    code = process.returncode
    how = f"was killed by signal {-code}" if code < 0 else f"ended by itself with exit code {code}"
    return _failed(log, f"{how} while it was needed")


def _failed(log: Path, how: str) -> SidecarFailed:
    """Says how the sidecar failed, and shows the end of its log."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
    shown = ["The end of its log:", *(f"  {line}" for line in lines)] if lines else []
    return SidecarFailed("\n".join([f"the sidecar {how}.", *shown]))


def sequences(recording: Recording, prefix: str) -> list[RecordedSequence]:
    """Divides a recording into sequences; streams are named after them, behind the prefix.

    Raises ValueError where the frame numbers cannot be played.
    """
    found = []
    for i, name in enumerate(recording.sequences):
        rows = np.flatnonzero(recording.sequence_index == i)
        if recording.frame is None:
            number = np.arange(rows.size) // ROWS_WITHOUT_FRAMES
            last = int(number[-1])
        else:
            number = recording.frame[rows]
            last = recording.last_frame[name]
        if number.min() < 0 or last > 10_000_000:
            raise ValueError(
                f"sequence {name} has frame numbers from {number.min()} to {last}: "
                "they must lie between 0 and 10000000. Renumber the frames."
            )
        order = np.argsort(number, kind="stable")
        space = replace(recording.space, assumed=False)
        header = Header(f"{prefix}{name}", space, recording.classes)
        time = None if recording.time_s is None else recording.time_s[rows[order]]
        times = _times(number[order], time, last)
        found.append(RecordedSequence(name, recording, header, rows[order], number[order], times))
    return found


def _times(number: IntArray, time: FloatArray | None, last: int) -> FloatArray:
    """Seconds of every frame from 0 to last; frames without rows lie evenly between the others."""
    frames = np.arange(last + 1)
    if time is None:
        return np.asarray(frames * PERIOD, dtype=np.float64)
    seen, first = np.unique(number, return_index=True)
    at = time[first]
    steps = np.diff(at) / np.diff(seen) if seen.size > 1 else np.array([PERIOD])
    period = float(np.median(steps))
    beyond = frames - np.clip(frames, seen[0], seen[-1])
    return np.asarray(np.interp(frames, seen, at) + beyond * period)


def interleaved_frames(
    played: list[RecordedSequence], at_once: int
) -> Iterator[tuple[float, int, PlayedFrame]]:
    """Orders the frames of sequences by time, with so many sequences at once; the next sequence
    begins where one ends. Yields seconds since the start, the number of the sequence, the frame.
    """
    others = enumerate(played)
    going: list[tuple[float, int, PlayedFrame, float, Iterator[PlayedFrame]]] = []

    def begin(at_s: float) -> None:
        if (other := next(others, None)) is not None:
            number, sequence = other
            frames, offset_s = sequence.play(), at_s - float(sequence.times[0])
            heapq.heappush(going, (at_s, number, next(frames), offset_s, frames))

    for _ in range(at_once):
        begin(0.0)
    while going:
        at_s, number, frame, offset_s, frames = heapq.heappop(going)
        yield at_s, number, frame
        after = next(frames, None)
        if after is None:
            begin(at_s)
        else:
            heapq.heappush(going, (after.time_s + offset_s, number, after, offset_s, frames))


@dataclass(slots=True)
class _Stream:
    """The frames of one sequence on their way.

    classes  of which a frame was sent
    """

    frames: Conversation
    tracks: TrackRecord
    classes: set[int] = field(default_factory=set)


# When it is played, of which stream, and the frame.
_Sent: TypeAlias = tuple[float, _Stream, PlayedFrame]


@dataclass(slots=True)
class Playback:
    """Plays sequences over a stream of frames each and one stream of labels; counts what comes.

    Sending and reading never wait for each other: with large frames a sidecar that
    waits to be read does not read either.

    speed     times the recorded pace
    delay     s of event time by which labels come late; infinity: they never come
    tracking  whether tracks are asked for; they are kept in `tracks`, by sequence
    shed      frames that were answered and not counted, for overload
    done      is told of each frame that was answered
    """

    played: list[RecordedSequence]
    speed: float = math.inf
    delay: float = 0.0
    tracking: bool = False
    tracks: list[TrackRecord] = field(default_factory=list)
    frames: int = 0
    detections: int = 0
    labels: int = 0
    account: TruthAccount = field(default_factory=TruthAccount)
    complaint: str = ""
    shed: int = 0
    done: Callable[[float], object] = lambda frames: None
    # Frames on their way; None: no more.
    _asked: asyncio.Queue[_Sent | None] = field(default_factory=lambda: asyncio.Queue(WINDOW))
    # Those that were answered, and whose labels are not due yet.
    _waiting: deque[_Sent] = field(default_factory=deque)
    # Numbers of labels in the messages on their way; None: no more.
    _told: asyncio.Queue[int | None] = field(default_factory=lambda: asyncio.Queue(WINDOW))

    async def play(self, client: Client) -> None:
        """Plays the sequences, some of them side by side, until all is answered.

        Labels of all sequences go over one stream, in the order of their frames: evidence of drift
        depends on the order of labels, which must not depend on the stream that is served first.
        """
        labels = client.truth()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send_frames(client))
            tasks.create_task(self._read_answers(labels))
            tasks.create_task(self._read_accounts(labels))

    async def _send_frames(self, client: Client) -> None:
        began, streams = time.monotonic(), dict[int, _Stream]()
        for at_s, number, frame in interleaved_frames(self.played, SIDE_BY_SIDE):
            if math.isfinite(self.speed):
                await asyncio.sleep(max(0.0, began + at_s / self.speed - time.monotonic()))
            sequence = self.played[number]
            if number not in streams:
                header = replace(sequence.header, return_tracks=self.tracking)
                frames = await client.open(header)
                self.tracks.append(TrackRecord(sequence, frames.track_dimensions))
                streams[number] = _Stream(frames, self.tracks[-1])
            await self._send(at_s, streams[number], frame)
            if frame.number == sequence.frames - 1:
                await streams.pop(number).frames.close()
        await self._asked.put(None)

    async def _send(self, at_s: float, stream: _Stream, played: PlayedFrame) -> None:
        classes = played.classes
        # The sidecar numbers slices in the order of arrival, over all streams: a frame with a class
        # that is new to its stream goes alone, so that the numbers are the same at every replay.
        alone = not classes <= stream.classes
        if alone:
            stream.classes |= classes
            await self._asked.join()
        await self._asked.put((at_s, stream, played))
        await stream.frames.send(played.message)
        if alone:
            await self._asked.join()

    async def _read_answers(self, labels: Conversation) -> None:
        """Reads answers, and sends the labels of a frame once event time is `delay` beyond it."""
        while (one := await self._asked.get()) is not None:
            at_s, stream, played = one
            answer = await stream.frames.receive()
            complaint, shed = refused_or_shed(answer)
            if complaint is not None:
                name = stream.tracks.sequence.header.stream
                raise ValueError(f"frame {played.number} of {name}: {complaint}")
            stream.tracks.add(played, answer)
            self.frames += 1
            self.done(1)
            self.shed += shed
            self.detections += played.ignore.size
            self._waiting.append(one)
            await self._send_labels(labels, until_s=at_s - self.delay)
            self._asked.task_done()
        if math.isfinite(self.delay):
            await self._send_labels(labels, until_s=math.inf)
        await self._told.put(None)
        await labels.close()

    async def _send_labels(self, labels: Conversation, until_s: float) -> None:
        while self._waiting and self._waiting[0][0] <= until_s:
            _, _, played = self._waiting.popleft()
            if played.labels:
                await self._told.put(played.labels)
                await labels.send(played.label)

    async def _read_accounts(self, labels: Conversation) -> None:
        while (told := await self._told.get()) is not None:
            account, complaint = decode_truth_answer(await labels.receive())
            self.labels += told
            self.account.add(account)
            self.complaint = self.complaint or complaint
