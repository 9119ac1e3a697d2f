"""Items of several sources, held back until no older one can come before them.

Sums do not care about the order of items; bets, which take one observation after the other, do.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from monitor.frames.marks import Count, Nanoseconds

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Held(Generic[T]):
    """An item as it was put into the buffer.

    order  among items of the same source and stamp, where the sender has one
    rows   that it counts for
    late   it came after a newer one of its source was given out
    """

    stamp_ns: int
    source: int
    item: T
    order: int = 0
    rows: int = 1
    late: bool = False
    at_ns: int | None = None


@dataclass(frozen=True, slots=True)
class SourceOrder:
    """The order in which items of each source come, ascending by source.

    newest  (source, stamp) of the newest stamp put
    given   (source, stamp) of the newest stamp given out
    seen    (source, ns) how far behind its newest an item has come
    """

    newest: tuple[tuple[Nanoseconds, Nanoseconds], ...] = ()
    given: tuple[tuple[Nanoseconds, Nanoseconds], ...] = ()
    seen: tuple[tuple[Nanoseconds, Count], ...] = ()


@dataclass(frozen=True, slots=True)
class ReorderState(Generic[T]):
    """State of a buffer, from which another one goes on.

    out    given out already, but not yet asked for
    held   in the order in which they would be given out
    order  of its sources
    """

    out: tuple[Held[T], ...] = ()
    held: tuple[Held[T], ...] = ()
    order: SourceOrder = field(default_factory=SourceOrder)


# Stamp, order and number of arrival, which tells apart what is otherwise alike.
_Entry: TypeAlias = tuple[int, int, int, Held[T]]


@dataclass(slots=True)
class ReorderBuffer(Generic[T]):
    """Items in the order of their stamps, source by source.

    An item is given out once its source has put one that is newer by as much as items of it have
    come behind, so that sources need not wait for each other, and one that keeps its order waits
    for nothing. Per source, items that come less far behind the newest than one has before are
    given out in one order, whatever order they came in: by stamp, then `order`; only what is
    alike in both stays as it came. One that comes too late goes out at once. Stamps must be
    believable: one far ahead makes all that follow late, until `begin_anew`.

    disorder_ns  what is farther behind the newest of its source is not waited for
    rows         held now
    """

    disorder_ns: int
    rows: int = 0
    _held: dict[int, list[_Entry[T]]] = field(default_factory=dict)
    _newest: dict[int, int] = field(default_factory=dict)
    _given: dict[int, int] = field(default_factory=dict)
    _seen: dict[int, int] = field(default_factory=dict)
    _out: list[Held[T]] = field(default_factory=list)
    _arrived: int = 0

    def put(
        self,
        stamp_ns: int,
        source: int,
        item: T,
        *,
        order: int = 0,
        rows: int = 1,
        now_ns: int | None = None,
    ) -> None:
        """Takes in an item; `ready` gives out what need not wait any longer."""
        newest = self._newest.get(source)
        if newest is None or stamp_ns > newest:
            self._newest[source] = stamp_ns
        elif newest - stamp_ns > self._seen.get(source, 0):
            self._seen[source] = min(newest - stamp_ns, self.disorder_ns)
        given = self._given.get(source)
        late = given is not None and stamp_ns < given
        held = Held(stamp_ns, source, item, order, rows, late, now_ns)
        if late:
            self._out.append(held)
            return
        self._keep(held)

    def ready(self, now_ns: int | None = None) -> list[Held[T]]:
        """Gives out, each once, the items that none can overtake any more.

        First those that came late or before time began anew, then by stamp, source and order.

        now_ns  event time of all sources: what has waited disorder_ns of it waits no longer, or a
                source that falls silent would keep its last for ever
        """
        out, self._out = self._out, []
        found: list[Held[T]] = []
        for source, entries in list(self._held.items()):
            until = self._newest[source] - self._seen.get(source, 0)
            while entries and (entries[0][0] <= until or self._waited(entries[0][-1], now_ns)):
                found.append(self._pop(source))
        found.sort(key=_place)
        return out + found

    def _waited(self, held: Held[T], now_ns: int | None) -> bool:
        if now_ns is None or held.at_ns is None:
            return False
        return now_ns - held.at_ns >= self.disorder_ns

    def begin_anew(self) -> None:
        """Forgets all sources, whose time began anew; what is held of them is given out next."""
        for source in self._newest:
            while source in self._held:
                self._out.append(self._pop(source))
        for known in (self._newest, self._given, self._seen):
            known.clear()

    # ---- to go on from

    def state(self) -> ReorderState[T]:
        """Returns a value that `restore` makes the same buffer of."""
        held = [entry[-1] for entries in self._held.values() for entry in sorted(entries)]
        return ReorderState(
            out=tuple(self._out),
            held=tuple(sorted(held, key=_place)),
            order=SourceOrder(
                *(tuple(sorted(one.items())) for one in (self._newest, self._given, self._seen))
            ),
        )

    def restore(self, state: ReorderState[T]) -> None:
        """Goes on where another one of the same disorder stopped; in place of all."""
        self.rows = 0
        order = state.order
        self._newest, self._given = dict(order.newest), dict(order.given)
        self._seen = dict(order.seen)
        self._out, self._held = list(state.out), {}
        for held in state.held:
            self._keep(held)

    # ---- one source at a time

    def _keep(self, held: Held[T]) -> None:
        entry = (held.stamp_ns, held.order, self._arrived, held)
        self._arrived += 1
        heapq.heappush(self._held.setdefault(held.source, []), entry)
        self.rows += held.rows

    def _pop(self, source: int) -> Held[T]:
        entries = self._held[source]
        held = heapq.heappop(entries)[-1]
        if not entries:
            del self._held[source]
        self.rows -= held.rows
        self._given[source] = max(held.stamp_ns, self._given.get(source, held.stamp_ns))
        return held


def _place(held: Held[Any]) -> tuple[int, int, int]:
    """Sorting is stable: what is alike stays as it came."""
    return held.stamp_ns, held.source, held.order
