"""A sidecar that forwards to a tracker elsewhere: real processes, and trackers that fail.

Whatever the tracker does, every frame is answered, in order.
"""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from monitor.frames.frame import Header
from monitor.v1 import frame_pb2, perception_monitor_pb2
from monitor.wire.client_messages import encode_frame, encode_header
from tests.piped import CLASSES, DOUBLE, XYZ
from tests.served import PATIENCE, Conversation, Sidecar, eventually, process_bytes, starting
from tests.trackers import (
    FIRST_TRACK,
    Behaviour,
    FakeTracker,
    answering,
    frame,
    malformed,
    silent,
    slow,
    tracker_process,
    tracking,
    wrong_sequence,
)

K = XYZ.k
NOT_TRACKED = frame_pb2.REASON_NOT_TRACKED
USUAL = """
[metrics]
refresh_seconds = 0.05
[pending]
folder = ""
max_bytes = 2000000
[recalibration]
recalibrator = "{recalibrator}"
[tracker]
kind = "grpc"
address = "{address}"
backoff_seconds = 0.2
timeout_seconds = {timeout}
queue_frames = {queue}
fallback = "{fallback}"
"""


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@dataclass(frozen=True)
class Served:
    """A sidecar, and the address at which it looks for a tracker."""

    sidecar: Sidecar
    address: str

    def forwarded(self) -> dict[str, int]:
        """Frames by outcome, of the last refresh."""
        text = self.sidecar.get("/metrics")
        found = re.findall(
            r'^calibration_tracker_forwarded_total\{outcome="(\w+)"\} (\S+)$', text, re.MULTILINE
        )
        return {outcome: int(float(value)) for outcome, value in found}

    def is_up(self) -> None:
        assert eventually(lambda: self.sidecar.metric("tracker_up") == 1)

    def is_down(self) -> None:
        assert eventually(lambda: self.sidecar.metric("tracker_up") == 0)

    @contextlib.contextmanager
    def tracked(self, behave: Behaviour = answering, **options: Any) -> Iterator[FakeTracker]:
        """A tracker that the sidecar knows to be there, and after the block to be away."""
        with tracking(behave, address=self.address, **options) as tracker:
            self.is_up()
            yield tracker
        self.is_down()


@pytest.fixture(scope="module")
def serve(tmp_path_factory):
    """Sidecars by what is said of the tracker, each started once."""
    folder = tmp_path_factory.mktemp("forwarding")
    recalibrator = folder / "double.json"
    recalibrator.write_text(DOUBLE.to_json(), encoding="utf-8")
    known: dict[tuple[float, int, str], Served] = {}
    with starting(folder, "") as start:

        def served(timeout: float = PATIENCE, queue: int = 32, fallback: str = "none") -> Served:
            key = (timeout, queue, fallback)
            if key not in known:
                address = free_address()
                config = USUAL.format(
                    recalibrator=recalibrator,
                    address=address,
                    timeout=min(timeout, 10),
                    queue=queue,
                    fallback=fallback,
                )
                known[key] = Served(start(config), address)
            return known[key]

        yield served
        for one in known.values():
            one.sidecar.stop()


class Feed:
    """A Process stream; every answer is to the frame that was asked for, and recalibrated."""

    def __init__(self, served: Served, name: str, *, return_tracks: bool = True) -> None:
        self.conversation = Conversation(process_bytes(served.sidecar.channel))
        header = Header(name, XYZ, CLASSES, return_tracks=return_tracks)
        reply = self.conversation.ask(encode_header(header))
        self.accepted = perception_monitor_pb2.ProcessResponse.FromString(reply).header
        assert self.accepted.accepted
        self.number = 0

    def ask(self, n: int = 2) -> frame_pb2.FrameResult:
        self.send(n)
        return self.receive(n)

    def send(self, n: int = 2) -> None:
        self.number += 1
        self.conversation.send(encode_frame(frame(self.number, n)))

    def receive(self, n: int = 2) -> frame_pb2.FrameResult:
        reply = self.conversation.receive()
        result = perception_monitor_pb2.ProcessResponse.FromString(reply).frame
        assert result.frame_id == result.message_index <= self.number
        assert result.status == frame_pb2.STATUS_RECALIBRATED
        assert len(result.detections) == n
        assert list(result.detections[0].covariance) == [4.0, 0.0, 8.0, 0.0, 0.0, 12.0]
        return result

    def close(self) -> None:
        self.conversation.close()


