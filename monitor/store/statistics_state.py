"""The state of all statistics as protobuf messages, in parts; joined as bytes they are one.

Fields that newer code has added are set apart, stored beside the state and written again with it:
as a message of its own kind that has nothing else in it but the names of the places where they
belong. Such messages add up as protobuf adds: joined as bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count, pairwise
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from monitor.frames.slices import OVERFLOW
from monitor.statistics.bins import SQUARED_ERRORS, Binning, IncompatibleStatistics
from monitor.statistics.class_statistics import (
    BIN_HASH,
    COMPANIONS,
    ClassStatistics,
    no_class_statistics,
    table_shapes,
)
from monitor.statistics.exact_sums import ExactSum
from monitor.statistics.holdings import Holdings
from monitor.statistics.predicted import (
    DEVIATIONS,
    ENTROPIES,
    PREDICTED_HASH,
    RANGES,
    PredictedStatistics,
    no_predicted,
)
from monitor.statistics.sample import SampledSlice
from monitor.statistics.state import (
    ClassSliceState,
    ClassStages,
    PredictedSliceState,
    SliceState,
    SliceStatistics,
    Slicing,
    Stages,
    StageStatistics,
    StatisticsState,
    no_stage_statistics,
    unite,
    windows_described,
)
from monitor.statistics.vehicles import RowKey, VehicleRow, VehicleRows, add_row
from monitor.statistics.windows import PaneKey, Summable, Windows, put
from monitor.store.fleet_rows import (
    decode_sampled,
    decode_vehicles,
    encode_sampled,
    encode_vehicles,
)
from monitor.store.state_definitions import (
    InvalidState,
    checked_class_names,
    checked_slice_name,
    decode_binning,
    decode_limbs,
    decode_slice_key,
    decode_slicing,
    decode_sums,
    decode_windows,
    encode_binning,
    encode_dimensions,
    encode_limbs,
    encode_sums,
    invalid,
    no_limbs,
    values_of,
)
from monitor.store.varints import Read, read_integers
from monitor.v1 import statistics_state_pb2 as pb

# Where the moments of class probabilities begin among their companions.
_MOMENTS = COMPANIONS.index("doubt_cubed")

# The fields that tell which one of its kind a message is.
_IDENTITY = {
    "SliceState": {"name", "overflow", "dimensions", "angles_in_joint", "assumed"},
    "PaneState": {"level", "number"},
    "ClassSliceState": {"name", "class_names", "bin_hash", "overflow"},
    "ClassPaneState": {"level", "number"},
    "PredictedSliceState": {
        "name",
        "overflow",
        "dimensions",
        "angles_in_joint",
        "assumed",
        "bin_hash",
    },
    "PredictedPaneState": {"level", "number"},
    "Holding": {"vehicle", "epoch"},
    "VehicleRow": {"name", "overflow", "dimensions", "angles_in_joint", "assumed", "vehicles"},
    "SampledSlice": {"name", "overflow", "dimensions", "angles_in_joint", "assumed", "most"},
}


def keep_unknown(message: Message) -> bool:
    """Takes everything out of a message that we know; tells whether anything is left.

    Below it, messages stay where something unknown is in them, with their identity.
    """
    own = _IDENTITY.get(message.DESCRIPTOR.name, ())
    left = len(UnknownFieldSet(message)) > 0
    for part, value in message.ListFields():
        if part.name in own:
            continue
        kept = False
        if isinstance(value, Message):
            kept = keep_unknown(value)
        elif part.message_type is not None:
            parts = [one.SerializeToString() for one in value if keep_unknown(one)]
            del value[:]
            for data in parts:
                value.add().MergeFromString(data)
            kept = bool(parts)
        if not kept:
            message.ClearField(part.name)
        left |= kept
    return left


# After which a message ends: it is made in a few milliseconds.
PART_BYTES = 2**17
_LENGTH_DELIMITED = 2
Held = TypeVar("Held", bound=Summable)
Pane = TypeVar("Pane", pb.PaneState, pb.ClassPaneState, pb.PredictedPaneState)


@dataclass(slots=True)
class PaneBytes:
    """Bytes of panes from this round of encoding and the one before; for one user at a time.

    Beside the bytes is the pane they are of, so that its id stays its own.
    """

    _before: dict[int, tuple[object, bytes]] = field(default_factory=dict)
    _now: dict[int, tuple[object, bytes]] = field(default_factory=dict)

    def begin(self) -> None:
        """A new round: what the last one did not use is forgotten."""
        self._before, self._now = self._now, {}

    def of(self, held: Held, encode: Callable[[Held], Message]) -> bytes:
        """The bytes of a pane."""
        known = self._before.get(id(held)) or self._now.get(id(held))
        if known is None:
            known = held, encode(held).SerializeToString()
        self._now[id(held)] = known
        return known[1]


def framed(number: int, data: bytes) -> bytes:
    """A message or a string as field `number` of another message."""
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """Writes a number, 0 or more, as protobuf does; a store imports no room beside it."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes((*encoded, value))


