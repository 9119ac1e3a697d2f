"""calibration-monitor fit: fits a recalibrator to a recorded file."""

from __future__ import annotations

import argparse
import math

from monitor.commands.fit_methods import (
    FEWEST_TRACKS,
    PRIOR_STRENGTH,
    RANGE_EDGES,
    fit_class_probabilities,
    fit_gaussians,
)
from monitor.commands.models import document_of
from monitor.commands.options import (
    above_zero,
    add_choice,
    add_number,
    add_value,
    allow,
    checked,
    pair,
    seconds,
    seconds_above_zero,
    write_output,
)
from monitor.commands.recordings import add_selection
from monitor.frames.slices import SliceBy
from monitor.recalibration.adaptive_scaling import TIME_CONSTANT_S
from monitor.recalibration.classes.class_selection import CLASS_METHODS, AnySelection
from monitor.recalibration.fitting import FITTINGS, FitOptions
from monitor.recalibration.processes.cauchy import LEVELS, SURROGATE_LEVEL
from monitor.recalibration.processes.process_fit import INDUCING
from monitor.recalibration.processes.sparse_process import MOST_INDUCING
from monitor.recalibration.recalibrator import Basis
from monitor.recalibration.rejection import RejectedBy, Rejection
from monitor.recalibration.scaling import WIDE, Clamp, FullInput, Objective

EXAMPLE = """examples:
  calibration-monitor fit drive.csv.gz --method variance-scaling --class Car --output car.json
  calibration-monitor fit drive.csv.gz --method covariance-scaling --by-class --output all.json
  calibration-monitor fit drive.csv.gz --method gp-normal --by class,range --output process.json
  calibration-monitor fit drive.csv.gz --method adaptive-scaling --label-delay 3s --output now.json
  calibration-monitor fit drive.npz --method variance-scaling --previous old.json --output new.json
  calibration-monitor fit classes.npz --method temperature --output temperature.json"""

