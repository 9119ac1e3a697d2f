"""The stages in order, and the owner of all live state: streams, the promoted
recalibrator, frames in waiting, statistics, counts.

Runs on one event loop and nowhere else, so there is no lock. Nothing here blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from dataclasses import dataclass, field, replace

import numpy as np

from monitor.calibration.binning import Binning, LogBins
from monitor.calibration.detections import Examined, Limits, Reason, examine
from monitor.calibration.matched import MatchedRows, SliceAccumulator, SliceStatistics
from monitor.calibration.notices import NO_FRAME_ID, Notice, describe, duplicate_frame
from monitor.calibration.slices import SliceTable, StreamSlices
from monitor.calibration.space import BoolArray, FloatArray, IntArray, Space
from monitor.calibration.steps import finished
from monitor.config import Config, Mode, TrackerKind
from monitor.counters import Counters, TruthAccount
from monitor.frames import (
    FrameAnswer,
    Header,
    ReceivedFrame,
    ReceivedTruth,
    Refusal,
    TruthAnswer,
)
from monitor.headers import refuse_header
from monitor.matching import match_by_id, orphan_notice
from monitor.pending import PendingFrame, PendingStore, pending_frame
from monitor.recalibration.recalibrator import Estimates, InvalidRecalibrator
from monitor.recalibration.selection import IDENTITY, Selection, from_json
from monitor.recalibration.soundness import sound_rows
from monitor.stream_tracker import StreamTracker, Tracked, stream_tracker
from monitor.totals import SliceTotals
from monitor.track_readings import TrackReading, read_tracks
from monitor.tracking.motion import one_second
from monitor.tracking.settings import TrackerSettings

log = logging.getLogger(__name__)

# Names of slices, totals last, with their statistics.
SlicesRead = tuple[tuple[str, SliceStatistics], ...]


@dataclass(slots=True)
class EventTime:
    """How far a stream's event time has come.

    watermark_ns  event time that is over but for stragglers; never moves back
    """

    watermark_ns: int | None = None


@dataclass(slots=True)
class Stream:
    """One sensor's live state, as one connection sees it.

    header   whether tracks are returned is each connection's own; the rest they share
    tracker  None where nobody tracks
    """

    header: Header
    slices: StreamSlices
    tracker: StreamTracker | None = None
    time: EventTime = field(default_factory=EventTime)

    @property
    def watermark_ns(self) -> int | None:
        """Of the stream's event time."""
        return self.time.watermark_ns


@dataclass(frozen=True, slots=True)
class Known:
    """A recalibrator the sidecar knows, and whether it is in force."""

    selection: Selection
    promoted: bool


@dataclass(frozen=True, slots=True)
class Promotion:
    """A change of the recalibrator in force."""

    before: str
    after: str
    actor: str


class UnknownVersion(LookupError):
    """No recalibrator of that version is known."""