def _parts(
    head: Message,
    panes: Mapping[PaneKey, Held],
    encode: Callable[[Held], Message],
    known: PaneBytes | None,
) -> Iterator[bytes]:
    """A slice as at least one message, none of them large: each begins with the head.

    encode  a pane without level and number
    known   panes of the round before, where their writer has kept them
    """
    beginning = head.SerializeToString()
    number = head.DESCRIPTOR.fields_by_name["panes"].number
    part: list[bytes] = []
    size = 0
    for (level, pane), held in sorted(panes.items(), key=lambda item: item[0]):
        # Level and number are the same fields in all kinds of panes.
        place = pb.PaneState(level=level, number=pane).SerializeToString()
        body = encode(held).SerializeToString() if known is None else known.of(held, encode)
        data = framed(number, place + body)
        if part and size + len(data) > PART_BYTES:
            yield beginning + b"".join(part)
            part, size = [], 0
        part.append(data)
        size += len(data)
    yield beginning + b"".join(part)


_MOST_DETECTIONS = 2**53


def encode_slice(entry: SliceState, known: PaneBytes | None) -> Iterator[bytes]:
    """A slice as at least one SliceState, none of them large."""
    head = pb.SliceState(
        **values_of(entry, ("name", "overflow")),
        dimensions=encode_dimensions(entry.space),
        angles_in_joint=entry.space.angles_in_joint,
        assumed=entry.space.assumed,
    )
    return _parts(head, entry.panes, _encode_slice_pane, known)


def _encode_slice_pane(held: SliceStatistics) -> pb.PaneState:
    """Without level and number. Equal states are equal bytes."""
    raw = recalibrated = _encode_stage(held.raw)
    if held.recalibrated is not held.raw:
        recalibrated = _encode_stage(held.recalibrated)
    return pb.PaneState(raw=raw, recalibrated=None if recalibrated == raw else recalibrated)


def _encode_stage(stage: StageStatistics) -> pb.StageState:
    # Older sidecars know no CRPS, and set it apart.
    companions, crps = _split(stage.companions, -stage.space.k)
    return pb.StageState(
        n=stage.n,
        cells=encode_sums(stage.cells),
        nees=encode_sums(stage.nees),
        companions=encode_limbs(companions),
        squares=encode_sums(stage.squares),
        crps=encode_limbs(crps),
    )


def _split(sums: ExactSum, at: int) -> tuple[ExactSum, ExactSum]:
    """Splits companions into those before a place and the others."""
    low, high = sums.low, sums.high
    return (
        ExactSum(low[:at], high[:at], sums.exponent),
        ExactSum(low[at:], high[at:], sums.exponent),
    )


def _joined(one: ExactSum, other: ExactSum) -> ExactSum:
    low, high = np.append(one.low, other.low), np.append(one.high, other.high)
    return ExactSum(low, high, one.exponent)


def decode_slice(
    message: pb.SliceState, binning: Binning, windows: Windows, field: str
) -> SliceState:
    """The slice of a message. Raises InvalidState."""
    name, space = decode_slice_key(message, field)
    zero = no_stage_statistics(space, binning)
    panes = _panes(message.panes, windows, field, partial(_decode_slice_pane, zero))
    return SliceState(name, space, message.overflow, panes)


def _decode_slice_pane(zero: StageStatistics, pane: Read, field: str) -> SliceStatistics:
    raw = recalibrated = _decode_stage(pane.get("raw", {}), zero, f"{field}.raw")
    if "recalibrated" in pane:
        recalibrated = _decode_stage(pane["recalibrated"], zero, f"{field}.recalibrated")
    return Stages(raw, recalibrated)