def tracks_of(result: frame_pb2.FrameResult) -> list[int]:
    return [track.id for track in result.tracks]


def reasons(result: frame_pb2.FrameResult) -> list[int]:
    return [notice.reason for notice in result.notices]


# ---- a tracker that works


def test_the_tracker_gets_what_the_detector_gets_and_the_detector_its_tracks(serve):
    served = serve()
    with served.tracked() as tracker:
        feed = Feed(served, "usual")
        for _ in range(3):
            result = feed.ask()
            assert tracks_of(result) == [FIRST_TRACK + 10, FIRST_TRACK + 11]
            assert [d.track_id for d in result.detections] == tracks_of(result)
            assert not result.notices
            sent = tracker.frames[-1]
            assert (sent.stream, sent.frame.frame_id) == ("usual", result.frame_id)
            assert not sent.HasField("deadline_ns") or sent.deadline_ns > 0
            for forwarded, back in zip(sent.frame.detections, result.detections, strict=True):
                assert forwarded.id == back.id
                assert list(forwarded.mean) == list(back.mean)
                assert list(forwarded.covariance) == list(back.covariance)
        assert tracker.kinds() == [("usual", "header"), *[("usual", "frame")] * 3]
        feed.close()


def test_one_frame_at_a_time_is_forwarded_with_what_is_left_of_its_call(serve):
    served = serve()
    header = encode_header(Header("unary", XYZ, CLASSES, return_tracks=True))
    request = perception_monitor_pb2.ProcessFrameRequest(
        header=perception_monitor_pb2.ProcessRequest.FromString(header).header,
        frame=perception_monitor_pb2.ProcessRequest.FromString(encode_frame(frame(1))).frame,
    )
    with served.tracked() as tracker:
        reply = served.sidecar.monitor.ProcessFrame(request, timeout=PATIENCE)
        assert len(reply.frame.tracks) == 2
        # On the wire, gRPC rounds it up.
        assert 0 < tracker.frames[0].deadline_ns <= 2 * PATIENCE * 10**9
        # Far less than [tracker] timeout_seconds: the answer comes before the call ends.
        tracker.behave = silent
        reply = served.sidecar.monitor.ProcessFrame(request, timeout=1)
        assert reasons(reply.frame)[-1:] == [NOT_TRACKED]
        assert len(reply.frame.detections) == 2


def test_who_waits_for_tracks_keeps_nobody_else_waiting(serve):
    served = serve()
    release = threading.Event()

    def behave(request):
        release.wait(PATIENCE)
        return answering(request)

    with served.tracked(behave):
        waiting, others = Feed(served, "waiting"), Feed(served, "others", return_tracks=False)
        waiting.send()
        assert [others.ask().frame_id for _ in range(30)] == list(range(1, 31))
        release.set()
        assert len(waiting.receive().tracks) == 2
        waiting.close()
        others.close()


# ---- a tracker that does not


def test_a_tracker_that_comes_after_the_sidecar_is_found(serve):
    served = serve()
    served.is_down()
    feed = Feed(served, "early")
    for _ in range(5):
        result = feed.ask()
        assert not result.tracks
        assert reasons(result) == [NOT_TRACKED]
    with served.tracked() as tracker:
        assert len(feed.ask().tracks) == 2
        assert tracker.kinds() == [("early", "header"), ("early", "frame")]
    feed.close()


def test_a_tracker_that_is_killed_and_comes_back_is_told_the_headers_anew(serve):
    served = serve()
    feed = Feed(served, "killed")
    with tracker_process(served.address) as (process, address):
        assert address == served.address
        served.is_up()
        assert len(feed.ask().tracks) == 2
        process.kill()
        process.wait(PATIENCE)
        served.is_down()
        assert reasons(feed.ask()) == [NOT_TRACKED]
    with served.tracked() as tracker:
        assert len(feed.ask().tracks) == 2
        assert tracker.kinds() == [("killed", "header"), ("killed", "frame")]
        assert tracker.frames[0].sequence == 1
    feed.close()


def test_a_slow_tracker_costs_the_tracks_and_never_an_answer(serve):
    served = serve(timeout=0.02)
    before = served.forwarded()
    with served.tracked(slow(0.2)) as tracker:
        feed = Feed(served, "slow")
        for _ in range(10):
            result = feed.ask()
            assert not result.tracks
            assert reasons(result) == [NOT_TRACKED]
        assert eventually(lambda: served.forwarded()["late"] > before["late"])
        served.is_up()
        assert tracker.calls == 1
        feed.close()