# Options of single methods, by the names that FitOptions has for them.
_OF_METHODS = (
    *("objective", "full_input", "clamp", "inducing", "surrogate_level", "time_constant"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    parser.add_argument("file", metavar="FILE", help=".npz, .csv or .csv.gz with ground truth")
    add_selection(parser)
    parser.add_argument("--method", choices=(*FITTINGS, *CLASS_METHODS), required=True)
    parser.add_argument("--output", metavar="F", required=True, help="JSON file to write")
    _add_slices(parser)
    _add_scaling(parser)
    _add_adaptive(parser)
    _add_process(parser)
    text = (
        "flag detections so uncertain that without them the error is at most X: the share of "
        "wrong classes, or of Gaussians the RMSE, the root of the mean of the squared errors added "
        "up over the dimensions that are no angles; these must share a unit, which is that of X: "
        "choose them with --dimensions"
    )
    add_value(parser, "--reject-above-error", "X", text, above_zero)


def _add_scaling(parser: argparse.ArgumentParser) -> None:
    text = "earlier model of the method, towards which the factors of a scaling are drawn"
    add_value(parser, "--previous", "MODEL", text)
    text = (
        "independent rows that --previous, or the wider slice of a thin one, counts for "
        f"(default {PRIOR_STRENGTH:g})"
    )
    add_value(parser, "--prior-strength", "N", text, above_zero)
    heavy = "what the scale of a scaling satisfies on heavy tails (default mean)"
    add_choice(parser, "--objective", Objective, heavy)
    full = (
        "covariance-scaling of full covariances: scale keeps the detector's correlations, whiten "
        "corrects them (default scale)"
    )
    add_choice(parser, "--full-input", FullInput, full)
    text = f"range of the factors on σ of a scaling (default {WIDE.lowest:g}:{WIDE.highest:g})"
    add_value(parser, "--clamp", "LO:HI", text, _clamp)


def _add_adaptive(parser: argparse.ArgumentParser) -> None:
    text = (
        "adaptive-scaling: seconds in which the weight of a track falls to 1/e; must exceed "
        f"the label delay, and should be long against it (default {TIME_CONSTANT_S:g})"
    )
    add_value(parser, "--time-constant", "S", text, seconds_above_zero)
    text = (
        "adaptive-scaling: how many seconds late labels come where the model is to serve; the "
        "last seconds of the file count as not labelled yet (default 0)"
    )
    add_value(parser, "--label-delay", "S", text, seconds)


def _add_process(parser: argparse.ArgumentParser) -> None:
    text = f"points that carry a Gaussian process, at most (default {INDUCING})"
    add_number(parser, "--inducing", "points", MOST_INDUCING, None, text)
    text = (
        "gp-cauchy: the central interval in which the Gaussian that is forwarded agrees "
        f"with the Cauchy distribution, {LEVELS[0]:g} to {LEVELS[1]:g} (default "
        f"{SURROGATE_LEVEL:g})"
    )
    add_value(parser, "--surrogate-level", "P", text, _level)


def _add_slices(parser: argparse.ArgumentParser) -> None:
    by = parser.add_mutually_exclusive_group()
    text = (
        "one recalibrator for each class, stream, range, or combination such as class,range "
        "and for each wider one, and one of all rows as the fallback; the stream of a file is "
        "its sequence"
    )
    add_value(by, "--by", "PART,PART", text, _parts)
    by.add_argument(
        "--by-class",
        dest="by",
        action="store_const",
        const=(SliceBy.CLASS,),
        help="short for --by class",
    )
    text = (
        "of --by range: inner edges of the distance, as the sidecar has them (default "
        f"{','.join(f'{edge:g}' for edge in RANGE_EDGES)})"
    )
    add_value(parser, "--range-edges", "E,E", text, _edges)
    text = (
        "tracks, and independent rows, below which a slice leans on the wider one it lies "
        f"in: a scaling is drawn towards it, the rest is left to it (default {FEWEST_TRACKS:g})"
    )
    add_value(parser, "--fewest-tracks", "N", text, above_zero)


def run(options: argparse.Namespace) -> int:
    """0 when the model was written.

    Raises RecordingError, UnfitData, InvalidRecalibrator, CannotWrite, ValueError.
    """
    _check(options)
    wanted = FitOptions(**{name: getattr(options, name) for name in _OF_METHODS})
    model: AnySelection
    basis: Basis | None
    if options.method in CLASS_METHODS:
        model, basis, lines = fit_class_probabilities(options)
    else:
        model, lines = fit_gaussians(options, wanted)
        basis = model.basis
    text = document_of(model)
    write_output(options.output, text)
    rows = "no rows" if basis is None else str(basis)
    lines.append(f"{model.version} fitted on {rows}, written to {options.output}")
    if model.rejection is not None:
        lines.append(_said_of(model.rejection))
    print("\n".join(lines))
    return 0


def _said_of(rejection: Rejection) -> str:
    by_entropy = rejection.by is RejectedBy.ENTROPY
    what = "entropy" if by_entropy else "σ_G"
    error = "error rate" if by_entropy else "RMSE"
    return (
        f"{rejection.rejected_share:.1%} of the rows are rejected, {what} above "
        f"{rejection.threshold:.4g}; {error} of the others {rejection.error:.4g}, "
        f"asked for {rejection.target_error:g}"
    )


def _check(options: argparse.Namespace) -> None:
    """Refuses what was given and would change nothing."""
    fitting = FITTINGS.get(options.method)
    uses, borrows = (fitting.uses, fitting.borrows) if fitting else ((), False)
    no_use = f"{options.method} has no use for it; it is for"
    by = options.by or ()
    for name in _OF_METHODS:
        users = ", ".join(method for method, other in FITTINGS.items() if name in other.uses)
        allow(options, name in uses, f"{no_use} {users}. Leave it out.", name)
    borrowers = ", ".join(method for method, other in FITTINGS.items() if other.borrows)
    why = f"{options.method} is not drawn towards an earlier fit; {borrowers} are. Leave it out."
    allow(options, borrows, why, "previous")
    why = f"it is for {borrowers} with --previous or --by. Leave it out."
    allow(options, borrows and (options.previous or by), why, "prior_strength")
    why = f"{no_use} adaptive-scaling. Leave it out."
    allow(options, "time_constant" in uses, why, "label_delay")
    why = "it is for --by range; leave it out, or add range to --by."
    allow(options, SliceBy.RANGE in by, why, "range_edges")
    allow(options, by, "it is for --by; leave it out, or add --by.", "fewest_tracks")


def _parts(text: str) -> tuple[SliceBy, ...]:
    named = [part.strip() for part in text.split(",")]
    if not named or len(set(named)) < len(named) or not set(named) <= set(SliceBy):
        raise argparse.ArgumentTypeError(
            f"'{text}': expected some of {', '.join(SliceBy)}, each once, such as class,range"
        )
    return tuple(part for part in SliceBy if part in named)


def _edges(text: str) -> tuple[float, ...]:
    return checked(
        text,
        lambda text: tuple(float(part) for part in text.split(",")),
        "ascending distances above 0, such as 20,40",
        lambda edges: (
            edges == tuple(sorted(set(edges))) and all(0 < edge < math.inf for edge in edges)
        ),
    )


def _clamp(text: str) -> Clamp:
    expected = "LO:HI with 0 < LO <= HI, such as 0.5:3"
    return checked(text, lambda text: Clamp(*pair(text)), expected)


def _level(text: str) -> float:
    expected = f"a share from {LEVELS[0]:g} to {LEVELS[1]:g}, such as 0.9"
    return checked(text, float, expected, lambda value: LEVELS[0] <= value <= LEVELS[1])
