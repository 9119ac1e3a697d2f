"""Frames on their way to a tracker elsewhere: every one ends once, and nothing waits too long.

The tracker is played by the test, on the same event loop; real ones are in test_tracker_calls.py.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from random import Random
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.config import TrackerConfig, TrackerKind
from monitor.frames.detections import Reason
from monitor.frames.frame import FrameAnswer
from monitor.pipeline import external_tracker
from monitor.pipeline.external_tracker import (
    ExternalTracker,
    ForwardedFrame,
    FrameLine,
    Link,
    LinkLost,
    Outcome,
    TrackerCalls,
)
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.streams import Stream
from monitor.v1 import tracker_pb2
from monitor.wire.requests import UnusableAnswer
from tests.piped import HEADER, opened, pipeline_of, sent
from tests.received import frame
from tests.served import PATIENCE
from tests.trackers import Behaviour, answering, silent

LONG = 5.0  # s; what is waited for comes before that
SHORT = 0.02  # s; what is not waited for longer
ANSWERED, LATE, DROPPED, EXPIRED, FAILED = Outcome


class PlayedTracker:
    """A link that the test holds in its hands.

    reading  cleared: writes wait, as where nobody reads
    """

    def __init__(self, behave: Behaviour = answering) -> None:
        self.behave = behave
        self.requests: list[tracker_pb2.UpdateRequest] = []
        self.answers: asyncio.Queue[bytes | LinkLost] = asyncio.Queue()
        self.reading = asyncio.Event()
        self.reading.set()
        self.healthy: asyncio.Queue[bool] = asyncio.Queue()
        self.tells_health = False
        self.asked_for_health = 0
        self.there = True
        self.dials = 0

    @contextlib.asynccontextmanager
    async def dial(self) -> AsyncIterator[Link]:
        self.dials += 1
        if not self.there:
            raise LinkLost("not there")
        self.answers = asyncio.Queue()
        yield cast(Link, self)

    async def write(self, data: bytes) -> None:
        await self.reading.wait()
        if not self.there:
            raise LinkLost("gone")
        request = tracker_pb2.UpdateRequest.FromString(data)
        self.requests.append(request)
        if request.WhichOneof("message") == "frame":
            self.say(*self.behave(request))

    async def read(self) -> bytes:
        answer = await self.answers.get()
        if isinstance(answer, LinkLost):
            raise answer
        return answer

    async def health(self) -> AsyncIterator[bool]:
        self.asked_for_health += 1
        while self.tells_health:
            yield await self.healthy.get()

    def say(self, *answers: bytes) -> None:
        for answer in answers:
            self.answers.put_nowait(answer)

    def vanish(self) -> None:
        self.there = False
        self.answers.put_nowait(LinkLost("gone"))

    def kinds(self) -> list[tuple[str, str]]:
        return [(r.stream, r.WhichOneof("message") or "") for r in self.requests]

    def frames(self) -> list[tracker_pb2.UpdateRequest]:
        return [r for r in self.requests if r.WhichOneof("message") == "frame"]


class Setting:
    """A pipeline, the tracker it forwards to, and the calls to that."""

    def __init__(self, played: PlayedTracker, silence: float = 60.0, **changes) -> None:
        changes = {"timeout_seconds": LONG, **changes, "kind": TrackerKind.GRPC}
        self.pipeline: Pipeline = pipeline_of(tracker=changes)
        self.tracker = ExternalTracker(
            TrackerConfig.model_validate(changes),
            self.pipeline.counters,
            self.pipeline.track_elsewhere,
            self.pipeline.track_instead,
        )
        self.calls = TrackerCalls(self.tracker, played.dial, Random(0), silence)
        self.forwarded = 0

    def stream(self, name="lidar", *, return_tracks=True) -> Stream:
        return opened(self.pipeline, replace(HEADER, stream=name, return_tracks=return_tracks))

    def begin(
        self, stream: Stream, left: float | None = None
    ) -> FrameAnswer | Awaitable[FrameAnswer]:
        """Forwards a frame with two detections."""
        self.forwarded += 1
        received = frame([sent(4), sent(2)], self.forwarded, self.forwarded * 10**8)
        return self.tracker.forward(stream, self.pipeline.process(stream, received), left)

    async def ask(self, stream: Stream, left: float | None = None) -> FrameAnswer:
        answer = self.begin(stream, left)
        return answer if isinstance(answer, FrameAnswer) else await answer

    def at_once(self, stream: Stream) -> FrameAnswer:
        answer = self.begin(stream)
        assert isinstance(answer, FrameAnswer)
        return answer

    async def tracked(self, stream: Stream) -> list[int]:
        """The ids of both detections."""
        answer = await self.ask(stream)
        assert answer.tracks is not None
        assert not answer.notices
        ids: list[int] = answer.tracks.of_detections(2).tolist()
        return ids

    async def missed(self, stream: Stream, left: float | None = None) -> None:
        """The answer comes without tracks, and says so."""
        answer = await self.ask(stream, left)
        assert [notice.reason for notice in answer.notices] == [Reason.NOT_TRACKED]

    async def until(self, check) -> None:
        async with asyncio.timeout(PATIENCE):
            while not check():
                await asyncio.sleep(0.001)

    async def up(self, up=True) -> None:
        await self.until(lambda: self.tracker.up is up)

    async def vanished(self, played: PlayedTracker) -> None:
        played.vanish()
        await self.up(False)

    @property
    def ended(self) -> dict[Outcome, int]:
        return {outcome: n for outcome, n in self.tracker.line.ended.items() if n}


def play(scene, behave: Behaviour = answering, *, tells_health=False, **changes):
    """Runs a scene with a tracker that is there; afterwards every frame has ended once."""

    async def run() -> None:
        played = PlayedTracker(behave)
        if tells_health:
            played.tells_health = True
            played.healthy.put_nowait(True)
        setting = Setting(played, **changes)
        calls = asyncio.create_task(setting.calls.run())
        try:
            async with asyncio.timeout(3 * PATIENCE):
                await setting.up()
                await scene(setting, played)
        finally:
            calls.cancel()
            await asyncio.gather(calls, return_exceptions=True)
        line = setting.tracker.line
        assert sum(line.ended.values()) == setting.forwarded
        assert not line._waiting
        assert not line._out
        assert not setting.tracker.up
        assert setting.pipeline.counters.internal_errors == 0

    asyncio.run(run())


# ---- a tracker that works


def test_whoever_asks_gets_the_tracks_of_the_frame_and_others_their_answer_at_once():
    async def scene(setting: Setting, played: PlayedTracker):
        silent_one = setting.stream("silent", return_tracks=False)
        for _ in range(2):
            assert await setting.tracked(setting.stream()) == [1004, 1002]
            assert setting.at_once(silent_one).tracks is None
        await setting.until(lambda: setting.ended == {ANSWERED: 4})
        assert [r.frame.frame_id for r in played.frames()] == [1, 2, 3, 4]
        assert [r.sequence for r in played.frames()] == [1, 2, 3, 4]
        assert setting.tracker.line.sent == sum(setting.tracker.seconds.counts) == 4

    play(scene)


def test_what_is_left_of_a_call_is_told_and_waited_for_no_longer():
    async def scene(setting: Setting, played: PlayedTracker):
        await setting.missed(setting.stream(), left=0.05)
        (request,) = played.frames()
        assert 0 <= request.deadline_ns <= 50_000_000
        # Nothing is left: answered all the same.
        await setting.missed(setting.stream(), left=0.0)
        assert setting.ended in ({LATE: 2}, {LATE: 1, EXPIRED: 1})

    play(scene, silent)


# ---- a tracker that does not


def test_a_tracker_that_goes_away_leaves_no_answer_waiting_and_gets_headers_anew():
    async def scene(setting: Setting, played: PlayedTracker):
        waiting = asyncio.create_task(setting.missed(setting.stream()))
        await setting.until(lambda: len(played.frames()) == 1)
        played.vanish()
        await waiting
        played.requests.clear()
        played.behave, played.there = answering, True
        await setting.up()
        await setting.tracked(setting.stream())
        assert played.kinds() == [("lidar", "header"), ("lidar", "frame")]
        assert played.frames()[0].sequence == 1
        assert setting.ended == {FAILED: 1, ANSWERED: 1}

    play(scene, silent)


def test_tracks_that_cannot_be_cost_only_their_own_frame_and_an_answer_counts_once():
    def behave(request):
        response = tracker_pb2.UpdateResponse.FromString(answering(request)[0])
        response.tracks[0].class_index = 99
        return [response.SerializeToString()]

    async def scene(setting: Setting, played: PlayedTracker):
        await setting.missed(setting.stream())
        played.behave = lambda request: 2 * answering(request)
        for _ in range(2):
            await setting.tracked(setting.stream())
        assert setting.ended == {FAILED: 1, ANSWERED: 2}
        assert setting.tracker.unusable == 1

    play(scene, behave)


def test_a_tracker_that_reads_nothing_holds_nothing_and_the_oldest_frames_are_dropped():
    async def scene(setting: Setting, played: PlayedTracker):
        played.reading.clear()
        for _ in range(40):
            setting.at_once(setting.stream(return_tracks=False))
            await asyncio.sleep(0)
            assert len(setting.tracker.line._waiting) <= 4
        # One was taken and cannot be written, four wait.
        assert setting.ended == {DROPPED: 35}
        waiting = asyncio.create_task(setting.tracked(setting.stream("asking")))
        await asyncio.sleep(0)
        played.reading.set()
        await waiting
        assert [r.frame.frame_id for r in played.frames()][-4:] == [38, 39, 40, 41]

    play(scene, queue_frames=4)


def test_only_a_tracker_that_takes_frames_and_never_answers_is_called_anew():
    async def hears(setting: Setting, played: PlayedTracker):
        async with asyncio.timeout(PATIENCE):
            while played.dials < 3:
                setting.begin(setting.stream(return_tracks=False))
                await asyncio.sleep(0.005)

    async def idle(setting: Setting, played: PlayedTracker):
        await setting.tracked(setting.stream())
        await asyncio.sleep(0.2)
        await setting.tracked(setting.stream())
        assert played.dials == 1

    play(hears, silent, timeout_seconds=SHORT, silence=0.1)
    play(idle, silence=0.05)


def test_a_tracker_that_says_it_does_not_serve_is_away_and_is_asked_until_it_does():
    async def scene(setting: Setting, played: PlayedTracker):
        for healthy in (False, True):
            played.healthy.put_nowait(healthy)
            await setting.until(played.healthy.empty)
            await setting.up(healthy)
            answer = await setting.ask(setting.stream())
            assert (answer.tracks is not None) == healthy
        assert played.dials == 1

    play(scene, tells_health=True, backoff_seconds=0.2)


def test_attempts_come_ever_more_rarely_and_no_more_rarely_than_the_cap(monkeypatch):
    slept: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await real(0)

    async def scene(setting: Setting, played: PlayedTracker):
        played.vanish()
        await setting.until(lambda: len(slept) > 400)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    play(scene, backoff_seconds=1.0)
    # A quarter of the silence of 60 s is slept too, by the one who listens for it.
    shortest = external_tracker.FIRST_BACKOFF / 2
    delays = [seconds for seconds in slept if seconds >= shortest and seconds != 15.0]
    assert len(delays) > 20
    for i, delay in enumerate(delays):
        longest = min(1.0, external_tracker.FIRST_BACKOFF * 2**i)
        assert longest / 2 <= delay <= longest


# ---- the sidecar's own tracker stands by


def with_states(request, length: int) -> list[bytes]:
    response = tracker_pb2.UpdateResponse.FromString(answering(request)[0])
    for track in response.tracks:
        track.ClearField("state")
        track.ClearField("covariance")
        track.state.extend([0.0] * length)
        track.covariance.extend([float(i == j) for i in range(length) for j in range(i + 1)])
    return [response.SerializeToString()]


async def own_tracks(setting: Setting, numbers) -> None:
    """The sidecar's own tracker answers, with ids of its own and so many detections."""
    for number in numbers:
        answer = await setting.ask(setting.stream())
        assert answer.tracks is not None
        assert (answer.tracks.id > 2**62).all()
        assert answer.tracks.detections.tolist() == [number, number]
        assert not answer.notices