def _panes(
    messages: Iterable[Pane], windows: Windows, field: str, decode: Callable[[Read, str], Held]
) -> dict[PaneKey, Held]:
    """Reads the panes of a slice. Raises InvalidState."""
    panes: dict[PaneKey, Held] = {}
    for i, pane in enumerate(messages):
        where = f"{field}.panes[{i}]"
        held = decode(read_integers(pane), where)
        if pane.level > windows.older or (pane.level == windows.older and pane.number != 0):
            raise invalid(
                f"{where}.level",
                f"pane {pane.number} of level {pane.level}, where the last is 0 of {windows.older}",
            )
        put(panes, (pane.level, pane.number), held)
        check_panes(panes, windows, where)
    return panes


def check_panes(panes: Mapping[PaneKey, object], windows: Windows, field: str) -> None:
    """Refuses more panes than a window can have: all of them are held before they are added.

    A window has its whole panes and the one that is not yet full. In the shortest one, rows may
    lie ahead of the clock by as much as EventClock believes, its own length.

    Raises InvalidState.
    """
    for level, many in Counter(level for level, _ in panes).items():
        most = windows.panes + 1 if level else 2 * windows.panes + 1
        if level < windows.older and many > most:
            raise invalid(field, f"{many} panes of level {level}, where up to {most} can be")


def _decode_stage(stage: Read, zero: StageStatistics, field: str) -> StageStatistics:
    axes, binning = zero.space.k + 1, zero.binning
    n = checked_count(stage.get("n", 0), field)
    cells = decode_sums(
        stage.get("cells", {}), zero.cells.width, axes * binning.deviation.count, f"{field}.cells"
    )
    nees = decode_sums(
        stage.get("nees", {}), zero.nees.width, axes * binning.nees.count, f"{field}.nees"
    )
    squares = decode_sums(
        stage.get("squares", {}),
        zero.squares.width,
        axes * SQUARED_ERRORS.count,
        f"{field}.squares",
    )
    companions, crps = _split(zero.companions, -zero.space.k)
    if not no_limbs(stage.get("companions", {})):
        companions = decode_limbs(stage.get("companions", {}), companions, f"{field}.companions")
    elif n or cells.keys.size or nees.keys.size:
        # They are most of a pane in memory: what has sums must bring all of them.
        raise invalid(f"{field}.companions", "absent, where other sums are there")
    # An older sidecar sets both apart, and writes them as a pane of their own.
    if not no_limbs(stage.get("crps", {})):
        crps = decode_limbs(stage.get("crps", {}), crps, f"{field}.crps")
    elif squares.keys.size:
        raise invalid(f"{field}.crps", "absent, where squares are there")
    found = _joined(companions, crps)
    return replace(zero, n=n, tables=(cells, nees, squares), companions=found)


def checked_count(n: int, field: str) -> int:
    """A number of detections; negative where a retraction came alone. Raises InvalidState."""
    if abs(n) >= _MOST_DETECTIONS:
        raise invalid(f"{field}.n", f"{n}, above 2^53")
    return n


def encode_class_slice(entry: ClassSliceState, known: PaneBytes | None) -> Iterator[bytes]:
    """A slice as at least one ClassSliceState, none of them large."""
    names = ("name", "class_names", "overflow")
    head = pb.ClassSliceState(**values_of(entry, names), bin_hash=BIN_HASH)
    return _parts(head, entry.panes, _encode_class_pane, known)


def _encode_class_pane(held: ClassStages) -> pb.ClassPaneState:
    """Without level and number. Equal states are equal bytes."""
    found = pb.ClassPaneState(n=held.raw.n, **_class_sums(held.raw))
    if held.recalibrated is not held.raw:
        change = held.recalibrated.merge(held.raw.negated())
        if not change.is_zero:
            found.change.CopyFrom(pb.ClassChange(**_class_sums(change)))
    return found


def _class_sums(stage: ClassStatistics) -> dict[str, Any]:
    # Older sidecars know no moments, and set them apart.
    companions, moments = _split(stage.companions, _MOMENTS)
    return {
        "tables": [encode_sums(table) for table in stage.tables],
        "companions": encode_limbs(companions),
        "moments": encode_limbs(moments),
    }


def decode_class_slice(
    message: pb.ClassSliceState, windows: Windows, field: str
) -> ClassSliceState:
    """The slice of a message. Raises InvalidState, IncompatibleStatistics."""
    _check_hash(message.bin_hash, BIN_HASH, "class probabilities", field)
    names = checked_class_names(message.class_names, field)
    name = OVERFLOW if message.overflow else checked_slice_name(message.name, field)
    zero = no_class_statistics(len(names))
    panes = _panes(message.panes, windows, field, partial(_decode_class_pane, zero))
    return ClassSliceState(name, names, panes, message.overflow)


