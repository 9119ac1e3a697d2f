"""Plays sequences to a sidecar: frames out, answers in, and the labels when they are due.

The tracks that come back are kept until the end of the replay.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

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
    """Play sequences, some of them side by side, until all is answered."""
    gate = asyncio.Semaphore(SIDE_BY_SIDE)
    async with asyncio.TaskGroup() as tasks:
        for sequence in played:
            tasks.create_task(_play(client, sequence, manner, tally, gate))


async def _play(
    client: Client, sequence: Sequence, manner: Manner, tally: Tally, gate: asyncio.Semaphore
) -> None:
    async with gate:
        tracks = manner.tracks.get(sequence.header.stream)
        header = replace(sequence.header, return_tracks=tracks is not None)
        frames = await client.open(header)
        if tracks is not None:
            tracks.dimensions = frames.track_dimensions
        played = _Played(sequence, frames, client.truth(), tally, tracks)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(played.send_frames(manner.speed))
            tasks.create_task(played.read_answers(manner.delay))
            tasks.create_task(played.read_accounts())


@dataclass(frozen=True, slots=True)
class _Played:
    """One sequence over a stream of frames and a stream of labels.

    Sending and reading never wait for each other: with large frames a sidecar that
    waits to be read does not read either.

    asked  frames on their way; None: no more
    told   numbers of labels in the messages on their way; None: no more
    """

    sequence: Sequence
    frames: Conversation
    labels: Conversation
    tally: Tally
    tracks: TrackRecord | None
    asked: asyncio.Queue[PlayedFrame | None] = field(default_factory=lambda: asyncio.Queue(WINDOW))
    told: asyncio.Queue[int | None] = field(default_factory=lambda: asyncio.Queue(WINDOW))

    async def send_frames(self, speed: float) -> None:
        began = time.monotonic()
        for played in self.sequence.play():
            if math.isfinite(speed):
                due = began + (played.time_s - self.sequence.times[0]) / speed
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            await self.asked.put(played)
            await self.frames.send(encode_frame(played.frame))
        await self.asked.put(None)
        await self.frames.close()

    async def read_answers(self, delay: float) -> None:
        """And send the labels, each when event time has gone `delay` beyond its frame."""
        waiting: deque[PlayedFrame] = deque()
        while (played := await self.asked.get()) is not None:
            answer = await self.frames.receive()
            complaint = refused(answer)
            if complaint is not None:
                stream = self.sequence.header.stream
                raise ValueError(f"frame {played.frame.frame_id} of {stream}: {complaint}")
            if self.tracks is not None:
                self.tracks.add(played, answer)
            self.tally.frames += 1
            self.tally.detections += played.frame.id.size
            waiting.append(played)
            while waiting and waiting[0].time_s <= played.time_s - delay:
                await self._send_labels(waiting.popleft())
        for played in waiting if math.isfinite(delay) else ():
            await self._send_labels(played)
        await self.told.put(None)
        await self.labels.close()

    async def _send_labels(self, played: PlayedFrame) -> None:
        if played.labelled.size == 0:
            return
        frame = played.frame
        ids = frame.id[played.labelled]
        await self.told.put(ids.size)
        stream = self.sequence.header.stream
        objects = played.objects
        label = encode_truth(stream, frame.frame_id, ids, played.truth, objects=objects)
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
