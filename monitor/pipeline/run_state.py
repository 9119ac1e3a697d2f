"""Keeps what decides how the next frame is counted, and is in no sum of the statistics.

These are clocks, streams, tracks that go on, and the account of detections and labels. A checkpoint
holds them, so that a restarted sidecar goes on as if it had never stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated

import numpy as np

from monitor.frames.counters import TruthAccount
from monitor.frames.frame import Header
from monitor.frames.marks import ArrayForm, Count, Nanoseconds
from monitor.frames.space import FloatArray, IntArray, Space
from monitor.frames.stored import SliceKey
from monitor.pipeline.accounts import SHARES
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.pending import Dropped
from monitor.pipeline.streams import EventTime
from monitor.statistics.clusters import ALONE, ClusterArray, ClusterState
from monitor.store.codec import Codec


@dataclass(frozen=True, eq=False, slots=True)
class OpenTracks:
    """The tracks of one space that may go on; fields as in ClusterState.

    sums  (A · C,) axis by axis
    """

    space: Space
    counted: Count
    ids: Annotated[ClusterArray, ArrayForm(np.uint64, (None,))]
    last: Annotated[IntArray, ArrayForm(np.int64, (None,), 0)]
    rows: Annotated[FloatArray, ArrayForm(np.float64, (None,), 0.0)]
    sums: Annotated[FloatArray, ArrayForm(np.float64, (None,))]

    def __post_init__(self) -> None:
        n = self.ids.size
        if (self.ids == ALONE).any() or (self.ids[1:] <= self.ids[:-1]).any():
            raise ValueError("'ids' do not ascend above 0")
        if (self.last.size, self.rows.size, self.sums.size) != (n, n, n * self.axes):
            raise ValueError(f"'last', 'rows' and 'sums' are not of {n} tracks")
        if self.last.max(initial=-1) >= self.counted:
            raise ValueError(f"'last' are not all within the {self.counted} rows counted")

    @property
    def axes(self) -> int:
        """Counts the axes of the space, A."""
        return 2 * (self.space.k + 1)

    @property
    def clusters(self) -> ClusterState:
        """Returns them as the statistics take them."""
        sums = self.sums.reshape(self.axes, -1)
        return ClusterState(self.axes, self.counted, self.ids, self.last, self.rows, sums)


@dataclass(frozen=True, slots=True)
class KnownStream:
    """Holds what is known of a stream.

    number                   tells its tracks from those of others
    watermark_ns, latest_ns  as in EventTime
    """

    header: Header
    number: Count
    watermark_ns: Nanoseconds | None = None
    latest_ns: Nanoseconds | None = None


@dataclass(frozen=True, slots=True)
class SliceShare:
    """Detections of one slice by what became of them; counts as in SliceShares.

    chain  names by which the slice has recalibrators, as in SliceTable
    """

    space: Space
    key: SliceKey
    chain: tuple[str, ...] = ()
    predicted: int = 0
    labelled: int = 0
    gated: int = 0
    near_gate: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class RunState:
    """Holds what decides how the next frame is counted.

    sequence    of the last entry of the ledger; 0: of none
    now_ns, votes, other_ns, jumps
                of the EventClock
    generation  how often event time had begun anew
    numbered    streams numbered so far
    epoch       of the wall clock
    begins      the first entry of the ledger that is in the account
    in_memory   detections that waited in memory alone
    on_disk     detections that wait in the ledger, by partition
    account     detections by what became of them
    labels      by what became of them
    """

    sequence: Count
    now_ns: Nanoseconds | None = None
    votes: Count = 0
    other_ns: Nanoseconds = 0
    jumps: Count = 0
    generation: Count = 0
    numbered: Count = 0
    epoch: Count = 0
    begins: Count = 0
    in_memory: Count = 0
    on_disk: tuple[tuple[int, Count], ...] = ()
    account: Mapping[str, int] = field(default_factory=dict)
    labels: TruthAccount = field(default_factory=TruthAccount)
    streams: tuple[KnownStream, ...] = ()
    shares: tuple[SliceShare, ...] = ()
    tracks: tuple[OpenTracks, ...] = ()


RUN_STATE = Codec(
    RunState,
    "run",
    "Use a file that this monitor wrote, or remove it: all is then counted anew.",
    "calibration-monitor/run/1",
)


def run_state_of(pipeline: Pipeline) -> RunState:
    """Returns the state of a pipeline as of now, but for the tracks that go on."""
    ledger, live = pipeline.ledger, pipeline.live
    clock, fates = live.clock, ledger.fates
    return RunState(
        sequence=ledger.sequence,
        now_ns=clock.now_ns,
        votes=clock.votes,
        other_ns=clock.other_ns,
        jumps=clock.jumps,
        generation=live.generation,
        numbered=pipeline.numbered,
        epoch=ledger.epoch,
        begins=ledger.begins,
        in_memory=fates.store.unkept,
        on_disk=tuple((+fates.waiting).items()),
        account=dict(fates.account),
        labels=replace(pipeline.counters.truth),
        streams=tuple(
            KnownStream(
                # What its connection asks for is asked for anew.
                Header(
                    s.header.stream, s.header.space, s.header.classes, s.header.coordinate_frame
                ),
                *(s.number, s.time.watermark_ns, s.time.latest_ns),
            )
            for s in pipeline.streams.values()
        ),
        shares=tuple(
            SliceShare(
                entry.space,
                SliceKey(entry.key, entry.overflow),
                live.slices.chains[index],
                *(fates.shares.of(name, index) for name in SHARES),
            )
            for index, entry in enumerate(live.slices.slices)
        ),
    )


def with_tracks(state: RunState, pipeline: Pipeline) -> RunState:
    """Adds the tracks that go on, as of all rows that are folded by now."""
    clusters = pipeline.live.accumulator.clusters()
    return replace(
        state,
        tracks=tuple(
            OpenTracks(space, one.counted, one.ids, one.last, one.rows, one.sums.ravel())
            for space, one in clusters.items()
        ),
    )


def restore_run(pipeline: Pipeline, state: RunState) -> None:
    """Goes on in a pipeline that has the statistics already, and has seen nothing yet."""
    ledger, live = pipeline.ledger, pipeline.live
    ledger.sequence, ledger.begins = max(ledger.sequence, state.sequence), state.begins
    ledger.epoch, live.generation = state.epoch, state.generation
    clock, fates = live.clock, ledger.fates
    # The panes may have moved on farther while they were read; what was then seen is seen again.
    clock.now_ns, clock.votes = state.now_ns, state.votes
    clock.other_ns, clock.jumps = state.other_ns, state.jumps
    live.accumulator.restore_clusters({one.space: one.clusters for one in state.tracks})
    pipeline.numbered = max(pipeline.numbered, state.numbered)
    for stream in state.streams:
        time = EventTime(stream.watermark_ns, stream.latest_ns)
        pipeline.restore_stream(stream.header, stream.number, time)
    for name in fates.account:
        fates.account[name] = state.account.get(name, 0)
    for name, count in asdict(state.labels).items():
        setattr(pipeline.counters.truth, name, count)
    fates.waiting.update(dict(state.on_disk))
    fates.account[f"dropped_{Dropped.RESTART}"] += state.in_memory
    for share in state.shares:
        index = live.slices.place(share.space, share.key.name, overflow=share.key.overflow)
        live.slices.chains[index] = share.chain
        for name in SHARES:
            fates.shares.put(name, index, getattr(share, name))
