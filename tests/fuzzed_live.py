"""A sidecar that serves, beset with messages that went wrong on all its methods at once, and a
stream beside them that must not notice; no tests here.

Each message of a stream is answered within patience, or the stream ends with a status that says
whose fault it was.
"""

from __future__ import annotations

import asyncio
import random as random_
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import grpc
from google.protobuf.message import Message

from monitor.frames.frame import Header
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.v1 import recalibrator_admin_pb2 as admin_pb
from monitor.wire.client_messages import encode_header
from tests.fuzzed import Fuzz, World, worlds
from tests.mutations import Mutations
from tests.piped import CLASSES, XYZ
from tests.written import tagged

MONITOR, ADMIN = "/monitor.v1.PerceptionMonitor/", "/monitor.v1.RecalibratorAdmin/"
PATIENCE = 30.0  # s for the answer to a message
CONFIG = """
[metrics]
refresh_seconds = 0.5
[server]
max_streams = 512
[limits]
max_spaces = 64
[statistics]
slice_by = ["class", "stream"]
[tracker]
kind = "embedded"
[pending]
max_bytes = 20000000
disk_bytes = 50000000
"""
# On the way at a time on a stream; messages of a stream before it is opened anew.
WINDOW = 16
LENGTH = 500
# One message in so many is for a method that is not a stream.
OTHERS = 10
# What a call may end with: the client's fault, or that there is no more room.
FAULTS_OF_CLIENTS = {
    grpc.StatusCode[name]
    for name in (
        *("OK", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "NOT_FOUND", "ALREADY_EXISTS"),
        "RESOURCE_EXHAUSTED",
    )
}
_REQUESTS: dict[str, Message] = {
    MONITOR + "ImportStatistics": pb.ImportStatisticsRequest(),
    MONITOR + "ExportStatistics": pb.ExportStatisticsRequest(),
    MONITOR + "WatchEvents": pb.WatchEventsRequest(),
    MONITOR + "GetCalibration": pb.GetCalibrationRequest(
        slices=["car"], bins=5, include_bins=True, window="5m"
    ),
    MONITOR + "AcknowledgeDrift": pb.AcknowledgeDriftRequest(slices=["car"], actor="fuzz"),
    ADMIN + "List": admin_pb.ListRequest(),
    ADMIN + "Get": admin_pb.GetRequest(version="a1b2"),
    ADMIN + "Promote": admin_pb.PromoteRequest(document="{}", actor="fuzz"),
    ADMIN + "Fit": admin_pb.FitRequest(actor="fuzz"),
    ADMIN + "Rollback": admin_pb.RollbackRequest(actor="fuzz"),
    ADMIN + "Pin": admin_pb.PinRequest(actor="fuzz"),
}


@dataclass(slots=True)
class Siege:
    """What was done, and what came of it.

    beside  frames of the stream beside, each answered as it should be
    """

    random: random_.Random
    channel: grpc.aio.Channel
    sent: int = 0
    streams: int = 0
    beside: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)

    def fuzz(self, world: World) -> Fuzz:
        return Fuzz(world, random_.Random(self.random.random()))


