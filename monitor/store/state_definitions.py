"""Definitions that two states must share before they may be added, as protobuf messages.

They are the bins, the windows, the slicing, the dimensions and the names of slices; exact sums
belong to them as the numbers that are added. All that is read is checked. All arrays are integers,
so nothing is rounded on the way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from google.protobuf.message import Message

from monitor.frames.slices import OVERFLOW, is_bare
from monitor.frames.space import (
    MOST_CLASSES,
    MOST_DIMENSIONS,
    MOST_LEVELS,
    MOST_WINDOWS,
    Dimension,
    DimensionKind,
    IntArray,
    Space,
)
from monitor.frames.words import SliceBy
from monitor.statistics.bins import EXPONENT, Binning, IncompatibleStatistics, LogBins
from monitor.statistics.exact_sums import LIMB_BITS, SPILL_BITS, ExactSum, SparseSums, from_cells
from monitor.statistics.state import Slicing
from monitor.statistics.windows import InvalidWindows, Windows
from monitor.store.varints import NaturalArray, Read
from monitor.v1 import frame_pb2
from monitor.v1 import statistics_state_pb2 as pb

# What limbs and spills may hold: two of them can be added.
_LARGEST = 2**62

_NO_NATURALS, _NO_NUMBERS = np.zeros(0, np.uint64), np.zeros(0, np.int64)


class InvalidState(ValueError):
    """The bytes are no state of statistics, or one of a kind that is not known here."""


def invalid(field: str, problem: str) -> InvalidState:
    """For a field that cannot be what one of our encoders wrote."""
    return InvalidState(f"{field}: {problem}. The state is damaged or forged: export it again.")


def values_of(held: object, names: Iterable[str]) -> dict[str, Any]:
    """Returns the fields that are named alike in a message."""
    return {name: getattr(held, name) for name in names}


def read_values(message: Message, names: Iterable[str]) -> dict[str, Any]:
    """Returns fields of a message by name; None for an optional one that is absent."""
    known = message.DESCRIPTOR.fields_by_name
    return {
        name: None
        if known[name].has_presence and not message.HasField(name)
        else getattr(message, name)
        for name in names
    }


def encode_sums(sums: SparseSums) -> dict[str, Any]:
    """The fields of the SparseSums of a message, which would copy one that is made already."""
    return {
        "key_steps": np.diff(sums.keys, prepend=0).tolist(),
        "width": sums.width,
        "values": sums.values.ravel().tolist(),
        "spill_keys": sums.spill_keys.tolist(),
        "spill": sums.spill.tolist(),
    }


def decode_sums(sums: Read, width: int, end: int, field: str) -> SparseSums:
    """The sums of a message.

    sums        a SparseSums
    width, end  columns of a cell, and the first key beyond the bins
    field       for errors
    raises      InvalidState
    """
    steps, values = sums.get("key_steps", _NO_NATURALS), sums.get("values", _NO_NUMBERS)
    spill_keys, spill = sums.get("spill_keys", _NO_NATURALS), sums.get("spill", _NO_NUMBERS)
    if not steps.size:
        if values.size or spill_keys.size or spill.size:
            raise invalid(field, "values without keys")
        return SparseSums.zero(width)
    if sums.get("width", 0) != width:
        raise invalid(
            f"{field}.width", f"{sums.get('width', 0)} columns, where our bins have {width}"
        )
    steps = _below(steps, end, f"{field}.key_steps")
    keys = steps.cumsum()
    if steps[1:].min(initial=1) < 1 or keys[-1] >= end:
        raise invalid(f"{field}.key_steps", f"not ascending keys below {end}")
    if values.size != keys.size * width:
        raise invalid(f"{field}.values", f"{values.size} for {keys.size} cells of {width}")
    if not within(values, 2**SPILL_BITS):
        raise invalid(f"{field}.values", f"not all in [-2^{SPILL_BITS}, 2^{SPILL_BITS})")
    if spill_keys.size or spill.size:
        spill_keys = _below(spill_keys, end * width, f"{field}.spill_keys")
        cells = spill_keys // width
        there = keys.take(keys.searchsorted(cells), mode="clip") == cells
        if spill.size != spill_keys.size or not there.all():
            raise invalid(f"{field}.spill", "not one for each key, or of cells that are not there")
        if not within(spill, _LARGEST):
            raise invalid(f"{field}.spill", "above 2^62")
    return from_cells(keys, values.reshape(keys.size, width), spill_keys.view(np.int64), spill)


def encode_limbs(sums: ExactSum) -> dict[str, Any]:
    """The fields of the ExactSums of a message."""
    return {"low": sums.low.ravel().tolist(), "high": sums.high.ravel().tolist()}


def decode_limbs(sums: Read, like: ExactSum, field: str) -> ExactSum:
    """The sums of a message.

    sums    an ExactSums
    like    sums of the shape and unit they must have
    raises  InvalidState
    """
    low, high = (sums.get(name, _NO_NUMBERS) for name in ("low", "high"))
    if low.size != like.low.size or high.size != like.low.size:
        raise invalid(
            field, f"{low.size} low and {high.size} high limbs, where our bins have {like.low.size}"
        )
    if low.min() < 0 or low.max() >= 2**LIMB_BITS or not within(high, _LARGEST):
        raise invalid(field, f"low limbs must be in [0, 2^{LIMB_BITS}), high ones within 2^62")
    return ExactSum(low.reshape(like.low.shape), high.reshape(like.low.shape), like.exponent)


def no_limbs(sums: Read) -> bool:
    """Tells whether sums are absent: a place for what newer code has added."""
    return not ("low" in sums or "high" in sums)


def within(values: IntArray, limit: int) -> bool:
    """Tells whether all are in [−limit, limit)."""
    return bool(values.size == 0 or (values.min() >= -limit and values.max() < limit))


def _below(numbers: NaturalArray, end: int, field: str) -> IntArray:
    if numbers.size and numbers.max() >= end:
        raise invalid(field, f"{numbers.max()}, above the {end} that our bins make possible")
    return numbers.view(np.int64)


# What bins and lists may be, so that a message of a few bytes cannot ask for gigabytes.
MOST_PER_OCTAVE = 1024
MOST_OCTAVES = 128
MOST_RANGE_EDGES = 64
_KINDS = {0: DimensionKind.LENGTH, **{kind.value: kind for kind in DimensionKind}}

# Names of streams and dimensions, and what may be printed of anything else.
NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
LABEL = re.compile(r"[^\x00-\x1f\x7f]{1,64}")

# Stream and class, or what SliceTable makes of them; they become labels of metrics.
_SLICE = re.compile(r"[^\x00-\x1f\x7f]{1,256}")
_SLICE_BY = {by.value for by in SliceBy}


def encode_binning(binning: Binning) -> pb.BinDefinition:
    """The message of bins."""
    return pb.BinDefinition(
        hash=binning.hash,
        lowest_deviation=binning.deviation.lowest,
        deviations_per_octave=binning.deviation.per_octave,
        deviation_octaves=binning.deviation.octaves,
        lowest_nees=binning.nees.lowest,
        nees_per_octave=binning.nees.per_octave,
        nees_octaves=binning.nees.octaves,
        tau=binning.tau,
        exponent=EXPONENT,
    )


def decode_binning(message: pb.BinDefinition) -> Binning:
    """The bins of a message.

    raises  InvalidState; IncompatibleStatistics where they are of another kind than ours
    """
    tau = tuple(message.tau)
    if not 1 <= len(tau) <= MOST_LEVELS:
        raise invalid("bins.tau", f"{len(tau)} levels, where 1 to {MOST_LEVELS} are possible")
    if list(tau) != sorted(set(tau)) or not all(0 < level < 1 for level in tau):
        raise invalid("bins.tau", f"{tau}, which are not ascending levels between 0 and 1")
    binning = Binning(
        _log_bins(
            message.lowest_deviation,
            message.deviations_per_octave,
            message.deviation_octaves,
            "deviation",
        ),
        _log_bins(message.lowest_nees, message.nees_per_octave, message.nees_octaves, "nees"),
        tau,
    )
    if message.exponent != EXPONENT or message.hash != binning.hash:
        raise IncompatibleStatistics(
            f"bins: the state has hash {message.hash[:64]} and sums in units of "
            f"2^{message.exponent}; here they would be {binning.describe()} in units of "
            f"2^{EXPONENT}: they cannot be added. Use the same version of the monitor for both."
        )
    return binning


def _log_bins(lowest: float, per_octave: int, octaves: int, field: str) -> LogBins:
    if not 2.0**-200 <= lowest <= 2.0**200:
        raise invalid(f"bins.lowest_{field}", f"{lowest:g}, which is no possible lowest edge")
    if not (1 <= per_octave <= MOST_PER_OCTAVE and 1 <= octaves <= MOST_OCTAVES):
        raise invalid(
            f"bins.{field}",
            f"{octaves} octaves of {per_octave} bins, where up to {MOST_OCTAVES} of "
            f"{MOST_PER_OCTAVE} are possible",
        )
    return LogBins(lowest, per_octave, octaves)


def decode_windows(message: pb.WindowDefinition) -> Windows:
    """The windows of a message. Raises InvalidState."""
    if len(message.lengths_ns) > MOST_WINDOWS:
        raise invalid("windows.lengths_ns", f"{len(message.lengths_ns)}, above {MOST_WINDOWS}")
    try:
        return Windows(tuple(message.lengths_ns), message.panes)
    except InvalidWindows as error:
        raise invalid("windows", str(error).rstrip(".")) from None


def decode_slicing(message: pb.SliceDefinition) -> Slicing:
    """Reads how slices are told apart. Raises InvalidState."""
    by, edges, names = tuple(message.by), message.range_edges, message.range_dimensions
    if list(by) != sorted(set(by)) or not _SLICE_BY.issuperset(by):
        said = ", ".join(f"'{name[:80]}'" for name in by[:4])
        raise invalid("slicing.by", f"{said}, which are not of {', '.join(sorted(_SLICE_BY))}")
    ends = [-math.inf, *edges, math.inf]
    ascending = all(low < high for low, high in pairwise(ends))
    if len(edges) > MOST_RANGE_EDGES or not ascending:
        raise invalid(
            "slicing.range_edges",
            f"{len(edges)} that are not up to {MOST_RANGE_EDGES} ascending finite numbers",
        )
    if len(names) > MOST_DIMENSIONS or not all(map(LABEL.fullmatch, names)):
        raise invalid(
            "slicing.range_dimensions",
            f"{len(names)} that are not up to {MOST_DIMENSIONS} of 1 to 64 printable characters",
        )
    return Slicing(by, tuple(edges), tuple(names))


def encode_dimensions(space: Space) -> list[frame_pb2.Dimension]:
    """The messages of the dimensions of a space."""
    names = ("name", "unit", "kind")
    return [frame_pb2.Dimension(**values_of(one, names)) for one in space.dimensions]


def decode_space(
    dimensions: Iterable[frame_pb2.Dimension],
    angles: bool,
    field: str,
    *,
    assumed: bool = False,
) -> Space:
    """The space of the dimensions of a slice. Raises InvalidState."""
    found = []
    for entry in dimensions:
        if not NAME.fullmatch(entry.name) or entry.kind not in _KINDS:
            raise invalid(
                f"{field}.dimensions", f"'{entry.name[:80]}' of kind {entry.kind} is unknown"
            )
        if entry.unit and not LABEL.fullmatch(entry.unit):
            raise invalid(f"{field}.dimensions.unit", f"'{entry.unit[:80]}' is not printable")
        found.append(Dimension(entry.name, entry.unit, _KINDS[entry.kind]))
    names = {dimension.name for dimension in found}
    if not 1 <= len(found) <= MOST_DIMENSIONS or len(names) < len(found):
        raise invalid(
            f"{field}.dimensions", f"{len(found)} with {len(names)} names: 1 to {MOST_DIMENSIONS}"
        )
    return Space(tuple(found), angles, assumed)


# Messages of one slice of Gaussians.
SliceMessage = pb.SliceState | pb.PredictedSliceState | pb.VehicleRow | pb.SampledSlice


def decode_slice_key(message: SliceMessage, field: str) -> tuple[str, Space]:
    """The name and the space of a slice. Raises InvalidState."""
    # An earlier version has kept the name, and has not kept the flag.
    assumed = message.assumed or is_bare(message.name)
    space = decode_space(message.dimensions, message.angles_in_joint, field, assumed=assumed)
    return OVERFLOW if message.overflow else checked_slice_name(message.name, field), space


def checked_slice_name(name: str, field: str) -> str:
    """The name of a slice. Raises InvalidState."""
    if not _SLICE.fullmatch(name):
        raise invalid(f"{field}.name", f"'{name[:80]}' is not 1 to 256 printable characters")
    return name


def checked_class_names(names: Iterable[str], field: str) -> tuple[str, ...]:
    """The names of classes. Raises InvalidState."""
    found = tuple(names)
    if not 1 <= len(found) <= MOST_CLASSES or len(set(found)) < len(found):
        raise invalid(f"{field}.class_names", f"{len(found)}: 1 to {MOST_CLASSES}, all different")
    for name in found:
        if not LABEL.fullmatch(name):
            raise invalid(f"{field}.class_names", f"'{name[:80]}': 1 to 64 printable characters")
    return found