def _check_hash(found: str, ours: str, what: str, field: str) -> None:
    if found != ours:
        raise IncompatibleStatistics(
            f"{field}.bin_hash: the state's {what} are kept on bins of hash {found[:64]}, here on "
            f"those of {ours}: they cannot be added. Use the same version of the monitor for both."
        )


def _decode_class_pane(zero: ClassStatistics, pane: Read, field: str) -> ClassStages:
    raw = recalibrated = replace(
        _decode_class_sums(pane, zero, field), n=checked_count(pane.get("n", 0), field)
    )
    if raw.n and "tables" not in pane:
        raise invalid(f"{field}.tables", "absent, where other sums are there")
    if "change" in pane:
        change = _decode_class_sums(pane["change"], zero, f"{field}.change")
        recalibrated = raw.merge(change)
    return Stages(raw, recalibrated)


def _decode_class_sums(sums: Read, zero: ClassStatistics, field: str) -> ClassStatistics:
    """The sums of a pane, or what changed of them, with no count of rows."""
    companions, moments = _split(zero.companions, _MOMENTS)
    if not no_limbs(sums.get("moments", {})):
        moments = decode_limbs(sums.get("moments", {}), moments, f"{field}.moments")
    tables = sums.get("tables", [])
    if not tables:
        if not no_limbs(sums.get("companions", {})):
            raise invalid(f"{field}.tables", "absent, where other sums are there")
        # A place for what newer code has added, or an older sidecar has set apart.
        return replace(zero, companions=_joined(companions, moments))
    if len(tables) != len(zero.tables):
        raise invalid(f"{field}.tables", f"{len(tables)}, not {len(zero.tables)}")
    companions = decode_limbs(sums.get("companions", {}), companions, f"{field}.companions")
    return replace(
        zero,
        tables=tuple(
            decode_sums(table, width, end, f"{field}.tables[{i}]")
            for i, (table, (width, end)) in enumerate(
                zip(tables, table_shapes(zero.classes), strict=True)
            )
        ),
        companions=_joined(companions, moments),
    )


def encode_predicted_slice(entry: PredictedSliceState, known: PaneBytes | None) -> Iterator[bytes]:
    """A slice as at least one PredictedSliceState, none of them large."""
    head = pb.PredictedSliceState(
        **values_of(entry, ("name", "overflow")),
        dimensions=encode_dimensions(entry.space),
        angles_in_joint=entry.space.angles_in_joint,
        assumed=entry.space.assumed,
        bin_hash=PREDICTED_HASH,
    )
    return _parts(head, entry.panes, _encode_predicted_pane, known)


def _encode_predicted_pane(held: PredictedStatistics) -> pb.PredictedPaneState:
    """Without level and number."""
    deviations, entropies = held.tables
    return pb.PredictedPaneState(
        n=held.n,
        deviations=encode_sums(deviations),
        entropies=encode_sums(entropies),
        companions=encode_limbs(held.companions),
    )


def decode_predicted_slice(
    message: pb.PredictedSliceState, windows: Windows, field: str
) -> PredictedSliceState:
    """The slice of a message. Raises InvalidState, IncompatibleStatistics."""
    _check_hash(message.bin_hash, PREDICTED_HASH, "predicted deviations and entropies", field)
    name, space = decode_slice_key(message, field)
    panes = _panes(message.panes, windows, field, _decode_predicted_pane)
    return PredictedSliceState(name, space, message.overflow, panes)


def _decode_predicted_pane(pane: Read, field: str) -> PredictedStatistics:
    zero, n = no_predicted(), checked_count(pane.get("n", 0), field)
    deviations = decode_sums(
        pane.get("deviations", {}), 1, RANGES * DEVIATIONS.count, f"{field}.deviations"
    )
    entropies = decode_sums(
        pane.get("entropies", {}), 1, RANGES * ENTROPIES.count, f"{field}.entropies"
    )
    if no_limbs(pane.get("companions", {})):
        if n or deviations.keys.size or entropies.keys.size:
            raise invalid(f"{field}.companions", "absent, where other sums are there")
        return zero
    companions = decode_limbs(pane.get("companions", {}), zero.companions, f"{field}.companions")
    return replace(zero, n=n, tables=(deviations, entropies), companions=companions)


