"""What goes on of one slice as plain values of a JSON document, and back: all that is read is
checked. Tracks are written in portions, none of which is long in the making.

Which source a track is of, and which life of it, is told by the turn or the life that it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from monitor.calibration.clusters import ClusterArray
from monitor.calibration.drift.alarms_json import LATEST, LONGEST, Document
from monitor.calibration.drift.charts import CHARTS, Stage
from monitor.calibration.drift.family_state import WIDTH
from monitor.calibration.drift.going_on import GoingOn, OpenSlice, TimesState
from monitor.calibration.drift.going_on_json import whole_column
from monitor.calibration.drift.reference_fields import LARGEST_COUNT, Fields
from monitor.calibration.drift.supporters import MOST, MOST_SEEN
from monitor.calibration.drift.track_means import NOWHERE, TRACK
from monitor.calibration.drift.track_records import Records
from monitor.calibration.drift.track_seconds import BLOCK, HISTORY
from monitor.calibration.drift.watched import BLOCK_NS
from monitor.calibration.space import BoolArray, FloatArray, IntArray

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
    def of(cls, state: GoingOn | None) -> Goes:
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
            found.append(one.number(f"began[{i}]", 0.0, LONGEST))
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
    return whole_column(fields, name, size, -LATEST // BLOCK_NS, LATEST // BLOCK_NS)


def _begun(fields: Fields, kind: np.dtype[np.void], index: int) -> Records:
    """What all tables of tracks have."""
    keys = fields.wholes("key", 1, _AT_ONCE, 1, 2**64 - 1)
    table = np.zeros(len(keys), kind)
    table["key"], table["slice"] = np.array(keys, np.uint64), index
    table["last"] = whole_column(fields, "last", table.size, -LATEST, LATEST)
    table["arrived"] = whole_column(fields, "arrived", table.size, 0, LARGEST_COUNT)
    return table


def _counted(fields: Fields, table: Records) -> None:
    table["opened"] = whole_column(fields, "opened", table.size, -LATEST, LATEST)
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
