"""The JSON form of the state of a family: floats keep every bit, all that is read is checked."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from monitor.drift.bets import CHARTS, DETECTORS, SEVERITIES, Stage
from monitor.drift.correlation import (
    LONGEST_BATCH,
    OPEN,
    OPEN_TRACK,
    PARTS,
    SIZES,
    FrameSums,
    TrackSums,
)
from monitor.drift.evidence import ALL_BETS, Evidence, Unit
from monitor.drift.open_tracks_json import (
    LARGEST_SCALE,
    LATEST_NS,
    LONGEST_SECONDS,
    PORTIONS,
    Document,
    Goes,
    counts_to_json,
    going_on_to_json,
    latched_to_json,
    lately_to_json,
    order_to_json,
    plain,
    portions_to_json,
    read_counts,
    read_going_on,
    read_latched,
    read_name,
    read_open,
    read_order,
    read_word,
)
from monitor.drift.reference import (
    BINS,
    LONGEST,
    LevelSums,
    NeesHistogram,
    Origin,
    Reference,
    shipped,
)
from monitor.drift.reference_json import (
    LARGEST_COUNT,
    OF_REFERENCE,
    Fields,
    Refusal,
    reference_from_json,
    reference_to_json,
    shown,
)
from monitor.drift.slice_state import SliceState
from monitor.drift.state import LARGEST_EVIDENCE, MOST_KEPT, EvidenceTerms, FamilyState
from monitor.drift.track_evidence import STATES
from monitor.drift.usual import AT_ONCE, ReferenceLearner
from monitor.frames.space import MOST_DIMENSIONS, FloatArray, IntArray
from monitor.statistics.clusters import ClusterArray

_LEARNER = ("k", "detections", "total", "bins", "counts", "tracks", "frames", "seconds", "waiting")
_TRACKS = ("tracks", "rows", "totals", "products", "ids", "seen", "last", "parts")
_FRAMES = ("waiting", "last", "batches", "pairs")
_WAITING = ("nees", "track", "frame")
_SECONDS = ("tracks", "means", "squares", "within", "again", "blocks", "rows")


def learner_to_json(learner: ReferenceLearner) -> dict[str, object]:
    """All of it; what waits to be taken in goes on waiting, so that sums round alike."""
    bins = np.flatnonzero(learner.histogram.counts)
    tracks, frames, seconds = learner.along_tracks, learner.along_frames, learner.seconds
    open = tracks.going_on
    return {
        "k": learner.k,
        "detections": learner.detections,
        "total": learner.total,
        "bins": bins.tolist(),
        "counts": learner.histogram.counts[bins].tolist(),
        "tracks": {
            **plain(tracks, _TRACKS[:4]),
            "ids": open["key"].tolist(),
            "seen": open["arrived"].tolist(),
            "last": open["last"].tolist(),
            "parts": open["parts"].ravel().tolist(),
        },
        "frames": plain(frames, _FRAMES),
        "seconds": plain(seconds, _SECONDS),
        "waiting": dict(zip(_WAITING, (part.tolist() for part in learner.waiting()), strict=True)),
    }


def learner_from_json(
    value: object, where: str = "learner", refusal: Refusal = OF_REFERENCE
) -> ReferenceLearner:
    """The inverse of learner_to_json. Raises as `refusal` says for anything else."""
    if isinstance(value, dict):
        value = {"waiting": {name: [] for name in _WAITING}, **value}  # nothing was kept waiting
    fields = Fields.of(value, where, _LEARNER, refusal)
    detections = fields.whole("detections")
    content: dict[str, Any] = fields.content
    waiting = _waiting(fields.inner(content["waiting"], "waiting", _WAITING))
    found = ReferenceLearner(
        k=fields.whole("k", 1, MOST_DIMENSIONS),
        detections=detections,
        total=fields.number("total", 0.0),
        histogram=_histogram(fields, detections, waiting[0].size),
        along_tracks=_tracks(fields.inner(content["tracks"], "tracks", _TRACKS)),
        along_frames=_frames(fields.inner(content["frames"], "frames", _FRAMES)),
        seconds=_seconds(fields.inner(content["seconds"], "seconds", _SECONDS)),
    )
    if waiting[0].size:
        found.wait(*waiting)
    return found


def _waiting(fields: Fields) -> tuple[FloatArray, ClusterArray, IntArray]:
    frame = np.array(fields.wholes("frame", 0, AT_ONCE - 1, 0, LARGEST_COUNT), np.int64)
    if (np.diff(frame) < 0).any():
        raise fields.wrong("frame", frame.tolist(), "numbers that never fall")
    size = frame.size
    track = np.array(fields.wholes("track", size, size, 0, 2**64 - 1), np.uint64)
    return fields.numbers("nees", (size,), 0.0), track, frame


def _histogram(fields: Fields, detections: int, waiting: int) -> NeesHistogram:
    bins = fields.wholes("bins", 0, BINS, 0, BINS - 1)
    _ascending(fields, "bins", bins)
    counts = fields.wholes("counts", len(bins), len(bins), 1, LARGEST_COUNT)
    if sum(counts) + waiting != detections:
        expected = f"{sum(counts)}, the sum of counts, and {waiting} that wait"
        raise fields.wrong("detections", detections, expected)
    found = NeesHistogram()
    found.counts[bins] = counts
    return found


def _tracks(fields: Fields) -> TrackSums:
    rows = fields.whole("rows")
    ids = fields.wholes("ids", 0, OPEN, 1, 2**64 - 1)
    _ascending(fields, "ids", ids)
    size = len(ids)
    open = np.zeros(size, OPEN_TRACK)
    open["key"] = np.array(ids, np.uint64)
    open["arrived"] = fields.wholes("seen", size, size, 0, rows)
    open["last"] = fields.numbers("last", (size,), 0.0)
    open["parts"] = fields.numbers("parts", (size, PARTS), 0.0)
    totals = fields.numbers("totals", (PARTS,), 0.0)
    # n rows of a track have n − 1 pairs at most.
    if totals[0] != rows or totals[3] > rows:
        raise fields.wrong("totals", totals.tolist(), f"{rows} rows, and no more pairs")
    return TrackSums(
        tracks=fields.whole("tracks", size, rows),
        rows=rows,
        totals=totals,
        products=fields.numbers("products", (PARTS, PARTS)),
        going_on=open,
    )


def _frames(fields: Fields) -> FrameSums:
    waiting = fields.listed("waiting", 0, LONGEST_BATCH - 1)
    last = None if fields.content["last"] is None else fields.number("last", 0.0)
    batches = fields.numbers("batches", (SIZES, 3), 0.0)
    whole = batches[0, 0]
    if not np.array_equal(batches[:, 0], whole / 2.0 ** np.arange(SIZES)) or whole % LONGEST_BATCH:
        raise fields.wrong("batches", batches[:, 0].tolist(), "half as many of each next size")
    pairs = fields.numbers("pairs", (5,), 0.0)
    frames = whole + len(waiting)
    if pairs[0] != max(frames - 1, 0) or (last is None) != (frames == 0):
        raise fields.wrong("pairs[0]", float(pairs[0]), f"those of {frames:.0f} frames")
    return FrameSums(fields.numbers("waiting", (len(waiting),), 0.0), last, batches, pairs)


def _seconds(fields: Fields) -> LevelSums:
    tracks = fields.numbers("tracks", (LONGEST + 1,), 0.0)
    blocks = fields.whole("blocks")
    again = fields.whole("again", 0, blocks)
    if tracks[0] or (tracks % 1).any() or tracks.sum() > blocks:
        raise fields.wrong("tracks", tracks.tolist(), f"numbers of tracks, of {blocks} seconds")
    return LevelSums(
        tracks=tracks,
        means=fields.numbers("means", (LONGEST + 1,)),
        squares=fields.numbers("squares", (LONGEST + 1,)),
        within=fields.number("within", 0.0),
        again=again,
        blocks=blocks,
        rows=fields.whole("rows", blocks),
    )


def _ascending(fields: Fields, name: str, values: list[int]) -> None:
    if any(a >= b for a, b in pairwise(values)):
        raise fields.wrong(name, values, "numbers that ascend")


Lists: TypeAlias = Mapping[str, "Lists"]
FORMAT = "calibration-monitor/drift/1"

# Σ of x and of x² over what came since the evidence rose.
_LARGEST_RUN = 1e15

_FAMILY = (
    *("format", "entry", "beyond", "waits", "gathered", "driven", "peak", "latched", "counts"),
    *("goes_on", "order", "epochs", "slices"),
)

# Of a ledger: more than will ever be entered.
_MOST_ENTRIES = 2**53
_MOST_BEYOND = 2**18
_MOST_VERSIONS = 8192
_GATHERED = ("page_tolerance", "ticket_tolerance", "unit", "selection")

_SLICE = (
    *("name", "k", "epoch", "labelled", "fed", "known", "evidence", "references", "learners"),
    *("lately", *PORTIONS),
)

# Lists that are long, and those of what is in them.
_LISTS: Lists = {"slices": {"learners": {}, **{name: {} for name in PORTIONS}}}
_EVIDENCE = ("sums", "shares", "since", "clean", "run", "begun", "fresh", "peak", "chain")

# The version before knew nothing of common levels, nor which tracks there were.
_NOT_KEPT = {"chain": [0.0] * (len(Stage) * STATES), "begun": [0] * len(CHARTS)}


class InvalidFamily(ValueError):
    """A text does not describe what is known of slices."""


class OtherFamily(InvalidFamily):
    """It is of a format that another version of the monitor reads."""


_REFUSAL = Refusal(
    InvalidFamily,
    "use a file that this monitor wrote, or remove it: what drifts is then watched anew.",
)


# ---- writing


def family_to_json(state: FamilyState) -> Generator[None, None, Document]:
    """The document, in short steps; what is being learned is as of its step."""
    slices: list[Document] = []
    for one in state.slices:
        learners: list[Document | None] = []
        for learner in one.learners:
            learners.append(None if learner is None else learner_to_json(learner))
            yield
        tracks: dict[str, list[Document]] = {name: [] for name in PORTIONS}
        for name, portion in () if one.open is None else portions_to_json(one.open):
            tracks[name].append(portion)
            yield
        slices.append(_of_slice(one) | {"learners": learners} | tracks)
    return {
        "format": FORMAT,
        "entry": state.entry,
        "beyond": list(state.beyond),
        "waits": list(state.waits),
        "gathered": plain(state.gathered, _GATHERED) | {"unit": state.gathered.unit.value},
        "driven": state.driven,
        "peak": state.peak.tolist(),
        "latched": latched_to_json(state.latched),
        "counts": counts_to_json(state.counts),
        "goes_on": going_on_to_json(state.goes_on),
        "order": order_to_json(state.order),
        "epochs": {"numbers": dict(state.numbers), "begins": dict(state.begins)},
        "slices": slices,
    }


def family_text(document: Document) -> Iterator[bytes]:
    """The document as ASCII, in parts: no part is long in the making.

    Raises ValueError where a number is not finite.
    """
    yield from _in_parts(document, _LISTS)


def _in_parts(content: Document, lists: Lists) -> Iterator[bytes]:
    """An object with lists under some names, of objects with lists of their own."""
    yield _text({key: value for key, value in content.items() if key not in lists})[:-1]
    for name, inner in lists.items():
        values = content[name]
        assert isinstance(values, list)
        yield f',"{name}":['.encode("ascii")
        for i, one in enumerate(values):
            yield b",\n" if i else b"\n"
            if inner:
                yield from _in_parts(one, inner)
            else:
                yield _text(one)
        yield b"]"
    yield b"}"


def _text(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def _of_slice(state: SliceState) -> Document:
    return {
        **plain(state, _SLICE[:6]),
        "evidence": plain(state.evidence, _EVIDENCE),
        # What is shipped is known to whoever reads.
        "references": [
            None if one.origin is Origin.SHIPPED else reference_to_json(one)
            for one in state.references
        ],
        "lately": None if state.open is None else lately_to_json(state.open),
    }


# ---- reading


def family_from_json(text: str | bytes) -> FamilyState:
    """The inverse of both. Raises OtherFamily, InvalidFamily for anything else."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidFamily(f"no JSON ({error}): {_REFUSAL.remedy}") from None
    found = content.get("format") if isinstance(content, dict) else None
    if isinstance(content, dict):
        content.setdefault("entry", None)  # there was no ledger yet
        content.setdefault("beyond", [])
        content.setdefault("waits", [])  # nothing did
        content.setdefault("goes_on", None)  # what was open was lost
        content.setdefault("order", None)
        content.setdefault("epochs", {"numbers": {}, "begins": {}})
    if isinstance(found, str) and found != FORMAT:
        raise OtherFamily(
            f"'format' is {shown(found)}, but this monitor reads {FORMAT!r}: use the monitor that "
            "wrote it."
        )
    return _family(Fields.of(content, "drift", _FAMILY, _REFUSAL))


