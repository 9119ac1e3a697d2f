"""What a fitted recalibrator rests on: how much truth, of what time, and whose fit it leans on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from monitor.recalibration.document import LEAST_POSITIVE, is_number, member, number, shown, whole
from monitor.recalibration.recalibrator import Document, InvalidRecalibrator


class Clock(StrEnum):
    """The column that times are of."""

    SECONDS = "t"  # s, of whatever zero the recording has
    STAMP = "stamp_ns"  # ns, as the detector stamps its frames


@dataclass(frozen=True, slots=True)
class Period:
    """From the first to the last event time of what was fitted on, in the unit of the clock."""

    first: int | float
    last: int | float
    clock: Clock

    def __str__(self) -> str:
        unit = " s" if self.clock is Clock.SECONDS else ""
        return f"{self.clock} {self.first} to {self.last}{unit}"


@dataclass(frozen=True, slots=True)
class Basis:
    """What one fitted value rests on.

    rows            detections with truth, at least 1
    tracks          objects they are of; a detection without a track is one of its own
    effective_rows  how many independent detections they are worth, errors of one object
                    being alike
    period          None where the recording has no times
    borrows_from    the slice, the fallback or the earlier version whose fit this one leans
                    on because its own rows are few; None where they are enough
    """

    rows: int
    tracks: int
    effective_rows: float
    period: Period | None = None
    borrows_from: str | None = None

    def __str__(self) -> str:
        text = f"{self.rows} rows of {self.tracks} tracks, worth {self.effective_rows:.0f}"
        text += "" if self.period is None else f", {self.period}"
        return text + ("" if self.borrows_from is None else f", borrows from {self.borrows_from}")

    def parameters(self) -> Document:
        """All of it, as JSON values; without what is not known."""
        content: Document = {
            "rows": self.rows,
            "tracks": self.tracks,
            "effective_rows": self.effective_rows,
        }
        if self.period is not None:
            content["first"], content["last"] = self.period.first, self.period.last
            content["clock"] = str(self.period.clock)
        if self.borrows_from is not None:
            content["borrows_from"] = self.borrows_from
        return content

    @classmethod
    def from_parameters(cls, parameters: Document) -> Basis:
        """The inverse of parameters; raises InvalidRecalibrator."""
        rows, tracks = whole(parameters, "rows"), whole(parameters, "tracks")
        effective = number(parameters, "effective_rows", LEAST_POSITIVE, rows)
        borrows_from = parameters.get("borrows_from")
        if borrows_from is not None and not (
            isinstance(borrows_from, str) and borrows_from.isprintable()
        ):
            raise InvalidRecalibrator(
                f"'borrows_from' is {shown(borrows_from)}: it must be a printable name, or be "
                "left out."
            )
        return cls(rows, tracks, effective, _period(parameters), borrows_from)


def _period(parameters: Document) -> Period | None:
    ends = [parameters.get(name) for name in ("first", "last")]
    if ends == [None, None] and parameters.get("clock") is None:
        return None
    first, last = ends
    if not is_number(first) or not is_number(last) or first > last:
        raise InvalidRecalibrator(
            f"'first' and 'last' are {shown(first)} and {shown(last)}: they must be the two ends "
            "of a period, or be left out with 'clock'."
        )
    return Period(first, last, member(parameters, "clock", Clock))
