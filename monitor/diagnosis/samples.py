"""What /metrics said, once or twice: values by labels, and what was added between two looks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_PREFIX = "calibration_"

# Labels of one series.
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Samples:
    """Of one look. Names go without the prefix calibration_; those of processes as they are.

    families  by full name: the series, each with its labels
    """

    families: Mapping[str, tuple[tuple[Labels, float], ...]] = field(default_factory=dict)

    def rows(self, name: str) -> tuple[tuple[Labels, float], ...]:
        """All series of a name; none where there is no such name."""
        full = name if name.startswith("process_") else _PREFIX + name
        return self.families.get(full, ())

    def value(self, name: str, **labels: str) -> float:
        """Sum over the series with these labels; NaN where there is none."""
        found = [
            value
            for has, value in self.rows(name)
            if all(has.get(key) == word for key, word in labels.items())
        ]
        return sum(found) if found else math.nan

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums by a label."""
        found: dict[str, float] = {}
        for has, value in self.rows(name):
            word = has.get(label, "")
            found[word] = found.get(word, 0.0) + value
        return found


@dataclass(frozen=True, slots=True)
class Change:
    """Two looks, so many seconds apart; where both are one, nothing has increased."""

    first: Samples
    last: Samples
    seconds: float

    def increase(self, name: str, **labels: str) -> float:
        """Of a counter; one that fell was begun anew. NaN where it is not there."""
        before, after = self.first.value(name, **labels), self.last.value(name, **labels)
        return after if math.isnan(before) or after < before else after - before

    def increases(self, name: str, label: str) -> dict[str, float]:
        """Of a counter, by a label."""
        before = self.first.by(name, label)
        return {
            word: after if after < before.get(word, 0.0) else after - before.get(word, 0.0)
            for word, after in self.last.by(name, label).items()
        }

    def quantile(self, name: str, level: float) -> float:
        """Upper bound of the bucket of a histogram with this quantile of what was added; NaN
        where nothing was.
        """
        buckets = sorted(self._buckets(name))
        most = buckets[-1][1] if buckets else 0.0
        if not most > 0:
            return math.nan
        return next(bound for bound, added in buckets if added >= level * most)

    def _buckets(self, name: str) -> Iterator[tuple[float, float]]:
        for bound, added in self.increases(f"{name}_bucket", "le").items():
            yield float(bound), added


def rose(value: float) -> bool:
    """Whether a counter has counted anything; one that is not there has not."""
    return value > 0  # False of NaN
