"""Options of replay that have to do with drift, and the section of the sidecar they make."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from monitor.calibration.drift.settings import DriftSettings
from monitor.calibration.slices import SliceBy
from monitor.config import load
from monitor.config_drift import DriftConfig
from monitor.edges.reference_file import read_references, reference_text
from monitor.recalibration.selection import Selection
from monitor.verbs.learnt_reference import learnt
from monitor.verbs.recorded import add_condition, read_selected
from monitor.verbs.toml_section import toml_section

# Of recorded drives; fewer tell nothing.
_FEWEST_TRACKS, _FEWEST_DETECTIONS = 10, 1000


def add_drift(parser: argparse.ArgumentParser) -> None:
    """Options of a verb that plays detections to a sidecar which watches for drift."""
    group = parser.add_argument_group("drift")
    usual = group.add_mutually_exclusive_group()
    usual.add_argument(
        "--reference",
        metavar="F",
        help="what is usual, as `calibration-monitor reference` wrote it (default: the started "
        "sidecar learns it from what is played)",
    )
    add_condition(
        usual,
        "--reference-where",
        "learn what is usual from the rows of the files whose column has this value, in place of "
        "--where, before anything is played; may be repeated",
    )


def check_drift(options: argparse.Namespace) -> None:
    """Raises ValueError where a reference has no sidecar or no slices to act on."""
    given = "--reference" if options.reference is not None else "--reference-where"
    if options.reference is None and options.reference_where is None:
        return
    if options.address:
        raise ValueError(
            f"--address {options.address}: {given} would be a setting of that sidecar ([drift] "
            "reference). Leave it out, or leave --address out."
        )
    if options.slice_by != (SliceBy.CLASS,):
        raise ValueError(
            f"--slice-by {','.join(options.slice_by)}: {given} says what is usual of classes. "
            "Leave one of them out."
        )


@contextlib.contextmanager
def reference_file(
    options: argparse.Namespace, selection: Selection | None
) -> Iterator[Path | None]:
    """Where the started sidecar finds what is usual, as long as the context lasts; None: nowhere.

    Raises RecordingError, InvalidRecalibrator, NotAReference, TooLittleToLearn.
    """
    if options.reference is not None:
        read_references(options.reference)  # a sidecar would refuse it with less to say
        yield Path(options.reference).resolve()
        return
    if options.reference_where is None:
        yield None
        return
    # A drill changes what is played, not what is usual.
    asked = {**vars(options), "where": options.reference_where, "fault": None}
    recordings = [read_selected(path, argparse.Namespace(**asked)) for path in options.files]
    found = learnt(recordings, selection, learning_settings(options))
    for remark in found.remarks:
        print(f"calibration-monitor replay: {remark}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="calibration-monitor-") as folder:
        path = Path(folder) / "reference.json"
        path.write_text(reference_text(found.references), encoding="utf-8")
        yield path


def drift_config(options: argparse.Namespace) -> DriftConfig:
    """[drift] of the file that --config names. Raises InvalidConfiguration."""
    return DriftConfig() if options.config is None else load(options.config).drift


def learning_settings(options: argparse.Namespace) -> DriftSettings:
    """How much is enough to learn from: as the file that --config names says. Without one, of
    drives that people chose, little: a slice of few tracks is watched by detections then.

    Raises InvalidConfiguration.
    """
    if options.config is not None:
        return drift_config(options).settings()
    return DriftSettings(reference_tracks=_FEWEST_TRACKS, reference_detections=_FEWEST_DETECTIONS)


def drift_section(options: argparse.Namespace, reference: Path | None) -> str:
    """[drift] of the sidecar to be started, as TOML. Raises InvalidConfiguration."""
    # What is played is over with the sidecar: nothing of it is kept.
    section = drift_config(options).model_dump(mode="json", exclude_none=True) | {"path": ""}
    if reference is not None:
        section["reference"] = str(reference)
    return toml_section("drift", section)
