"""A sidecar that serves, beset with messages that went wrong on all its methods at once, and a
stream beside them that must not notice; no tests here.

Each message of a stream is answered within patience, or the stream ends with a status that says
whose fault it was.
"""

from __future__ import annotations

import asyncio
import random as random_
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import grpc

from monitor.frames.frame import Header
from monitor.v1 import (
    perception_monitor_pb2,
    recalibrator_admin_pb2,
)
from monitor.wire.client_messages import encode_header
from tests.fuzzed import Fuzz, World, worlds
from tests.mutations import Mutations
from tests.piped import CLASSES, XYZ
from tests.written import varint

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
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}

_pb, _admin = perception_monitor_pb2, recalibrator_admin_pb2
_UNARY: dict[str, bytes] = {
    MONITOR + "GetCalibration": _pb.GetCalibrationRequest(
        slices=["car"], bins=5, include_bins=True, window="5m"
    ).SerializeToString(),
    MONITOR + "AcknowledgeDrift": _pb.AcknowledgeDriftRequest(
        slices=["car"], actor="fuzz"
    ).SerializeToString(),
    ADMIN + "List": _admin.ListRequest().SerializeToString(),
    ADMIN + "Get": _admin.GetRequest(version="a1b2").SerializeToString(),
    ADMIN + "Promote": _admin.PromoteRequest(document="{}", actor="fuzz").SerializeToString(),
    ADMIN + "Fit": _admin.FitRequest(actor="fuzz").SerializeToString(),
    ADMIN + "Rollback": _admin.RollbackRequest(actor="fuzz").SerializeToString(),
    ADMIN + "Pin": _admin.PinRequest(actor="fuzz").SerializeToString(),
}


@dataclass(slots=True)
class Siege:
    """What was done, and what came of it.

    beside  frames of the stream beside, each answered as it should be
    """

    random: random_.Random
    sent: int = 0
    streams: int = 0
    beside: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)


