"""Uploads of vehicles: which of them a state holds, so that each is added once.

A vehicle uploads what its statistics have gained since its last upload. The uploads of one epoch,
one life of its statistics, are numbered from 1 on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from monitor.statistics.bins import IncompatibleStatistics

# First and last number of a run without a gap.
Span = tuple[int, int]
# Vehicle and epoch.
Life = tuple[str, str]

# Uploads that are named in a message.
_MOST_NAMED = 3


class AlreadyHeld(IncompatibleStatistics):
    """Both states hold the same upload: added up, it would be counted twice."""


@dataclass(frozen=True)
class Holdings:
    """Tells which uploads a state holds.

    spans  by vehicle and epoch, each ascending, without two that touch
    """

    spans: Mapping[Life, tuple[Span, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, vehicle: str, epoch: str, sequence: int) -> Holdings:
        """Returns the holdings of one upload."""
        return cls({(vehicle, epoch): ((sequence, sequence),)})

    def __len__(self) -> int:
        return sum(last - first + 1 for runs in self.spans.values() for first, last in runs)

    @property
    def vehicles(self) -> tuple[str, ...]:
        """Lists the vehicles, sorted."""
        return tuple(sorted({vehicle for vehicle, _ in self.spans}))

    def shared(self, other: Holdings) -> Holdings:
        """Returns what both hold."""
        found = {
            life: tuple(_common(self.spans[life], other.spans[life]))
            for life in self.spans.keys() & other.spans.keys()
        }
        return Holdings({life: runs for life, runs in found.items() if runs})

    def merge(self, other: Holdings) -> Holdings:
        """Returns what one of both holds. Raises AlreadyHeld where both hold the same."""
        if twice := self.shared(other):
            raise AlreadyHeld(
                f"both hold {twice.described()}, which would be counted twice: leave out one."
            )
        # Those of a fleet are many, and most of them stay as they are.
        changed = {
            life: _united(*self.spans.get(life, ()), *runs) for life, runs in other.spans.items()
        }
        return Holdings({**self.spans, **changed})

    @classmethod
    def united(cls, parts: Iterable[Holdings]) -> Holdings:
        """Returns what one of many holds. Raises AlreadyHeld where two hold the same."""
        found = defaultdict[Life, list[Span]](list)
        for part in parts:
            for life, runs in part.spans.items():
                found[life] += runs
        return cls({life: _united(*runs) for life, runs in sorted(found.items())})

    @property
    def counted(self) -> str:
        """Says how many uploads of how many vehicles there are."""
        vehicles = len(self.vehicles)
        return (
            f"{len(self):,} upload{'s' * (len(self) != 1)} of "
            f"{vehicles:,} vehicle{'s' * (vehicles != 1)}"
        )

    def described(self) -> str:
        """Names the uploads; of many the first, and how many there are."""
        named = (
            f"{vehicle}/{epoch}/{first}" + f"…{last}" * (last > first)
            for (vehicle, epoch), runs in sorted(self.spans.items())
            for first, last in runs
        )
        runs = sum(map(len, self.spans.values()))
        some = ", ".join(name for name, _ in zip(named, range(_MOST_NAMED), strict=False))
        return some if runs <= _MOST_NAMED else f"{some} and others, {len(self)} in all"


NOTHING_HELD = Holdings()


def _common(ours: Iterable[Span], theirs: tuple[Span, ...]) -> Iterator[Span]:
    for first, last in ours:
        for start, end in theirs:
            if max(first, start) <= min(last, end):
                yield max(first, start), min(last, end)


def _united(*runs: Span) -> tuple[Span, ...]:
    found: list[Span] = []
    for first, last in sorted(runs):
        if found and first <= found[-1][1]:
            raise AlreadyHeld(f"upload {first} is held twice: it would be counted twice.")
        if found and first == found[-1][1] + 1:
            found[-1] = found[-1][0], last
        else:
            found.append((first, last))
    return tuple(found)
