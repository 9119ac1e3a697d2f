"""Looks twice at a running sidecar, by HTTP and gRPC, for doctor to judge.

Requests are bare HTTP/1.0, past any proxy. Nothing raises for what the network or the sidecar
does: the answer then says why there is nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import grpc
from prometheus_client.parser import text_string_to_metric_families

from monitor.client import Access
from monitor.commands.doctor.observation import (
    GIVEN,
    Answer,
    Asked,
    Labels,
    Limits,
    Look,
    Observation,
    Samples,
)
from monitor.commands.sidecar_client import (
    Client,
    SidecarFailed,
    SidecarRefused,
    SidecarUnavailable,
)
from monitor.config import Config, InvalidConfiguration, is_loopback, load

_TIMEOUT = 5.0

# Of one page: more is not of a sidecar.
_LARGEST_PAGE = 64 * 2**20

# With this a server of HTTP/2 begins: length, type 4, flags, stream 0 (RFC 9113, 3.4 and 6.5).
_SETTINGS = re.compile(rb"[\x00-\xff]{3}\x04[\x00-\xff]\x00{4}", re.DOTALL)

# That a sidecar has, whatever it was sent.
_ALWAYS = "calibration_frames_total"

# Seconds for each question; they are asked beside each other, so that all of it takes little more
# than the time to watch.
PATIENCE = 3.0

# Seconds between the looks, where none are given: the metrics are asked for until they are new.
LEAST_SECONDS, MOST_SECONDS = 0.5, 5.0
_POLL_SECONDS = 0.1

_NO_HOST = ("resolving", "lookup", "No route", "unreachable", "not known")

# What gRPC says where it asked in plain text, and TLS was awaited.
_AS_TLS_DOES = ("socket closed", "connection reset", "broken pipe")

# What gRPC says before it comes to the point.
_BEFORE = re.compile(r"^failed to connect to all addresses; last error: \w+: \S+?: (?=\S+ )")
Found = TypeVar("Found")

_ANSWERS = {
    grpc.StatusCode.DEADLINE_EXCEEDED: Answer.SILENT,
    grpc.StatusCode.UNAUTHENTICATED: Answer.NO_TOKEN,
    grpc.StatusCode.PERMISSION_DENIED: Answer.NO_RIGHT,
    grpc.StatusCode.UNIMPLEMENTED: Answer.UNKNOWN,
}


class SpeaksGrpc(ValueError):
    """The answer is HTTP/2 from the first byte, as gRPC speaks it."""


async def look(
    seen: Observation, access: Access, clock_ns: Callable[[], int], seconds: float | None
) -> None:
    """Looks twice, if there is anything to see at the first look. Raises InvalidAccess.

    seen      the addresses, before anything was seen; all that is seen is put into it
    clock_ns  the wall clock of who looks
    seconds   between the looks; None: until the metrics have been refreshed
    """
    first = await _once(seen, access, clock_ns)
    if not (seen.grpc.given or seen.http.given):
        seen.drift = seen.recalibrators = seen.grpc
        return
    await _asked_once(seen, access)
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
            _, text = await page(seen.http_address, "/metrics?fresh", PATIENCE)
            if _mark(text) != seen.last.text:
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
        ready, _ = await page(seen.http_address, "/readyz", PATIENCE)
        status, text = await page(seen.http_address, "/metrics", PATIENCE)
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
    seen.last.samples, seen.last.text = samples, _mark(text)


def _mark(text: str) -> int:
    return zlib.crc32(text.encode()) or 1


def samples_of(text: str) -> Samples:
    """Reads the exposition text. Raises ValueError where it is none."""
    families: dict[str, list[tuple[Labels, float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            families.setdefault(sample.name, []).append((sample.labels, sample.value))
    return Samples({name: tuple(rows) for name, rows in families.items()})


def _no_page(error: Exception) -> Asked:
    match error:
        case TimeoutError():
            return Asked(Answer.SILENT, "no answer in time")
        case ConnectionRefusedError():
            return Asked(Answer.CLOSED, "nothing listens there")
        case ConnectionError():
            return Asked(Answer.FOREIGN, f"the connection broke ({error})")
        case OSError():
            return Asked(Answer.NOWHERE, error.strerror or str(error))
        case SpeaksGrpc():
            return Asked(Answer.OTHER_PORT, str(error))
    return Asked(Answer.FOREIGN, str(error))


async def or_http(reached: Asked, address: str, patience: float) -> Asked:
    """Asks an address that does not speak gRPC for HTTP in its place."""
    if reached.answer is not Answer.FOREIGN:
        return reached
    try:
        await page(address, "/metrics", patience)
    except (OSError, ValueError):
        return reached
    return Asked(Answer.OTHER_PORT, "it speaks HTTP")


async def _grpc(seen: Observation, access: Access, clock_ns: Callable[[], int]) -> None:
    """Sees how it goes with gRPC, its health, how it goes with GetStatus, the status, and when."""
    async with Client(seen.address, access, PATIENCE) as client:
        seen.grpc, serving = await _answered(client.serving(), seen.address, access)
        # A server without health: what it says of itself tells more.
        healthless = seen.grpc.answer is Answer.UNKNOWN
        seen.serving = healthless or bool(serving)
        if not (seen.grpc.given or healthless):
            seen.grpc = seen.status = await or_http(seen.grpc, seen.address, PATIENCE)
            return
        seen.grpc = GIVEN
        asked_ns, began = clock_ns(), time.monotonic()
        seen.status, seen.last.status = await _answered(client.status(), seen.address, access)
        trip = seen.last.round_trip_s = time.monotonic() - began
        seen.last.clock_ns = asked_ns + round(trip * 1e9 / 2)


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
    if error.code is not grpc.StatusCode.UNAVAILABLE:
        return Asked(_ANSWERS.get(error.code, Answer.FAILED), words)
    if "refused" in words:
        return Asked(Answer.CLOSED, words)
    if any(text in words for text in _NO_HOST):
        return Asked(Answer.NOWHERE, words)
    tls = bool(access.certificate_authority)
    if "WRONG_VERSION_NUMBER" in words:
        return Asked(Answer.FOREIGN, "it does not speak TLS")
    # Where it wants a certificate of ours, it closes without a word.
    if "handshake" in words.lower() or (tls and "closed" in words):
        return Asked(Answer.NO_TRUST, words)
    if not tls and any(word in words.lower() for word in _AS_TLS_DOES):
        words = f"it ends the connection at once, as what wants TLS does: {words}"
    return Asked(Answer.FOREIGN, words)


async def _asked_once(seen: Observation, access: Access) -> None:
    """Drift, recalibrators, and the limits of the configuration, if its file can be read here."""
    status = seen.last.status
    # On another machine, a file of this name is another sidecar's.
    here = is_loopback(seen.address.rpartition(":")[0].strip("[]"))
    path = status.configuration if here and status is not None else ""
    seen.limits = await asyncio.to_thread(limits_of, path)
    seen.drift = seen.recalibrators = seen.status if seen.grpc.given else seen.grpc
    if not seen.grpc.given or seen.status.no_right:
        return
    async with Client(seen.address, access, PATIENCE) as client:
        (seen.drift, standings), (seen.recalibrators, listing) = await asyncio.gather(
            _answered(client.standings(), seen.address, access),
            _answered(client.listing(), seen.address, access),
        )
    if standings is not None:
        seen.standings = standings.standings
    if listing is not None:
        seen.trials, seen.pinned = listing.trials, listing.pinned


def limits_of(path: str) -> Limits:
    """Limits in a configuration file; the defaults where it cannot be read here.

    A path that is not absolute may be of another file, and is not read.
    """
    try:
        file = Path(path)
        config = load(path) if file.is_absolute() and file.is_file() else Config()
    except (InvalidConfiguration, OSError):
        config = Config()
    return Limits(
        config.pending.max_bytes,
        config.pending.disk_bytes,
        config.state.folder != "" and config.pending.disk_bytes > 0,
        config.server.max_streams,
    )


async def scrape(address: str) -> dict[str, float]:
    """The samples at http://address/metrics. Raises SidecarFailed."""
    try:
        status, text = await page(address, "/metrics", _TIMEOUT)
    except (OSError, ValueError) as error:
        why = str(error) or "no answer in time"
        raise SidecarFailed(f"http://{address}/metrics cannot be read: {why}.") from None
    if status != 200:
        raise SidecarFailed(f"http://{address}/metrics cannot be read: status {status}.")
    return parse(text)


