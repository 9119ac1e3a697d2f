"""Compares two folders of documents byte for byte, but for a named list of what is left out.

Nothing here knows how the documents came about.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatch
from itertools import zip_longest
from pathlib import Path
from typing import Any

_SHOWN = 160  # characters of a value


class Part(Enum):
    """Says how much of something is left out."""

    ALL = "all of it"
    LAST_DIGITS = "what is behind nine digits"
    ORDER = "the order of its lines"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Leaves out what depends on the wall clock, so that two runs of one tree differ in it.

    documents  pattern of their names; `*` also matches `/`
    field      regular expression of a whole JSON path without positions, such as `[].event.time`,
               or of the name of a metric
    reason     why it cannot be the same
    part       of it; the rest is compared
    """

    documents: str
    field: str
    reason: str
    part: Part = Part.ALL


_OPEN = "a restart costs the tracks and seconds that were open; trees differ in which these are"
_BY_LOOK = "four looks a second find the tracks that are over: which look finds one is chance"

LEFT_OUT = (
    LeftOut(
        "*metrics.txt",
        "calibration_frame_seconds_(bucket|sum)",
        "time that a frame took; how many frames is compared",
    ),
    LeftOut("*metrics.txt", "calibration_loop_lag_seconds", "delay of the event loop"),
    LeftOut("*metrics.txt", "calibration_checkpoint_age_seconds", "time since a write"),
    LeftOut("*metrics.txt", "calibration_stamp_lag_seconds", "wall clock less the fixed stamps"),
    LeftOut(
        "live/[!3]*/metrics.txt",
        "calibration_window_.*",
        "read every ten seconds; compared behind the restart, and in GetCalibration",
    ),
    LeftOut(
        "*metrics.txt",
        "calibration_ledger_bytes",
        "size of files of a database: how many entries one write held",
    ),
    LeftOut(
        "*metrics.txt",
        "calibration_(files_refused|checkpoint_failures|(drift|recalibrator)_store_failures)_total",
        "a tree with four stores counts for each what one with a state.db counts once",
    ),
    LeftOut("*metrics.txt", "calibration_pending_bytes", "an estimate of memory"),
    LeftOut("*metrics.txt", "calibration_ledger_partitions", "files before, event time now"),
    LeftOut(
        "live/[3456]*/metrics.txt",
        "calibration_ledger_replayed_entries",
        "four positions replay from the earliest of them",
    ),
    LeftOut(
        "live/[3456]*/metrics.txt",
        "calibration_log_lines_total",
        "a start has a line for each store",
    ),
    LeftOut(
        "live/3*/metrics.txt",
        "calibration_(tracks|track_.*|gate_reject_ratio)",
        "who does frames again knows the slices of their tracks; who has none to do again does not",
    ),
    LeftOut("live/[3456]*/metrics.txt", "calibration_drift_.*", _OPEN),
    LeftOut("live/[3456]*/calibration*.json", "drift(_stages)?|bytes", _OPEN),
    LeftOut("live/[3456]*/alarms*", ".*", _OPEN),
    LeftOut("live/[3456]*/acknowledge.json", ".*", _OPEN),
    LeftOut("live/events-after-kill.json", r"\[\]\.event\.sequence", _OPEN),
    LeftOut("*metrics.txt", "process_.*", "memory, processor time and start of the process"),
    LeftOut("*status.json", r"(started|now)_ns", "wall clock"),
    LeftOut("*status.json", r"streams\[\]\.\w*received_ns", "wall clock at arrival"),
    LeftOut("*events-*.json", r"\[\]\.event(\.\w+)*\.time", "wall clock of the event"),
    LeftOut("*recalibrators.json", r"records\[\]\.time", "wall clock of the record"),
    LeftOut("*metrics.txt", "calibration_recalibration_factor", _BY_LOOK, Part.ORDER),
    LeftOut("*metrics.txt", "calibration_trial_log10_evidence", _BY_LOOK, Part.LAST_DIGITS),
    LeftOut(
        "*recalibrators.json",
        r"(trials|records)\[\]\.evidence\.(gain|log10_(better|worse))",
        _BY_LOOK,
        Part.LAST_DIGITS,
    ),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """Tells where a document differs first, and how."""

    document: str
    field: str
    base: str
    work: str

    def __str__(self) -> str:
        return f"{self.document}: {self.field}\n    base  {self.base}\n    work  {self.work}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Tells what came of it.

    documents    how many were compared
    differences  the first one of each document that differs
    unused       entries of the list that nothing in the documents matches
    """

    documents: int
    differences: tuple[Difference, ...]
    unused: tuple[LeftOut, ...]

    @property
    def same(self) -> bool:
        return bool(self.documents) and not self.differences and not self.unused


def compare(
    base: Path, work: Path, left_out: Sequence[LeftOut] = LEFT_OUT, *, whole: bool = True
) -> Comparison:
    """Compares all documents of two folders.

    whole  all parts were played: what is left out must be in one of the documents
    """
    used: set[LeftOut] = set()
    names = sorted(_names(base) | _names(work))
    found = [_difference(name, base / name, work / name, left_out, used) for name in names]
    return Comparison(
        documents=len(names),
        differences=tuple(one for one in found if one is not None),
        unused=tuple(entry for entry in left_out if whole and entry not in used),
    )


def _names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def _difference(
    name: str, base: Path, work: Path, left_out: Sequence[LeftOut], used: set[LeftOut]
) -> Difference | None:
    for path, other in ((base, "only the work tree has it"), (work, "only the base has it")):
        if not path.exists():
            return Difference(name, "the document", *_ends(other, path is base))
    entries = [entry for entry in left_out if fnmatch(name, entry.documents)]
    ours, theirs = base.read_text("utf-8"), work.read_text("utf-8")
    if name.endswith(".json"):
        left = [_without(_parsed(text), entries, used) for text in (ours, theirs)]
        if first := next(_unlike(*left), None):
            path_to, was, now = first
            return Difference(name, path_to or "the document", was, now)
        if entries:
            return None  # their layout is that of this script, whatever is left out
    else:
        ours, theirs = (_text_without(text, entries, used) for text in (ours, theirs))
    return None if ours == theirs else _line_difference(name, ours, theirs)


def _ends(words: str, base_is_missing: bool) -> tuple[str, str]:
    return ("–", words) if base_is_missing else (words, "–")


# ---- JSON


def _parsed(text: str) -> Any:
    """Reads JSON, in which every number stays as it was written; or returns the text."""
    try:
        return json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_Number)
    except ValueError:
        return text


class _Number(str):
    """Keeps a number as it was written."""

    def __repr__(self) -> str:
        return str(self)


def _without(value: Any, entries: Sequence[LeftOut], used: set[LeftOut], path: str = "") -> Any:
    if isinstance(value, list):
        return [_without(each, entries, used, f"{path}[]") for each in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, each in value.items():
        at = f"{path}.{key}" if path else key
        matching = [entry for entry in entries if re.fullmatch(entry.field, at)]
        used.update(matching)
        parts = {entry.part for entry in matching}
        if Part.LAST_DIGITS in parts:
            kept[key] = _rounded(each)
        elif Part.ALL not in parts:
            kept[key] = _without(each, entries, used, at)
    return kept


def _rounded(number: str) -> str:
    return f"{float(number):.9g}"


def _unlike(base: Any, work: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yields path and both values of everything that differs, in the order of the base."""
    if isinstance(base, dict) and isinstance(work, dict):
        for key in [*base, *(key for key in work if key not in base)]:
            at = f"{path}.{key}" if path else key
            if key not in work or key not in base:
                yield at, _shown(base.get(key, "–")), _shown(work.get(key, "–"))
            else:
                yield from _unlike(base[key], work[key], at)
    elif isinstance(base, list) and isinstance(work, list):
        for at, (ours, theirs) in enumerate(zip(base, work, strict=False)):
            yield from _unlike(ours, theirs, f"{path}[{at}]")
        if len(base) != len(work):
            yield f"{path}[]", f"{len(base)} entries", f"{len(work)} entries"
    elif type(base) is not type(work) or base != work:
        yield path, *_window(repr(base), repr(work))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


# ---- text


def is_left_out(document: str, line: str, left_out: Sequence[LeftOut] = LEFT_OUT) -> bool:
    """Says whether a line of metrics is of one that is left out."""
    entries = [one for one in left_out if fnmatch(document, one.documents)]
    return any(entry.part is Part.ALL for entry in _matching(line, entries))


def _matching(line: str, entries: Sequence[LeftOut]) -> list[LeftOut]:
    # The words of "# HELP name words" go with a metric that is left out as a whole.
    words = re.sub(r"^# (HELP|TYPE) ", "", line)
    name = re.split(r"[{ ]", words, maxsplit=1)[0]
    found = [entry for entry in entries if re.fullmatch(entry.field, name)]
    return found if words == line else [entry for entry in found if entry.part is Part.ALL]


def _text_without(text: str, entries: Sequence[LeftOut], used: set[LeftOut]) -> str:
    if not entries:
        return text
    kept: list[str] = []
    unordered: list[str] = []
    for line in text.splitlines(keepends=True):
        matching = _matching(line, entries)
        used.update(matching)
        parts = {entry.part for entry in matching}
        if Part.ORDER in parts:
            unordered.append(line)
        elif Part.LAST_DIGITS in parts:
            name, _, value = line.rpartition(" ")
            kept.append(f"{name} {_rounded(value)}\n")
        elif Part.ALL not in parts:
            kept.append(line)
    return "".join([*kept, *sorted(unordered)])


def _line_difference(name: str, base: str, work: str) -> Difference:
    lines = zip_longest(base.splitlines(True), work.splitlines(True), fillvalue="–")
    for number, (ours, theirs) in enumerate(lines, 1):
        if ours != theirs:
            return Difference(name, f"line {number}", *_window(repr(ours), repr(theirs)))
    raise AssertionError(f"{name}: the texts are the same")


def _window(base: str, work: str) -> tuple[str, str]:
    """Cuts long values to what stands around the place where they begin to differ."""
    if max(len(base), len(work)) <= _SHOWN:
        return base, work
    same = next((at for at, (a, b) in enumerate(zip(base, work, strict=False)) if a != b), 0)
    begin = max(0, same - 40)
    cut = slice(begin, begin + _SHOWN)
    return f"…{base[cut]}…", f"…{work[cut]}…"
