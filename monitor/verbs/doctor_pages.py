"""What doctor sees by HTTP, or why it sees nothing; it never raises for what the network does."""

from __future__ import annotations

import zlib

from monitor.diagnosis.observation import GIVEN, Answer, Asked
from monitor.diagnosis.samples import Labels, Samples
from monitor.verbs.scrape import SpeaksGrpc, labels_of, page, parse

# That a sidecar has, whatever it was sent.
_ALWAYS = "calibration_frames_total"


async def pages(
    address: str, patience: float
) -> tuple[Asked, bool | None, Asked, Samples | None, int]:
    """How it went with HTTP, what /readyz said, how it went with /metrics, these, and a number
    that tells their text from others.
    """
    try:
        ready = await page(address, "/readyz", patience)
        metrics = await page(address, "/metrics", patience)
    except (OSError, ValueError) as error:
        asked = _no_page(error)
        return asked, None, asked, None, 0
    try:
        samples = samples_of(metrics.text)
    except ValueError:
        samples = None
    if samples is None or metrics.status != 200 or not samples.rows("frames_total"):
        words = f"/metrics gives {_ALWAYS} nowhere (status {metrics.status})"
        return GIVEN, None, Asked(Answer.FOREIGN, words), None, 0
    return GIVEN, ready.status == 200, GIVEN, samples, zlib.crc32(metrics.text.encode()) or 1


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


def samples_of(text: str) -> Samples:
    """The exposition text. Raises ValueError where it is none."""
    families: dict[str, list[tuple[Labels, float]]] = {}
    for series, value in parse(text).samples.items():
        name, labels = labels_of(series)
        families.setdefault(name, []).append((labels, value))
    return Samples({name: tuple(rows) for name, rows in families.items()})


async def or_http(reached: Asked, address: str, patience: float) -> Asked:
    """Whether what does not speak gRPC speaks HTTP in its place."""
    if reached.answer is not Answer.FOREIGN:
        return reached
    try:
        await page(address, "/metrics", patience)
    except (OSError, ValueError):
        return reached
    return Asked(Answer.OTHER_PORT, "it speaks HTTP")
