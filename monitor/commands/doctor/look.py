"""Looks twice at a running sidecar, by HTTP and gRPC; what was seen is one observation.

Requests go past any proxy. Nothing raises for what the network or the sidecar
does: the answer then says why there is nothing.

Metrics are values by labels; an increase is what was added between the looks.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import math
import re
import time
import tomllib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import grpc

from monitor.client import Access
from monitor.commands.sidecar_client import Client, SidecarRefused, SidecarUnavailable
from monitor.drift.alarms import SliceStanding
from monitor.frames.status import Status, StreamStatus
from monitor.options.sidecars import MOST_SECONDS
from monitor.wire.access import is_loopback, read_file

_PREFIX = "calibration_"

# Labels of one series.
Labels = Mapping[str, str]
SECOND_NS = 10**9

# A stream, or all of them, that have sent nothing for so many seconds are silent.
SILENT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of one look; names go without calibration_, those of processes as they are.

    families  by full name: the series, each with its labels
    """

    families: Mapping[str, tuple[tuple[Labels, float], ...]] = field(default_factory=dict)

    def rows(self, name: str, **labels: str) -> list[tuple[Labels, float]]:
        """All series of a name with these labels; none where there is no such name."""
        full = name if name.startswith("process_") else _PREFIX + name
        found = self.families.get(full, ())
        return [row for row in found if labels.items() <= row[0].items()]

    def value(self, name: str, **labels: str) -> float:
        """Sum over the series with these labels; NaN where there is none."""
        found = [value for _, value in self.rows(name, **labels)]
        return sum(found) if found else math.nan

    def words(self, name: str, label: str, **labels: str) -> list[str]:
        """Values of a label over the series with these labels, sorted; '' where it is missing."""
        return sorted(has.get(label, "") for has, _ in self.rows(name, **labels))

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Sums by a label, over the series with these labels."""
        found: defaultdict[str, float] = defaultdict(float)
        for has, value in self.rows(name, **labels):
            found[has.get(label, "")] += value
        return dict(found)


def quantile(counts: Mapping[str, float], level: float) -> float:
    """Upper bound of the bucket that holds a quantile; NaN where all are empty.

    counts  up to each bound, as by(…, "le") finds them
    """
    buckets = sorted((float(bound), count) for bound, count in counts.items())
    most = buckets[-1][1] if buckets else 0.0
    return next((bound for bound, count in buckets if count >= level * most > 0), math.nan)


class Answer(StrEnum):
    """How it went with one question."""

    GIVEN = "given"
    CLOSED = "closed"  # nothing listens there
    NOWHERE = "nowhere"  # there is no such host, or no way to it
    SILENT = "silent"  # no answer in time
    FOREIGN = "foreign"  # something listens that does not speak as a sidecar does
    OTHER_PORT = "other_port"  # HTTP where gRPC is asked for, or gRPC where HTTP is
    NO_TRUST = "no_trust"  # the certificates do not fit together
    NO_RIGHT = "no_right"  # no token that is known there, or one of another right
    UNKNOWN = "unknown"  # the sidecar is older than the question
    FAILED = "failed"  # anything else


@dataclass(frozen=True, slots=True)
class Asked:
    """How it went, and what was said to it; '' where it was answered."""

    answer: Answer
    words: str = ""

    @property
    def given(self) -> bool:
        """Tells if there was an answer."""
        return self.answer is Answer.GIVEN

    @property
    def no_right(self) -> bool:
        """Tells if a token of another right is needed."""
        return self.answer is Answer.NO_RIGHT


GIVEN = Asked(Answer.GIVEN)


@dataclass(slots=True)
class Look:
    """At one moment; look.py fills it in.

    at_s          of a clock that never moves back
    clock_ns      our wall clock, halfway between the question for the status and its answer
    round_trip_s  between them
    text          a number that tells one text of /metrics from another; 0: there was none
    """

    at_s: float = 0.0
    samples: Samples | None = None
    status: Status | None = None
    clock_ns: int = 0
    round_trip_s: float = 0.0
    text: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that no metric tells: settings, with the defaults of `monitor.config`.

    streams     names of streams that are taken
    memory      bytes of frames that wait for labels
    disk        the same on disk; 0: in memory alone
    """

    streams: int = 64
    memory: int = 256 * 2**20
    disk: int = 2 * 2**30


