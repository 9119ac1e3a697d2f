"""Statistics in checked files: the whole state, or its first part from the first bytes.

Whoever has to choose among many files need not read them whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from monitor.statistics.bins import IncompatibleStatistics
from monitor.statistics.holdings import Holdings
from monitor.store.files import read_body
from monitor.store.state_definitions import InvalidState, invalid
from monitor.store.statistics_state import StoredState, decode_holding, parsed
from monitor.v1 import statistics_state_pb2 as pb


def read_state(path: Path) -> StoredState:
    """Reads statistics.

    raises  UnusableFile, InvalidState, IncompatibleStatistics, OSError; all name the file
    """
    body = read_body(path)
    try:
        return parsed(body)
    except (InvalidState, IncompatibleStatistics) as error:
        raise type(error)(f"{path}: {error}") from None


# Fields of the first part, and those of them that two states must share.
_FIRST = {
    *(pb.StatisticsState.VERSION_FIELD_NUMBER, pb.StatisticsState.BINS_FIELD_NUMBER),
    *(pb.StatisticsState.WINDOWS_FIELD_NUMBER, pb.StatisticsState.CLOCK_NS_FIELD_NUMBER),
    *(pb.StatisticsState.SLICING_FIELD_NUMBER, pb.StatisticsState.HOLDS_FIELD_NUMBER),
}
_OWN = {pb.StatisticsState.CLOCK_NS_FIELD_NUMBER, pb.StatisticsState.HOLDS_FIELD_NUMBER}
# Bytes of a value, by type on the wire; the others say how long they are.
_FIXED = {1: 8, 5: 4}


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first part of a state.

    definitions  what it must share with others, as parts that `parsed` reads
    """

    definitions: bytes
    holds: Holdings


def beginning_in(data: bytes, *, whole: bool) -> Beginning | None:
    """Reads the first part out of the first bytes of a state; None where they end inside it.

    whole   these are all bytes of the state
    raises  InvalidState, AlreadyHeld
    """
    definitions, holdings, at = [], list[Holdings](), 0
    while at < len(data):
        try:
            tag, begin = _read_varint(data, at)
            number, kind = tag >> 3, tag & 7
            if number not in _FIRST:
                break
            if kind == 2:
                size, begin = _read_varint(data, begin)
                end = begin + size
            elif kind in _FIXED:
                end = begin + _FIXED[kind]
            else:
                _, end = _read_varint(data, begin)
        except IndexError:
            end = len(data) + 1
        if end > len(data):
            if whole:
                raise invalid("state", f"{len(data)} bytes end inside a field")
            return None
        if number == pb.StatisticsState.HOLDS_FIELD_NUMBER:
            try:
                message = pb.Holding.FromString(data[begin:end])
            except DecodeError:
                raise invalid("holds", "no Holding") from None
            holdings.append(decode_holding(message, f"holds[{len(holdings)}]"))
        elif number not in _OWN:
            definitions.append(data[at:end])
        at = end
    else:
        if not whole:
            return None
    return Beginning(b"".join(definitions), Holdings.united(holdings))


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Reads a number as protobuf writes it; returns where it ends, too. Raises IndexError."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
