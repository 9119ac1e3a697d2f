"""The client library of a detector, which has a sidecar monitor and recalibrate its detections.

The client never blocks beyond its deadline and never raises for faults of the network. Threads of
gRPC and one of the client keep the stream open; the detector's thread hands over bytes and waits on
a condition. Frames are matched to answers by their position in the stream.
docs/degradation.md says what the detector gets while the sidecar is slow, hangs or is not there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NamedTuple

import grpc

from monitor.frames.frame import Header
from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.wire.access import InvalidConfiguration, is_loopback, read_file, read_tokens
from monitor.wire.client_messages import (
    Answered,
    AnsweredTracks,
    OutgoingFrame,
    Processed,
    Unusable,
    Why,
    as_given,
    checked,
    encode_frame,
    encode_header,
    index_of,
    read_answer,
    read_header_answer,
)

__all__ = [
    "Access",
    "Answered",
    "AnsweredTracks",
    "ClientCounters",
    "Dimension",
    "DimensionKind",
    "Header",
    "MonitorClient",
    "OutgoingFrame",
    "Processed",
    "Space",
    "Why",
]

log = logging.getLogger(__name__)
PROCESS = "/monitor.v1.PerceptionMonitor/Process"

# s between two tries to open a stream: the first, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.2

# s after a refusal: the sidecar will refuse again, and counts refusals.
REFUSED_PAUSE = 1.0

CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    # Despite its name: how long one try to connect may take.
    ("grpc.min_reconnect_backoff_ms", 1000),
    # A channel that was given up must not hand its dead connection to the next one.
    ("grpc.use_local_subchannel_pool", 1),
    # The sidecar is on this machine, whatever proxy is set for the web.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", 64 * 2**20),
)

# Codes by which a sidecar refuses; any other means that there is no sidecar.
_REFUSALS = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INVALID_ARGUMENT,
    }
)


class InvalidAccess(ValueError):
    """The certificates or the token of a client cannot be used."""


@dataclass(frozen=True, slots=True)
class Access:
    """The way to a sidecar: certificates and token, each the path of a file, or '': none.

    certificate_authority  PEM; the sidecar must have a certificate of one of these. '': plain text
    certificate, key       PEM; of the client, if the sidecar asks for one
    token_file             its first line is the bearer token
    direct                 past any proxy that is set for the web; MonitorClient always goes so
    """

    certificate_authority: str = ""
    certificate: str = ""
    key: str = ""
    token_file: str = ""
    direct: bool = False

    def __post_init__(self) -> None:
        """Raises InvalidAccess."""
        if bool(self.certificate) != bool(self.key):
            raise InvalidAccess(
                "--certificate and --key belong together: name both, or neither of them."
            )
        if self.certificate and not self.certificate_authority:
            raise InvalidAccess(
                f"--certificate {self.certificate} is of no use in plain text: name the authority "
                "of the sidecar with --certificate-authority."
            )

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Returns the credentials of a channel; None: plain text. Raises InvalidAccess."""
        if not self.certificate_authority:
            return None
        return grpc.ssl_channel_credentials(
            _bytes(self.certificate_authority, "--certificate-authority"),
            _bytes(self.key, "--key") if self.key else None,
            _bytes(self.certificate, "--certificate") if self.certificate else None,
        )

    def metadata(self, address: str) -> tuple[tuple[str, str], ...]:
        """Returns the headers of every call to an address. Raises InvalidAccess."""
        if not self.token_file:
            return ()
        host = address.rpartition(":")[0].strip("[]")
        if not self.certificate_authority and not is_loopback(host):
            raise InvalidAccess(
                f"--token-file {self.token_file}: the token would go to {address} in plain text. "
                "Name the authority of the sidecar with --certificate-authority."
            )
        try:
            token = read_tokens(self.token_file, f"--token-file '{self.token_file}'")[0]
        except InvalidConfiguration as error:
            raise InvalidAccess(str(error)) from None
        return (("authorization", f"Bearer {token.decode('ascii')}"),)

    def channel(self, address: str, options: Sequence[tuple[str, int | str]]) -> grpc.aio.Channel:
        """Opens a channel to a sidecar. Raises InvalidAccess."""
        if self.direct or is_loopback(address.rpartition(":")[0].strip("[]")):
            # A proxy that is set for the web is not meant for the sidecar on this machine.
            options = [*options, ("grpc.enable_http_proxy", 0)]
        credentials = self.credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, credentials, options=options)


PLAIN = Access()


def _bytes(path: str, option: str) -> bytes:
    try:
        return read_file(path, f"{option} '{path}'")
    except InvalidConfiguration as error:
        raise InvalidAccess(str(error)) from None


@dataclass(slots=True)
class ClientCounters:
    """Counts since the client was made.

    answered     frames with an answer in time
    raw          frames handed back as they were given, by why
    late         answers that came after their deadline, and were thrown away
    connections  streams that were opened
    """

    answered: int = 0
    raw: dict[Why, int] = field(default_factory=lambda: dict.fromkeys(Why, 0))
    late: int = 0
    connections: int = 0