def test_while_the_tracker_is_away_or_late_the_own_one_answers_with_ids_of_its_own():
    async def away(setting: Setting, played: PlayedTracker):
        there = await setting.tracked(setting.stream())
        for _ in range(2):
            await setting.vanished(played)
            # It begins anew each time.
            await own_tracks(setting, range(1, 4))
            played.there = True
            await setting.up()
            assert await setting.tracked(setting.stream()) == there

    async def late(setting: Setting, played: PlayedTracker):
        await own_tracks(setting, range(1, 4))
        assert setting.ended == {LATE: 3}

    play(away, lambda request: with_states(request, 6), fallback="embedded")
    play(late, silent, timeout_seconds=SHORT, fallback="embedded")


# ---- the line

a_step = st.tuples(
    st.sampled_from(["add", "take", "answer", "overdue", "lose", "begin", "wrong"]),
    st.integers(0, 30),
)


@given(st.integers(1, 5), st.lists(a_step, max_size=80))
@example(2, [*[("add", 0)] * 3, ("take", 0), ("answer", 1), ("overdue", 2), ("add", 0)])
@example(3, [*[("add", 0)] * 3, ("take", 0), ("begin", 0), ("take", 0), ("wrong", 0), ("lose", 0)])
@example(3, [*[("add", 0)] * 3, ("take", 0), ("overdue", 0), ("answer", 1), ("answer", 0)])
def test_every_frame_ends_once_whatever_happens_and_in_what_order(capacity, steps):
    pipeline = pipeline_of()
    stream = opened(pipeline)
    answer = pipeline.process(stream, frame([]))
    line = FrameLine(capacity)
    frames: list[ForwardedFrame] = []
    taken: list[ForwardedFrame] = []
    told: list[tuple[int, Outcome]] = []

    def forwarded(number: int) -> ForwardedFrame:
        made = ForwardedFrame(stream, answer, 0.0)
        made.settle = lambda outcome, _: told.append((number, outcome))
        return made

    for what, which in steps:
        match what:
            case "add":
                frames.append(forwarded(len(frames)))
                line.add(frames[-1])
            case "take":
                if (found := line.take()) is not None:
                    assert found.outcome is None
                    assert not taken or frames.index(found) > frames.index(taken[-1])
                    taken.append(found)
            case "answer":
                with contextlib.suppress(UnusableAnswer):
                    if (found := line.answered(which)) is not None:
                        assert found.sequence == which
                        line.end(found, ANSWERED)
            case "overdue" if frames:
                one = frames[which % len(frames)]
                before = one.outcome
                line.overdue(one)
                assert one.outcome is (before or (LATE if one in taken else EXPIRED))
            case "lose":
                line.lose()
                assert not line._waiting
                assert not line._out
            case "begin":
                line.begin_call()
                assert not line._out
            case "wrong":
                for sequence in (0, 1000 + which):
                    with pytest.raises(UnusableAnswer):
                        line.answered(sequence)
        assert len(line._waiting) <= capacity
        under_way = len(line._waiting) + len(line._out)
        assert under_way + sum(line.ended.values()) == len(frames)
    line.lose()
    assert sorted(number for number, _ in told) == list(range(len(frames)))
    assert [frames[number].outcome for number, _ in told] == [outcome for _, outcome in told]
