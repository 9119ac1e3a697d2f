"""Fits on a state of statistics, which `merge` and `export` write, in place of recorded rows."""

from __future__ import annotations

import argparse
from pathlib import Path

from monitor.options.values import allow
from monitor.recalibration.fitting import FITTINGS
from monitor.recalibration.from_sums import StateEvidence
from monitor.store.state_files import read_state

# Options that say which rows of a recording are fitted on, how it is read and what is held out.
_OF_ROWS = (
    *("angles", "classes", "where", "rows", "fault", "map", "assume_std", "format", "range_edges"),
    *("labels", "gate", "distance", "label_gap", "class_map", "label_format", "label_map"),
    *("label_delay", "reject_above_error", "correct_mean"),
)


def evidence_of(options: argparse.Namespace) -> StateEvidence:
    """Reads the state that is to be fitted on.

    raises  UnusableFile, InvalidState, IncompatibleStatistics, UnfitData, ValueError
    """
    why = (
        f"{options.file} is a state of statistics: its sums are all that there is to fit on, and "
        "slices have its own ranges. Leave it out, or fit the raw logs."
    )
    allow(options, False, why, *_OF_ROWS)
    if options.proven_only:
        raise ValueError(f"--proven-only: {why}")
    if options.method not in FITTINGS:
        raise ValueError(
            f"{options.method} is fitted to the class probabilities of each detection, and "
            f"{options.file} has sums alone. Fit the raw logs."
        )
    state = read_state(Path(options.file)).state
    return StateEvidence.of(state, options.method, options.dimensions)


def told_of(found: StateEvidence) -> str:
    """Says what a state is of."""
    counts = fitted_on(found)
    text = f"{counts['detections']:,} labelled detections"
    if not counts["uploads"]:
        return text
    return f"{counts['vehicles']:,} vehicles, {counts['uploads']:,} uploads, {text}"


def fitted_on(found: StateEvidence) -> dict[str, object]:
    """Counts what a state is of, for the document."""
    holds = found.state.holds
    return {
        "vehicles": len(holds.vehicles),
        "uploads": len(holds),
        "detections": sum(entry.n for entry in found.slices),
        "classes": list(found.classes),
    }
