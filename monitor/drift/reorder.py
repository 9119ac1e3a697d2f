"""Items of several sources, held back until no older one can come before them.

Sums do not care about the order of items; bets, which take one observation after the other, do.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class _Held(NamedTuple, Generic[T]):
    """An item that is held, and the rows that it counts for.

    arrived  number of its arrival, which tells apart what is otherwise alike
    at_ns    event time of all sources by then; None: it is not known
    """

    stamp_ns: int
    arrived: int
    at_ns: int | None
    rows: int
    item: T


@dataclass(slots=True)
class ReorderBuffer(Generic[T]):
    """Items in the order of their stamps, source by source.

    An item is given out once its source has put one that is newer by as much as items of it have
    come behind, so that sources need not wait for each other, and one that keeps its order waits
    for nothing. Per source, items that come less far behind the newest than one has before are
    given out by stamp, whatever order they came in; only what is alike stays as it came. One that
    comes too late goes out at once. Stamps must be believable: one far ahead makes all that follow
    late, until `begin_anew`.

    disorder_ns  what is farther behind the newest of its source is not waited for
    rows         held now
    """

    disorder_ns: int
    rows: int = 0
    _held: dict[int, list[_Held[T]]] = field(default_factory=dict)
    _newest: dict[int, int] = field(default_factory=dict)
    _given: dict[int, int] = field(default_factory=dict)
    _seen: dict[int, int] = field(default_factory=dict)
    _out: list[T] = field(default_factory=list)
    _arrived: int = 0

    def put(
        self, stamp_ns: int, source: int, item: T, *, rows: int = 1, now_ns: int | None = None
    ) -> None:
        """Takes in an item; `ready` gives out what need not wait any longer."""
        newest = self._newest.get(source)
        if newest is None or stamp_ns > newest:
            self._newest[source] = stamp_ns
        elif newest - stamp_ns > self._seen.get(source, 0):
            self._seen[source] = min(newest - stamp_ns, self.disorder_ns)
        given = self._given.get(source)
        if given is not None and stamp_ns < given:
            self._out.append(item)
            return
        held = _Held(stamp_ns, self._arrived, now_ns, rows, item)
        self._arrived += 1
        heapq.heappush(self._held.setdefault(source, []), held)
        self.rows += rows

    def ready(self, now_ns: int | None = None) -> list[T]:
        """Gives out, each once, the items that none can overtake any more.

        First those that came late or before time began anew, then by stamp and source.

        now_ns  event time of all sources: what has waited disorder_ns of it waits no longer, or a
                source that falls silent would keep its last for ever
        """
        out, self._out = self._out, []
        found: list[tuple[int, int, T]] = []
        for source, held in list(self._held.items()):
            until = self._newest[source] - self._seen.get(source, 0)
            while held and (held[0].stamp_ns <= until or self._waited(held[0].at_ns, now_ns)):
                found.append((held[0].stamp_ns, source, self._pop(source)))
        found.sort(key=lambda one: one[:2])
        return out + [item for *_, item in found]

    def _waited(self, at_ns: int | None, now_ns: int | None) -> bool:
        if now_ns is None or at_ns is None:
            return False
        return now_ns - at_ns >= self.disorder_ns

    def begin_anew(self) -> None:
        """Forgets all sources, whose time began anew; what is held of them is given out next."""
        for source in self._newest:
            while source in self._held:
                self._out.append(self._pop(source))
        for known in (self._newest, self._given, self._seen):
            known.clear()

    def _pop(self, source: int) -> T:
        held = heapq.heappop(self._held[source])
        if not self._held[source]:
            del self._held[source]
        self.rows -= held.rows
        self._given[source] = max(held.stamp_ns, self._given.get(source, held.stamp_ns))
        return held.item
