"""Looks twice at a running sidecar, by HTTP and gRPC, and says what was seen; it never raises for
what the network or the sidecar does.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from monitor import __version__
from monitor.config import Config, InvalidConfiguration, load
from monitor.config_security import is_loopback
from monitor.diagnosis.observation import GIVEN, Answer, Asked, Limits, Look, Observation
from monitor.edges.admin_client import AdminClient
from monitor.edges.client import SidecarRefused
from monitor.edges.credentials import Access
from monitor.edges.drift_client import DriftClient, DriftStandings
from monitor.edges.recalibrator_messages import Listing
from monitor.edges.status_client import NotAnswered, StatusClient, Why
from monitor.status import Status
from monitor.verbs.doctor_pages import or_http, pages

# Seconds for each question; they are asked beside each other, so that all of it takes little more
# than the time to watch.
PATIENCE = 3.0
# What a refusal for want of a right begins with; others have other reasons.
_NO_RIGHT = "authorization:"
_NO_HOST = ("resolving", "lookup", "No route", "unreachable", "not known")
# What gRPC says before it comes to the point.
_BEFORE = re.compile(r"^failed to connect to all addresses; last error: \w+: \S+?: (?=\S+ )")

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Place:
    """Where to look.

    clock_ns  the wall clock of who looks
    """

    address: str
    http_address: str
    access: Access
    clock_ns: Callable[[], int]


async def look(place: Place, seconds: float, truth_within_s: float) -> Observation:
    """Two looks, so many seconds apart where there is anything to see. Raises InvalidAccess."""
    seen = Observation(
        place.address,
        place.http_address,
        __version__,
        bool(place.access.certificate_authority),
        truth_within_s=truth_within_s,
    )
    seen = await _once(seen, place)
    if not (seen.grpc.given or seen.http.given):
        return replace(seen, drift=seen.grpc, recalibrators=seen.grpc)
    first = seen.last
    began = asyncio.get_running_loop().time()
    seen = await _asked_once(seen, place)
    spent = asyncio.get_running_loop().time() - began
    await asyncio.sleep(max(0.0, seconds - spent))
    return replace(await _once(seen, place), first=first)


async def _once(seen: Observation, place: Place) -> Observation:
    """What changes from look to look, asked at the same time."""
    at_s = asyncio.get_running_loop().time()
    (
        (http, ready, metrics, samples, text),
        (grpc, serving, asked, status, clock_ns, trip),
    ) = await asyncio.gather(pages(place.http_address, PATIENCE), _grpc(place))
    return replace(
        seen,
        http=http,
        ready=ready,
        metrics=metrics,
        grpc=grpc,
        serving=serving,
        status=asked,
        last=Look(at_s, samples, status, clock_ns, trip, text),
    )


# ---- gRPC


async def _grpc(place: Place) -> tuple[Asked, bool, Asked, Status | None, int, float]:
    """How it went with gRPC, its health, how it went with GetStatus, the status, and when."""
    client = StatusClient(place.address, place.access, PATIENCE)
    async with client:
        try:
            serving = await client.serving()
        except NotAnswered as error:
            if error.why is not Why.UNKNOWN:
                reached = await or_http(_reached(error, place.access), place.address, PATIENCE)
                return reached, False, reached, None, 0, 0.0
            serving = True  # a server without health: what it says of itself tells more
        asked_ns, began = place.clock_ns(), time.monotonic()
        try:
            status = await client.status()
        except NotAnswered as error:
            return GIVEN, serving, _reached(error, place.access), None, 0, 0.0
        trip = time.monotonic() - began
    return GIVEN, serving, GIVEN, status, asked_ns + round(trip * 1e9 / 2), trip


_ANSWERS = {
    Why.SILENT: Answer.SILENT,
    Why.NO_TOKEN: Answer.NO_TOKEN,
    Why.NO_RIGHT: Answer.NO_RIGHT,
    Why.UNKNOWN: Answer.UNKNOWN,
    Why.FAILED: Answer.FAILED,
}


def _reached(error: NotAnswered, access: Access) -> Asked:
    """What gRPC's words mean; they are the only thing that tells one failure from another."""
    words = _BEFORE.sub("", str(error))
    if error.why in _ANSWERS:
        return Asked(_ANSWERS[error.why], words)
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


# ---- asked once


async def _asked_once(seen: Observation, place: Place) -> Observation:
    """Drift, recalibrators, and the limits of the configuration, if its file can be read here."""
    status = seen.last.status
    # On another machine, a file of this name is another sidecar's.
    here = is_loopback(place.address.rpartition(":")[0].strip("[]"))
    path = status.configuration if here and status is not None else ""
    seen = replace(seen, limits=await asyncio.to_thread(limits_of, path))
    if not seen.grpc.given or seen.status.answer in (Answer.NO_TOKEN, Answer.NO_RIGHT):
        return replace(seen, drift=seen.status, recalibrators=seen.status)
    (drift, standings), (listed, listing) = await asyncio.gather(
        _answered(_standings(place)), _answered(_listing(place))
    )
    if standings is not None:
        seen = replace(seen, standings=standings.standings, stages=standings.stages)
    if listing is not None:
        seen = replace(seen, trials=listing.trials, pinned=listing.pinned)
    return replace(seen, drift=drift, recalibrators=listed)


async def _standings(place: Place) -> DriftStandings:
    client = DriftClient(place.address, place.access)
    async with client:
        return await client.standings()


async def _listing(place: Place) -> Listing:
    client = AdminClient(place.address, place.access)
    async with client:
        return await client.listing()


async def _answered(asking: Awaitable[Found]) -> tuple[Asked, Found | None]:
    """What was asked for, or why there is nothing."""
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
    """Of a configuration file; the defaults where it cannot be read here, or is not absolute: then
    it may be another one.
    """
    try:
        file = Path(path)
        config = load(path) if file.is_absolute() and file.is_file() else Config()
    except (InvalidConfiguration, OSError):
        config = Config()
    return Limits(
        config.pending.max_bytes,
        config.pending.disk_bytes,
        bool(config.pending.folder),
        config.server.max_streams,
    )
