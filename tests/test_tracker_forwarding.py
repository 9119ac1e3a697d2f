"""Frames on their way to a tracker elsewhere: every one ends once, and nothing waits too long.

The tracker is played by the test, on the same event loop; real ones are in
test_service_external_tracker.py.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from random import Random
from typing import cast

import pytest
from hypothesis import given, settings
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
from tests.piped import HEADER, opened, pipeline_of, sent
from tests.received import frame
from tests.served import PATIENCE
from tests.trackers import Behaviour, answering, malformed, silent, wrong_sequence

LONG = 5.0  # s; what is waited for comes before that
SHORT = 0.02  # s; what is not waited for longer


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
        self.dials: list[float] = []

    @contextlib.asynccontextmanager
    async def dial(self) -> AsyncIterator[Link]:
        self.dials.append(asyncio.get_running_loop().time())
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
            for answer in self.behave(request):
                self.answers.put_nowait(answer)

    async def read(self) -> bytes:
        answer = await self.answers.get()
        if isinstance(answer, LinkLost):
            raise answer
        return answer

    async def health(self) -> AsyncIterator[bool]:
        self.asked_for_health += 1
        while self.tells_health:
            yield await self.healthy.get()

    def vanish(self) -> None:
        self.there = False
        self.answers.put_nowait(LinkLost("gone"))

    def frames(self) -> list[tracker_pb2.UpdateRequest]:
        return [r for r in self.requests if r.WhichOneof("message") == "frame"]


class Setting:
    """A pipeline, the tracker it forwards to, and the calls to that."""

    def __init__(self, played: PlayedTracker, silence: float = 60.0, **changes) -> None:
        changes = {"timeout_seconds": LONG, **changes, "kind": TrackerKind.GRPC}
        self.pipeline: Pipeline = pipeline_of(tracker=changes)
        config = TrackerConfig.model_validate(changes)
        self.tracker = ExternalTracker(
            config,
            self.pipeline.counters,
            self.pipeline.track_elsewhere,
            self.pipeline.track_instead,
        )
        self.calls = TrackerCalls(self.tracker, played.dial, Random(0), silence)
        self.played = played
        self.number = 0
        self.forwarded = 0

    def stream(self, name="lidar", *, return_tracks=True) -> Stream:
        return opened(self.pipeline, replace(HEADER, stream=name, return_tracks=return_tracks))

    def begin(
        self, stream: Stream, left: float | None = None
    ) -> FrameAnswer | Awaitable[FrameAnswer]:
        """Forward a frame with two detections."""
        self.number += 1
        self.forwarded += 1
        received = frame([sent(4), sent(2)], self.number, self.number * 10**8)
        return self.tracker.forward(stream, self.pipeline.process(stream, received), left)

    async def ask(self, stream: Stream, left: float | None = None) -> FrameAnswer:
        answer = self.begin(stream, left)
        return answer if isinstance(answer, FrameAnswer) else await answer

    async def until(self, check) -> None:
        async with asyncio.timeout(PATIENCE):
            while not check():
                await asyncio.sleep(0.001)

    async def up(self) -> None:
        await self.until(lambda: self.tracker.up)

    async def down(self) -> None:
        await self.until(lambda: not self.tracker.up)

    @property
    def ended(self) -> dict[Outcome, int]:
        return {outcome: n for outcome, n in self.tracker.line.ended.items() if n}


def play(scene, behave: Behaviour = answering, **changes):
    """Run a scene with a tracker; afterwards every frame has ended, and once."""

    async def run() -> None:
        played = PlayedTracker(behave)
        setting = Setting(played, **changes)
        calls = asyncio.create_task(setting.calls.run())
        try:
            async with asyncio.timeout(3 * PATIENCE):
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


def reasons(answer: FrameAnswer) -> list[Reason]:
    return [notice.reason for notice in answer.notices]


# ---- a tracker that works


def test_tracks_of_the_frame_come_with_its_answer():
    async def scene(setting: Setting, played: PlayedTracker):
        stream = setting.stream()
        await setting.up()
        for _ in range(3):
            answer = await setting.ask(stream)
            assert answer.tracks is not None
            assert answer.tracks.of_detections(2).tolist() == [1004, 1002]
            assert not answer.notices
        assert setting.ended == {Outcome.ANSWERED: 3}
        assert setting.tracker.line.sent == 3
        assert setting.tracker.up
        assert sum(setting.tracker.seconds.counts) == 3

    play(scene)


def test_who_did_not_ask_for_tracks_gets_the_answer_at_once_and_the_tracker_the_frame():
    async def scene(setting: Setting, played: PlayedTracker):
        stream = setting.stream(return_tracks=False)
        await setting.up()
        for _ in range(3):
            answer = setting.begin(stream)
            assert isinstance(answer, FrameAnswer)
            assert answer.tracks is None
        await setting.until(lambda: setting.ended == {Outcome.ANSWERED: 3})
        assert [r.frame.frame_id for r in played.frames()] == [1, 2, 3]
        assert [r.sequence for r in played.frames()] == [1, 2, 3]

    play(scene)


def test_a_header_goes_before_the_first_frame_of_each_stream_and_of_each_registration():
    async def scene(setting: Setting, played: PlayedTracker):
        await setting.up()
        for name in ("lidar", "radar", "lidar", "radar"):
            await setting.ask(setting.stream(name))
        changed = replace(HEADER, coordinate_frame="another", return_tracks=True)
        await setting.ask(opened(setting.pipeline, changed))
        assert [(r.stream, r.WhichOneof("message")) for r in played.requests] == [
            ("lidar", "header"),
            ("lidar", "frame"),
            ("radar", "header"),
            ("radar", "frame"),
            ("lidar", "frame"),
            ("radar", "frame"),
            ("lidar", "header"),
            ("lidar", "frame"),
        ]

    play(scene)


def test_answers_in_another_order_find_their_frames():
    held: list[bytes] = []

    def behave(request):
        held.extend(answering(request))
        return []

    async def scene(setting: Setting, played: PlayedTracker):
        streams = [setting.stream(name) for name in ("a", "b", "c")]
        await setting.up()
        waiting = [asyncio.create_task(setting.ask(stream)) for stream in streams]
        await setting.until(lambda: len(held) == 3)
        for answer in reversed(held):
            played.answers.put_nowait(answer)
        for found in await asyncio.gather(*waiting):
            assert found.tracks is not None

    play(scene, behave)


def test_what_is_left_of_a_call_is_told_and_waited_for_no_longer():
    async def scene(setting: Setting, played: PlayedTracker):
        stream = setting.stream()
        await setting.up()
        answer = await setting.ask(stream, left=0.05)
        assert reasons(answer) == [Reason.NOT_TRACKED]
        (request,) = played.frames()
        assert 0 <= request.deadline_ns <= 50_000_000
        # Nothing is left: answered all the same.
        assert reasons(await setting.ask(stream, left=0.0)) == [Reason.NOT_TRACKED]
        assert setting.ended in (
            {Outcome.LATE: 2},
            {Outcome.LATE: 1, Outcome.EXPIRED: 1},
        )

    play(scene, silent)


# ---- a tracker that does not


def test_a_tracker_that_is_away_costs_no_wait_and_the_answer_says_so():
    async def scene(setting: Setting, played: PlayedTracker):
        played.vanish()
        await setting.down()
        answer = setting.begin(setting.stream())
        assert isinstance(answer, FrameAnswer)
        assert reasons(answer) == [Reason.NOT_TRACKED]
        assert setting.pipeline.counters.notices[Reason.NOT_TRACKED] == 1
        silent_one = setting.begin(setting.stream("other", return_tracks=False))
        assert isinstance(silent_one, FrameAnswer)
        assert not silent_one.notices
        assert setting.ended == {Outcome.FAILED: 2}

    play(scene)


def test_a_tracker_that_goes_away_leaves_no_answer_waiting_and_gets_headers_anew():
    async def scene(setting: Setting, played: PlayedTracker):
        stream = setting.stream()
        await setting.up()
        waiting = asyncio.create_task(setting.ask(stream))
        await setting.until(lambda: len(played.frames()) == 1)
        played.vanish()
        assert reasons(await waiting) == [Reason.NOT_TRACKED]
        played.requests.clear()
        played.behave, played.there = answering, True
        await setting.up()
        assert (await setting.ask(stream)).tracks is not None
        assert [r.WhichOneof("message") for r in played.requests] == ["header", "frame"]
        assert played.frames()[0].sequence == 1
        assert setting.ended == {Outcome.FAILED: 1, Outcome.ANSWERED: 1}

    play(scene, silent)


def test_a_late_answer_is_passed_over_and_the_next_one_is_in_time():
    async def scene(setting: Setting, played: PlayedTracker):
        stream = setting.stream()
        await setting.up()
        assert reasons(await setting.ask(stream)) == [Reason.NOT_TRACKED]
        (late,) = played.frames()
        played.behave = answering
        for answer in answering(late):
            played.answers.put_nowait(answer)
        setting.tracker.config = replace_timeout(setting.tracker.config, LONG)
        assert (await setting.ask(stream)).tracks is not None
        assert setting.ended == {Outcome.LATE: 1, Outcome.ANSWERED: 1}
        assert setting.tracker.unusable == 0

    play(scene, silent, timeout_seconds=SHORT)


def replace_timeout(config: TrackerConfig, seconds: float) -> TrackerConfig:
    return config.model_copy(update={"timeout_seconds": seconds})


@pytest.mark.parametrize("behave", [malformed, wrong_sequence], ids=["malformed", "sequence"])
def test_answers_that_are_none_are_counted_and_the_call_goes_on(behave):
    async def scene(setting: Setting, played: PlayedTracker):
        stream = setting.stream()
        await setting.up()
        for _ in range(3):
            assert reasons(await setting.ask(stream)) == [Reason.NOT_TRACKED]
        assert setting.tracker.unusable == 3
        assert setting.ended == {Outcome.LATE: 3}
        assert len(played.dials) == 1

    play(scene, behave, timeout_seconds=SHORT)


def test_tracks_that_cannot_be_cost_only_their_own_frame_and_no_wait():
    def behave(request):
        response = tracker_pb2.UpdateResponse.FromString(answering(request)[0])
        response.tracks[0].class_index = 99
        return [response.SerializeToString()]

    async def scene(setting: Setting, played: PlayedTracker):
        stream = setting.stream()
        await setting.up()
        assert reasons(await setting.ask(stream)) == [Reason.NOT_TRACKED]
        played.behave = answering
        assert (await setting.ask(stream)).tracks is not None
        assert setting.ended == {Outcome.FAILED: 1, Outcome.ANSWERED: 1}
        assert setting.tracker.unusable == 1

    play(scene, behave)


def test_an_answer_that_comes_twice_counts_once():
    async def scene(setting: Setting, played: PlayedTracker):
        stream = setting.stream()
        await setting.up()
        for _ in range(3):
            assert (await setting.ask(stream)).tracks is not None
        assert setting.ended == {Outcome.ANSWERED: 3}

    play(scene, lambda request: 2 * answering(request))


def test_a_tracker_that_reads_nothing_holds_nothing_and_the_oldest_frames_are_dropped():
    async def scene(setting: Setting, played: PlayedTracker):
        played.reading.clear()
        stream = setting.stream(return_tracks=False)
        await setting.up()
        for _ in range(40):
            assert isinstance(setting.begin(stream), FrameAnswer)
            await asyncio.sleep(0)
            assert len(setting.tracker.line._waiting) <= 4
        # One was taken and cannot be written, four wait.
        assert setting.ended == {Outcome.DROPPED: 35}
        asking = setting.stream("asking")
        waiting = asyncio.create_task(setting.ask(asking))
        await asyncio.sleep(0)
        played.reading.set()
        assert (await waiting).tracks is not None
        assert [r.frame.frame_id for r in played.frames()][-4:] == [38, 39, 40, 41]

    play(scene, queue_frames=4)


def test_a_frame_that_waited_too_long_is_left_out():
    async def scene(setting: Setting, played: PlayedTracker):
        played.reading.clear()
        stream = setting.stream()
        await setting.up()
        for _ in range(3):
            assert reasons(await setting.ask(stream)) == [Reason.NOT_TRACKED]
        assert setting.ended == {Outcome.LATE: 1, Outcome.EXPIRED: 2}
        assert not setting.tracker.line._waiting
        played.reading.set()
        # The first was over while its header could not be written, and is not sent either.
        await setting.until(lambda: played.requests)
        setting.tracker.config = replace_timeout(setting.tracker.config, LONG)
        assert (await setting.ask(stream)).tracks is not None
        assert [r.frame.frame_id for r in played.frames()] == [4]
        assert setting.tracker.line.sent == 1

    play(scene, timeout_seconds=SHORT)


def test_a_tracker_that_hears_and_never_answers_is_called_anew():
    async def scene(setting: Setting, played: PlayedTracker):
        stream = setting.stream(return_tracks=False)
        await setting.up()
        async with asyncio.timeout(PATIENCE):
            while len(played.dials) < 3:
                setting.begin(stream)
                await asyncio.sleep(0.005)

    play(scene, silent, timeout_seconds=SHORT, silence=0.1)


def test_a_tracker_that_nobody_asks_for_long_is_not_called_anew():
    async def scene(setting: Setting, played: PlayedTracker):
        stream = setting.stream()
        await setting.up()
        await setting.ask(stream)
        await asyncio.sleep(0.2)
        assert (await setting.ask(stream)).tracks is not None
        assert len(played.dials) == 1

    play(scene, silence=0.05)


def test_a_tracker_that_says_it_does_not_serve_is_away_until_it_says_it_does():
    async def scene(setting: Setting, played: PlayedTracker):
        played.tells_health = True
        stream = setting.stream()
        for healthy in (False, True, False, True):
            played.healthy.put_nowait(healthy)
            await (setting.up() if healthy else asyncio.sleep(0.02))
            if not healthy:
                await setting.down()
            answer = await setting.ask(stream)
            assert (answer.tracks is not None) == healthy
        assert len(played.dials) == 1

    play(scene)


def test_a_tracker_that_does_not_serve_and_tells_no_more_is_away_and_is_asked_again():
    async def scene(setting: Setting, played: PlayedTracker):
        played.tells_health = True
        played.healthy.put_nowait(True)
        await setting.up()
        played.tells_health = False  # from now on; it still waits for one word
        played.healthy.put_nowait(False)
        await setting.down()
        await setting.until(lambda: played.asked_for_health >= 3)
        assert not setting.tracker.up
        played.tells_health = True
        played.healthy.put_nowait(True)
        await setting.up()
        assert len(played.dials) == 1

    play(scene, backoff_seconds=0.2)


def test_the_last_line_of_the_log_says_how_the_tracker_is_however_soon_it_came_back(
    monkeypatch, caplog
):
    monkeypatch.setattr(external_tracker, "SAY_EVERY", 0.3)

    def said() -> list[str]:
        return [record.message.partition("the tracker at ")[2] for record in caplog.records]

    async def scene(setting: Setting, played: PlayedTracker):
        await setting.up()
        await setting.until(lambda: said()[-1].endswith("is there"))
        await asyncio.sleep(0.3)
        played.vanish()
        await setting.down()
        await setting.until(lambda: "is away" in said()[-1])
        played.there = True
        await setting.up()
        await setting.until(lambda: said()[-1].endswith("is there"))
        assert len(said()) == 3

    play(scene, silence=0.2)


def test_a_client_that_hangs_up_while_its_answer_waits_harms_nobody():
    async def scene(setting: Setting, played: PlayedTracker):
        stream = setting.stream()
        await setting.up()
        waiting = asyncio.create_task(setting.ask(stream))
        await setting.until(lambda: len(played.frames()) == 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        for answer in answering(played.frames()[0]):
            played.answers.put_nowait(answer)
        await setting.until(lambda: setting.ended == {Outcome.ANSWERED: 1})

    play(scene, silent)


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
    delays = [seconds for seconds in slept if seconds >= external_tracker.FIRST_BACKOFF / 2]
    assert len(delays) > 20
    for i, delay in enumerate(delays):
        longest = min(1.0, external_tracker.FIRST_BACKOFF * 2**i)
        assert longest / 2 <= delay <= longest


# ---- the sidecar's own tracker stands by


def test_while_the_tracker_is_away_the_own_one_answers_with_ids_of_its_own():
    async def scene(setting: Setting, played: PlayedTracker):
        stream = setting.stream()
        await setting.up()
        there = await setting.ask(stream)
        played.vanish()
        await setting.down()
        for _ in range(3):
            answer = await setting.ask(stream)
            assert answer.tracks is not None
            assert answer.tracks.id.size == 2
            assert (answer.tracks.id > 2**62).all()
            assert not answer.notices
        assert answer.tracks is not None
        assert answer.tracks.detections.tolist() == [3, 3]
        played.there = True
        await setting.up()
        back = await setting.ask(stream)
        assert back.tracks is not None
        assert there.tracks is not None
        assert back.tracks.id.tolist() == there.tracks.id.tolist()

    def behave(request):
        return with_states(request, 6)

    play(scene, behave, fallback="embedded")


def with_states(request, length: int) -> list[bytes]:
    response = tracker_pb2.UpdateResponse.FromString(answering(request)[0])
    for track in response.tracks:
        track.ClearField("state")
        track.ClearField("covariance")
        track.state.extend([0.0] * length)
        track.covariance.extend([float(i == j) for i in range(length) for j in range(i + 1)])
    return [response.SerializeToString()]


def test_a_frame_without_an_answer_is_tracked_by_the_own_one():
    async def scene(setting: Setting, played: PlayedTracker):
        stream = setting.stream()
        await setting.up()
        for number in range(1, 4):
            answer = await setting.ask(stream)
            assert answer.tracks is not None
            assert answer.tracks.detections.tolist() == [number, number]
        assert setting.ended == {Outcome.LATE: 3}

    play(scene, silent, timeout_seconds=SHORT, fallback="embedded")


def test_states_of_another_length_than_the_own_ones_are_not_passed_on():
    async def scene(setting: Setting, played: PlayedTracker):
        stream = setting.stream()
        await setting.up()
        answer = await setting.ask(stream)
        assert answer.tracks is not None
        assert (answer.tracks.id > 2**62).all()
        assert setting.tracker.unusable == 1

    play(scene, answering, fallback="embedded")


# ---- the line


@given(
    st.integers(1, 5),
    st.lists(
        st.tuples(
            st.sampled_from(["add", "take", "answer", "overdue", "lose", "begin", "wrong"]),
            st.integers(0, 30),
        ),
        max_size=80,
    ),
)
@settings(max_examples=200)
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
                with contextlib.suppress(KeyError):
                    if (found := line.answered(which)) is not None:
                        assert found.sequence == which
                        line.end(found, Outcome.ANSWERED)
            case "overdue" if frames:
                line.overdue(frames[which % len(frames)])
            case "lose":
                line.lose()
                assert not line._waiting
                assert not line._out
            case "begin":
                line.begin_call()
                assert not line._out
            case "wrong":
                with pytest.raises(KeyError):
                    line.answered(1000 + which)
        assert len(line._waiting) <= capacity
        under_way = len(line._waiting) + len(line._out)
        assert under_way + sum(line.ended.values()) == len(frames)
    line.lose()
    assert sorted(number for number, _ in told) == list(range(len(frames)))
    assert [frames[number].outcome for number, _ in told] == [outcome for _, outcome in told]