@dataclass(eq=False, slots=True)
class DetectorStream:
    """One stream, from its header on.

    trouble     why it ended; None: it has not, or was never begun
    unanswered  by index of the message, monotonic s at which it was sent
    """

    requests: SimpleQueue[bytes | None] = field(default_factory=SimpleQueue)
    call: Any = None
    opened: bool = False
    over: bool = False
    trouble: Trouble | None = None
    unanswered: dict[int, float] = field(default_factory=dict)
    _sent: int = 0

    def send(self, data: bytes, now: float) -> int:
        """Sends a message and returns its index."""
        index, self._sent = self._sent, self._sent + 1
        self.unanswered[index] = now
        self.requests.put(data)
        return index

    def hangs_since(self) -> float:
        """Returns when the oldest unanswered message was sent; infinity without any."""
        return next(iter(self.unanswered.values()), float("inf"))

    def end(self) -> None:
        """Ends the stream: nothing more goes out or comes in."""
        self.over = True
        self.requests.put(None)
        if self.call is not None:
            self.call.cancel()


class Trouble(NamedTuple):
    """The reason why there is no stream."""

    why: Why
    text: str


class MonitorClient:
    """A detector's connection to its sidecar, to be made after the process has forked.

    address          host:port
    header           of the stream, sent again whenever the stream is opened
    timeout_seconds  s that `process` may take
    access           certificates and token, if the sidecar asks for them
    max_in_flight    frames without an answer; beyond them no frame is sent, so that a sidecar that
                     hangs costs nothing
    hang_seconds     s without an answer after which the connection is given up for a new one

    Raises ValueError for arguments that make no sense. One thread at a time is served; others wait
    for it, no longer than their own deadline.
    """

    def __init__(
        self,
        address: str,
        header: Header,
        *,
        timeout_seconds: float = 0.02,
        access: Access = PLAIN,
        max_in_flight: int = 8,
        hang_seconds: float = 1.0,
    ) -> None:
        if not address:
            raise ValueError("address: empty. Give host:port, such as 127.0.0.1:50051.")
        for name, value in (
            ("timeout_seconds", timeout_seconds),
            ("max_in_flight", max_in_flight),
            ("hang_seconds", hang_seconds),
        ):
            if not 0 < value < float("inf"):
                raise ValueError(f"{name}: {value} is not above 0.")
        if header.space.k == 0:
            raise ValueError("header: no dimensions. Name those of the means.")
        access.credentials()
        access.metadata(address)
        self.address, self.header = address, header
        self.counters = ClientCounters()
        self.track_dimensions: tuple[str, ...] = ()
        self._timeout, self._hang = timeout_seconds, hang_seconds
        self._max_in_flight, self._access = max_in_flight, access
        self._turn = threading.Lock()
        # Guards everything below, and wakes those who wait for a change.
        self._change = threading.Condition()
        self._stream: DetectorStream | None = None
        # Not an exception: one that is raised again and again grows a long traceback.
        self._trouble = Trouble(Why.DOWN, f"no stream to {address} yet")
        self._renew = False
        self._wanted = -1
        self._reply: bytes | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._keep_open, name=f"monitor-client {header.stream}", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> MonitorClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the stream. Waiting frames come back raw."""
        self._closing.set()
        with self._change:
            self._lose(self._stream, Trouble(Why.DOWN, "the client was closed"))
        self._thread.join(2 * self._hang)

    # ---- for the detector's thread

    @property
    def connected(self) -> bool:
        """True if a frame would be sent now."""
        stream = self._stream
        return stream is not None and stream.opened

    def wait_connected(self, seconds: float) -> bool:
        """Waits for the stream to be open, no longer than that; returns False if it is not."""
        with self._change:
            return self._change.wait_for(lambda: self.connected, seconds)

    def process(self, frame: OutgoingFrame) -> Processed:
        """Returns the detections to go on with, before the deadline, whatever the sidecar does.

        Of full covariances the lower triangle counts. Raises ValueError for arrays that do not
        fit together, and for a client that was closed.
        """
        deadline = time.monotonic() + self._timeout
        frame = checked(frame, self.header.space.k)
        if self._closing.is_set():
            raise ValueError("the client was closed: make another one.")
        if not self._turn.acquire(timeout=self._timeout):
            return self._raw(frame, Unusable(Why.BUSY, "another thread waits for its frame"))
        try:
            result = read_answer(self._ask(encode_frame(frame), deadline), frame)
            self.counters.answered += 1
            return result
        except Unusable as trouble:
            return self._raw(frame, trouble)
        finally:
            self._turn.release()

    def _raw(self, frame: OutgoingFrame, trouble: Unusable) -> Processed:
        with self._change:
            self.counters.raw[trouble.why] += 1
        return as_given(frame, trouble.why, f"{trouble.why}: {trouble}")

    def _ask(self, data: bytes, deadline: float) -> bytes:
        """Sends a message and returns the bytes of its answer. Raises Unusable."""
        with self._change:
            now = time.monotonic()
            stream = self._stream
            if stream is not None and now - stream.hangs_since() > self._hang:
                text = f"no answer from {self.address} within {self._hang:g} s: connecting anew"
                self._renew = True
                self._lose(stream, Trouble(Why.DOWN, text))
            if stream is None or stream is not self._stream or not stream.opened:
                raise Unusable(*self._trouble)
            waiting = len(stream.unanswered)
            if waiting >= self._max_in_flight:
                raise Unusable(Why.FULL, f"{waiting} frames without an answer")
            self._wanted, self._reply = stream.send(data, now), None
            self._change.wait_for(
                lambda: self._reply is not None or self._stream is not stream,
                max(0.0, deadline - time.monotonic()),
            )
            reply, self._reply, self._wanted = self._reply, None, -1
            if reply is not None:
                return reply
            if self._stream is not stream:
                raise Unusable(*self._trouble)
        raise Unusable(Why.SLOW, f"no answer within {self._timeout * 1e3:g} ms")

    def _lose(self, stream: DetectorStream | None, trouble: Trouble) -> None:
        """Ends the active stream, with the lock held; of several reasons the first one stays."""
        if stream is None or self._stream is not stream:
            return
        self._stream, self._trouble, stream.trouble = None, trouble, trouble
        stream.end()
        self._change.notify_all()

    # ---- for our own thread

    def _keep_open(self) -> None:
        """Opens the stream, again and again, until the client is closed."""
        channel: grpc.Channel | None = None
        pause = FIRST_PAUSE
        while not self._closing.is_set():
            # A channel keeps the certificates that it began with, even after they expired.
            if channel is not None and (self._renew or self._access.certificate_authority):
                channel.close()
                channel = None
            self._renew = False
            stream = DetectorStream()
            try:
                channel = channel or self._connect()
                self._converse(channel, stream)
                trouble = Trouble(Why.DOWN, "the sidecar ended the stream")
            except Unusable as error:
                trouble = Trouble(error.why, str(error))
            except InvalidAccess as error:
                trouble = Trouble(Why.DOWN, str(error))
            except grpc.RpcError as error:
                trouble = _in_words(error)
            except Exception as error:
                # A fault of the client: the detector must notice no more than raw detections.
                log.exception("monitor: the stream of %s failed", self.header.stream)
                trouble = Trouble(Why.DOWN, f"a fault of the client: {error}")
            with self._change:
                if self._stream is None and not stream.over:
                    self._trouble = trouble  # it was never begun
                self._lose(stream, trouble)
                stream.end()
            if stream.opened:
                pause = FIRST_PAUSE
                # Without the lock, and never in the detector's thread: a log may be slow.
                if not self._closing.is_set():
                    text = (stream.trouble or trouble).text
                    log.warning("monitor: detections of %s go raw: %s", self.header.stream, text)
            refusal = trouble.why is Why.REFUSED
            self._closing.wait(REFUSED_PAUSE if refusal else pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        if channel is not None:
            channel.close()

    def _connect(self) -> grpc.Channel:
        credentials = self._access.credentials()
        if credentials is None:
            return grpc.insecure_channel(self.address, options=CHANNEL_OPTIONS)
        return grpc.secure_channel(self.address, credentials, options=CHANNEL_OPTIONS)

    def _converse(self, channel: grpc.Channel, stream: DetectorStream) -> None:
        """Sends the header, takes answers until there are no more. Raises Unusable, RpcError."""
        # Files may be slow, and the detector would wait for the lock: they are read without it.
        metadata = self._access.metadata(self.address)
        stream.send(encode_header(self.header), time.monotonic())
        requests = iter(stream.requests.get, None)
        answers: Iterable[bytes] = channel.stream_stream(PROCESS)(requests, metadata=metadata)
        with self._change:
            stream.call = answers
            if self._closing.is_set():
                return
            self._stream = stream
        for data in answers:
            known = stream.opened
            self._take(stream, data)
            if not known:
                log.info("monitor: %s is connected to %s", self.header.stream, self.address)

    def _take(self, stream: DetectorStream, data: bytes) -> None:
        """Hands an answer to the thread that waits for it. Raises Unusable for one to nothing."""
        index = index_of(data)
        with self._change:
            if stream.unanswered.pop(index or 0, None) is None:
                raise Unusable(Why.MALFORMED, f"an answer to message {index}, which waits for none")
            if not stream.opened:
                self.track_dimensions = read_header_answer(data)
                stream.opened = True
                self.counters.connections += 1
            elif index == self._wanted:
                self._reply = data
            else:
                self.counters.late += 1
                return
            self._change.notify_all()


def _in_words(error: grpc.RpcError) -> Trouble:
    code = error.code() if isinstance(error, grpc.Call) else None
    text = error.details() if isinstance(error, grpc.Call) else str(error)
    return Trouble(Why.REFUSED if code in _REFUSALS else Why.DOWN, text or str(code))