# Raised when older code could no longer add a state rightly. What is added without raising it
# must be right when two messages are joined as bytes.
VERSION = 1

# What newer code has added must fit into one message.
MOST_UNKNOWN_BYTES = 2**22

# What all parts of a state must share.
_Definitions = tuple[Binning, Windows, Slicing]


@dataclass(frozen=True, slots=True)
class StoredState:
    """A state, and what only newer code understands of it.

    unknown  a serialised StatisticsState with nothing else in it
    """

    state: StatisticsState
    unknown: bytes = b""

    def merge(self, other: StoredState) -> StoredState:
        """Adds both. Raises IncompatibleStatistics, InvalidState."""
        unknown = joined_unknown(self.unknown, other.unknown)
        return StoredState(self.state.merge(other.state), unknown)


def joined_unknown(one: bytes, two: bytes) -> bytes:
    """Joins the fields of newer code of two states. Raises InvalidState where that is too much."""
    _check_unknown(len(one) + len(two))
    return one + two


def _check_unknown(size: int) -> None:
    if size > MOST_UNKNOWN_BYTES:
        raise InvalidState(
            f"unknown fields: {size} bytes of them, above {MOST_UNKNOWN_BYTES}. "
            "Use the version of the monitor that wrote them."
        )


def serialised(stored: StoredState, known: PaneBytes | None = None) -> Iterator[bytes]:
    """The definitions, then at least one part a slice; joined, they are one StatisticsState.

    Each part is made when it is asked for; a state never changes, so any thread may ask.

    known  for one who writes again and again: panes that were there before cost nothing
    """
    if known is not None:
        known.begin()
    state = stored.state
    slicing = values_of(state.slicing, ("by", "range_edges", "range_dimensions"))
    yield pb.StatisticsState(
        version=VERSION,
        bins=encode_binning(state.binning),
        windows=pb.WindowDefinition(**values_of(state.windows, ("lengths_ns", "panes"))),
        clock_ns=state.clock_ns,
        slicing=None if state.slicing == Slicing() else pb.SliceDefinition(**slicing),
        # In front, so that who has the first bytes of a file knows what it holds.
        holds=[
            pb.Holding(vehicle=vehicle, epoch=epoch, first=first, last=last)
            for (vehicle, epoch), spans in sorted(state.holds.spans.items())
            for first, last in [zip(*spans, strict=True)]
        ],
    ).SerializeToString(deterministic=True)
    for entry in state.slices:
        for part in encode_slice(entry, known):
            yield framed(pb.StatisticsState.SLICES_FIELD_NUMBER, part)
    for classes in state.class_slices:
        for part in encode_class_slice(classes, known):
            yield framed(pb.StatisticsState.CLASS_SLICES_FIELD_NUMBER, part)
    for every in state.predicted:
        for part in encode_predicted_slice(every, known):
            yield framed(pb.StatisticsState.PREDICTED_FIELD_NUMBER, part)
    for table in encode_vehicles(state.vehicles, PART_BYTES):
        yield framed(pb.StatisticsState.VEHICLES_FIELD_NUMBER, table)
    for sampled in state.sample:
        for part in encode_sampled(sampled):
            yield framed(pb.StatisticsState.SAMPLE_FIELD_NUMBER, part)
    if stored.unknown:
        yield stored.unknown


def parsed(data: bytes) -> StoredState:
    """From joined parts. Raises InvalidState, IncompatibleStatistics."""
    message = pb.StatisticsState()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise invalid("state", f"{len(data)} bytes are no StatisticsState") from None
    return decode([message])


