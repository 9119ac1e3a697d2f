"""Detectors, well and unwell, that talk to a real sidecar while doctor looks at it; no tests."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from monitor.v1 import perception_monitor_pb2 as pb
from tests.labelled import SECOND, header, labelled_frame
from tests.served import Conversation, Sidecar, eventually

# What a detector sends as its so-many-th frame.
Make = Callable[[int], pb.ProcessRequest]

FAST = """
[metrics]
refresh_seconds = 0.1
"""
_EVERY = 0.03  # s between two frames


def sound(number: int, *, rows: int = 4) -> pb.ProcessRequest:
    request = labelled_frame(1, number, rows=rows)
    request.frame.stamp_ns = time.time_ns()
    for detection in request.frame.detections:
        detection.upstream_track_id = detection.id
    return request


def unlabelled(number: int) -> pb.ProcessRequest:
    request = sound(number)
    for detection in request.frame.detections:
        detection.ClearField("ground_truth")
    return request


def off_by(seconds: float) -> Make:
    def make(number: int) -> pb.ProcessRequest:
        request = sound(number)
        request.frame.stamp_ns += int(seconds * SECOND)
        return request

    return make


def in_units(units_a_second: int) -> Make:
    def make(number: int) -> pb.ProcessRequest:
        request = sound(number)
        request.frame.stamp_ns = int(time.time() * units_a_second)
        return request

    return make


def unstamped(number: int) -> pb.ProcessRequest:
    request = sound(number)
    request.frame.ClearField("stamp_ns")
    return request


def frozen(number: int) -> pb.ProcessRequest:
    request = sound(number)
    request.frame.stamp_ns = 0
    return request


def mixed(number: int) -> pb.ProcessRequest:
    request = sound(number)
    request.frame.detections[0].ClearField("covariance")
    request.frame.detections[1].covariance[0] = -1.0
    return request


@contextlib.contextmanager
def driving(
    sidecar: Sidecar, streams: Mapping[str, Make], *, accepted: bool = True
) -> Iterator[None]:
    """Each stream sends as long as the block lasts; it begins when all of them have sent.

    accepted  whether their headers must be; if not, they are refused, and they send all the same
    """
    counted = "frames_total" if accepted else 'rejected_total{reason="no_header"}'
    stop, begun = threading.Event(), {name: threading.Event() for name in streams}

    def send(name: str, make: Make) -> None:
        stream = Conversation(sidecar.monitor.Process)
        assert stream.ask(header(name)).header.accepted == accepted
        number = 0
        while not stop.wait(_EVERY):
            number += 1
            stream.ask(make(number))
            begun[name].set()
        stream.close()

    threads = [threading.Thread(target=send, args=pair) for pair in streams.items()]
    for thread in threads:
        thread.start()
    try:
        assert all(event.wait(10) for event in begun.values())
        # Until what they sent is in the metrics as well.
        before = sidecar.metric(counted)
        assert eventually(lambda: sidecar.metric(counted) > before)
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)
