"""Pages of a sidecar, its /metrics above all: bare HTTP/1.0 requests, past any proxy."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from monitor.verbs.sidecar_process import SidecarFailed

_TIMEOUT = 5.0
# Of one page: more is not of a sidecar.
_LARGEST_PAGE = 64 * 2**20
# One label of a series; values are escaped.
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# With this a server of HTTP/2 begins: length, type 4, flags, stream 0 (RFC 9113, 3.4 and 6.5).
_SETTINGS = re.compile(rb"[\x00-\xff]{3}\x04[\x00-\xff]\x00{4}", re.DOTALL)
_ESCAPED = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


@dataclass(frozen=True, slots=True)
class Metrics:
    """Samples by name and labels, as they stand in the text: name{label="value"}."""

    samples: dict[str, float]

    def histogram_bound(self, name: str, level: float) -> float:
        """The upper bound of the bucket that holds this quantile; NaN without counts."""
        total = self.samples.get(f"{name}_count", 0.0)
        prefix = f'{name}_bucket{{le="'
        buckets = sorted(
            (float(key.removeprefix(prefix).removesuffix('"}')), count)
            for key, count in self.samples.items()
            if key.startswith(prefix)
        )
        return next((le for le, count in buckets if total and count >= level * total), float("nan"))


async def scrape(address: str) -> Metrics:
    """The samples at http://address/metrics. Raises SidecarFailed."""
    try:
        found = await page(address, "/metrics", _TIMEOUT)
    except (OSError, ValueError) as error:
        why = str(error) or "no answer in time"
        raise SidecarFailed(f"http://{address}/metrics cannot be read: {why}.") from None
    if found.status != 200:
        raise SidecarFailed(f"http://{address}/metrics cannot be read: status {found.status}.")
    return parse(found.text)


def parse(text: str) -> Metrics:
    """The exposition format, but for timestamps, which the sidecar does not send."""
    # Values of labels may have what else ends a line; a line feed in them is escaped.
    lines = (line for line in text.split("\n") if line and not line.startswith("#"))
    pairs = (line.rpartition(" ") for line in lines)
    return Metrics({name: float(value) for name, _, value in pairs})


@dataclass(frozen=True, slots=True)
class Page:
    """An answer over HTTP."""

    status: int
    text: str


class SpeaksGrpc(ValueError):
    """What answers speaks HTTP/2 from the first byte, as gRPC does."""


async def page(address: str, path: str, patience: float) -> Page:
    """What http://address/path gives, within so many seconds.

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
            return Page(int(words[1]), body.decode("utf-8", "replace"))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            if isinstance(error, asyncio.IncompleteReadError) and _SETTINGS.match(error.partial):
                raise SpeaksGrpc("what answers speaks HTTP/2") from None
            raise ValueError("what answers is not HTTP") from None
        finally:
            writer.close()


def labels_of(series: str) -> tuple[str, dict[str, str]]:
    """The name of a series of Metrics, and its labels."""
    name, _, rest = series.partition("{")
    return name, {key: _plain(value) for key, value in _LABEL.findall(rest)}


def _plain(value: str) -> str:
    return re.sub(r'\\[n"\\]', lambda found: _ESCAPED[found[0]], value)
