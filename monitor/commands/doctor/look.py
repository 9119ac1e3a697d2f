"""Looks twice at a running sidecar, by HTTP and gRPC, for doctor to judge.

Requests are bare HTTP/1.0, past any proxy. Nothing raises for what the network or the sidecar
does: the answer then says why there is nothing.
"""

from __future__ import annotations

import asyncio
import re
import time
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import grpc

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
from monitor.commands.sending import SidecarFailed
from monitor.commands.sidecar_client import Client, SidecarRefused, SidecarUnavailable, ask
from monitor.config import Config, InvalidConfiguration, is_loopback, load
from monitor.frames.status import Status

_TIMEOUT = 5.0

# Of one page: more is not of a sidecar.
_LARGEST_PAGE = 64 * 2**20

# One label of a series; values are escaped.
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

# With this a server of HTTP/2 begins: length, type 4, flags, stream 0 (RFC 9113, 3.4 and 6.5).
_SETTINGS = re.compile(rb"[\x00-\xff]{3}\x04[\x00-\xff]\x00{4}", re.DOTALL)
_ESCAPED = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}

# That a sidecar has, whatever it was sent.
_ALWAYS = "calibration_frames_total"

# Seconds for each question; they are asked beside each other, so that all of it takes little more
# than the time to watch.
PATIENCE = 3.0

# What a refusal for want of a right begins with; others have other reasons.
_NO_RIGHT = "authorization:"
_NO_HOST = ("resolving", "lookup", "No route", "unreachable", "not known")

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
    seen: Observation, access: Access, clock_ns: Callable[[], int], seconds: float
) -> Observation:
    """Two looks, so many seconds apart where there is anything to see. Raises InvalidAccess.

    seen      the addresses, before anything was seen
    clock_ns  the wall clock of who looks
    """
    seen = await _once(seen, access, clock_ns)
    if not (seen.grpc.given or seen.http.given):
        return replace(seen, drift=seen.grpc, recalibrators=seen.grpc)
    first = seen.last
    began = asyncio.get_running_loop().time()
    seen = await _asked_once(seen, access)
    spent = asyncio.get_running_loop().time() - began
    await asyncio.sleep(max(0.0, seconds - spent))
    return replace(await _once(seen, access, clock_ns), first=first)


async def _once(seen: Observation, access: Access, clock_ns: Callable[[], int]) -> Observation:
    """Asks, at the same time, for all that changes from look to look."""
    at_s = asyncio.get_running_loop().time()
    (
        (http, ready, metrics, samples, text),
        (grpc, serving, asked, status, at_ns, trip),
    ) = await asyncio.gather(
        pages(seen.http_address, PATIENCE), _grpc(seen.address, access, clock_ns)
    )
    return replace(
        seen,
        http=http,
        ready=ready,
        metrics=metrics,
        grpc=grpc,
        serving=serving,
        status=asked,
        last=Look(at_s, samples, status, at_ns, trip, text),
    )


async def pages(
    address: str, patience: float
) -> tuple[Asked, bool | None, Asked, Samples | None, int]:
    """How it went with HTTP, what /readyz said, how it went with /metrics, these, and a number
    that tells their text from others.
    """
    try:
        ready, _ = await page(address, "/readyz", patience)
        status, text = await page(address, "/metrics", patience)
    except (OSError, ValueError) as error:
        asked = _no_page(error)
        return asked, None, asked, None, 0
    try:
        samples = samples_of(text)
    except ValueError:
        samples = None
    if samples is None or status != 200 or not samples.rows("frames_total"):
        words = f"/metrics gives {_ALWAYS} nowhere (status {status})"
        return GIVEN, None, Asked(Answer.FOREIGN, words), None, 0
    return GIVEN, ready == 200, GIVEN, samples, zlib.crc32(text.encode()) or 1


def samples_of(text: str) -> Samples:
    """The exposition text. Raises ValueError where it is none."""
    families: dict[str, list[tuple[Labels, float]]] = {}
    for series, value in parse(text).items():
        name, _, rest = series.partition("{")
        labels = {key: _plain(word) for key, word in _LABEL.findall(rest)}
        families.setdefault(name, []).append((labels, value))
    return Samples({name: tuple(rows) for name, rows in families.items()})


def _plain(value: str) -> str:
    return re.sub(r'\\[n"\\]', lambda found: _ESCAPED[found[0]], value)


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


async def _grpc(
    address: str, access: Access, clock_ns: Callable[[], int]
) -> tuple[Asked, bool, Asked, Status | None, int, float]:
    """How it went with gRPC, its health, how it went with GetStatus, the status, and when."""
    async with Client(address, access, PATIENCE) as client:
        try:
            serving = await client.serving()
        except (SidecarUnavailable, SidecarRefused) as error:
            if error.code is not grpc.StatusCode.UNIMPLEMENTED:
                reached = await or_http(_reached(error, address, access), address, PATIENCE)
                return reached, False, reached, None, 0, 0.0
            serving = True  # a server without health: what it says of itself tells more
        asked_ns, began = clock_ns(), time.monotonic()
        try:
            status = await client.status()
        except (SidecarUnavailable, SidecarRefused) as error:
            return GIVEN, serving, _reached(error, address, access), None, 0, 0.0
        trip = time.monotonic() - began
    return GIVEN, serving, GIVEN, status, asked_ns + round(trip * 1e9 / 2), trip


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
    return Asked(Answer.FOREIGN, words)


async def _asked_once(seen: Observation, access: Access) -> Observation:
    """Drift, recalibrators, and the limits of the configuration, if its file can be read here."""
    status = seen.last.status
    # On another machine, a file of this name is another sidecar's.
    here = is_loopback(seen.address.rpartition(":")[0].strip("[]"))
    path = status.configuration if here and status is not None else ""
    seen = replace(seen, limits=await asyncio.to_thread(limits_of, path))
    if not seen.grpc.given or seen.status.answer in (Answer.NO_TOKEN, Answer.NO_RIGHT):
        return replace(seen, drift=seen.status, recalibrators=seen.status)
    (drift, standings), (listed, listing) = await asyncio.gather(
        _answered(ask(Client(seen.address, access), Client.standings)),
        _answered(ask(Client(seen.address, access), Client.listing)),
    )
    if standings is not None:
        seen = replace(seen, standings=standings.standings, stages=standings.stages)
    if listing is not None:
        seen = replace(seen, trials=listing.trials, pinned=listing.pinned)
    return replace(seen, drift=drift, recalibrators=listed)


async def _answered(asking: Awaitable[Found]) -> tuple[Asked, Found | None]:
    """Awaits an answer; without one, tells why."""
    try:
        async with asyncio.timeout(PATIENCE):
            return GIVEN, await asking
    except TimeoutError:
        return Asked(Answer.SILENT, "no answer in time"), None
    except SidecarRefused as error:
        words = str(error)
        answer = Answer.NO_RIGHT if words.startswith(_NO_RIGHT) else Answer.FAILED
        return Asked(answer, words), None
    except Exception as error:  # one question less is no reason to leave the others without answer
        return Asked(Answer.FAILED, str(error) or type(error).__name__), None


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
