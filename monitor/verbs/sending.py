"""Plays sequences to a sidecar: frames out, answers in, and the labels when they are due.

The tracks that come back are kept until the end of the replay.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from monitor.counters import TruthAccount
from monitor.edges.answered import AnsweredTracks, decode_answer, decode_truth_answer, refused
from monitor.edges.client import Client, Conversation
from monitor.edges.requests import encode_frame, encode_truth
from monitor.tracking.quality import FrameTracks
from monitor.tracking.reported import TrackStatus
from monitor.verbs.playback import PlayedFrame, Sequence

# Frames on their way at a time.
WINDOW = 16
# Sequences played at a time.
SIDE_BY_SIDE = 8


@dataclass(slots=True)
class Tally:
    """What was sent and what came back."""

    frames: int = 0
    detections: int = 0
    labels: int = 0
    account: TruthAccount = field(default_factory=TruthAccount)
    complaint: str = ""


@dataclass(slots=True)
class TrackRecord:
    """The tracks of one sequence.

    dimensions  of their states, as the sidecar names them; empty where it does not track
    frames      of each frame that was answered, from frame 0 on
    """

    sequence: Sequence
    dimensions: tuple[str, ...] = ()
    frames: list[FrameTracks] = field(default_factory=list)

    def add(self, played: PlayedFrame, answer: bytes) -> None:
        """Keep the tracks of the next frame that stand for an object in it."""
        if self.dimensions:
            tracks = decode_answer(answer, self.sequence.header.space.k).tracks
            self.frames.append(_confirmed(tracks, played, len(self.dimensions)))


TracksByStream = Mapping[str, TrackRecord]


@dataclass(frozen=True, slots=True)
class Manner:
    """How sequences are played.

    speed   times the recorded pace
    delay   s of event time by which labels come late; infinity: they never come
    tracks  where those that come back are kept; none are asked for of a stream without one
    """

    speed: float = math.inf
    delay: float = 0.0
    tracks: TracksByStream = field(default_factory=dict)


def new_records(played: list[Sequence]) -> TracksByStream:
    """Empty ones for sequences that will be played."""
    return {sequence.header.stream: TrackRecord(sequence) for sequence in played}


async def play(client: Client, played: list[Sequence], manner: Manner, tally: Tally) -> None:
    """Play sequences, some of them side by side, until all is answered.

    Labels of all sequences go over one stream, in the order of their frames: evidence of drift
    depends on the order of labels, which must not depend on the stream that is served first.
    """
    playing = _Playing(client, manner, tally, client.truth())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(playing.send_frames(played))
        tasks.create_task(playing.read_answers())
        tasks.create_task(playing.read_accounts())


def side_by_side(played: list[Sequence], at_once: int) -> Iterator[tuple[float, int, PlayedFrame]]:
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

    sequence: Sequence
    frames: Conversation
    tracks: TrackRecord | None
    classes: set[int] = field(default_factory=set)


# When it is played, of which stream, and the frame.
_Sent: TypeAlias = tuple[float, _Stream, PlayedFrame]


@dataclass(slots=True)
class _Playing:
    """Sequences over a stream of frames each and one stream of labels.

    Sending and reading never wait for each other: with large frames a sidecar that
    waits to be read does not read either.

    asked    frames on their way; None: no more
    waiting  those that were answered, and whose labels are not due yet
    told     numbers of labels in the messages on their way; None: no more
    """

    client: Client
    manner: Manner
    tally: Tally
    labels: Conversation
    asked: asyncio.Queue[_Sent | None] = field(default_factory=lambda: asyncio.Queue(WINDOW))
    waiting: deque[_Sent] = field(default_factory=deque)
    told: asyncio.Queue[int | None] = field(default_factory=lambda: asyncio.Queue(WINDOW))

    async def send_frames(self, played: list[Sequence]) -> None:
        began, streams = time.monotonic(), dict[int, _Stream]()
        for at_s, number, frame in side_by_side(played, SIDE_BY_SIDE):
            if math.isfinite(self.manner.speed):
                due = began + at_s / self.manner.speed
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            if number not in streams:
                streams[number] = await self._opened(played[number])
            await self._send(at_s, streams[number], frame)
            if frame.frame.frame_id == played[number].frames - 1:
                await streams.pop(number).frames.close()
        await self.asked.put(None)

    async def _opened(self, sequence: Sequence) -> _Stream:
        tracks = self.manner.tracks.get(sequence.header.stream)
        header = replace(sequence.header, return_tracks=tracks is not None)
        frames = await self.client.open(header)
        if tracks is not None:
            tracks.dimensions = frames.track_dimensions
        return _Stream(sequence, frames, tracks)

    async def _send(self, at_s: float, stream: _Stream, played: PlayedFrame) -> None:
        classes = set(played.frame.class_index.tolist())
        # The sidecar numbers slices in the order of arrival, over all streams: a frame with a class
        # that is new to its stream goes alone, so that the numbers are the same at every replay.
        alone = not classes <= stream.classes
        if alone:
            stream.classes |= classes
            await self.asked.join()
        await self.asked.put((at_s, stream, played))
        await stream.frames.send(encode_frame(played.frame))
        if alone:
            await self.asked.join()

    async def read_answers(self) -> None:
        """Reads answers, and sends the labels of a frame once event time is `delay` beyond it."""
        while (one := await self.asked.get()) is not None:
            at_s, stream, played = one
            answer = await stream.frames.receive()
            complaint = refused(answer)
            if complaint is not None:
                name = stream.sequence.header.stream
                raise ValueError(f"frame {played.frame.frame_id} of {name}: {complaint}")
            if stream.tracks is not None:
                stream.tracks.add(played, answer)
            self.tally.frames += 1
            self.tally.detections += played.frame.id.size
            self.waiting.append(one)
            await self._send_labels(until_s=at_s - self.manner.delay)
            self.asked.task_done()
        if math.isfinite(self.manner.delay):
            await self._send_labels(until_s=math.inf)
        await self.told.put(None)
        await self.labels.close()

    async def _send_labels(self, until_s: float) -> None:
        while self.waiting and self.waiting[0][0] <= until_s:
            _, stream, played = self.waiting.popleft()
            if played.labelled.size == 0:
                continue
            frame, name = played.frame, stream.sequence.header.stream
            ids = frame.id[played.labelled]
            await self.told.put(ids.size)
            objects = played.objects
            label = encode_truth(name, frame.frame_id, ids, played.truth, objects=objects)
            await self.labels.send(label)

    async def read_accounts(self) -> None:
        while (labels := await self.told.get()) is not None:
            account, complaint = decode_truth_answer(await self.labels.receive())
            self.tally.labels += labels
            self.tally.account.add(account)
            self.tally.complaint = self.tally.complaint or complaint


def _confirmed(tracks: AnsweredTracks, played: PlayedFrame, s: int) -> FrameTracks:
    rows = np.flatnonzero((tracks.status == TrackStatus.CONFIRMED) & tracks.has_detection)
    # Ids of detections are their positions in the frame.
    detection = tracks.detection_id[rows].astype(np.int64)
    return FrameTracks(
        id=tracks.id[rows],
        class_index=tracks.class_index[rows],
        ignore=played.ignore[detection],
        nis=tracks.nis[rows],
        # Where there is no track at all, the state has no dimensions either.
        state=tracks.state[rows].reshape(rows.size, s),
        covariance=tracks.covariance[rows].reshape(rows.size, s, s),
    )
