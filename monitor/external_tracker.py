"""A tracker elsewhere as the frame path sees it: what is forwarded to it, and what it answers.

Everything is on the event loop, and nothing waits but answers that are to have tracks, these no
longer than they were told to. The call itself is in tracker_calls.py.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from monitor.calibration.detections import Reason
from monitor.calibration.notices import Notice
from monitor.config_tracker import TrackerConfig
from monitor.counters import Counters, Histogram
from monitor.edges.tracker_answers import UnusableAnswer, decode_update, reported_tracks
from monitor.edges.tracker_requests import encode_frame_update
from monitor.forwarded_frames import ForwardedFrame, FrameLine, Outcome
from monitor.frames import FrameAnswer
from monitor.streams import Stream
from monitor.tracking.reported import ReportedTracks

log = logging.getLogger(__name__)

# Of what is left of a detector's call, that its answer may wait; the rest is for its own way.
SHARE = 0.8

# How it ended with a frame, and its tracks where it was answered.
Ended = asyncio.Future[tuple[Outcome, ReportedTracks | None]]
# The answer with the tracks of the sidecar's own tracker; None where that does not stand by.
StandIn = Callable[[Stream, FrameAnswer], FrameAnswer | None]


def nobody(_: Stream, __: FrameAnswer) -> None:
    """Where no tracker stands by."""


@dataclass(frozen=True, slots=True)
class ForwardingReading:
    """What has been forwarded so far.

    sent      frames that were written to the tracker
    ended     frames by how it ended; together with those still under way, all of them
    seconds   from a frame to its answer, of those answered in time
    unusable  answers that were none
    """

    up: bool
    sent: int
    ended: dict[Outcome, int]
    seconds: Histogram
    unusable: int


@dataclass(slots=True)
class ExternalTracker:
    """Whether the tracker is there, and the frames on their way to it.

    changed        told when it comes or goes
    trouble        how it was when it was last found not to serve; empty: never was
    heard          whether it has answered anything in this call
    unheard_since  when the first frame was sent after what it answered last; None: none was
    """

    config: TrackerConfig
    counters: Counters
    changed: Callable[[bool], None]
    stand_in: StandIn = nobody
    up: bool = False
    trouble: str = ""
    heard: bool = False
    unheard_since: float | None = None
    unusable: int = 0
    seconds: Histogram = field(default_factory=Histogram)
    line: FrameLine = field(init=False)
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.line = FrameLine(self.config.queue_frames)

    def reading(self) -> ForwardingReading:
        """As of now."""
        line, seconds = self.line, copy.deepcopy(self.seconds)
        return ForwardingReading(self.up, line.sent, dict(line.ended), seconds, self.unusable)

    # ---- the frame path

    def forward(
        self, stream: Stream, answer: FrameAnswer, left: float | None
    ) -> FrameAnswer | Awaitable[FrameAnswer]:
        """The answer as it goes back; later, where it is to have the tracks of this frame.

        left  seconds of the detector's call; None: it has no deadline
        """
        loop = asyncio.get_running_loop()
        now, wanted = loop.time(), stream.header.return_tracks
        call_ends = None if left is None else now + left
        frame = ForwardedFrame(stream, answer, now, call_ends, wanted)
        if not self.up:
            self.line.end(frame, Outcome.FAILED)
            # Who stands by has tracked it already.
            return self._without(answer, Outcome.FAILED) if self._missed(stream) else answer
        waits = self.config.timeout_seconds
        waits = waits if left is None else max(0.0, min(waits, SHARE * left))
        timer = loop.call_later(waits, self.line.overdue, frame)
        ended: Ended | None = loop.create_future() if wanted else None

        def settle(outcome: Outcome, tracks: ReportedTracks | None) -> None:
            timer.cancel()
            # Who waited may have gone.
            if ended is not None and not ended.done():
                ended.set_result((outcome, tracks))

        frame.settle = settle
        self.line.add(frame)
        self.ready.set()
        return answer if ended is None else self._with_tracks(stream, answer, ended)

    def _missed(self, stream: Stream) -> bool:
        """Whether tracks were asked for, and nobody else has them."""
        return stream.header.return_tracks and stream.tracker is None

    async def _with_tracks(self, stream: Stream, answer: FrameAnswer, ended: Ended) -> FrameAnswer:
        outcome, tracks = await ended
        if tracks is not None:
            return replace(answer, tracks=tracks)
        try:
            instead = self.stand_in(stream, answer)
        except Exception:
            log.exception("a frame of stream %s is answered without tracks", stream.header.stream)
            self.counters.internal_errors += 1
            instead = None
        return self._without(answer, outcome) if instead is None else instead

    def _without(self, answer: FrameAnswer, outcome: Outcome) -> FrameAnswer:
        """The answer with the reason why it has no tracks."""
        config = self.config
        if outcome is Outcome.FAILED:
            text = f"the tracker at {config.address} is away, or its answer was none; see the log."
        elif outcome is Outcome.DROPPED:
            text = f"more than {config.queue_frames} frames waited ([tracker] queue_frames)."
        else:
            text = (
                f"the tracker did not answer within {config.timeout_seconds:g} s ([tracker] "
                "timeout_seconds), or what was left of the call."
            )
        self.counters.note(Reason.NOT_TRACKED, 1)
        notice = Notice(Reason.NOT_TRACKED, "tracks", text)
        return replace(answer, notices=(*answer.notices, notice))

    # ---- for who holds the call

    def be(self, up: bool) -> None:
        """There, or away: frames that wait for one who is away would wait for nothing."""
        if up == self.up:
            return
        self.up = up
        if not up:
            self.line.lose()
        try:
            self.changed(up)
        except Exception:
            log.exception("not everyone knows that the tracker is %s", "there" if up else "away")
            self.counters.internal_errors += 1

    def encoded(self, frame: ForwardedFrame, now: float) -> bytes | None:
        """The request; None where it cannot be made: neither the call nor other frames suffer."""
        left_ns = None if frame.call_ends is None else int((frame.call_ends - now) * 1e9)
        name, sequence = frame.stream.header.stream, frame.sequence
        assert sequence is not None
        try:
            return encode_frame_update(name, frame.answer, sequence, left_ns)
        except Exception:
            log.exception("a frame of stream %s was not forwarded", name)
            self.counters.internal_errors += 1
            self.line.end(frame, Outcome.FAILED)
            return None

    def take(self, data: bytes, now: float) -> None:
        """An answer. Raises UnusableAnswer, which is counted."""
        try:
            self._take(data, now)
        except UnusableAnswer:
            self.unusable += 1
            raise

    def _take(self, data: bytes, now: float) -> None:
        answer = decode_update(data)
        try:
            frame = self.line.answered(answer.sequence)
        except KeyError:
            text = f"sequence: {answer.sequence} was never sent; it must be that of the request."
            raise UnusableAnswer(text) from None
        self.heard, self.unheard_since = True, None
        if frame is None:
            return  # too late: its detector has long gone on
        tracks = None
        if frame.wanted:
            received, header = frame.answer.received.detections, frame.stream.header
            most, own = self.config.max_tracks, frame.stream.tracker
            # The header's answer has promised those of our own tracker, where it stands by.
            state = None if own is None else len(own.dimensions)
            try:
                tracks = reported_tracks(answer, received, len(header.classes), most, state)
            except UnusableAnswer:
                self.line.end(frame, Outcome.FAILED)
                raise
        self.seconds.observe(now - frame.began)
        self.line.end(frame, Outcome.ANSWERED, tracks)