def decode(parts: Iterable[pb.StatisticsState]) -> StoredState:
    """The state of all parts, the first with the definitions; the messages are used up.

    raises  InvalidState; IncompatibleStatistics where the state is of a newer version, or the
            bins are of another kind than ours
    """
    definitions: _Definitions | None = None
    clock_ns: int | None = None
    # Added up as they come: of no slice more is held than its windows can have.
    slices: dict[Any, SliceState] = {}
    class_slices: dict[Any, ClassSliceState] = {}
    predicted: dict[Any, PredictedSliceState] = {}
    holdings: list[Holdings] = []
    vehicles: dict[str, dict[RowKey, VehicleRow]] = {}
    sample: list[SampledSlice] = []
    unknown: list[bytes] = []
    unknown_bytes = 0
    numbers, class_numbers, predicted_numbers, row_numbers = count(), count(), count(), count()
    for part in parts:
        definitions = _definitions(part, definitions)
        if part.HasField("clock_ns") and (clock_ns is None or part.clock_ns > clock_ns):
            clock_ns = part.clock_ns
        binning, windows, _ = definitions
        for message in part.slices:
            field = f"slices[{next(numbers)}]"
            found = decode_slice(message, binning, windows, field)
            check_panes(unite(slices, found, windows, clock_ns).panes, windows, field)
        for entry in part.class_slices:
            field = f"class_slices[{next(class_numbers)}]"
            more = decode_class_slice(entry, windows, field)
            check_panes(unite(class_slices, more, windows, clock_ns).panes, windows, field)
        for every in part.predicted:
            field = f"predicted[{next(predicted_numbers)}]"
            also = decode_predicted_slice(every, windows, field)
            check_panes(unite(predicted, also, windows, clock_ns).panes, windows, field)
        for holding in part.holds:
            holdings.append(decode_holding(holding, f"holds[{len(holdings)}]"))
        for table in part.vehicles:
            for vehicle, key, row in decode_vehicles(table, f"vehicles[{next(row_numbers)}]"):
                add_row(vehicles.setdefault(vehicle, {}), key, row)
        for some in part.sample:
            # A place for what newer code has added has no rows in it.
            if some.key:
                sample.append(decode_sampled(some, f"sample[{len(sample)}]"))
        # Of the version before, and of that sidecar alone.
        part.ClearField("progress")
        if keep_unknown(part):
            unknown.append(part.SerializeToString())
            unknown_bytes += len(unknown[-1])
            _check_unknown(unknown_bytes)
    if definitions is None:
        raise invalid("state", "no part of it came")
    binning, windows, slicing = definitions
    regression, classes = tuple(slices.values()), tuple(class_slices.values())
    read = StatisticsState(
        *(binning, windows, clock_ns, regression, classes, slicing, tuple(predicted.values())),
        Holdings.united(holdings),
        VehicleRows({vehicle: rows for vehicle, rows in vehicles.items() if rows}),
        tuple(sample),
    )
    # Parts that came before the last clock are brought up to it.
    state = StatisticsState(binning, windows, slicing=slicing).merge(read)
    return StoredState(state, b"".join(unknown))


def decode_holding(message: pb.Holding, field: str) -> Holdings:
    """The uploads of one epoch of a vehicle. Raises InvalidState."""
    checked_slice_name(message.vehicle, f"{field}.vehicle")
    checked_slice_name(message.epoch, f"{field}.epoch")
    if not message.first or len(message.first) != len(message.last):
        raise invalid(f"{field}.first", f"{len(message.first)} runs, {len(message.last)} ends")
    spans = tuple(zip(message.first, message.last, strict=True))
    bounds = [0, *chain.from_iterable((first, last + 1) for first, last in spans)]
    # A run may be one upload long, and another cannot begin where it ends.
    if not all(low < high for low, high in pairwise(bounds)):
        raise invalid(f"{field}.first", "runs that do not ascend from 1, with gaps between them")
    return Holdings({(message.vehicle, message.epoch): spans})


def _definitions(part: pb.StatisticsState, known: _Definitions | None) -> _Definitions:
    if part.version > VERSION:
        raise IncompatibleStatistics(
            f"version: {part.version}, but this monitor knows up to {VERSION}. "
            "Update it to the version that wrote the state."
        )
    if known is None:
        if part.version < 1:
            raise invalid("version", "absent in the first part")
        bins = decode_binning(part.bins)
        return bins, decode_windows(part.windows), decode_slicing(part.slicing)
    binning, windows, slicing = known
    if part.bins.hash not in ("", binning.hash):
        raise _of_two_states("bins.hash", part.bins.hash[:64], binning.describe())
    if part.windows.lengths_ns or part.windows.panes:
        found = decode_windows(part.windows)
        if found != windows:
            raise _of_two_states("windows", windows_described(found), windows_described(windows))
    # A place for what newer code has added has no names in it.
    if part.slicing.by and (other := decode_slicing(part.slicing)) != slicing:
        raise _of_two_states("slicing", other.describe(), slicing.describe())
    return known


def _of_two_states(field: str, found: str, known: str) -> IncompatibleStatistics:
    return IncompatibleStatistics(
        f"{field}: {found} after {known}: parts of two states. "
        "Merge them, instead of joining their parts."
    )