@dataclass(slots=True)
class Pipeline:
    """The sidecar without its edges."""

    config: Config
    counters: Counters = field(default_factory=Counters)
    selection: Selection = IDENTITY
    known: dict[str, Selection] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)
    limits: Limits = field(init=False)
    slices: SliceTable = field(init=False)
    pending: PendingStore = field(init=False)
    accumulator: SliceAccumulator = field(init=False)
    _tracking: TrackerSettings | None = None
    _spaces: set[Space] = field(default_factory=set)
    _totals: SliceTotals = field(default_factory=SliceTotals)

    def __post_init__(self) -> None:
        settings = self.config.statistics
        limits = self.config.limits
        self.limits = Limits(
            limits.largest_mean, limits.smallest_deviation, limits.largest_deviation
        )
        self.slices = SliceTable(frozenset(settings.slice_by), settings.max_slices)
        self.pending = PendingStore(self.config.pending.max_bytes)
        binning = Binning(deviation=LogBins(settings.lowest_deviation, 32, 16), tau=settings.tau)
        self.accumulator = SliceAccumulator(binning, settings.fold_rows)
        self.known[self.selection.version] = self.selection
        if self.config.tracker.kind is TrackerKind.EMBEDDED:
            self._tracking = self.config.tracker.settings()
            one_second()  # imported now, so that the first header need not wait for it

    # ---- streams

    def register(self, header: Header) -> Stream | Refusal:
        """A stream for this header; a known one if nothing changed but the connection."""
        space = Space(header.space.dimensions, self.config.statistics.angles_in_joint)
        header = replace(header, space=space)
        refusal = refuse_header(header, self.config, self.streams, self._spaces)
        if refusal is not None:
            return refusal
        self._spaces.add(space)
        known = self.streams.get(header.stream)
        if known is not None and known.header == header:
            if known.header.return_tracks != header.return_tracks:
                self.streams[header.stream] = known = replace(known, header=header)
            return known
        slices = StreamSlices(self.slices, space, header.stream, header.classes)
        tracker = self._new_tracker(header)
        if tracker is not None and known is not None and known.tracker is not None:
            tracker.orders = known.tracker.orders  # counters never fall
        self.streams[header.stream] = stream = Stream(header, slices, tracker)
        return stream

    def _new_tracker(self, header: Header) -> StreamTracker | None:
        """For a stream that begins; where it cannot be made, the stream goes without."""
        if self._tracking is None:
            return None
        try:
            return stream_tracker(header, self._tracking)
        except Exception:
            log.exception("stream %s is not tracked", header.stream)
            self.counters.internal_errors += 1
            return None

    # ---- frames

    def process(self, stream: Stream, frame: ReceivedFrame) -> FrameAnswer:
        """The answer to a frame. Whatever of ours fails, the raw estimates go out, marked."""
        n = frame.detections.n
        try:
            answer = self._process(stream, frame)
        except Exception:
            log.exception("frame of stream %s passed through unprocessed", stream.header.stream)
            self.counters.internal_errors += 1
            answer = FrameAnswer(
                frame, np.full(n, Reason.INTERNAL, np.uint8), versions=(self.selection.version,)
            )
        self.counters.frames += 1
        if frame.fast:
            self.counters.fast_frames += 1
        else:
            self.counters.slow_frames += 1
        self.counters.by_reason += np.bincount(
            answer.reason, minlength=self.counters.by_reason.size
        )
        return answer

    def _process(self, stream: Stream, frame: ReceivedFrame) -> FrameAnswer:
        header = stream.header
        examined = examine(frame.detections, header.space, len(header.classes), self.limits)
        batch = examined.batch
        slices = stream.slices.of(batch.class_index)
        sent = Estimates(batch.mean, batch.covariance, batch.diagonal)
        selection, made, sound, why = self._recalibrate(header.space, sent, slices)
        if why != Reason.NONE or not sound.all():
            reason = examined.reason.copy()
            reason[batch.rows] = why
            reason[batch.rows[~sound]] = Reason.RECALIBRATOR_FAILED
            examined = replace(examined, reason=reason, clean=False)
        notices: tuple[Notice, ...] = ()
        if not examined.clean:
            notices = describe(
                examined, frame.detections, header.space, header.classes, self.limits
            )
        try:
            notices += self._remember(stream, frame, examined, slices, selection, made)
        except Exception:
            # What is counted must not cost the tracker its recalibrated estimates.
            log.exception("frame of stream %s answered, but not counted", header.stream)
            self.counters.internal_errors += 1
        tracked = self._track(stream, frame, examined, made if why == Reason.NONE else sent)
        rows, outcome = batch.rows, made
        if not sound.all():
            rows = batch.rows[sound]
            outcome = Estimates(made.mean[sound], made.covariance[sound], made.diagonal[sound])
        # What the identity made goes back as it came, bit for bit.
        forwarding = why == Reason.NONE and made is not sent
        observing = why == Reason.OBSERVE_MODE
        return FrameAnswer(
            received=frame,
            reason=examined.reason,
            rows=rows if forwarding else rows[:0],
            forwarded=outcome if forwarding else None,
            shadow_rows=rows if observing else rows[:0],
            shadow=outcome if observing else None,
            versions=(self.selection.version,),
            notices=notices + tracked.notices,
            tracks=tracked.tracks if header.return_tracks else None,
        )

    def _track(
        self, stream: Stream, frame: ReceivedFrame, examined: Examined, forwarded: Estimates
    ) -> Tracked:
        """What the tracker makes of a frame; if it fails, nothing, and it begins anew."""
        if stream.tracker is None:
            return Tracked(None)
        try:
            if not examined.clean:
                # A class may come without covariances only: its tracks have a slice too.
                bare = examined.reason == Reason.MISSING_COVARIANCE
                stream.slices.of(frame.detections.class_index[bare])
            tracked = stream.tracker.track(frame, examined, forwarded)
        except Exception:
            log.exception("the tracks of stream %s are lost", stream.header.stream)
            self.counters.internal_errors += 1
            stream.tracker.reset()
            return Tracked(None)
        for notice in tracked.notices:
            self.counters.note(notice.reason, 1)
        return tracked

    def _recalibrate(
        self, space: Space, sent: Estimates, slices: IntArray
    ) -> tuple[Selection | None, Estimates, BoolArray, Reason]:
        """What acted, what it made, of which rows it could, and the reason that goes with it."""
        selection = self.selection
        if not selection.fits(space):
            everywhere = np.ones(slices.size, bool)
            return None, sent, everywhere, Reason.RECALIBRATOR_MISMATCH
        made, sound = self._made(selection, sent, slices)
        observing = self.config.recalibration.mode is Mode.OBSERVE
        # What failed the whole frame is not tried again on some rows of it, when truth arrives.
        acted = selection if sound.any() else None
        return acted, made, sound, Reason.OBSERVE_MODE if observing else Reason.NONE

    def _made(
        self, selection: Selection, sent: Estimates, slices: IntArray
    ) -> tuple[Estimates, BoolArray]:
        """What a recalibrator makes of estimates; where it fails, what was sent and False, (n,)."""
        try:
            made = selection.apply(sent, slices, self.slices.names)
            sound = sound_rows(sent, made, definite=selection.keeps_definite)
        except Exception:
            log.exception("recalibrator %s failed", selection.version)
            self.counters.internal_errors += 1
            return sent, np.zeros(slices.size, bool)
        if sound.all():
            return made, sound
        if not sound.any():
            return sent, sound
        mean, covariance = made.mean.copy(), made.covariance.copy()
        diagonal = made.diagonal.copy()
        mean[~sound], covariance[~sound] = sent.mean[~sound], sent.covariance[~sound]
        diagonal[~sound] = sent.diagonal[~sound]
        return Estimates(mean, covariance, diagonal), sound

    def _remember(
        self,
        stream: Stream,
        frame: ReceivedFrame,
        examined: Examined,
        slices: IntArray,
        selection: Selection | None,
        recalibrated: Estimates,
    ) -> tuple[Notice, ...]:
        """Count inline truth, and keep the frame for the truth that comes later."""
        self._advance_watermark(stream, frame.stamp_ns)
        batch = examined.batch
        self.counters.note(
            Reason.GROUND_TRUTH_INVALID, int(np.count_nonzero(examined.truth_invalid))
        )
        notices: tuple[Notice, ...] = ()
        key = None
        if frame.frame_id is None:
            self.counters.note(Reason.MISSING_FRAME_KEY, 1)
            notices = (NO_FRAME_ID,)
        else:
            key = (stream.header.stream, frame.frame_id)
            known = self.pending.get(key)
            if known is not None and known.stamp_ns == frame.stamp_ns:
                self.counters.note(Reason.DUPLICATE_FRAME, 1)
                repeated = int(np.count_nonzero(frame.detections.truth_length))
                self.counters.truth.add(TruthAccount(duplicate=repeated))
                return (duplicate_frame(frame.frame_id),)
        labelled = self._count_inline_truth(frame, examined, slices, recalibrated)
        if key is None:
            self.counters.dropped += int(np.count_nonzero(~labelled))
            return notices
        waiting = pending_frame(
            batch,
            frame.stamp_ns,
            slices,
            selection,
            labelled,
            frame.detections.ids_beside(batch.rows),
        )
        # The same number at another time: the detector began anew.
        self.counters.dropped += self.pending.discard(key) + self.pending.add(key, waiting)
        return notices

    def _count_inline_truth(
        self,
        frame: ReceivedFrame,
        examined: Examined,
        slices: IntArray,
        recalibrated: Estimates,
    ) -> BoolArray:
        """Count the truth that came with the detections; (n,) which of the batch have it."""
        batch = examined.batch
        labelled = np.isfinite(batch.truth[:, 0])
        sent_inline = int(np.count_nonzero(frame.detections.truth_length))
        if sent_inline == 0:
            return labelled
        rows = np.flatnonzero(labelled)
        refused = int(np.count_nonzero(examined.truth_invalid))
        self.counters.truth.add(
            TruthAccount(
                matched=rows.size, refused=refused, unusable=sent_inline - refused - rows.size
            )
        )
        sent = Estimates(batch.mean[rows], batch.covariance[rows], batch.diagonal[rows])
        unchanged = recalibrated.mean is batch.mean and recalibrated.covariance is batch.covariance
        made = (
            sent
            if unchanged
            else Estimates(
                recalibrated.mean[rows],
                recalibrated.covariance[rows],
                recalibrated.diagonal[rows],
            )
        )
        self._count(batch.space, slices[rows], sent, made, batch.truth[rows])
        return labelled

    def _advance_watermark(self, stream: Stream, stamp_ns: int | None) -> None:
        if stamp_ns is None:
            return
        if stream.watermark_ns is not None and stamp_ns < stream.watermark_ns:
            self.counters.late_frames += 1
        reached = stamp_ns - int(self.config.pending.max_disorder_seconds * 1e9)
        if stream.watermark_ns is None or reached > stream.watermark_ns:
            stream.time.watermark_ns = reached

    def _count(
        self,
        space: Space,
        slices: IntArray,
        sent: Estimates,
        made: Estimates,
        truth: FloatArray,
    ) -> None:
        if slices.size == 0:
            return
        error = space.error(truth, sent.mean)
        in_overflow = np.isin(slices, self.slices.overflowing)
        self.counters.overflow_detections += int(np.count_nonzero(in_overflow))
        self.accumulator.add(
            MatchedRows(
                space=space,
                slices=slices,
                error=error,
                covariance=sent.covariance,
                recalibrated_error=(
                    error if made.mean is sent.mean else space.error(truth, made.mean)
                ),
                recalibrated_covariance=made.covariance,
            )
        )

    # ---- truth

    def report_truth(self, labels: ReceivedTruth) -> TruthAnswer:
        """Match labels to the detections of their frame by id, and count what matched."""
        account = TruthAccount()
        notices: tuple[Notice, ...] = ()
        key = (labels.stream, -1 if labels.frame_id is None else labels.frame_id)
        frame = self.pending.get(key)
        if frame is None:
            if self.pending.was_dropped(key):
                account.too_late = labels.n
            else:
                account.orphan = labels.n
                notices = (orphan_notice(labels, self.streams),)
        else:
            notices = self._match(frame, labels, account)
        self.counters.truth.add(account)
        return TruthAnswer(account, notices)

    def _match(
        self, frame: PendingFrame, labels: ReceivedTruth, account: TruthAccount
    ) -> tuple[Notice, ...]:
        matching = match_by_id(labels, frame, self.limits)
        account.add(matching.account)
        self.counters.note(Reason.GROUND_TRUTH_INVALID, matching.account.refused)
        rows = matching.rows
        sent = frame.estimates(rows)
        slices = frame.slices[rows]
        made = sent
        if frame.selection is not None:
            made, _ = self._made(frame.selection, sent, slices)
        self._count(frame.space, slices, sent, made, matching.truth)
        resolved = matching.resolved
        if labels.complete:
            # A detection whose label could not be read may still get a better one.
            rest = ~frame.resolved
            rest[matching.resolved] = rest[matching.refused_rows] = False
            self.counters.unmatched += int(np.count_nonzero(rest))
            resolved = np.append(resolved, np.flatnonzero(rest))
        self.pending.resolve(frame, resolved)
        return matching.notices

    # ---- recalibrators

    def promote(self, version: str, actor: str) -> Promotion:
        """Put a known recalibrator in force, from the next frame on. Raises UnknownVersion."""
        selection = self.known.get(version)
        if selection is None:
            raise UnknownVersion(
                f"no recalibrator '{version[:80]}': known are {', '.join(self.known)}. "
                "Promote one of them, or send its document."
            )
        before = self.selection.version
        self.selection = selection
        self.counters.swaps += 1
        return Promotion(before, version, actor)

    def learn(self, document: str) -> Selection:
        """Get to know a recalibrator from its document. Raises InvalidRecalibrator."""
        selection = from_json(document)
        if len(self.known) >= 1000 and selection.version not in self.known:
            raise InvalidRecalibrator("1000 recalibrators are known already: restart the sidecar.")
        self.known.setdefault(selection.version, selection)
        return self.known[selection.version]

    def recalibrators(self) -> tuple[Known, ...]:
        """All that are known, in the order they became known."""
        promoted = self.selection.version
        return tuple(Known(known, version == promoted) for version, known in self.known.items())

    # ---- tracks

    def tracks(self) -> TrackReading:
        """What the trackers of all streams say of each slice."""
        return read_tracks(
            self.slices.names,
            (
                (stream.slices, stream.tracker)
                for stream in self.streams.values()
                if stream.tracker is not None
            ),
        )

    # ---- statistics

    def statistics(self) -> SlicesRead:
        """Every slice with its statistics, then a total of each space; folded up to now."""
        return finished(self.statistics_in_steps())

    def statistics_in_steps(self) -> Generator[None, None, SlicesRead]:
        """The same in short steps, up to the first of them; all slices are those of one moment."""
        yield from self.accumulator.steps()
        found = [
            (entry, self.accumulator.statistics[i])
            for i, entry in enumerate(self.slices.slices)
            if i in self.accumulator.statistics
        ]
        totals = yield from self._totals.read(found)
        return (*((entry.name, statistics) for entry, statistics in found), *totals)
