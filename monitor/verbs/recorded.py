"""Options that choose rows of a recorded file; they mean the same for every verb."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.edges.files import Recording, read_recording

# Dimensions that wrap, unless others are named.
ANGLES = ("yaw", "heading")
# Options that choose among Gaussians, by destination: they mean nothing to class probabilities.
_OF_GAUSSIANS = {
    "dimensions": "--dimensions",
    "angles": "--angles",
    "classes": "--class",
    "where": "--where",
    "fault": "--fault",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fire drill: reported covariances times `variance`, from `since` seconds on."""

    variance: float
    since: float = 0.0


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Options of verbs that read a file; None where they are not given."""
    parser.add_argument(
        "--dimensions", metavar="D,D", type=_names, help="dimensions to use; default: all"
    )
    parser.add_argument(
        "--angles",
        metavar="D,D",
        type=_names,
        help="dimensions in radians that wrap; left out of joint measures "
        f"(default {','.join(ANGLES)})",
    )
    parser.add_argument(
        "--class", dest="classes", metavar="C,C", type=_names, help="classes to keep"
    )
    add_condition(parser, "--where", "keep rows whose column has this value; may be repeated")
    parser.add_argument(
        "--rows", metavar="A:B", type=_rows, help="row numbers of the file, before other filters"
    )
    parser.add_argument(
        "--fault",
        metavar="variance=F[@t=T]",
        type=_fault,
        help="multiply the reported variances by F from second T of each sequence on",
    )


def add_condition(parser: argparse._ActionsContainer, option: str, help: str) -> None:
    """An option that chooses rows by the value of a column; None where it is not given."""
    parser.add_argument(option, metavar="COLUMN=VALUE", type=_condition, action="append", help=help)


def read_selected(path: str, options: argparse.Namespace) -> Recording:
    """The chosen rows of a file, the fault applied. Raises RecordingError."""
    recording = read_recording(
        Path(path),
        dimensions=options.dimensions,
        classes=options.classes or (),
        where=tuple(options.where or ()),
        rows=options.rows,
        angles=ANGLES if options.angles is None else options.angles,
    )
    fault: Fault | None = options.fault
    if fault is None:
        return recording
    if fault.since > 0 and recording.time_s is None:
        raise ValueError(
            f"--fault …@t={fault.since:g}: {path} has no column t. Leave @t out, or add the column."
        )
    time = _since_start(recording)
    factor = np.where(time >= fault.since, fault.variance, 1.0)
    return replace(recording, covariance=recording.covariance * factor[:, None, None])


def given(options: argparse.Namespace, names: Mapping[str, str]) -> list[str]:
    """Which of some options, named by destination, were given; None says that one was not."""
    return [option for name, option in names.items() if getattr(options, name) is not None]


def refuse_options_of_gaussians(
    options: argparse.Namespace, more: Mapping[str, str], instead: str
) -> None:
    """Raises ValueError where an option was given that means something to Gaussians only.

    more     such options of the verb, by destination, beside those that choose rows
    instead  what there is in place of Gaussians
    """
    in_vain = given(options, {**_OF_GAUSSIANS, **more})
    if in_vain:
        raise ValueError(
            f"{', '.join(in_vain)}: for Gaussians, and {instead}. Leave it out; choose rows by "
            "--rows."
        )


def _since_start(recording: Recording) -> FloatArray:
    """Seconds of each row since the first row of its sequence; zeros where there are no times."""
    rows = recording.mean.shape[0]
    if recording.time_s is None:
        return np.zeros(rows)
    start = np.full(len(recording.sequences), np.inf)
    np.minimum.at(start, recording.sequence_index, recording.time_s)
    since: FloatArray = recording.time_s - start[recording.sequence_index]
    return since


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _condition(text: str) -> tuple[str, str]:
    column, sign, value = text.partition("=")
    if not sign or not column:
        raise argparse.ArgumentTypeError(f"'{text}': expected COLUMN=VALUE, such as role=deploy")
    return column, value


def _rows(text: str) -> slice:
    match = re.fullmatch(r"(\d*):(\d*)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"'{text}': expected A:B, such as 0:2000")
    start, stop = (int(part) if part else None for part in match.groups())
    return slice(start, stop)


def _fault(text: str) -> Fault:
    match = re.fullmatch(r"variance=([0-9.eE+-]+)(?:@t=([0-9.eE+-]+)s?)?", text)
    try:
        factor, since = (float(part or 0) for part in match.groups()) if match else (0.0, 0.0)
    except ValueError:
        factor, since = 0.0, 0.0
    if not 0 < factor < float("inf") or not 0 <= since < float("inf"):
        raise argparse.ArgumentTypeError(
            f"'{text}': expected variance=F or variance=F@t=T, such as variance=0.2@t=10s"
        )
    return Fault(factor, since)