@dataclass(slots=True)
class Observation:
    """All of it; look.py fills it in.

    address, http_address    that were asked
    version                  of who looked
    http, metrics            how it went with HTTP at all, and with its /metrics
    ready                    what /readyz said; None: nothing
    grpc, status, drift      how it went with gRPC at all, and with two of its questions
    serving                  what its health said
    first, last              the looks
    standings                of drift
    limits                   of the sidecar; the defaults where they could not be read
    truth_within_s           seconds within which truth is due
    """

    address: str
    http_address: str
    version: str
    http: Asked = GIVEN
    metrics: Asked = GIVEN
    ready: bool | None = True
    grpc: Asked = GIVEN
    serving: bool = True
    status: Asked = GIVEN
    drift: Asked = GIVEN
    first: Look = field(default_factory=Look)
    last: Look = field(default_factory=Look)
    standings: tuple[SliceStanding, ...] = ()
    limits: Limits = Limits()
    truth_within_s: float = 1800.0

    @property
    def seconds(self) -> float:
        """Seconds between the looks; 0 after one."""
        return max(0.0, self.last.at_s - self.first.at_s) if self.first.at_s else 0.0

    @property
    def now(self) -> Samples:
        """Metrics of the last look; without any value where they were not seen."""
        return self.last.samples or Samples()

    @property
    def was(self) -> Samples:
        """Metrics of the first look; those of the last one where they were seen once."""
        return self.first.samples or self.now

    def increase(self, name: str, **labels: str) -> float:
        """Increase of a counter; one that fell was begun anew. NaN where it is not there."""
        before, after = self.was.value(name, **labels), self.now.value(name, **labels)
        return after if math.isnan(before) or after < before else after - before

    def increases(self, name: str, label: str) -> dict[str, float]:
        """Increases of a counter, by a label."""
        before = self.was.by(name, label)
        return {
            word: after if after < before.get(word, 0.0) else after - before.get(word, 0.0)
            for word, after in self.now.by(name, label).items()
        }

    @property
    def refreshed(self) -> bool:
        """Tells if the metrics may have changed between the looks.

        They are made when asked for, twice a second at most; two looks at one text tell nothing of
        the time between.
        """
        return not self.last.text or self.first.text != self.last.text

    @property
    def up_s(self) -> float:
        """Seconds since the sidecar started, by its own clock; NaN where that is not known."""
        status = self.last.status
        if status is None or not status.started_ns:
            return math.nan
        return max(0.0, (status.now_ns - status.started_ns) / SECOND_NS)

    @property
    def started_anew(self) -> bool:
        """Tells if it was another process at the first look."""
        first, last = self.first.status, self.last.status
        return first is not None and last is not None and first.started_ns != last.started_ns

    @property
    def streams(self) -> tuple[StreamStatus, ...]:
        """All streams; none where the status is not known."""
        return self.last.status.streams if self.last.status is not None else ()

    @property
    def fresh(self) -> tuple[StreamStatus, ...]:
        """Streams that send: from which a frame came within the last seconds."""
        return tuple(each for each in self.streams if self.silence_s(each) < SILENT_SECONDS)

    @property
    def before(self) -> Mapping[str, StreamStatus]:
        """Streams as of the first look at the same process."""
        first = self.first.status
        known = first is not None and not self.started_anew
        return {each.stream: each for each in first.streams} if first and known else {}

    def silence_s(self, stream: StreamStatus) -> float:
        """Since its last frame; infinite where none came."""
        status = self.last.status
        if status is None or stream.received_ns is None:
            return math.inf
        return max(0.0, (status.now_ns - stream.received_ns) / SECOND_NS)

    @property
    def frames_come(self) -> bool:
        """Tells if any stream sends, as far as is known."""
        if self.last.status is not None:
            return bool(self.fresh)
        return self.increase("frames_total") > 0


# Of one page: more is not of a sidecar.
_LARGEST_PAGE = 64 * 2**20

# With this a server of HTTP/2 begins: length, type 4, flags, stream 0 (RFC 9113, 3.4 and 6.5).
_SETTINGS = re.compile(rb"[\x00-\xff]{3}\x04[\x00-\xff]\x00{4}", re.DOTALL)

# A line of the exposition text, a label in it, and what stands for a character in its value.
_SAMPLE = re.compile(r'([A-Za-z_:][\w:]*)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)(?: -?\d+)?')
_LABEL, _ESCAPED = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"'), re.compile(r"\\(.)")

# That a sidecar has, whatever it was sent.
_ALWAYS = "calibration_frames_total"

# Seconds for each question; they are asked beside each other, so that all of it takes little more
# than the time to watch.
PATIENCE = 3.0

# Seconds between the looks, where none are given: the metrics are asked for until they are new.
LEAST_SECONDS, _POLL_SECONDS = 0.2, 0.05

_NO_HOST = ("resolving", "lookup", "No route", "unreachable", "not known")

# What gRPC says where it asked in plain text, and TLS was awaited.
_AS_TLS_DOES = ("socket closed", "connection reset", "broken pipe")

# What gRPC says before it comes to the point.
_BEFORE = re.compile(r"^failed to connect to all addresses; last error: \w+: \S+?: (?=\S+ )")
Found = TypeVar("Found")
Value = TypeVar("Value")