@pytest.mark.parametrize("behave", [malformed, wrong_sequence], ids=["malformed", "sequence"])
def test_a_tracker_that_talks_nonsense_costs_the_tracks_and_never_an_answer(serve, behave):
    served = serve(timeout=0.02)
    before = served.sidecar.metric("tracker_unusable_answers_total")
    with served.tracked(behave) as tracker:
        feed = Feed(served, behave.__name__)
        for _ in range(5):
            assert reasons(feed.ask()) == [NOT_TRACKED]
        assert eventually(
            lambda: served.sidecar.metric("tracker_unusable_answers_total") == before + 5
        )
        assert tracker.calls == 1
        feed.close()


def test_a_tracker_that_reads_nothing_fills_no_memory_and_holds_nobody(serve):
    served = serve(timeout=0.02)
    before = served.forwarded()
    n, rounds = 2000, 150  # some 200 kB a frame
    with served.tracked(silent, deaf=True):
        asking, silent_one = Feed(served, "asking"), Feed(served, "mute", return_tracks=False)
        for _ in range(5):
            silent_one.ask(n)
        memory = served.sidecar.memory()
        for i in range(rounds):
            silent_one.ask(n)
            if i % 10 == 0:
                assert reasons(asking.ask()) == [NOT_TRACKED]
        assert eventually(lambda: sum(served.forwarded().values()) > sum(before.values()) + rounds)
        after = served.forwarded()
        unsent = sum(after[o] - before[o] for o in ("expired", "dropped", "failed"))
        assert unsent > rounds / 2
        # Those frames were nearly 30 MB on the wire, and more as arrays.
        assert served.sidecar.memory() - memory < 20e6
        asking.close()
        silent_one.close()


def test_a_tracker_that_comes_and_goes_costs_no_answer_and_is_found_in_the_end(serve):
    served = serve(timeout=0.02)
    ended = threading.Event()

    def flap() -> None:
        for _ in range(20):
            tracker = FakeTracker(address=served.address)
            time.sleep(0.05)
            tracker.stop()
        ended.set()

    flapping = threading.Thread(target=flap)
    flapping.start()
    feed = Feed(served, "flapping")
    while not ended.is_set():
        result = feed.ask()
        assert bool(result.tracks) != (reasons(result) == [NOT_TRACKED])
    flapping.join(PATIENCE)
    with served.tracked():
        assert eventually(lambda: len(feed.ask().tracks) == 2)
    feed.close()


def test_a_tracker_that_says_it_does_not_serve_gets_nothing_until_it_does(serve):
    served = serve()
    with tracking(address=served.address, healthy=False) as tracker:
        feed = Feed(served, "health")
        tracker.say(True)
        served.is_up()
        assert len(feed.ask().tracks) == 2
        tracker.say(False)
        served.is_down()
        assert reasons(feed.ask()) == [NOT_TRACKED]
        tracker.say(True)
        served.is_up()
        assert len(feed.ask().tracks) == 2
        assert tracker.calls == 1
        feed.close()


def test_the_own_tracker_stands_in_and_gives_the_dimensions_that_the_header_was_promised(serve):
    served = serve(fallback="embedded")
    feed = Feed(served, "stand-in")
    dimensions = len(feed.accepted.track_dimensions)
    assert dimensions == 2 * K
    served.is_down()
    for number in range(1, 4):
        result = feed.ask()
        assert [track.detections for track in result.tracks] == [number] * 2
        assert {len(track.state) for track in result.tracks} == {dimensions}
        assert min(tracks_of(result)) > 2**62
        assert not result.notices
    feed.close()


def test_every_frame_is_in_one_count(serve):
    served = serve(timeout=0.02)
    with served.tracked() as tracker:
        feed = Feed(served, "counted", return_tracks=False)
        before = served.forwarded()
        for i in range(40):
            feed.ask()
            tracker.behave = (answering, silent)[i // 10 % 2]
        feed.close()

        def ended() -> int:
            now = served.forwarded()
            return sum(now[name] - before[name] for name in now)

        assert eventually(lambda: ended() >= 40)
        assert ended() == 40
