"""The JSON form of what goes on over a restart: latched alarms, clocks of sources, open tracks.

All that is read is checked. Tracks are written in portions, none of which is long in the making.
Which source a track is of, and which life of it, is told by the turn or the life that it has.
Stamps are whole numbers of ns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from monitor.drift.alarms import Alarm, Key, Latched, Raised, key_of
from monitor.drift.bets import CHARTS, DETECTORS, SEVERITIES, Detector, Direction, Severity, Stage
from monitor.drift.clocks import ClockState, TimesState
from monitor.drift.evidence import Scale
from monitor.drift.judging import MOST, MOST_SEEN
from monitor.drift.keyed import Records
from monitor.drift.reference_json import LARGEST_COUNT, Fields
from monitor.drift.reorder import ReorderState
from monitor.drift.slice_state import OpenSlice
from monitor.drift.state import (
    LARGEST_EVIDENCE,
    LONGEST_NAME,
    MOST_LATCHED,
    WIDTH,
    OpenState,
    WholeState,
)
from monitor.drift.track_means import NOWHERE, TRACK
from monitor.drift.track_seconds import BLOCK, HISTORY
from monitor.drift.usual import BLOCK_NS
from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.statistics.clusters import ClusterArray

# s and ns; far above any clock, and sums of them stay whole numbers.
LONGEST_SECONDS, LATEST_NS = 1e12, 2**62

# Of √(NEES/K), and of tolerances.
LARGEST_SCALE = 1e9
_LATCHED = ("alarm", "since")
_COUNT = ("stage", "detector", "direction", "alarms")
_ALARM = tuple(Alarm.__dataclass_fields__)
_SCALE = tuple(Scale.__dataclass_fields__)
Document = dict[str, object]


# ---- writing


def latched_to_json(latched: Mapping[Key, Latched]) -> list[Document]:
    """Alarms with the s of driving from which they stay."""
    return [{"alarm": _of_alarm(one.alarm), "since": one.since_s} for one in latched.values()]


def counts_to_json(counts: Mapping[Raised, int]) -> list[Document]:
    """How often there was one, by what."""
    return [_of_count(what, alarms) for what, alarms in counts.items()]


def _of_alarm(alarm: Alarm) -> Document:
    values = {name: getattr(alarm, name) for name in _ALARM}
    scale = {name: getattr(alarm.scale, name) for name in _SCALE}
    return values | {
        "stage": alarm.stage.label,
        "evidence": min(alarm.evidence, LARGEST_EVIDENCE),
        "scale": {name: None if math.isnan(value) else value for name, value in scale.items()},
    }


def _of_count(what: Raised, alarms: int) -> Document:
    stage, detector, direction = what
    return dict(zip(_COUNT, (stage.label, detector.value, direction.value, alarms), strict=True))


# ---- reading; all of it raises as its fields do


def read_latched(fields: Fields, name: str) -> dict[Key, Latched]:
    """The inverse of latched_to_json, out of a member."""
    found: dict[Key, Latched] = {}
    for i, value in enumerate(fields.listed(name, 0, MOST_LATCHED)):
        one = fields.inner(value, f"{name}[{i}]", _LATCHED)
        alarm = _alarm(one.inner(one.content["alarm"], "alarm", _ALARM))
        found[key_of(alarm)] = Latched(alarm, one.number("since", 0.0, LONGEST_SECONDS))
    return found


def read_counts(fields: Fields, name: str) -> dict[Raised, int]:
    """The inverse of counts_to_json, out of a member."""
    found: dict[Raised, int] = {}
    for i, value in enumerate(fields.listed(name, 0, len(CHARTS) * len(DETECTORS))):
        one = fields.inner(value, f"{name}[{i}]", _COUNT)
        found[_what(one)] = one.whole("alarms")
    return found


def _alarm(fields: Fields) -> Alarm:
    stage, detector, direction = _what(fields)
    scale = fields.inner(fields.content["scale"], "scale", _SCALE)
    return Alarm(
        slice=read_name(fields, "slice"),
        severity=Severity(read_word(fields, "severity", SEVERITIES)),
        stage=stage,
        detector=detector,
        direction=direction,
        evidence=fields.number("evidence", 0.0, LARGEST_EVIDENCE),
        threshold=fields.number("threshold", 0.0, LARGEST_EVIDENCE),
        event_ns=fields.whole("event_ns", -LATEST_NS, LATEST_NS),
        since_ns=fields.whole("since_ns", -LATEST_NS, LATEST_NS),
        detections=fields.whole("detections"),
        tracks=fields.whole("tracks"),
        labelled=fields.whole("labelled"),
        scale=Scale(*(_known_or_nan(scale, name) for name in _SCALE)),
        epoch=fields.whole("epoch"),
        driven=fields.number("driven", 0.0, LONGEST_SECONDS),
    )


def _known_or_nan(fields: Fields, name: str) -> float:
    return math.nan if fields.content[name] is None else fields.number(name, 0.0, LARGEST_SCALE)


def _what(fields: Fields) -> Raised:
    label = read_word(fields, "stage", tuple(stage.label for stage in Stage))
    return (
        next(stage for stage in Stage if stage.label == label),
        Detector(read_word(fields, "detector", DETECTORS)),
        Direction(read_word(fields, "direction", tuple(Direction))),
    )


def read_word(fields: Fields, name: str, words: tuple[str, ...]) -> str:
    """One of some words."""
    value = fields.content[name]
    if not isinstance(value, str) or value not in words:
        raise fields.wrong(name, value, f"one of {', '.join(words)}")
    return value


def read_name(fields: Fields, name: str) -> str:
    """Reads what a slice or a version may be called."""
    value = fields.content[name]
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME:
        raise fields.wrong(name, value, f"a text of 1 to {LONGEST_NAME} characters")
    return value


# Sources, at most: no more are told apart than tracks are followed.
MOST_SOURCES = 2**20
_GOING_ON = ("frames", "clock", "times", "late", "short", "left_out", "whole")
_CLOCK = ("frames", "active", "source", "latest_ns", "seen_at", "waiting")
_TIMES = ("frames", "lives", "turns", "elapsed", "source", "time_ns", "life", "turn", "heard")
_WHOLE = ("times", "late", "beyond", "left_out")
_ORDER = ("newest", "given", "seen")
_BY_SOURCE = ("source", "ns")


# ---- writing


def going_on_to_json(state: OpenState | None) -> Document | None:
    """All of it; None where it is not known."""
    if state is None:
        return None
    whole = state.whole
    more = whole and plain(whole, _WHOLE) | {"times": plain(whole.times, _TIMES)}
    return plain(state, _GOING_ON) | {
        "clock": plain(state.clock, _CLOCK),
        "times": plain(state.times, _TIMES),
        "whole": more,
    }


def plain(state: object, names: tuple[str, ...]) -> Document:
    """Writes some fields of a value; arrays as lists, row by row."""
    values = {name: getattr(state, name) for name in names}
    return {
        name: value.ravel().tolist() if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }


def order_to_json(order: ReorderState[Any]) -> Document:
    """Writes what is known of sources; the newest ones, where they are too many."""
    columns = {name: getattr(order, name)[-MOST_SOURCES:] for name in _ORDER}
    return {
        name: dict(zip(_BY_SOURCE, ([one[i] for one in pairs] for i in range(2)), strict=True))
        for name, pairs in columns.items()
    }


# ---- reading; all of it raises as its fields do


def read_going_on(fields: Fields, name: str) -> OpenState | None:
    """The inverse of going_on_to_json, out of a member."""
    if fields.content[name] is None:
        return None
    inner = fields.inner(fields.content[name], name, _GOING_ON)
    content = inner.content
    whole = content["whole"]
    return OpenState(
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
    elapsed = fields.whole("elapsed", 0, LATEST_NS)
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
        time_ns=whole_column(fields, "time_ns", size, -LATEST_NS, LATEST_NS),
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
        latest_ns=whole_column(fields, "latest_ns", source.size, -LATEST_NS, LATEST_NS),
        seen_at=whole_column(fields, "seen_at", source.size, 0, frames),
        waiting=fields.numbers("waiting", (source.size,), 0.0, LONGEST_SECONDS),
    )


def read_order(fields: Fields, name: str) -> ReorderState[Any]:
    """The inverse of order_to_json, out of a member; one of nothing where there is none."""
    if fields.content[name] is None:
        return ReorderState()
    order = fields.inner(fields.content[name], name, _ORDER)
    newest = _by_source(order, "newest", -LATEST_NS)
    given, seen = _by_source(order, "given", -LATEST_NS), _by_source(order, "seen", 0)
    unknown = dict(given).keys() - dict(newest).keys()
    if unknown:
        raise order.wrong("given.source", min(unknown), "a source of 'newest'")
    return ReorderState(newest=newest, given=given, seen=seen)


def _by_source(fields: Fields, name: str, low: int) -> tuple[tuple[int, int], ...]:
    inner = fields.inner(fields.content[name], name, _BY_SOURCE)
    source = _sources(inner, "source").tolist()
    ns = inner.wholes("ns", len(source), len(source), low, LATEST_NS)
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


# Tracks of a portion; those of whole tracks have many sums each.
_AT_ONCE, _WHOLE_AT_ONCE = 512, 64
_MOST_PORTIONS = 2**15

# Of one number per slice, or a few; and lists of portions.
_LATELY = ("index", "frame_size", "began", "supporters", "seen")
PORTIONS = ("blocks", "histories", "tracks")
_SUPPORTERS = ("track", "second")
_SEEN = ("track", "frame")
_BLOCKS = ("key", "turn", "opened", "last", "arrived", "count", "changed", "sums")
_HISTORIES = ("key", "life", "last", "arrived", "before", "first", "total", "common_total")
_TRACKS = ("key", "life", "opened", "last", "arrived", "count", "used", "sums")

# A frame has no more detections of a slice, nor a slice more in a frame; and index of a slice.
_LARGEST_FRAME, _LARGEST_INDEX = 1e9, 2**31

# Σ ln NEES, each of which is from −14 to 710; Σ of them over as many as can be counted.
_LARGEST_SUM = 1e19

# Σ L, each of which is e⁵⁰ at most.
_LARGEST_LIKELIHOOD = 1e40


@dataclass(frozen=True, slots=True)
class Goes:
    """Where tracks of whole slices can go on.

    turns  that are not over: the source of each, and its life
    lives  of sources as seconds of tracks know them, and as whole tracks do: the source of each
    """

    turns: Mapping[int, tuple[int, int]]
    lives: Mapping[int, int]
    whole: Mapping[int, int]

    @classmethod
    def of(cls, state: OpenState | None) -> Goes:
        """Nowhere, where it is not known."""
        if state is None:
            return cls({}, {}, {})
        times = state.times
        both = zip(times.source.tolist(), times.life.tolist(), strict=True)
        turns = dict(zip(times.turn.tolist(), both, strict=True))
        return cls(turns, _lives(times), {} if state.whole is None else _lives(state.whole.times))


def _lives(times: TimesState) -> dict[int, int]:
    return dict(zip(times.life.tolist(), times.source.tolist(), strict=True))


# ---- writing


def lately_to_json(state: OpenSlice) -> Document:
    """All but the tracks."""
    return {
        "index": state.index,
        "frame_size": state.frame_size,
        "began": list(state.began),
        "supporters": [
            {"track": tracks.tolist(), "second": seconds.tolist()}
            for tracks, seconds in state.supporters
        ],
        "seen": {"track": state.seen[0].tolist(), "frame": state.seen[1].tolist()},
    }


def portions_to_json(state: OpenSlice) -> Iterator[tuple[str, Document]]:
    """The tracks, portion by portion, each with the list that it is of."""
    for blocks in _cut(state.blocks, _AT_ONCE):
        yield "blocks", _columns(blocks, _BLOCKS)
    for histories in _cut(state.histories, _AT_ONCE):
        yield "histories", _columns(histories, _HISTORIES)
    begin = 0
    for tracks in _cut(state.tracks, _WHOLE_AT_ONCE):
        used = tracks["row"] == NOWHERE
        end = begin + int(np.count_nonzero(~used))
        sums = state.sums[begin:end].ravel().tolist()
        more = {"used": used.astype(np.int64).tolist(), "sums": sums}
        yield "tracks", _columns(tracks, _TRACKS[:-2]) | more
        begin = end


def _cut(table: Records, size: int) -> Iterator[Records]:
    for begin in range(0, table.size, size):
        yield table[begin : begin + size]


def _columns(table: Records, names: tuple[str, ...]) -> Document:
    columns = {name: table[name] for name in names}
    return {
        name: (column.astype(np.int64) if column.dtype == np.bool_ else column).ravel().tolist()
        for name, column in columns.items()
    }


# ---- reading; all of it raises as its fields do


def read_open(fields: Fields, goes: Goes) -> OpenSlice | None:
    """The inverse of both, out of the members of a slice."""
    content = fields.content["lately"]
    listed = {name: fields.listed(name, 0, _MOST_PORTIONS) for name in PORTIONS}
    if content is None:
        for name, portions in listed.items():
            if portions:
                raise fields.wrong(name, portions, "none, where 'lately' is null")
        return None
    if isinstance(content, dict):
        content.setdefault("seen", {"track": [], "frame": []})  # tracks were not counted so
    lately = fields.inner(content, "lately", _LATELY)
    index = lately.whole("index", 0, _LARGEST_INDEX)
    blocks = [
        _blocks(fields.inner(one, f"blocks[{i}]", _BLOCKS), index, goes)
        for i, one in enumerate(listed["blocks"])
    ]
    histories = [
        _histories(fields.inner(_with_levels(one), f"histories[{i}]", _HISTORIES), index, goes)
        for i, one in enumerate(listed["histories"])
    ]
    whole = [
        _tracks(fields.inner(one, f"tracks[{i}]", _TRACKS), index, goes)
        for i, one in enumerate(listed["tracks"])
    ]
    tracks = _by_key(fields, "tracks", [one for one, _ in whole], TRACK)
    waits = tracks["row"] != NOWHERE
    tracks["row"][waits] = np.arange(int(np.count_nonzero(waits)))
    return OpenSlice(
        index=index,
        frame_size=lately.number("frame_size", 0.0, _LARGEST_FRAME),
        began=_began(lately),
        supporters=_supporters(lately),
        seen=_seen(lately),
        blocks=_by_key(fields, "blocks", blocks, BLOCK),
        histories=_by_key(fields, "histories", histories, HISTORY),
        tracks=tracks,
        sums=np.concatenate([np.zeros((0, WIDTH)), *(sums for _, sums in whole)]),
    )


def _began(fields: Fields) -> tuple[float | None, ...]:
    values = fields.listed("began", len(Stage), len(Stage))
    found: list[float | None] = []
    for i, value in enumerate(values):
        if value is None:
            found.append(None)
        else:
            one = Fields({f"began[{i}]": value}, fields.where, fields.refusal)
            found.append(one.number(f"began[{i}]", 0.0, LONGEST_SECONDS))
    return tuple(found)


def _supporters(
    fields: Fields,
) -> tuple[tuple[ClusterArray, IntArray], ...]:
    found = []
    for i, value in enumerate(fields.listed("supporters", len(CHARTS), len(CHARTS))):
        one = fields.inner(value, f"supporters[{i}]", _SUPPORTERS)
        tracks = np.array(one.wholes("track", 0, MOST, 1, 2**64 - 1), np.uint64)
        found.append((tracks, _second(one, "second", tracks.size)))
    return tuple(found)


def _seen(fields: Fields) -> tuple[ClusterArray, IntArray]:
    one = fields.inner(fields.content["seen"], "seen", _SEEN)
    tracks = np.array(one.wholes("track", 0, MOST_SEEN, 1, 2**64 - 1), np.uint64)
    return tracks, whole_column(one, "frame", tracks.size, 0, LARGEST_COUNT)


def _second(fields: Fields, name: str, size: int) -> IntArray:
    return whole_column(fields, name, size, -LATEST_NS // BLOCK_NS, LATEST_NS // BLOCK_NS)


def _begun(fields: Fields, kind: np.dtype[np.void], index: int) -> Records:
    """Reads the fields that all tables of tracks have."""
    keys = fields.wholes("key", 1, _AT_ONCE, 1, 2**64 - 1)
    table = np.zeros(len(keys), kind)
    table["key"], table["slice"] = np.array(keys, np.uint64), index
    table["last"] = whole_column(fields, "last", table.size, -LATEST_NS, LATEST_NS)
    table["arrived"] = whole_column(fields, "arrived", table.size, 0, LARGEST_COUNT)
    return table


def _counted(fields: Fields, table: Records) -> None:
    table["opened"] = whole_column(fields, "opened", table.size, -LATEST_NS, LATEST_NS)
    table["count"] = whole_column(fields, "count", table.size, 1, LARGEST_COUNT)
    if (table["opened"] > table["last"]).any():
        raise fields.wrong("opened", table["opened"].tolist(), "none after 'last'")


def _flags(fields: Fields, name: str, size: int) -> BoolArray:
    return whole_column(fields, name, size, 0, 1).astype(bool)


def _life(fields: Fields, table: Records, lives: Mapping[int, int]) -> list[int]:
    """The source of each; and its life is laid in."""
    life = fields.wholes("life", table.size, table.size, 1, LARGEST_COUNT)
    for one in life:
        if one not in lives:
            raise fields.wrong("life", one, "lives of sources that go on")
    table["life"] = life
    return [lives[one] for one in life]


def _blocks(fields: Fields, index: int, goes: Goes) -> Records:
    table = _begun(fields, BLOCK, index)
    _counted(fields, table)
    turn = fields.wholes("turn", table.size, table.size, 1, LARGEST_COUNT)
    for one in turn:
        if one not in goes.turns:
            raise fields.wrong("turn", one, "turns of sources that are not over")
    table["turn"] = turn
    table["source"], table["life"] = np.array([goes.turns[one] for one in turn], np.int64).T
    table["changed"] = _flags(fields, "changed", table.size)
    table["sums"] = fields.numbers("sums", (table.size, 2), -_LARGEST_SUM, _LARGEST_SUM)
    return table


def _with_levels(content: object) -> object:
    """Add common levels of 0 to histories of the version before, which knew nothing of them."""
    if isinstance(content, dict) and isinstance(content.get("key"), list):
        return {"common_total": [0.0] * (2 * len(content["key"]))} | content
    return content


def _histories(fields: Fields, index: int, goes: Goes) -> Records:
    table = _begun(fields, HISTORY, index)
    _life(fields, table, goes.lives)
    table["before"] = whole_column(fields, "before", table.size, 0, LARGEST_COUNT)
    table["first"] = _second(fields, "first", table.size)
    for name in ("total", "common_total"):
        table[name] = fields.numbers(name, (table.size, 2), -_LARGEST_SUM, _LARGEST_SUM)
    return table


def _tracks(fields: Fields, index: int, goes: Goes) -> tuple[Records, FloatArray]:
    """Whole tracks, and the sums of those that are not used yet."""
    table = _begun(fields, TRACK, index)
    _counted(fields, table)
    table["source"] = _life(fields, table, goes.whole)
    used = _flags(fields, "used", table.size)
    table["row"] = np.where(used, NOWHERE, 0)
    waits = int(np.count_nonzero(~used))
    return table, fields.numbers("sums", (waits, WIDTH), 0.0, _LARGEST_LIKELIHOOD)


def _by_key(fields: Fields, name: str, tables: list[Records], kind: np.dtype[np.void]) -> Records:
    found: Records = np.concatenate([np.zeros(0, kind), *tables])
    if (found["key"][1:] <= found["key"][:-1]).any():
        raise fields.wrong(f"{name}[…].key", found["key"].tolist(), "keys that ascend")
    return found