async def besieged(address: str, messages: int, seed: int) -> Siege:
    """Send so many. Raises AssertionError where one is not answered, or wrongly."""
    siege = Siege(random_.Random(seed))
    ending = asyncio.Event()
    options = [("grpc.max_receive_message_length", -1)]
    async with (
        grpc.aio.insecure_channel(address, options=options) as channel,
        grpc.aio.insecure_channel(address, options=options) as other,
    ):
        beside = asyncio.create_task(_beside(siege, other, ending))
        each = -(-messages * (OTHERS - 1) // OTHERS // (2 * len(worlds())))
        await asyncio.gather(
            *(
                attack(siege, channel, world, each)
                for world in worlds()
                for attack in (_frames, _labels)
            ),
            _calls(siege, channel, messages // OTHERS),
        )
        ending.set()
        await beside
    assert siege.beside > 0
    return siege


async def _beside(siege: Siege, channel: grpc.aio.Channel, ending: asyncio.Event) -> None:
    """A stream in which all is well: what is answered is what a stream alone would get."""
    world = World(Header("beside", XYZ, CLASSES), worlds()[0].selection, {}, worlds()[0].frames, ())
    frames = Fuzz(world, random_.Random(0)).frames
    call = channel.stream_stream(MONITOR + "Process")()
    await call.write(encode_header(world.header))
    await asyncio.wait_for(call.read(), PATIENCE)
    while not ending.is_set():
        data = frames.valid()
        await call.write(data)
        reply = _pb.ProcessResponse.FromString(await asyncio.wait_for(call.read(), PATIENCE))
        sent = _pb.ProcessRequest.FromString(data).frame
        siege.beside += 1
        assert reply.frame.frame_id == sent.frame_id
        assert reply.frame.message_index == siege.beside
        assert [(d.id, list(d.mean), list(d.covariance)) for d in reply.frame.detections] == [
            (d.id, list(d.mean), list(d.covariance)) for d in sent.detections
        ]
        await asyncio.sleep(0.005)
    await call.done_writing()
    assert await asyncio.wait_for(call.read(), PATIENCE) is grpc.aio.EOF


async def _frames(siege: Siege, channel: grpc.aio.Channel, world: World, count: int) -> None:
    """Process, with its header first, and one message in ten to ProcessFrame."""
    fuzz = Fuzz(world, random_.Random(siege.random.random()))

    def opening() -> list[bytes]:
        return [encode_header(world.header)]

    def read(reply: bytes, index: int) -> str:
        answer = _pb.ProcessResponse.FromString(reply)
        if answer.WhichOneof("message") == "header":
            return "header answered"
        assert answer.frame.message_index == index
        return f"frame {answer.frame.status} {answer.frame.reason}"

    await _streams(siege, channel, "Process", opening, fuzz.frames.next, read, count)


async def _labels(siege: Siege, channel: grpc.aio.Channel, world: World, count: int) -> None:
    """ReportGroundTruth, of frames that the others send."""
    fuzz = Fuzz(world, random_.Random(siege.random.random()))

    def message() -> bytes:
        fuzz.known.append(siege.random.randrange(1, 1 + count))
        return fuzz.labels.next()

    def read(reply: bytes, _: int) -> str:
        account = _pb.ReportGroundTruthResponse.FromString(reply).account
        told = [kind.name for kind, value in account.ListFields() if value]
        return f"labels: {', '.join(told) or 'none'}"

    await _streams(siege, channel, "ReportGroundTruth", list, message, read, count)


async def _streams(
    siege: Siege,
    channel: grpc.aio.Channel,
    method: str,
    opening: Callable[[], list[bytes]],
    message: Callable[[], bytes],
    read: Callable[[bytes, int], str],
    count: int,
) -> None:
    """One stream after the other, some messages of each on their way at a time."""
    left = count
    while left > 0:
        siege.streams += 1
        call = channel.stream_stream(MONITOR + method)()
        sent = answered = 0
        for data in opening():
            await call.write(data)
            sent += 1
        size = min(LENGTH, left)
        left -= size
        size += sent  # the header is none of those that went wrong
        while answered < sent or sent < size:
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


async def _calls(siege: Siege, channel: grpc.aio.Channel, count: int) -> None:
    """The other methods, each with its own request gone wrong, one after the other."""
    random = siege.random
    unary = {name: Mutations([data], {}, random) for name, data in _UNARY.items()}
    fits = unary.pop(ADMIN + "Fit")
    frames = [(w, Fuzz(w, random_.Random(random.random()))) for w in worlds()]
    for i in range(count):
        siege.sent += 1
        if i % 2:
            world, fuzz = random.choice(frames)
            data = _unary_frame(world, fuzz.frames.next(), random)
            await _ended(siege, "ProcessFrame", _call(channel, MONITOR + "ProcessFrame", data))
        elif i % 50 == 0:
            await _ended(siege, "ImportStatistics", _imported(channel, random))
        elif i % 50 == 2:
            await _ended(siege, "ExportStatistics", _exported(channel, random))
        elif i % 50 == 4:
            await _ended(siege, "WatchEvents", _watched(channel, random))
        else:
            # A fit takes a second of a process of its own.
            fit = i % 1000 == 506
            name = ADMIN + "Fit" if fit else random.choice(tuple(unary))
            changed = fits if fit else unary[name]
            data = changed.next() if _UNARY[name] else random.randbytes(8)
            await _ended(siege, name.rpartition("/")[2], _call(channel, name, data))


def _unary_frame(world: World, data: bytes, random: random_.Random) -> bytes:
    """A request of Process as one of ProcessFrame; some with a header, some with none."""
    at = next((i for i in range(1, len(data)) if data[i] < 0x80), 0) + 1
    frame = data[at:]
    whole: bytes = b"\x7a" + varint(len(frame)) + frame
    if random.random() < 0.7:
        return encode_header(world.header).replace(b"\x0a", b"\x12", 1) + whole
    name = world.header.stream.encode()
    return b"\x0a" + bytes([len(name)]) + name + whole


async def _ended(siege: Siege, name: str, call: Awaitable[object]) -> None:
    """Within patience, and not by a fault of the sidecar's."""
    code = grpc.StatusCode.OK
    try:
        await asyncio.wait_for(call, PATIENCE)
    except grpc.aio.AioRpcError as error:
        code = error.code()
        assert code in FAULTS_OF_CLIENTS, (name, error)
    siege.outcomes[f"{name} {code.name}"] += 1


async def _call(channel: grpc.aio.Channel, name: str, data: bytes) -> None:
    await channel.unary_unary(name)(data)


async def _imported(channel: grpc.aio.Channel, random: random_.Random) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(random.randrange(4)):
            yield random.randbytes(random.randrange(60))

    await channel.stream_unary(MONITOR + "ImportStatistics")(parts())


async def _exported(channel: grpc.aio.Channel, random: random_.Random) -> None:
    async for _ in channel.unary_stream(MONITOR + "ExportStatistics")(random.randbytes(4)):
        if random.random() < 0.2:
            return  # who has seen enough goes without a word


async def _watched(channel: grpc.aio.Channel, random: random_.Random) -> None:
    call = channel.unary_stream(MONITOR + "WatchEvents")(random.randbytes(random.randrange(3)))
    await call.read()
    call.cancel()
