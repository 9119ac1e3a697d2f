"""The stages in order, and the owner of all live state: streams, recalibrators, frames in waiting,
statistics, counts.

Runs on one event loop and nowhere else, so there is no lock. Nothing here blocks.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

import numpy as np

from monitor.answer_extras import ProcessedFrame, answer_extras
from monitor.calibration.class_matched import Opinions, opinions_of
from monitor.calibration.detections import Examined, FrameBatch, Limits, Reason, examine
from monitor.calibration.matched import TrackIds
from monitor.calibration.notices import NO_FRAME_ID, Notice, describe, duplicate_frame
from monitor.calibration.slices import SliceTable, StreamSlices
from monitor.calibration.space import IntArray, Space
from monitor.class_logits import in_words_of_logits, with_softmax
from monitor.config import Config, TrackerKind
from monitor.counters import Counters, TruthAccount
from monitor.drift_epochs import served_otherwise
from monitor.drift_watch import DriftWatch
from monitor.forwarding import Recalibrated, recalibrate
from monitor.frames import (
    NO_ROWS,
    AnswerExtras,
    FrameAnswer,
    Header,
    ReceivedFrame,
    ReceivedTruth,
    Refusal,
    TruthAnswer,
)
from monitor.headers import refuse_header
from monitor.inline_truth import inline_truth, labels_sent
from monitor.learning import Learning
from monitor.live_statistics import LiveStatistics, live_statistics
from monitor.matching import Matching, match_by_id, orphan_notice
from monitor.pending import PendingFrame, PendingStore, pending_frame, tracks_of
from monitor.recalibration.recalibrator import Estimates
from monitor.recalibration.selection import Selection
from monitor.recalibrators import Recalibrators, applied
from monitor.stream_tracker import Tracked, tracker_of
from monitor.streams import Stream
from monitor.track_readings import TrackReading, read_tracks
from monitor.tracking.motion import one_second
from monitor.tracking.settings import TrackerSettings
from monitor.truth_rows import Origin, TrueRows, inline_rows, tracks_of_rows, tracks_told

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Pipeline:
    """The sidecar without its edges."""

    config: Config
    counters: Counters = field(default_factory=Counters)
    recalibrators: Recalibrators = field(default_factory=Recalibrators)
    streams: dict[str, Stream] = field(default_factory=dict)
    latest: dict[str, Recalibrated] = field(default_factory=dict)  # of each stream
    limits: Limits = field(init=False)
    pending: PendingStore = field(init=False)
    live: LiveStatistics = field(init=False)
    learning: Learning = field(init=False)
    drift: DriftWatch = field(init=False)
    _tracking: TrackerSettings | None = None
    _numbered: int = 0

    def __post_init__(self) -> None:
        limits = self.config.limits
        self.limits = Limits(
            limits.largest_mean, limits.smallest_deviation, limits.largest_deviation
        )
        self.pending = PendingStore(self.config.pending.max_bytes)
        self.live = live_statistics(self.config)
        settings = self.config.promotion.settings()
        self.learning = Learning(settings, self.limits, self.slices, self.recalibrators)
        watched = self.config.drift
        self.drift = DriftWatch(
            watched.settings(), self.slices, watched.watch, counters=self.counters
        )
        if self.config.tracker.kind is TrackerKind.EMBEDDED:
            self._tracking = self.config.tracker.settings()
            one_second()  # imported now, so that the first header need not wait for it

    @property
    def slices(self) -> SliceTable:
        """All slices seen so far."""
        return self.live.slices

    # ---- streams

    def register(self, header: Header) -> Stream | Refusal:
        """A stream for this header; a known one if nothing changed but the connection."""
        space = Space(header.space.dimensions, self.config.statistics.angles_in_joint)
        header = replace(header, space=space)
        refusal = refuse_header(header, self.config, self.streams, self.live.spaces)
        if refusal is not None:
            return refusal
        self.live.spaces.add(space)
        known = self.streams.get(header.stream)
        if known is not None and known.header == header:
            if not known.header.asks_like(header):
                self.streams[header.stream] = known = replace(known, header=header)
            return known
        slices = StreamSlices(self.slices, space, header.stream, header.classes)
        tracker = tracker_of(header, self._tracking, self.counters)
        if tracker is not None and known is not None and known.tracker is not None:
            tracker.orders = known.tracker.orders  # counters never fall
        # A stream that begins anew numbers its tracks anew.
        self._numbered += 1
        self.streams[header.stream] = stream = Stream(header, slices, self._numbered, tracker)
        return stream

    # ---- frames

    def process(self, stream: Stream, frame: ReceivedFrame) -> FrameAnswer:
        """The answer to a frame. Whatever of ours fails, the raw estimates go out, marked."""
        n = frame.detections.n
        try:
            answer = self._process(stream, frame)
        except Exception:
            log.exception("frame of stream %s passed through unprocessed", stream.header.stream)
            self.counters.internal_errors += 1
            version = self.recalibrators.selection.version
            answer = FrameAnswer(frame, np.full(n, Reason.INTERNAL, np.uint8), versions=(version,))
        self.counters.count_frame(answer.reason, fast=frame.fast)
        return answer

    def _process(self, stream: Stream, frame: ReceivedFrame) -> FrameAnswer:
        header = stream.header
        classes = len(header.classes)
        came, frame = frame, with_softmax(frame, classes)
        examined = examine(frame.detections, header.space, classes, self.limits)
        batch = examined.batch
        slices = stream.slices.of(batch.class_index, batch.mean)
        recalibrated = recalibrate(
            self.recalibrators.selection,
            header.space,
            Estimates(batch.mean, batch.covariance, batch.diagonal),
            slices,
            self.slices.chains,
            self.config.recalibration.mode,
            self.limits,
            self.counters,
        )
        self.latest[header.stream] = recalibrated
        examined = recalibrated.marked(examined)
        notices: tuple[Notice, ...] = ()
        if not examined.clean:
            notices = describe(
                examined, frame.detections, header.space, header.classes, self.limits
            )
            notices = in_words_of_logits(notices, examined, came, classes)
        tracked = self._track(stream, frame, examined, recalibrated.forwarded)
        try:
            tracks = tracks_of(frame.detections, batch.rows, tracked.tracks)
            notices += self._remember(stream, frame, examined, recalibrated, tracks)
        except Exception:
            # What is counted must not cost the tracker its recalibrated estimates.
            log.exception("frame of stream %s answered, but not counted", header.stream)
            self.counters.internal_errors += 1
        extras, more = self._extras(header, examined, recalibrated)
        rows, made = recalibrated.sound_of(batch.rows)
        why = recalibrated.why
        # What the identity made goes back as it came, bit for bit.
        forwarding = why is Reason.NONE and recalibrated.made is not recalibrated.sent
        observing = why is Reason.OBSERVE_MODE
        return FrameAnswer(
            received=frame,
            reason=examined.reason,
            rows=rows if forwarding else NO_ROWS,
            forwarded=made if forwarding else None,
            shadow_rows=rows if observing else NO_ROWS,
            shadow=made if observing else None,
            versions=(recalibrated.selection.version,),
            notices=notices + tracked.notices + more,
            tracks=tracked.tracks if header.return_tracks else None,
            extras=extras,
        )

    def _extras(
        self, header: Header, examined: Examined, recalibrated: Recalibrated
    ) -> tuple[AnswerExtras | None, tuple[Notice, ...]]:
        """What goes back with the estimates; if it fails, they go out without."""
        classes, mode = self.recalibrators.class_selection, self.config.recalibration.mode
        frame = ProcessedFrame(header, examined, recalibrated, classes, mode)
        try:
            return answer_extras(frame, self.counters)
        except Exception:
            log.exception("a frame of stream %s is answered without extras", header.stream)
            self.counters.internal_errors += 1
            return None, ()

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
                stream.slices.of(frame.detections.class_index[bare], frame.detections.mean[bare])
            tracked = stream.tracker.track(frame, examined, forwarded)
        except Exception:
            log.exception("the tracks of stream %s are lost", stream.header.stream)
            self.counters.internal_errors += 1
            stream.tracker.reset()
            return Tracked(None)
        for notice in tracked.notices:
            self.counters.note(notice.reason, 1)
        return tracked

    def _remember(
        self,
        stream: Stream,
        frame: ReceivedFrame,
        examined: Examined,
        recalibrated: Recalibrated,
        tracks: TrackIds | None,
    ) -> tuple[Notice, ...]:
        """Count inline truth, and keep the frame for the truth that comes later."""
        slices = recalibrated.slices
        self._advance_watermark(stream, frame.stamp_ns)
        batch = examined.batch
        if not examined.clean:
            self.counters.note_invalid(examined)
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
                self.counters.truth.add(TruthAccount(duplicate=labels_sent(frame.detections)))
                return (duplicate_frame(frame.frame_id),)
        opinions = self._opinions(stream, batch)
        truth = inline_truth(frame.detections, examined, opinions)
        if truth is not None:
            self.counters.truth.add(truth.account)
            of_rows = tracks_of_rows(tracks, truth.rows)
            origin = Origin(frame.stamp_ns, stream.number, of_rows)
            rows = inline_rows(batch, truth.rows, slices, recalibrated.made, origin)
            self._count(rows, recalibrated.acted)
            classes = batch.true_class[truth.class_rows]
            self._count_classes(opinions, truth.class_rows, classes, frame.stamp_ns)
        resolved = np.zeros(slices.size, bool) if truth is None else truth.resolved
        if key is None:
            self.counters.dropped += int(np.count_nonzero(~resolved))
            return notices
        waiting = pending_frame(
            batch,
            frame.stamp_ns,
            slices,
            recalibrated.acted,
            resolved,
            frame.detections.ids_beside(batch.rows),
            tracks,
            stream.number,
            len(stream.header.classes),
            opinions,
        )
        # The same number at another time: the detector began anew.
        self.counters.dropped += self.pending.discard(key) + self.pending.add(key, waiting)
        return notices

    def _opinions(self, stream: Stream, batch: FrameBatch) -> Opinions | None:
        """The class probabilities of a frame, with the slice they belong to."""
        header = stream.header
        # Of a single class nothing can be said wrong.
        if batch.probabilities is None or len(header.classes) < 2:
            return None
        slice_index = self.live.class_slices.index(header.stream, header.classes)
        return opinions_of(batch.probabilities, slice_index)

    def _advance_watermark(self, stream: Stream, stamp_ns: int | None) -> None:
        if stamp_ns is not None:
            self.live.see(stamp_ns)
            disorder_ns = int(self.config.pending.max_disorder_seconds * 1e9)
            self.counters.late_frames += stream.time.advance(stamp_ns, disorder_ns)

    def _count(self, rows: TrueRows, made_by: Selection | None) -> None:
        if rows.slices.size == 0:
            return
        in_overflow = np.isin(rows.slices, self.slices.overflowing)
        self.counters.overflow_detections += int(np.count_nonzero(in_overflow))
        matched = self.live.count(rows.matched())
        self.drift.add(matched, None if made_by is None else made_by.version)
        labelled = rows.labelled()
        if labelled is not None and self.live.clock.believes(labelled.stamp_ns):
            self.learning.take(labelled)

    def _count_classes(
        self,
        opinions: Opinions | None,
        rows: IntArray,
        true_class: IntArray,
        stamp_ns: int | None,
    ) -> None:
        """Count class probabilities of rows, all of which have some, with their true class.

        A fault costs the statistics of these rows and nothing else.
        """
        if opinions is None or rows.size == 0:
            return
        try:
            place = opinions.index
            if place is None or self.live.class_slices.slices[place].overflow:
                self.counters.overflow_classified += rows.size
            matched = opinions.matched(rows, true_class, stamp_ns)
            if matched is not None:
                self.live.count_classes(matched)
        except Exception:
            log.exception("matched class probabilities were not counted")
            self.counters.internal_errors += 1

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
            matching = match_by_id(labels, frame, self.limits)
            account, notices = matching.account, matching.notices
            for reason, invalid in matching.invalid.items():
                self.counters.note(reason, invalid)
            stream = self.streams.get(labels.stream)
            delay_ns = 0 if stream is None else stream.time.since(frame.stamp_ns)
            self._settle(frame, matching, delay_ns, complete=labels.complete)
        self.counters.truth.add(account)
        return TruthAnswer(account, notices)

    def _settle(
        self, frame: PendingFrame, matching: Matching, delay_ns: int, *, complete: bool
    ) -> None:
        """Count what labels tell of a frame's detections, which then wait no longer."""
        rows = matching.rows
        if rows.size:
            sent, slices = frame.estimates(rows), frame.slices[rows]
            made = sent
            if frame.selection is not None:
                chains, limits = self.slices.chains, self.limits
                made, _ = applied(frame.selection, sent, slices, chains, limits, self.counters)
            tracks = tracks_told(tracks_of_rows(frame.tracks, rows), matching.objects)
            live = delay_ns <= self.live.live_ns
            origin = Origin(frame.stamp_ns, frame.source, tracks, delay_ns, live)
            true_rows = TrueRows(frame.space, slices, sent, made, matching.truth, origin)
            self._count(true_rows, frame.selection)
        self._count_classes(
            frame.opinions, matching.class_rows, matching.true_class, frame.stamp_ns
        )
        resolved = matching.resolved
        if complete:
            # A detection whose label could not be used may still get a better one.
            rest = ~frame.resolved
            rest[matching.resolved] = rest[matching.open_rows] = False
            self.counters.unmatched += int(np.count_nonzero(rest))
            resolved = np.append(resolved, np.flatnonzero(rest))
        self.pending.resolve(frame, resolved)

    # ---- recalibrators

    def put_in_force(self, version: str, *, follows: bool = False) -> str:
        """Let a known recalibrator act from the next frame on; the version before.

        follows  it is the one before, gone on: what was usual of it is still
        raises   UnknownVersion
        """
        earlier = self.recalibrators.selection
        before = self.recalibrators.put_in_force(version, self.slices.ranges)
        now = self.recalibrators.selection
        if now.version != earlier.version:
            others = [] if follows else served_otherwise(self.slices, earlier, now)
            self.drift.changed(now.version, others, follows=follows)
        return before

    # ---- tracks

    def tracks(self) -> TrackReading:
        """What the trackers of all streams say of each slice."""
        followed = [(s.slices, s.tracker) for s in self.streams.values() if s.tracker is not None]
        return read_tracks(self.slices.whole.names, followed)
