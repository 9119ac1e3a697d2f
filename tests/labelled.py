"""Labelled frames sent to a real sidecar, and the statistics it then holds; no tests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from monitor.commands.sidecar_client import Client
from monitor.store.statistics_state import StoredState, decode
from monitor.v1 import frame_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from tests.served import PATIENCE, Conversation, Sidecar
from tests.states import in_parts

SECOND = 10**9


def header(
    stream: str, classes: Sequence[str] = ("car",), dimensions="xy", unit="m"
) -> pb.ProcessRequest:
    named = [frame_pb2.Dimension(name=name, unit=unit) for name in dimensions]
    return pb.ProcessRequest(
        header=frame_pb2.StreamHeader(stream=stream, dimensions=named, class_names=classes)
    )


def labelled_frame(
    seed: int, number: int, *, rows=20, classes: Sequence[int] = (0,), stamp_s: float | None = None
) -> pb.ProcessRequest:
    """A frame of detections in the plane with truth; a second after the one before it."""
    random = np.random.default_rng([seed, number])
    stamp = int((number if stamp_s is None else stamp_s) * SECOND)
    frame = frame_pb2.Frame(frame_id=number, stamp_ns=stamp)
    for i in range(rows):
        mean = random.normal(size=2)
        frame.detections.add(
            id=i,
            class_index=int(random.choice(classes)),
            mean=mean,
            covariance=random.uniform(0.5, 2, 2),
            ground_truth=mean + random.normal(size=2),
        )
    return pb.ProcessRequest(frame=frame)


def drawn(seed, n=300):
    """Mean, covariance and truth in the plane."""
    random = np.random.default_rng(seed)
    root = np.tril(random.normal(size=(n, 2, 2)))
    root[:, [0, 1], [0, 1]] = np.exp(0.3 * random.normal(size=(n, 2)))
    mean = 10 * random.normal(size=(n, 2))
    error = 1.3 * (root @ random.normal(size=(n, 2, 1)))[..., 0]
    return mean, root @ root.transpose(0, 2, 1), mean + error


def converse(sidecar: Sidecar, *messages: pb.ProcessRequest) -> list[pb.ProcessResponse]:
    stream = Conversation(sidecar.monitor.Process)
    answers = [stream.ask(message) for message in messages]
    stream.close()
    assert answers[0].header.accepted, answers[0].header.message
    return answers


def assert_message(message, measures, besides: set[str]) -> int:
    """All fields but those besides are what is measured under the same name; how many."""
    names = set(message.DESCRIPTOR.fields_by_name) - besides
    for name in names:
        value, expected = getattr(message, name), getattr(measures, name)
        if message.DESCRIPTOR.fields_by_name[name].is_repeated:
            value = list(value)
        assert np.array_equal(value, expected, equal_nan=True), name
    return len(names)


def exported(sidecar: Sidecar) -> StoredState:
    async def export() -> StoredState:
        async with Client(sidecar.grpc) as client:
            return decode(await client.export_statistics())

    return asyncio.run(export())


def imported(sidecar: Sidecar, stored: StoredState) -> tuple[int, int]:
    """Adds to what the sidecar has counted; the detections and the new slices."""
    requests = (pb.ImportStatisticsRequest(part=part) for part in in_parts(stored))
    answer = sidecar.monitor.ImportStatistics(requests, timeout=PATIENCE)
    return answer.detections, answer.new_slices
