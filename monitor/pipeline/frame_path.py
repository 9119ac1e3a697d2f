"""The path of a frame from the wire to its answer, then into the live state.

The pipeline owns that state: streams, recalibrators, pending frames, statistics, counters. It runs
on one event loop and nowhere else, so there is no lock. Nothing here blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from monitor.config import Config, TrackerKind
from monitor.frames.detections import Estimates, Examined, FrameBatch, Limits, Reason, examine
from monitor.frames.frame import (
    FOREIGN_TRACKS,
    NO_ROWS,
    AnswerExtras,
    FrameAnswer,
    Header,
    Opinions,
    PredictedRows,
    ReceivedFrame,
    ReceivedTruth,
    Refusal,
    ReportedTracks,
    SliceKey,
    TruthAnswer,
    by_space,
    opinions_of,
)
from monitor.frames.reasons import NO_FRAME_ID, Notice, describe, duplicate_frame
from monitor.frames.slices import StreamSlices
from monitor.frames.space import FloatArray, IntArray, Space
from monitor.frames.status import Counters, TruthAccount
from monitor.frames.words import Mode
from monitor.matching.labels import inline_record, labels_sent
from monitor.pipeline.drift_watch import DriftWatch
from monitor.pipeline.housekeeping import Events, Overload, contained
from monitor.pipeline.learning import LabelledTracks
from monitor.pipeline.live_statistics import LiveStatistics
from monitor.pipeline.pending import Dropped, PendingFrame, tracks_of
from monitor.pipeline.recalibrators import (
    NO_CLASSES,
    ProcessedFrame,
    Recalibrated,
    RecalibratedClasses,
    Recalibrators,
    answer_extras,
    estimated_rows,
    recalibrate_classes,
    served_otherwise,
)
from monitor.pipeline.streams import (
    EventTime,
    Stream,
    StreamTracker,
    Tracked,
    TrackReading,
    mistakes,
    read_tracks,
)
from monitor.pipeline.together import Prepared, prepared_together
from monitor.pipeline.truth import Ahead, Search, TruthLedger
from monitor.recalibration.recalibrator import sent_where_unsound, sound_rows
from monitor.store.entries import Kept
from monitor.store.journal import Journal
from monitor.tracking.motion import missing_variances, one_second
from monitor.tracking.tracker import Tracker, tracker_model

log = logging.getLogger(__name__)

STALE = Notice(
    Reason.STALE,
    "stamp_ns",
    "the frame waited longer than [server] stale_seconds: passed through, not tracked or counted.",
)
SHED = Notice(
    Reason.OVERLOAD,
    "frame",
    "answered and forwarded, but in no statistics: the sidecar has more to do than it can.",
)


@dataclass(frozen=True, slots=True)
class Answered:
    """A frame of n detections that was answered, and what remembers it."""

    stream: Stream
    n: int
    arrival_ns: int | None
    remember: Callable[[], None]

    @property
    def name(self) -> str:
        """Returns the name of the stream."""
        return self.stream.header.stream


class Pipeline:
    """The sidecar without its edges.

    slices             all that were seen so far
    streams            by name; latest: the last frame of each
    tracked_elsewhere  at present: our own tracker stands by, if there is one
    numbered           streams so far
    newer              fields that newer code had added to the states that were loaded or imported:
                       they go out again with every state of ours, over the wire and to the disk
    """

    def __init__(
        self,
        config: Config,
        journal: Journal,
        recalibrators: Recalibrators | None = None,
        events: Events | None = None,
    ) -> None:
        """Begins with the recalibrators that are given, the identities by default."""
        limits, server, drift, tracker = config.limits, config.server, config.drift, config.tracker
        self.config, self.journal, self.counters = config, journal, Counters()
        self.recalibrators, self.events = recalibrators or Recalibrators(), events or Events()
        self.streams: dict[str, Stream] = {}
        self.latest: dict[str, Recalibrated] = {}
        self.tracked_elsewhere, self.numbered, self.newer = False, 0, b""
        self.overload = Overload(server.shed_lag_seconds, server.shed_rows)
        self.limits = Limits(
            limits.largest_mean, limits.smallest_deviation, limits.largest_deviation
        )
        self.live = LiveStatistics(config)
        self.slices = self.live.slices
        self.learning = LabelledTracks(
            config.promotion.settings(), self.limits, self.slices, self.recalibrators
        )
        self.drift = DriftWatch(
            drift.settings(),
            self.slices,
            self.events.publish,
            drift.watch,
            counters=self.counters,
            disorder_ns=self.disorder_ns,
            clock=self.live.clock,
            class_slices=self.live.class_slices,
        )
        self.ledger = TruthLedger(
            config,
            self.limits,
            self.live,
            self.drift,
            self.learning,
            self.counters,
            self.streams,
            journal,
        )
        # Streams of the last run that have not come again yet; they make room for others.
        self._unclaimed: set[str] = set()
        self._answered: list[Answered] = []
        self._tracker_settings = tracker.settings()
        self._tracking = self._tracker_settings if tracker.tracks_here else None
        # Our track ids begin behind those of a tracker elsewhere.
        self._foreign = 0 if tracker.kind is TrackerKind.EMBEDDED else FOREIGN_TRACKS
        if self._tracking is not None:
            one_second()  # imported now, so that the first header need not wait for it

    def adjust(self, config: Config) -> None:
        """Applies another configuration from the next frame on, after a reload."""
        self.remember_answered()
        self.config = config
        self.overload.lag_seconds = config.server.shed_lag_seconds
        self.overload.waiting_rows = config.server.shed_rows
        settings = config.promotion.settings()
        self.learning.adjust(settings.fits, settings.policy)

    # ---- streams

    def register(self, header: Header) -> Stream | Refusal:
        """A stream for this header; a known one if nothing changed but the connection."""
        self.remember_answered()
        header = self.as_here(header)
        self._make_room(header.stream)
        found = next(mistakes(header, self.config, self.streams, self.live.spaces), None)
        if found is not None:
            return Refusal(Reason.INVALID_HEADER, *found)
        self.live.spaces.add(header.space)
        known = self.streams.get(header.stream)
        self._unclaimed.discard(header.stream)
        if known is not None and known.header == header:
            if known.header.asked != header.asked:
                self.streams[header.stream] = known = replace(known, header=header)
            return known
        # A stream that begins anew numbers its tracks anew.
        self.numbered += 1
        stream = self._opened(header, self.numbered)
        if known is not None:
            stream.seen = known.seen
            if stream.tracker is not None and known.tracker is not None:
                stream.tracker.orders = known.tracker.orders  # counters never fall
        return stream

    def as_here(self, header: Header) -> Header:
        """Returns a header with the setting that the joint measures have here."""
        dimensions, angles = header.space.dimensions, self.config.statistics.angles_in_joint
        return replace(header, space=Space(dimensions, angles))

    def restore_stream(self, header: Header, number: int, time: EventTime) -> None:
        """A stream of the last run, so that its labels are known; unless there is no room.

        number  tells its tracks from others; those of a tracker of ours begin anew
        """
        if header.stream in self.streams or len(self.streams) >= self.config.server.max_streams:
            return
        self.numbered = max(self.numbered, number)
        if self._tracking is not None:
            self.numbered += 1
            number = self.numbered
        header = self.as_here(header)
        self.live.spaces.add(header.space)
        self._opened(header, number).time = time
        self._unclaimed.add(header.stream)

    def _opened(self, header: Header, number: int) -> Stream:
        slices = StreamSlices(self.slices, header.space, header.stream, header.classes)
        assumed = missing_variances(header.space, self._tracker_settings)
        stream = self.streams[header.stream] = Stream(header, slices, number, assumed)
        if self._tracking is not None:
            fault = "stream %s is not tracked: its tracker could not be made"
            with contained(self.counters, log, fault, header.stream):
                model = tracker_model(header.space, len(header.classes), self._tracking)
                # Numbers of new tracks come after those that are used already.
                stream.tracker = StreamTracker(Tracker(model), self._foreign)
        return stream

    def _make_room(self, stream: str) -> None:
        """Drops a stream of the last run that has not come again, if a new one has no room."""
        full = len(self.streams) >= self.config.server.max_streams
        if full and stream not in self.streams and self._unclaimed:
            del self.streams[self._unclaimed.pop()]

    @property
    def disorder_ns(self) -> int:
        """How far watermarks stay behind."""
        return int(self.config.pending.max_disorder_seconds * 1e9)

    # ---- frames

    def process(
        self, stream: Stream, frame: ReceivedFrame, arrival_ns: int | None = None
    ) -> FrameAnswer:
        """Answers a frame and remembers it at once: for callers with no answer to send first."""
        (answer,) = self.answer_all([(stream, frame)], arrival_ns)
        self.remember_answered()
        return answer

    def answer_all(
        self, frames: Sequence[tuple[Stream, ReceivedFrame]], arrival_ns: int | None = None
    ) -> list[FrameAnswer]:
        """Answers frames, which `remember_answered` is to remember once the answers were sent.

        If any part of the sidecar fails, the detector's own estimates are answered, with a reason.

        arrival_ns  of a clock that never moves back; None: how long they waited is not measured
        """
        self.remember_answered()
        why = self._why
        prepared = prepared_together(
            frames, self.recalibrators.selection, self.slices, self.limits, why
        )
        answers = []
        for (stream, frame), one in zip(frames, prepared, strict=True):
            if any(earlier.name == stream.header.stream for earlier in self._answered):
                # Whether a frame is new is known once those before it are remembered.
                self.remember_answered()
            answers.append(self._answer(stream, frame, arrival_ns, one))
        return answers

    def _answer(
        self,
        stream: Stream,
        frame: ReceivedFrame,
        arrival_ns: int | None,
        prepared: Prepared | None,
    ) -> FrameAnswer:
        name, limit_seconds = stream.header.stream, self.config.server.stale_seconds
        answer = None
        with contained(self.counters, log, "frame of stream %s passed through unprocessed", name):
            if arrival_ns is not None and stream.staleness.is_stale(
                arrival_ns, frame.stamp_ns, limit_seconds
            ):
                # A stale frame goes back as it came.
                answer = self._passed_through(frame, Dropped.STALE, Reason.STALE, STALE)
            else:
                answer = self._process(stream, frame, arrival_ns, prepared)
        if answer is None:
            answer = self._passed_through(frame, Dropped.FAILED, Reason.INTERNAL)
        self.counters.count_frame(answer.reason, fast=frame.fast)
        if arrival_ns is not None:
            stream.seen.frame(frame.detections.n, frame.stamp_ns, arrival_ns)
        return answer

    def remember_answered(self) -> None:
        """Remembers the frames that were answered last, unless that is done.

        Whoever reads or changes what frames leave behind calls this first, so that frames, labels
        and swaps of recalibrators are counted in the order in which they came. A fault costs the
        statistics a frame, and nothing else.
        """
        answered, self._answered = self._answered, []
        for one in answered:
            self._remember_one(one)

    def _remember_one(self, answered: Answered) -> None:
        fates, truth, remembered = self.ledger.fates, self.counters.truth, False
        predicted, matched, name = fates.account["predicted"], truth.matched, answered.name
        with contained(self.counters, log, "frame of stream %s answered, but not counted", name):
            answered.remember()
            remembered = True
        if not remembered and fates.account["predicted"] == predicted:
            # It is in no account yet.
            fates.lose(answered.n, Dropped.FAILED)
        if answered.arrival_ns is not None:
            answered.stream.seen.labels(truth.matched - matched, answered.arrival_ns)

    def _passed_through(
        self, frame: ReceivedFrame, why: Dropped, reason: Reason, *notices: Notice
    ) -> FrameAnswer:
        """The answer to a frame that nothing more is done with: all detections as they came."""
        n, version = frame.detections.n, self.recalibrators.selection.version
        self.ledger.fates.lose(n, why)
        reasons = np.full(n, reason, np.uint8)
        return FrameAnswer(frame, reasons, versions=(version,), notices=notices)

    def _process(
        self,
        stream: Stream,
        frame: ReceivedFrame,
        arrival_ns: int | None,
        prepared: Prepared | None,
    ) -> FrameAnswer:
        header = stream.header
        classes = len(header.classes)
        came, frame = frame, frame.with_softmax(classes)
        prepared = prepared or self._prepared(stream, frame)
        examined, recalibrated = prepared.examined, prepared.recalibrated
        batch = examined.batch
        self.latest[header.stream] = recalibrated
        examined = recalibrated.marked(examined)
        notices: tuple[Notice, ...] = ()
        if not examined.clean:
            notices = describe(
                examined,
                came.detections,
                header.space,
                header.classes,
                self.limits,
                came.class_logits,
            )
        tracks, said, untracked = None, tuple[Notice, ...](), None
        if not self.tracked_elsewhere:
            tracks, said = self._track(stream, frame, examined, recalibrated.forwarded)
        elif stream.tracker is not None:  # it stands by
            untracked = examined, recalibrated.forwarded
        left_out = self._left_out(header.stream, frame)
        if left_out is not None:
            notices += (left_out,)
        of_classes = self._recalibrated_classes(header, batch)
        extras, more = self._extras(header, examined, recalibrated, of_classes.answer)
        rows, made = recalibrated.sound_of(batch.rows)
        why = recalibrated.why
        # What the identity made goes back as it came, bit for bit.
        forwarding = why is Reason.NONE and recalibrated.made is not recalibrated.sent
        observing = why is Reason.OBSERVE_MODE
        answer = FrameAnswer(
            received=frame,
            reason=examined.reason,
            rows=rows if forwarding else NO_ROWS,
            forwarded=made if forwarding else None,
            shadow_rows=rows if observing else NO_ROWS,
            shadow=made if observing else None,
            versions=(recalibrated.selection.version,),
            notices=notices + said + of_classes.notices + more,
            tracks=tracks if header.return_tracks else None,
            extras=extras,
            untracked=untracked,
        )
        why_not = None if left_out is None else left_out.reason
        remember = partial(
            self._remember, stream, frame, examined, recalibrated, of_classes.made, tracks, why_not
        )
        self._answered.append(Answered(stream, frame.detections.n, arrival_ns, remember))
        return answer

    def _prepared(self, stream: Stream, frame: ReceivedFrame) -> Prepared:
        header, limits = stream.header, self.limits
        classes = len(header.classes)
        examined = examine(frame.detections, header.space, classes, limits, stream.assumed)
        batch = examined.batch
        slices = stream.slices.of(batch.class_index, batch.sent.mean, batch.assumed)
        return Prepared(examined, self._recalibrated(batch, slices))

    @property
    def _why(self) -> Reason:
        """Returns the reason that sound detections carry."""
        observes = self.config.recalibration.mode is Mode.OBSERVE
        return Reason.OBSERVE_MODE if observes else Reason.NONE

    def _recalibrated(self, batch: FrameBatch, slices: IntArray) -> Recalibrated:
        """Recalibrates the usable detections of a frame; failed ones stay as they were sent."""
        selection, chains = self.recalibrators.selection, self.slices.chains
        made = sent = batch.sent
        why, sound = self._why, np.zeros(slices.size, bool)
        bare, missing = batch.assumed, None
        if not selection.fits(batch.space):
            why, sound, missing = Reason.RECALIBRATOR_MISMATCH, ~sound, bare
        else:
            with contained(self.counters, log, "recalibrator %s failed", selection.version):
                found = selection.apply(sent, slices, chains)
                usable = sound_rows(sent, found, self.limits, definite=selection.keeps_definite)
                if bare is not None:
                    missing = bare & ~estimated_rows(selection, slices, chains)
                    usable = usable & ~missing
                made, sound = sent_where_unsound(sent, found, usable), usable
        if missing is not None:
            sound = sound & ~missing
        whole = bool(sound.all())
        return Recalibrated(selection, sent, slices, chains, made, sound, whole, why, bare, missing)

    def _recalibrated_classes(self, header: Header, batch: FrameBatch) -> RecalibratedClasses:
        """Recalibrates the class probabilities of a frame, in whatever mode."""
        fault = "class probabilities of stream %s are not recalibrated"
        with contained(self.counters, log, fault, header.stream):
            classes = self.recalibrators.class_selection
            return recalibrate_classes(classes, header, batch, self.counters)
        return NO_CLASSES

    def _extras(
        self,
        header: Header,
        examined: Examined,
        recalibrated: Recalibrated,
        probabilities: FloatArray | None,
    ) -> tuple[AnswerExtras | None, tuple[Notice, ...]]:
        """Returns what goes back beside the estimates; if that fails, they go out without."""
        classes, mode = self.recalibrators.class_selection, self.config.recalibration.mode
        frame = ProcessedFrame(header, examined, recalibrated, classes, probabilities, mode)
        with contained(
            self.counters, log, "a frame of stream %s is answered without extras", header.stream
        ):
            return answer_extras(frame, self.counters)
        return None, ()

    def _track(
        self, stream: Stream, frame: ReceivedFrame, examined: Examined, forwarded: Estimates
    ) -> Tracked:
        """Tracks a frame; if the tracker fails, there are no tracks, and it begins anew."""
        name, tracker = stream.header.stream, stream.tracker
        if tracker is None:
            return None, ()
        with contained(self.counters, log, "the tracks of stream %s are lost", name):
            tracks, notices = tracker.track(frame, examined, forwarded)
            for notice in notices:
                self.counters.notices[notice.reason] += 1
            return tracks, notices
        tracker.reset()
        return None, ()

    def track_instead(self, stream: Stream, answer: FrameAnswer) -> FrameAnswer | None:
        """The answer with the tracks of our own tracker; None where that did not stand by."""
        if answer.untracked is None or stream.tracker is None:
            return None
        tracks, said = self._track(stream, answer.received, *answer.untracked)
        return replace(answer, tracks=tracks, notices=answer.notices + said, untracked=None)

    def track_elsewhere(self, up: bool) -> None:
        """A tracker elsewhere came or went; what our own knew of the time before is over."""
        self.tracked_elsewhere = up
        for stream in self.streams.values():
            if stream.tracker is not None:
                stream.tracker.reset()

    def _left_out(self, stream: str, frame: ReceivedFrame) -> Notice | None:
        """Says why no label will find a frame, or nothing of it is counted; None: all is well."""
        if self.overload.shedding:
            return SHED
        if frame.frame_id is None:
            return NO_FRAME_ID
        if self.ledger.fates.store.knows((stream, frame.frame_id), frame.stamp_ns):
            return duplicate_frame(frame.frame_id)
        return None

    def _remember(
        self,
        stream: Stream,
        frame: ReceivedFrame,
        examined: Examined,
        recalibrated: Recalibrated,
        classes_made: FloatArray | None,
        tracks: ReportedTracks | None,
        left_out: Reason | None,
    ) -> None:
        """Counts inline labels, and enters the frame for the labels that come later.

        classes_made  RecalibratedClasses.made
        left_out      the reason why it is not counted, or no label finds it; None: all is well
        """
        if left_out is Reason.OVERLOAD:
            self.ledger.fates.lose(frame.detections.n, Dropped.OVERLOAD)
            return
        if not examined.clean:
            self.counters.note_invalid(examined)
        if left_out is not None:
            self.counters.notices[left_out] += 1
        if left_out is Reason.DUPLICATE_FRAME:
            self.counters.truth.add(TruthAccount(duplicate=labels_sent(frame.detections)))
            return
        # A frame that comes again tells nothing of the time.
        self._advance_watermark(stream, frame.stamp_ns)
        batch, slices, ledger = examined.batch, recalibrated.slices, self.ledger
        self._predict(stream, batch, slices, frame.stamp_ns)
        opinions, sequence = self._opinions(stream, batch, classes_made), ledger.next_sequence()
        now = self.live.believed(frame.stamp_ns), self.live.clock.now_ns, self.live.generation
        record = inline_record(frame.detections, examined, opinions, *now)
        if frame.frame_id is not None or record is not None:
            known = tracks_of(frame.detections, batch.rows, tracks)
            stored = ledger.places.stored(
                stream, frame, examined, recalibrated, known, opinions, ledger.epoch
            )
            partition = ledger.partition_of(frame.stamp_ns)
            pending = PendingFrame(stored, slices, partition, sequence)
            if record is not None:
                self.counters.truth.add(record.account)
                ledger.count(pending, record)
            if frame.frame_id is not None:
                ledger.enter(pending, record)
                return
        ledger.fates.unnamed(frame.detections.n, slices, record)

    def _predict(
        self, stream: Stream, batch: FrameBatch, slices: IntArray, stamp_ns: int | None
    ) -> None:
        """Counts how certain the detector is of all detections; no label is waited for."""
        if slices.size:
            # One class has no entropy.
            opinions = batch.probabilities if len(stream.header.classes) > 1 else None
            rows = batch.space, slices, batch.sent.mean, batch.roots, opinions, stamp_ns
            for part in by_space(PredictedRows(*rows), batch.assumed):
                self.live.count(part)

    def _opinions(
        self, stream: Stream, batch: FrameBatch, made: FloatArray | None
    ) -> Opinions | None:
        """Pairs the class probabilities of a frame with the slice that they belong to."""
        header = stream.header
        # One class leaves nothing to be calibrated.
        if batch.probabilities is None or len(header.classes) < 2:
            return None
        table = self.live.class_slices
        index = table.index(header.stream, header.classes)
        if index is None:
            return opinions_of(batch.probabilities, None)
        entry = table.slices[index]
        return opinions_of(batch.probabilities, SliceKey(entry.name, entry.overflow), made)

    def _advance_watermark(self, stream: Stream, stamp_ns: int | None) -> None:
        if stamp_ns is None:
            return
        if self.live.see(stamp_ns):
            self.drift.begin_anew()
        if self.live.believed(stamp_ns) is not None:
            # One wild stamp would make all that follow late.
            self.counters.late_frames += stream.time.advance(stamp_ns, self.disorder_ns)

    # ---- labels

    def report(
        self, labels: ReceivedTruth, found: Kept | None = None, ahead: Ahead | None = None
    ) -> TruthAnswer | Search:
        """Reports labels to the ledger, once it has every frame that was answered."""
        self.remember_answered()
        return self.ledger.report(labels, found, ahead)

    def clock_stepped(self, epoch: int) -> None:
        """The wall clock was set: stamps before and after are of two times. Nothing is dropped."""
        self.remember_answered()
        self.ledger.epoch = epoch
        for stream in self.streams.values():
            stream.time = EventTime()
        self.drift.begin_anew()

    # ---- recalibrators

    def activate(self, version: str, *, follows: bool = False) -> str:
        """Makes a known recalibrator active from the next frame on; returns the version before.

        follows  it is the one before, adapted: its references stay
        raises   UnknownVersion
        """
        self.remember_answered()
        earlier, of_classes = self.recalibrators.selection, self.recalibrators.class_selection
        before = self.recalibrators.activate(version, self.slices.ranges)
        now = self.recalibrators.selection
        if now.version != earlier.version:
            others = [] if follows else served_otherwise(self.slices, earlier, now)
            self.drift.changed(now.version, others, follows=follows)
        if self.recalibrators.class_selection.version != of_classes.version:
            self.drift.classes_changed(self.ledger.sequence)
        return before

    # ---- tracks

    def tracks(self) -> TrackReading:
        """Reads the trackers of all streams, by slice."""
        return read_tracks(self.slices.whole.names, self.streams.values())
