"""How many lines of a kind may be logged: a token bucket for each, and what it left out.

No clock and no log: kinds and times are arguments, and who asks does the writing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

MINUTE_NS = 60 * 10**9
# Enough for every place that logs, times the slices that some of them tell apart.
MOST_KINDS = 1024

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Bucket:
    """Of one kind.

    full_ns   when it is full again; each line moves that on by an interval
    untold    lines that were left out since that was told last
    since_ns  of the first of them
    """

    full_ns: int
    untold: int = 0
    since_ns: int = 0


@dataclass(slots=True)
class LineRate(Generic[K]):
    """Buckets of so many lines, which fill up again at so many a minute.

    others          what kinds beyond `most_kinds` are told as; they share a bucket
    lines_a_minute  0: no limit

    Between any two moments, the lines that pass are at most burst + lines_a_minute times the
    minutes between them, for each kind: one is forgotten only when its bucket is full and all
    that it left out has been told.
    """

    others: K
    lines_a_minute: int
    burst: int
    most_kinds: int = MOST_KINDS
    _buckets: OrderedDict[K, _Bucket] = field(default_factory=OrderedDict)
    _shared: _Bucket = field(default_factory=lambda: _Bucket(0))

    def admit(self, kind: K, now_ns: int) -> int | None:
        """How many alike were left out before this line; None: it is left out too."""
        bucket = self._bucket(kind, now_ns)
        interval_ns = self._interval_ns
        if interval_ns and bucket.full_ns - now_ns > (self.burst - 1) * interval_ns:
            _leave_out(bucket, 1, now_ns)
            return None
        bucket.full_ns = max(bucket.full_ns, now_ns) + interval_ns
        if bucket is self._shared:
            return 0  # what it left out was not alike
        untold, bucket.untold = bucket.untold, 0
        return untold

    def leave_out(self, kind: K, lines: int, now_ns: int) -> None:
        """Take note of lines that passed, but could not be written; they are told later."""
        if lines:
            _leave_out(self._bucket(kind, now_ns), lines, now_ns)

    def overdue(self, now_ns: int, patience_ns: int) -> list[tuple[K, int]]:
        """Kinds that left out lines so long ago, and how many; that is told herewith."""
        found: list[tuple[K, int]] = []
        for kind, bucket in [*self._buckets.items(), (self.others, self._shared)]:
            if bucket.untold and now_ns - bucket.since_ns >= patience_ns:
                found.append((kind, bucket.untold))
                bucket.untold = 0
        return found

    def limit(self, lines_a_minute: int, burst: int, now_ns: int) -> None:
        """Go on with other limits; no kind waits for longer than these ask for."""
        self.lines_a_minute, self.burst = lines_a_minute, burst
        latest_ns = now_ns + burst * self._interval_ns
        for bucket in (*self._buckets.values(), self._shared):
            bucket.full_ns = min(bucket.full_ns, latest_ns)

    @property
    def _interval_ns(self) -> int:
        """Between two lines, rounded up; 0: there is no limit."""
        return -(-MINUTE_NS // self.lines_a_minute) if self.lines_a_minute else 0

    def _bucket(self, kind: K, now_ns: int) -> _Bucket:
        bucket = self._buckets.get(kind)
        if bucket is not None:
            self._buckets.move_to_end(kind)
            return bucket
        if len(self._buckets) >= self.most_kinds:
            oldest, spent = next(iter(self._buckets.items()))
            if spent.untold or spent.full_ns > now_ns:
                # Forgotten now, it would begin anew with a full bucket.
                return self._shared
            del self._buckets[oldest]
        bucket = self._buckets[kind] = _Bucket(now_ns)
        return bucket


def _leave_out(bucket: _Bucket, lines: int, now_ns: int) -> None:
    if not bucket.untold:
        bucket.since_ns = now_ns
    bucket.untold += lines