async def besieged(address: str, messages: int, seed: int) -> Siege:
    """Sends so many. Raises AssertionError where one is not answered, or wrongly."""
    ending = asyncio.Event()
    options = [("grpc.max_receive_message_length", -1)]
    async with (
        grpc.aio.insecure_channel(address, options=options) as channel,
        grpc.aio.insecure_channel(address, options=options) as other,
    ):
        siege = Siege(random_.Random(seed), channel)
        beside = asyncio.create_task(_beside(siege, other, ending))
        each = -(-messages * (OTHERS - 1) // OTHERS // (2 * len(worlds())))
        attacks = [attack(siege, one, each) for one in worlds() for attack in (_frames, _labels)]
        await asyncio.gather(*attacks, _calls(siege, messages // OTHERS))
        ending.set()
        await beside
    assert siege.beside > 0
    return siege


async def _beside(siege: Siege, channel: grpc.aio.Channel, ending: asyncio.Event) -> None:
    """Talks on a stream in which all is well, and is answered as if it were alone."""
    world = World(Header("beside", XYZ, CLASSES), worlds()[0].selection, {}, worlds()[0].frames, ())
    frames = Fuzz(world, random_.Random(0)).frames
    call = channel.stream_stream(MONITOR + "Process")()
    await call.write(encode_header(world.header))
    await asyncio.wait_for(call.read(), PATIENCE)
    while not ending.is_set():
        data = frames.valid()
        await call.write(data)
        reply = pb.ProcessResponse.FromString(await asyncio.wait_for(call.read(), PATIENCE)).frame
        sent = pb.ProcessRequest.FromString(data).frame
        siege.beside += 1
        assert (reply.frame_id, reply.message_index) == (sent.frame_id, siege.beside)
        found, expected = (
            [(d.id, list(d.mean), list(d.covariance)) for d in one.detections]
            for one in (reply, sent)
        )
        assert found == expected
        await asyncio.sleep(0.005)
    await call.done_writing()
    assert await asyncio.wait_for(call.read(), PATIENCE) is grpc.aio.EOF


async def _frames(siege: Siege, world: World, count: int) -> None:
    fuzz = siege.fuzz(world)

    def read(reply: bytes, index: int) -> str:
        answer = pb.ProcessResponse.FromString(reply)
        if answer.WhichOneof("message") == "header":
            return "header answered"
        assert answer.frame.message_index == index
        return f"frame {answer.frame.status} {answer.frame.reason}"

    await _streams(siege, "Process", [encode_header(world.header)], fuzz.frames.next, read, count)


async def _labels(siege: Siege, world: World, count: int) -> None:
    """Attacks ReportGroundTruth, about frames that the others send."""
    fuzz = siege.fuzz(world)

    def message() -> bytes:
        fuzz.known.append(siege.random.randrange(1, 1 + count))
        return fuzz.labels.next()

    def read(reply: bytes, _: int) -> str:
        account = pb.ReportGroundTruthResponse.FromString(reply).account
        told = [kind.name for kind, value in account.ListFields() if value]
        return f"labels: {', '.join(told) or 'none'}"

    await _streams(siege, "ReportGroundTruth", [], message, read, count)


async def _streams(
    siege: Siege,
    method: str,
    opening: Sequence[bytes],
    message: Callable[[], bytes],
    read: Callable[[bytes, int], str],
    left: int,
) -> None:
    """Opens one stream after the other, some messages of each on their way at a time."""
    while left > 0:
        siege.streams += 1
        call = siege.channel.stream_stream(MONITOR + method)()
        for data in opening:
            await call.write(data)
        sent, answered, size = len(opening), 0, min(LENGTH, left) + len(opening)
        left -= LENGTH
        while answered < size:
            while sent < size and sent - answered < WINDOW:
                await call.write(message())
                sent += 1
                siege.sent += 1
            reply = await asyncio.wait_for(call.read(), PATIENCE)
            assert reply is not grpc.aio.EOF, (method, await call.code(), await call.details())
            siege.outcomes[read(reply, answered)] += 1
            answered += 1
        await call.done_writing()
        assert await asyncio.wait_for(call.read(), PATIENCE) is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


async def _calls(siege: Siege, count: int) -> None:
    """Calls the other methods, each with its own request gone wrong, one after the other."""
    random = siege.random
    requests = {name: one.SerializeToString() for name, one in _REQUESTS.items()}
    changed = {
        name: Mutations([data], {}, random).next if data else lambda: random.randbytes(8)
        for name, data in requests.items()
    }
    names = [name for name in changed if name != ADMIN + "Fit"]
    frames = [(world, siege.fuzz(world)) for world in worlds()]
    for i in range(count):
        siege.sent += 1
        # A fit takes a second of a process of its own.
        name = ADMIN + "Fit" if i % 1000 == 506 else random.choice(names)
        if i % 2:
            world, fuzz = random.choice(frames)
            name, data = MONITOR + "ProcessFrame", _unary(world, fuzz.frames.next(), random)
        else:
            data = changed[name]()
        # To the wire, a unary call is a stream of one message.
        call = siege.channel.stream_stream(name)(iter([data]))
        code = grpc.StatusCode.OK
        try:
            while await asyncio.wait_for(call.read(), PATIENCE) is not grpc.aio.EOF:
                if name.endswith("WatchEvents") or random.random() < 0.2:
                    break  # this client has seen enough, and goes without a word
        except grpc.aio.AioRpcError as error:
            code = error.code()
            assert code in FAULTS_OF_CLIENTS, (name, error)
        call.cancel()
        siege.outcomes[f"{name.rpartition('/')[2]} {code.name}"] += 1


def _unary(world: World, data: bytes, random: random_.Random) -> bytes:
    """Makes a request of Process one of ProcessFrame; some with a header, some with none."""
    at = next((i for i in range(1, len(data)) if data[i] < 0x80), 0) + 1
    header, name = encode_header(world.header), world.header.stream.encode()
    named = random.random() < 0.7
    head = header.replace(b"\x0a", b"\x12", 1) if named else tagged(1, 2, name)
    return bytes(head + tagged(15, 2, data[at:]))
