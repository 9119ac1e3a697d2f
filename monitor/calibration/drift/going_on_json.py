"""The clocks of sources as plain values of a JSON document, and back: all that is read is checked.

Stamps are whole numbers of ns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from monitor.calibration.drift.alarms_json import LATEST, LONGEST, Document
from monitor.calibration.drift.going_on import ClockState, GoingOn, TimesState, WholeState
from monitor.calibration.drift.reference_fields import LARGEST_COUNT, Fields
from monitor.calibration.reorder import ReorderState
from monitor.calibration.space import IntArray

# Sources, at most: no more are told apart than tracks are followed.
MOST_SOURCES = 2**20
_GOING_ON = ("frames", "clock", "times", "late", "short", "left_out", "whole")
_CLOCK = ("frames", "active", "source", "latest_ns", "seen_at", "waiting")
_TIMES = ("frames", "lives", "turns", "elapsed", "source", "time_ns", "life", "turn", "heard")
_WHOLE = ("times", "late", "beyond", "left_out")
_ORDER = ("newest", "given", "seen")
_BY_SOURCE = ("source", "ns")


# ---- writing


def going_on_to_json(state: GoingOn | None) -> Document | None:
    """All of it; None where it is not known."""
    if state is None:
        return None
    whole = state.whole
    return _plain(state, _GOING_ON) | {
        "clock": _plain(state.clock, _CLOCK),
        "times": _plain(state.times, _TIMES),
        "whole": None if whole is None else _of_whole(whole),
    }


def _of_whole(state: WholeState) -> Document:
    return _plain(state, _WHOLE) | {"times": _plain(state.times, _TIMES)}


def _plain(state: object, names: tuple[str, ...]) -> Document:
    values = {name: getattr(state, name) for name in names}
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }


def order_to_json(order: ReorderState[Any]) -> Document:
    """What is known of sources; the newest ones, where they are too many."""
    columns = {name: getattr(order, name)[-MOST_SOURCES:] for name in _ORDER}
    return {
        name: dict(zip(_BY_SOURCE, ([one[i] for one in pairs] for i in range(2)), strict=True))
        for name, pairs in columns.items()
    }


# ---- reading; all of it raises as its fields do


def read_going_on(fields: Fields, name: str) -> GoingOn | None:
    """The inverse of going_on_to_json, out of a member."""
    if fields.content[name] is None:
        return None
    inner = fields.inner(fields.content[name], name, _GOING_ON)
    content = inner.content
    whole = content["whole"]
    return GoingOn(
        frames=inner.whole("frames"),
        clock=_clock(inner.inner(content["clock"], "clock", _CLOCK)),
        times=_times(inner.inner(content["times"], "times", _TIMES)),
        late=inner.whole("late"),
        short=inner.whole("short"),
        left_out=inner.whole("left_out"),
        whole=None if whole is None else _whole(inner.inner(whole, "whole", _WHOLE)),
    )


def _whole(fields: Fields) -> WholeState:
    return WholeState(
        times=_times(fields.inner(fields.content["times"], "times", _TIMES)),
        late=fields.whole("late"),
        beyond=fields.whole("beyond"),
        left_out=fields.whole("left_out"),
    )


def _times(fields: Fields) -> TimesState:
    source = _sources(fields, "source")
    lives, turns = fields.whole("lives"), fields.whole("turns")
    elapsed = fields.whole("elapsed", 0, LATEST)
    size = source.size
    heard = whole_column(fields, "heard", size, 0, elapsed)
    if (np.diff(heard) < 0).any():
        raise fields.wrong("heard", heard.tolist(), "numbers that never fall")
    return TimesState(
        frames=fields.whole("frames"),
        lives=lives,
        turns=turns,
        elapsed=elapsed,
        source=source,
        time_ns=whole_column(fields, "time_ns", size, -LATEST, LATEST),
        life=_unique(fields, "life", whole_column(fields, "life", size, 1, lives)),
        turn=_unique(fields, "turn", whole_column(fields, "turn", size, 1, turns)),
        heard=heard,
    )


def _clock(fields: Fields) -> ClockState:
    source, frames = _sources(fields, "source"), fields.whole("frames")
    return ClockState(
        frames=frames,
        active=fields.whole("active", 0, MOST_SOURCES),
        source=source,
        latest_ns=whole_column(fields, "latest_ns", source.size, -LATEST, LATEST),
        seen_at=whole_column(fields, "seen_at", source.size, 0, frames),
        waiting=fields.numbers("waiting", (source.size,), 0.0, LONGEST),
    )


def read_order(fields: Fields, name: str) -> ReorderState[Any]:
    """The inverse of order_to_json, out of a member; one of nothing where there is none."""
    if fields.content[name] is None:
        return ReorderState()
    order = fields.inner(fields.content[name], name, _ORDER)
    newest = _by_source(order, "newest", -LATEST)
    given, seen = _by_source(order, "given", -LATEST), _by_source(order, "seen", 0)
    unknown = dict(given).keys() - dict(newest).keys()
    if unknown:
        raise order.wrong("given.source", min(unknown), "a source of 'newest'")
    return ReorderState(newest=newest, given=given, seen=seen)


def _by_source(fields: Fields, name: str, low: int) -> tuple[tuple[int, int], ...]:
    inner = fields.inner(fields.content[name], name, _BY_SOURCE)
    source = _sources(inner, "source").tolist()
    ns = inner.wholes("ns", len(source), len(source), low, LATEST)
    return tuple(sorted(zip(source, ns, strict=True)))


def _sources(fields: Fields, name: str) -> IntArray:
    found = np.array(fields.wholes(name, 0, MOST_SOURCES, -LARGEST_COUNT, LARGEST_COUNT), np.int64)
    return _unique(fields, name, found)


def _unique(fields: Fields, name: str, values: IntArray) -> IntArray:
    if np.unique(values).size != values.size:
        raise fields.wrong(name, values.tolist(), "numbers that differ")
    return values


def whole_column(fields: Fields, name: str, size: int, low: int, high: int) -> IntArray:
    """So many whole numbers from low to high."""
    return np.array(fields.wholes(name, size, size, low, high), np.int64)