_ANSWERS = {
    grpc.StatusCode.UNAUTHENTICATED: Answer.NO_RIGHT,
    grpc.StatusCode.PERMISSION_DENIED: Answer.NO_RIGHT,
    grpc.StatusCode.UNIMPLEMENTED: Answer.UNKNOWN,
}


class SpeaksGrpc(ValueError):
    """The answer is HTTP/2 from the first byte, as gRPC speaks it."""


# What an error says of a page; {} is what the error says.
_NO_PAGE = (
    (TimeoutError, Answer.SILENT, "no answer in time"),
    (ConnectionRefusedError, Answer.CLOSED, "nothing listens there"),
    (ConnectionError, Answer.FOREIGN, "the connection broke ({})"),
    (OSError, Answer.NOWHERE, "no way there ({})"),
    (SpeaksGrpc, Answer.OTHER_PORT, "{}"),
    (ValueError, Answer.FOREIGN, "{}"),
)


async def watch(
    seen: Observation, access: Access, clock_ns: Callable[[], int], seconds: float | None
) -> None:
    """Looks twice, if there is anything to see at the first look. Raises InvalidAccess.

    seen      the addresses, before anything was seen; all that is seen is put into it
    clock_ns  the wall clock of who looks
    seconds   between the looks; None: until the metrics have been refreshed
    """
    first = await _once(seen, access, clock_ns)
    if seen.grpc.given or seen.http.given:
        # On another machine, a file of the name that the sidecar tells is another sidecar's.
        if first.status is not None and is_loopback(seen.address.rpartition(":")[0].strip("[]")):
            seen.limits = await asyncio.to_thread(limits_of, first.status.configuration)
        await _pause(seen, seconds)
        await _once(seen, access, clock_ns)
        seen.first = first


async def _pause(seen: Observation, seconds: float | None) -> None:
    """Waits so many seconds since the first look, or until the metrics tell of it."""
    now = asyncio.get_running_loop().time
    began = seen.last.at_s
    await asyncio.sleep(began + (LEAST_SECONDS if seconds is None else seconds) - now())
    while seconds is None and seen.last.text and now() < began + MOST_SECONDS:
        with contextlib.suppress(OSError, ValueError):
            _, text = await page(seen.http_address, "/metrics?fresh")
            if hash(text) != seen.last.text:
                return
        await asyncio.sleep(_POLL_SECONDS)


async def _once(seen: Observation, access: Access, clock_ns: Callable[[], int]) -> Look:
    """Asks, at the same time, for all that changes from look to look; returns the last look."""
    seen.last = Look(asyncio.get_running_loop().time())
    await asyncio.gather(_pages(seen), _grpc(seen, access, clock_ns))
    return seen.last


async def _pages(seen: Observation) -> None:
    """Sees how it goes with HTTP, what /readyz says, how it goes with /metrics, and these."""
    seen.http = seen.metrics = GIVEN
    seen.ready = None
    try:
        ready, _ = await page(seen.http_address, "/readyz")
        # So that they are new by the next look.
        status, text = await page(seen.http_address, "/metrics?fresh")
    except (OSError, ValueError) as error:
        seen.http = seen.metrics = _no_page(error)
        return
    samples = Samples()
    with contextlib.suppress(ValueError):
        samples = samples_of(text)
    if status != 200 or not samples.rows("frames_total"):
        words = f"/metrics gives {_ALWAYS} nowhere (status {status})"
        seen.metrics = Asked(Answer.FOREIGN, words)
        return
    seen.ready = ready == 200
    seen.last.samples, seen.last.text = samples, hash(text)


def samples_of(text: str) -> Samples:
    """Reads the exposition text. Raises ValueError where it is none."""
    families: defaultdict[str, list[tuple[Labels, float]]] = defaultdict(list)
    for line in text.split("\n"):
        if not line or line.startswith("#"):
            continue
        sample = _SAMPLE.fullmatch(line)
        if sample is None:
            raise ValueError(f"{line[:80]!r} is no sample of a metric")
        name, labels, value = sample.groups()
        told = {key: _plain(one) for key, one in _LABEL.findall(labels or "")}
        families[name].append((told, float(value)))
    return Samples({name: tuple(rows) for name, rows in families.items()})


def _plain(value: str) -> str:
    """Reads the value of a label, which has a backslash before what would end it or a line."""
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], value)


def _no_page(error: Exception) -> Asked:
    return next(
        Asked(answer, words.format(getattr(error, "strerror", None) or error))
        for kind, answer, words in _NO_PAGE
        if isinstance(error, kind)
    )