def parse(text: str) -> dict[str, float]:
    """Reads samples by name and labels, as they stand in the text: name{label="value"}.

    That is the exposition format, but for timestamps, which the sidecar does not send.
    """
    # Values of labels may have what else ends a line; a line feed in them is escaped.
    lines = (line for line in text.split("\n") if line and not line.startswith("#"))
    pairs = (line.rpartition(" ") for line in lines)
    return {name: float(value) for name, _, value in pairs}


async def page(address: str, path: str, patience: float) -> tuple[int, str]:
    """Reads status and text of http://address/path within so many seconds.

    Raises OSError and TimeoutError where nobody answers, ValueError where that is not HTTP, and
    SpeaksGrpc where it seems to be gRPC.
    """
    async with asyncio.timeout(patience):
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        try:
            writer.write(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            words = head.split(b"\r\n", 1)[0].split()
            if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
                raise ValueError("what answers is not HTTP")
            body = bytearray()
            while piece := await reader.read(2**16):
                body += piece
                if len(body) > _LARGEST_PAGE:
                    raise ValueError(f"more than {_LARGEST_PAGE} bytes of an answer")
            return int(words[1]), body.decode("utf-8", "replace")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            if isinstance(error, asyncio.IncompleteReadError) and _SETTINGS.match(error.partial):
                raise SpeaksGrpc("what answers speaks HTTP/2") from None
            raise ValueError("what answers is not HTTP") from None
        finally:
            writer.close()
