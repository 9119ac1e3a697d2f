"""Writes numbers, times, shares as people say them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

# Names beyond these are only counted.
_MOST_NAMES = 5
_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 31557600


def duration(seconds: float) -> str:
    """35 ms, 12 s, 42 min, 3 h 10 min, 2 days 4 h, 56.9 years; without a sign."""
    seconds = abs(seconds)
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 0.9995:
        return f"{1000 * seconds:.{2 if seconds < 0.0995 else 3}g} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 90 * _MINUTE:
        return f"{seconds / _MINUTE:.0f} min"
    if seconds < 2 * _DAY:
        minutes = round(seconds / _MINUTE)
        return _two(minutes // 60, "h", minutes % 60, "min")
    if seconds < 2 * _YEAR:
        hours = round(seconds / _HOUR)
        return _two(hours // 24, "days", hours % 24, "h")
    return f"{seconds / _YEAR:.1f} years"


def _two(large: int, of_large: str, small: int, of_small: str) -> str:
    return f"{large} {of_large} {small} {of_small}" if small else f"{large} {of_large}"


def count(number: float, of: str) -> str:
    """1 frame, 2,040 frames."""
    if not math.isfinite(number):
        return f"an unknown number of {of}s"
    text = f"{number:,.0f}"
    return f"{text} {of}{'' if text == '1' else 's'}"


def share(part: float, whole: float) -> str:
    """As a percentage; 0 % is none at all, 100 % all of them."""
    percent = 100 * part / whole if whole else 0.0
    if not math.isfinite(percent):
        return "an unknown share"
    if 0 < percent < 0.1:
        return "less than 0.1 %"
    if percent < 10:
        return f"{percent:.2g} %"
    return "99.9 %" if 99.5 <= percent < 100 else f"{percent:.0f} %"


def number(value: float) -> str:
    """Three digits, or all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def size(of: float) -> str:
    """1.2 GB, 340 MB, 12 kB."""
    for unit, name in ((2**30, "GB"), (2**20, "MB")):
        if of >= unit:
            return f"{number(of / unit)} {name}"
    return f"{number(of / 2**10)} kB"


def names(given: Sequence[str]) -> str:
    """a, b and c; a, b, c, d, e and 3 more."""
    if not given:
        return "none"
    if len(given) > _MOST_NAMES:
        return f"{', '.join(given[:_MOST_NAMES])} and {len(given) - _MOST_NAMES} more"
    return given[0] if len(given) == 1 else f"{', '.join(given[:-1])} and {given[-1]}"


def shares(counts: Mapping[str, float], whole: float) -> str:
    """orphan 80 %, too_late 12 %: the largest first, none that are 0."""
    found = sorted(((n, name) for name, n in counts.items() if n > 0), reverse=True)
    return names([f"{name} {share(n, whole)}" for n, name in found])


def be(of: float) -> str:
    """One is, several are."""
    return "is" if of == 1 else "are"