def _family(fields: Fields) -> FamilyState:
    read_word(fields, "format", (FORMAT,))
    slices: dict[tuple[str, int], SliceState] = {}
    goes_on = read_going_on(fields, "goes_on")
    goes = Goes.of(goes_on)
    for i, value in enumerate(fields.listed("slices", 0, MOST_KEPT)):
        if isinstance(value, dict) and goes_on is None:
            value = {"lately": None, **{name: [] for name in PORTIONS}, **value}
        state = _slice(fields.inner(value, f"slices[{i}]", _SLICE), goes)
        if (state.name, state.k) in slices:
            raise fields.wrong(f"slices[{i}].name", state.name, "another name")
        slices[state.name, state.k] = state
    gathered = fields.inner(fields.content["gathered"], "gathered", _GATHERED)
    return FamilyState(
        gathered=_gathered(gathered),
        entry=None if fields.content["entry"] is None else fields.whole("entry", 0, _MOST_ENTRIES),
        beyond=tuple(fields.wholes("beyond", 0, _MOST_BEYOND, 0, _MOST_ENTRIES)),
        waits=tuple(fields.wholes("waits", 0, _MOST_BEYOND, 0, _MOST_ENTRIES)),
        driven=fields.number("driven", 0.0, LONGEST_SECONDS),
        peak=fields.numbers("peak", (len(SEVERITIES),), 0.0, LARGEST_EVIDENCE),
        latched=read_latched(fields, "latched"),
        counts=read_counts(fields, "counts"),
        slices=tuple(slices.values()),
        goes_on=goes_on,
        order=read_order(fields, "order"),
        numbers=_numbers(fields, "numbers"),
        begins=_numbers(fields, "begins"),
    )


