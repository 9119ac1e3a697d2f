"""The state of all statistics as protobuf messages, in parts; joined as bytes they are one.

Fields that newer code has added are set apart, stored beside the state and written again with it:
as a message of its own kind that has nothing else in it but the names of the places where they
belong. Such messages add up as protobuf adds: joined as bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from monitor.statistics.bins import Binning, IncompatibleStatistics
from monitor.statistics.state import (
    ClassSliceState,
    SliceState,
    Slicing,
    StatisticsState,
    gathered,
    unite,
    windows_described,
)
from monitor.statistics.windows import Windows
from monitor.store.progress import Progress, decode_progress, encode_progress
from monitor.store.state_definitions import (
    InvalidState,
    decode_binning,
    decode_slicing,
    decode_windows,
    encode_binning,
    encode_slicing,
    encode_windows,
    invalid,
)
from monitor.store.state_slices import (
    PaneBytes,
    check_panes,
    decode_class_slice,
    decode_slice,
    encode_class_slice,
    encode_slice,
    framed,
)
from monitor.v1 import statistics_state_pb2 as pb

# By message, the fields that tell which one of its kind it is.
Identity = Mapping[str, frozenset[str]]


@dataclass(slots=True)
class NewerFields:
    """Fields that newer code had added to the states that were loaded or imported.

    They go out again with every state of ours, through the wire and onto the disk.

    data  as in StoredState.unknown
    """

    data: bytes = b""


def keep_unknown(message: Message, identity: Identity) -> bool:
    """Take everything out of a message that we know; whether anything is left.

    Below it, messages stay where something unknown is in them, with their identity.
    """
    own = identity.get(message.DESCRIPTOR.name, frozenset())
    left = len(UnknownFieldSet(message)) > 0
    for field, value in message.ListFields():
        if field.name in own:
            continue
        if field.message_type is None:
            message.ClearField(field.name)
        elif isinstance(value, Message):
            if keep_unknown(value, identity):
                left = True
            else:
                message.ClearField(field.name)
        else:
            kept = [part.SerializeToString() for part in value if keep_unknown(part, identity)]
            del value[:]
            for data in kept:
                value.add().MergeFromString(data)
            left = left or bool(kept)
    return left


# Raised when older code could no longer add a state rightly. What is added without raising it
# must be right when two messages are joined as bytes.
VERSION = 1


# What newer code has added must fit into one message.
MOST_UNKNOWN_BYTES = 2**22


_IDENTITY = {
    "SliceState": frozenset({"name", "overflow", "dimensions", "angles_in_joint"}),
    "PaneState": frozenset({"level", "number"}),
    "ClassSliceState": frozenset({"name", "class_names", "bin_hash", "overflow"}),
    "ClassPaneState": frozenset({"level", "number"}),
}


# What all parts of a state must share.
_Definitions = tuple[Binning, Windows, Slicing]


@dataclass(frozen=True, slots=True)
class StoredState:
    """A state, and what only newer code understands of it.

    unknown   a serialised StatisticsState with nothing else in it
    progress  how far the sidecar had come whose own file it is; of no other state, so that it is
              neither exported, nor imported, nor merged
    """

    state: StatisticsState
    unknown: bytes = b""
    progress: Progress | None = None

    def merge(self, other: StoredState) -> StoredState:
        """Both, without the progress of either. Raises IncompatibleStatistics, InvalidState."""
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
    yield pb.StatisticsState(
        version=VERSION,
        bins=encode_binning(state.binning),
        windows=encode_windows(state.windows),
        clock_ns=state.clock_ns,
        slicing=None if state.slicing == Slicing() else encode_slicing(state.slicing),
        progress=None if stored.progress is None else encode_progress(stored.progress),
    ).SerializeToString(deterministic=True)
    for entry in state.slices:
        for part in encode_slice(entry, known):
            yield framed(pb.StatisticsState.SLICES_FIELD_NUMBER, part)
    for classes in state.class_slices:
        for part in encode_class_slice(classes, known):
            yield framed(pb.StatisticsState.CLASS_SLICES_FIELD_NUMBER, part)
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
    progress: Progress | None = None
    # Added up as they come: of no slice more is held than its windows can have.
    slices: dict[Any, SliceState] = {}
    class_slices: dict[Any, ClassSliceState] = {}
    unknown: list[bytes] = []
    unknown_bytes = number = class_number = 0
    for part in parts:
        definitions = _definitions(part, definitions)
        if part.HasField("clock_ns") and (clock_ns is None or part.clock_ns > clock_ns):
            clock_ns = part.clock_ns
        binning, windows, _ = definitions
        for message in part.slices:
            field = f"slices[{number}]"
            number += 1
            found = decode_slice(message, binning, windows, field)
            check_panes(unite(slices, found, windows, clock_ns).panes, windows, field)
        for entry in part.class_slices:
            field = f"class_slices[{class_number}]"
            class_number += 1
            more = decode_class_slice(entry, windows, field)
            check_panes(unite(class_slices, more, windows, clock_ns).panes, windows, field)
        if part.HasField("progress"):
            if progress is None:
                progress = decode_progress(part.progress)
            # What newer code has added to it is of that sidecar alone, as the rest of it.
            part.ClearField("progress")
        if keep_unknown(part, _IDENTITY):
            unknown.append(part.SerializeToString())
            unknown_bytes += len(unknown[-1])
            _check_unknown(unknown_bytes)
    if definitions is None:
        raise invalid("state", "no part of it came")
    state = gathered(*definitions, clock_ns, slices.values(), class_slices.values())
    return StoredState(state, b"".join(unknown), progress)


def _definitions(part: pb.StatisticsState, known: _Definitions | None) -> _Definitions:
    if part.version > VERSION:
        raise IncompatibleStatistics(
            f"version: {part.version}, but this monitor knows up to {VERSION}. "
            "Update it to the version that wrote the state."
        )
    if known is None:
        if part.version < 1:
            raise invalid("version", "absent in the first part")
        return (
            decode_binning(part.bins),
            decode_windows(part.windows),
            decode_slicing(part.slicing),
        )
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