async def _grpc(seen: Observation, access: Access, clock_ns: Callable[[], int]) -> None:
    """Sees how it goes with gRPC, its health, its status, and when; and its alarms of drift."""
    async with Client(seen.address, access, PATIENCE) as client:
        seen.grpc, serving = await _answered(client.serving(), seen.address, access)
        # A server without health: what it says of itself tells more.
        healthless = seen.grpc.answer is Answer.UNKNOWN
        seen.serving = healthless or bool(serving)
        if not (seen.grpc.given or healthless):
            if seen.grpc.answer is Answer.FOREIGN:
                with contextlib.suppress(OSError, ValueError):
                    await page(seen.address, "/metrics")
                    seen.grpc = Asked(Answer.OTHER_PORT, "it speaks HTTP")
            seen.status = seen.drift = seen.grpc
            return
        seen.grpc = GIVEN
        asked_ns, began = clock_ns(), time.monotonic()
        seen.status, seen.last.status = await _answered(client.status(), seen.address, access)
        trip = seen.last.round_trip_s = time.monotonic() - began
        seen.last.clock_ns = asked_ns + round(trip * 1e9 / 2)
        seen.drift, found = seen.status, None
        if not seen.status.no_right:
            seen.drift, found = await _answered(client.standings(), seen.address, access)
        seen.standings = () if found is None else found.standings


async def _answered(
    asking: Awaitable[Found], address: str, access: Access
) -> tuple[Asked, Found | None]:
    """Awaits an answer; without one, tells why."""
    try:
        return GIVEN, await asking
    except (SidecarUnavailable, SidecarRefused) as error:
        return _reached(error, address, access), None
    except Exception as error:  # one question less is no reason to leave the others without answer
        return Asked(Answer.FAILED, str(error) or type(error).__name__), None


def _reached(error: SidecarUnavailable | SidecarRefused, address: str, access: Access) -> Asked:
    """Reads the words of gRPC, which alone tell one failure from another."""
    words = _BEFORE.sub("", str(error).removeprefix(f"{address}: "))
    if error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Asked(Answer.SILENT, "no answer in time")
    if error.code is not grpc.StatusCode.UNAVAILABLE:
        return Asked(_ANSWERS.get(error.code, Answer.FAILED), words)
    if "refused" in words:
        return Asked(Answer.CLOSED, "nothing listens there")
    if any(text in words for text in _NO_HOST):
        return Asked(Answer.NOWHERE, f"no way there ({words})")
    tls = bool(access.certificate_authority)
    if "WRONG_VERSION_NUMBER" in words:
        words = "it does not speak TLS"
    # Where it wants a certificate of ours, it closes without a word.
    elif "handshake" in words.lower() or (tls and "closed" in words):
        return Asked(Answer.NO_TRUST, f"no trust between its certificate and ours ({words})")
    elif not tls and any(word in words.lower() for word in _AS_TLS_DOES):
        words = f"it ends the connection at once, as what wants TLS does: {words}"
    return Asked(Answer.FOREIGN, f"it does not speak gRPC as we do ({words})")


def limits_of(path: str) -> Limits:
    """Reads the limits from a configuration file; the defaults where it cannot be read here.

    A path that is not absolute may be of another file, and is not read. The sidecar has checked the
    settings: importing what checks them takes longer than all else that doctor does.
    """
    settings: dict[str, Any] = {}
    if Path(path).is_absolute():
        with contextlib.suppress(ValueError):
            settings = tomllib.loads(read_file(path, path).decode("utf-8"))

    def told(section: str, key: str, default: Value) -> Value:
        keys = settings.get(section)
        value = keys.get(key) if isinstance(keys, dict) else None
        return value if isinstance(value, type(default)) else default

    usual = Limits()
    nowhere = "" in (told("state", "folder", "here"), told("pending", "folder", "here"))
    return Limits(
        told("server", "max_streams", usual.streams),
        told("pending", "max_bytes", usual.memory),
        0 if nowhere else told("pending", "disk_bytes", usual.disk),
    )


async def page(address: str, path: str) -> tuple[int, str]:
    """Reads status and text of http://address/path; head and body may take PATIENCE seconds each.

    Raises OSError and TimeoutError where nothing answers, ValueError where that is not HTTP, and
    SpeaksGrpc where it seems to be gRPC.
    """
    return await asyncio.to_thread(_page, address, path)


def _page(address: str, path: str) -> tuple[int, str]:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), PATIENCE)
    with contextlib.closing(connection):
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body, latest = bytearray(), time.monotonic() + PATIENCE
            while piece := answer.read1(2**16):
                body += piece
                if len(body) > _LARGEST_PAGE or time.monotonic() > latest:
                    raise TimeoutError
            return answer.status, body.decode("utf-8", "replace")
        except http.client.HTTPException as error:
            if _SETTINGS.match(str(error).encode("latin-1", "replace")):
                raise SpeaksGrpc("it speaks HTTP/2 there, as gRPC does") from None
            raise ValueError("what answers is not HTTP") from None