def _numbers(fields: Fields, name: str) -> dict[str, int]:
    """Whole numbers by name, of the epochs."""
    epochs = fields.inner(fields.content["epochs"], "epochs", ("numbers", "begins"))
    found = epochs.content[name]
    if not isinstance(found, dict) or len(found) > _MOST_VERSIONS:
        raise epochs.wrong(name, found, f"an object of at most {_MOST_VERSIONS} numbers")
    inner = epochs.inner(found, name, tuple(found))
    return {key: inner.whole(key, 0, _MOST_ENTRIES) for key in found}


def _gathered(fields: Fields) -> EvidenceTerms:
    return EvidenceTerms(
        fields.number("page_tolerance", 1.0, LARGEST_SCALE),
        fields.number("ticket_tolerance", 1.0, LARGEST_SCALE),
        Unit(read_word(fields, "unit", tuple(Unit))),
        read_name(fields, "selection"),
    )


def _slice(fields: Fields, goes: Goes) -> SliceState:
    k = fields.whole("k", 1, MOST_DIMENSIONS)
    content = fields.content["evidence"]
    if isinstance(content, dict):
        content = _NOT_KEPT | {name: one for name, one in content.items() if name != "tracks"}
    stages = [_stage(fields, stage, k) for stage in Stage]
    return SliceState(
        name=read_name(fields, "name"),
        k=k,
        epoch=fields.whole("epoch"),
        labelled=fields.whole("labelled"),
        fed=fields.number("fed", 0.0, LONGEST_SECONDS),
        known=fields.flag("known"),
        evidence=_evidence(fields.inner(content, "evidence", _EVIDENCE)),
        references=tuple(reference for reference, _ in stages),
        learners=tuple(learner for _, learner in stages),
        open=read_open(fields, goes),
    )


def _stage(fields: Fields, stage: Stage, k: int) -> tuple[Reference, ReferenceLearner | None]:
    """Reads what is usual at a stage, which is either known or being learned."""
    known = fields.listed("references", len(Stage), len(Stage))[stage]
    learner = fields.listed("learners", len(Stage), len(Stage))[stage]
    where = f"references[{stage:d}]"
    if (known is None) == (learner is None):
        raise fields.wrong(where, known, "a reference where nothing is learned, and null elsewhere")
    if known is None:
        where = f"learners[{stage:d}]"
        learns = learner_from_json(learner, fields.path(where), _REFUSAL)
        _same(fields, where, learns.k, k)
        return shipped(k), learns
    reference = reference_from_json(known, fields.path(where), _REFUSAL)
    _same(fields, where, reference.k, k)
    if reference.origin is Origin.SHIPPED:
        raise fields.wrong(f"{where}.origin", str(reference.origin), "one that is not shipped")
    for name in ("tempering", "frame_tempering"):
        if getattr(reference, name) <= 0:
            raise fields.wrong(f"{where}.{name}", getattr(reference, name), "a number above 0")
    return reference, None


def _same(fields: Fields, where: str, found: int, k: int) -> None:
    if found != k:
        raise fields.wrong(f"{where}.k", found, f"{k}, as the slice has")


def _evidence(fields: Fields) -> Evidence:
    charts = len(CHARTS)

    def counted(name: str, low: int, high: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        return np.array([fields.wholes(name, charts, charts, low, high)], np.int64)

    def known(name: str, shape: tuple[int, ...], high: float) -> FloatArray:
        return fields.numbers(name, (1, *shape), 0.0, high)

    shares = known("shares", (charts, len(DETECTORS)), 1.0)
    if (shares.sum(axis=-1) > 1 + 1e-9).any():
        raise fields.wrong("shares", float(shares.sum(axis=-1).max()), "at most 1 in sum")
    return Evidence(
        sums=known("sums", (charts, ALL_BETS), LARGEST_EVIDENCE),
        shares=shares,
        since=counted("since", -LATEST_NS, LATEST_NS),
        clean=counted("clean", -LATEST_NS, LATEST_NS),
        run=known("run", (charts, 3), _LARGEST_RUN),
        begun=counted("begun", 0, LARGEST_COUNT),
        fresh=known("fresh", (), LONGEST_SECONDS),
        peak=known("peak", (len(SEVERITIES),), LARGEST_EVIDENCE),
        chain=known("chain", (len(Stage), STATES), 1.0),
    )
