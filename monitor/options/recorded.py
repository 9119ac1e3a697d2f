"""Options of the verbs that work on recorded files: sample, evaluate, fit, apply."""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from monitor.frames.words import Axes, Finding, FullInput, Objective, SliceBy
from monitor.options.rows import RANGE_EDGES, add_most_refused, add_selection, names_in
from monitor.options.values import (
    above_zero,
    add_flag,
    add_json,
    add_value,
    checked,
    confidence_levels,
    number_of,
    pair,
    seconds,
    seconds_above_zero,
)
from monitor.recalibration.methods import (
    INDUCING,
    LARGEST_FACTOR,
    LEAST_FACTOR,
    METHODS,
    MOST_INDUCING,
    OF_CLASSES,
    SURROGATE_LEVEL,
    SURROGATE_LEVELS,
    TIME_CONSTANT_S,
    USUAL,
    USUAL_OF_CLASSES,
    USUAL_WITHOUT_COVARIANCE,
)

SAMPLE = """examples:
  calibration-monitor sample --output drive.csv
  calibration-monitor evaluate drive.csv
  calibration-monitor sample --kind detections --output detections.csv
  calibration-monitor sample --kind labels --output labels.csv
  calibration-monitor evaluate detections.csv --labels labels.csv
  calibration-monitor sample --kind classes --output classes.npz"""


class Kind(StrEnum):
    """Kinds of files."""

    BOXES_3D = "boxes-3d"
    BOXES_2D = "boxes-2d"
    DETECTIONS = "detections"  # boxes-3d without ground truth
    LABELS = "labels"  # the ground truth of boxes-3d, in a file of its own
    CLASSES = "classes"


def sample(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb `sample`."""
    parser.add_argument(
        "--kind", choices=tuple(Kind), type=Kind, default=Kind.BOXES_3D, help="default %(default)s"
    )
    text = "file to write: .csv or .csv.gz, of classes .npz; - writes to standard output"
    add_value(parser, "--output", "F", text, default="-")


EVALUATE = """examples:
  calibration-monitor evaluate drive.csv.gz --dimensions x,y,z --class Car
  calibration-monitor evaluate drive.csv.gz --by range --fail-if 'sigma_factor > 1.41'
  calibration-monitor evaluate drive.npz --binning equal-width --range 0:10 --json
  calibration-monitor evaluate drive.npz --rows 5000: --model scaling.json
  calibration-monitor evaluate classes.npz --rows 10000: --model temperature.json
  calibration-monitor evaluate today.npz --binning frozen --edges-from reference.npz
  calibration-monitor evaluate classes.npz --class-binning equal-count --class-bins 15
  calibration-monitor evaluate classes.npz --sweep temperature
  calibration-monitor evaluate fleet.state --fail-if overconfident"""


# An octave has 32 times as many as in the sidecar, which keeps them for every slice and pane.
MICRO_BINS = 1024


# Options that mean something to Gaussians only, and to class probabilities only; by destination.
OF_GAUSSIANS = ("binning", "bins", "range", "edges_from", "min_bin_rows", "tau", "micro_bins")
OF_CLASSES_ALONE = ("class_binning", "class_bins", "sweep")


def evaluate(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb `evaluate`."""
    parser.add_argument(
        "file", metavar="FILE", help="recorded detections (docs/files.md), or statistics"
    )
    add_selection(parser)
    text = "some of class, range, stream and columns: what verdicts are given for (default class)"
    parser.add_argument("--by", metavar="C,C", type=names_in, action="extend", help=text)
    add_flag(parser, "--full", "print all measures and verdicts, not only the summary")
    text = (
        "end with exit code 3 if a measure or finding is so in any group, such as 'sigma_factor > "
        "1.41' or overconfident; groups with too little data are not judged; may be repeated"
    )
    parser.add_argument(
        "--fail-if", metavar="M>N|FINDING", type=read_condition, action="append", help=text
    )
    add_most_refused(parser)
    parser.add_argument(
        "--engine",
        choices=("exact", "streaming"),
        default="exact",
        help="exact: from the rows; streaming: as the sidecar, from micro-bins (default exact)",
    )
    parser.add_argument(
        "--binning",
        choices=("equal-count", "equal-width", "frozen"),
        default="equal-count",
        help="equal-count as Levi et al., equal-width as netcal, frozen: --edges-from",
    )
    text = "reliability bins of Gaussians (default 20)"
    add_value(parser, "--bins", "N", text, number_of("bins", 100_000), 20)
    text = "of equal-width bins, in standard deviations (default data)"
    add_value(parser, "--range", "data|LO:HI", text, _range)
    text = "reference detections, selected alike, whose equal-count bins are kept; open-ended"
    add_value(parser, "--edges-from", "FILE", text)
    text = "bins with fewer rows count nowhere but in the N of UCE (default 1)"
    add_value(parser, "--min-bin-rows", "N", text, number_of("rows", 1_000_000), 1)
    text = "confidence levels (default 0.05,0.1,…,0.95)"
    add_value(parser, "--tau", "T,T", text, confidence_levels)
    text = f"per octave, of --engine streaming (default {MICRO_BINS}; the sidecar keeps 32)"
    add_value(parser, "--micro-bins", "N", text, number_of("micro-bins", 4096), MICRO_BINS)
    parser.add_argument(
        "--class-binning",
        choices=("equal-width", "equal-count"),
        default="equal-width",
        help="of class probabilities; equal-count with --engine exact only (default equal-width)",
    )
    text = "of class probabilities; with --engine streaming a divisor of 60 (default 20)"
    add_value(parser, "--class-bins", "N", text, number_of("bins", 100_000), 20)
    text = "temperature: also measure class probabilities at each T from 0.1 to 10"
    parser.add_argument("--sweep", choices=("temperature",), help=text)
    parser.add_argument("--model", metavar="M", help="recalibrator to apply first, from fit")
    text = "processor cores to use; digits are the same with any (default 1)"
    add_value(parser, "--jobs", "N", text, number_of("jobs", 1024), 1)
    add_json(parser)
    add_value(parser, "--report", "F", "HTML file to write: verdict, figures, measures")
    # None until the file has been read, so that an option without effect can be refused.
    defaults = {name: parser.get_default(name) for name in OF_GAUSSIANS + OF_CLASSES_ALONE}
    parser.set_defaults(**dict.fromkeys(defaults), defaults=defaults)


def _range(text: str) -> tuple[float, float] | None:
    expected = "data or LO:HI with 0 <= LO < HI <= 1e150, such as 0:10"
    if text == "data":
        return None
    return checked(text, pair, expected, lambda ends: 0 <= ends[0] < ends[1] <= 1e150)


@dataclass(frozen=True, slots=True)
class Condition:
    """A bound on a measure, as `--fail-if` takes it; without a comparison a finding."""

    measure: str
    comparison: str = ""
    bound: float = math.nan

    def __str__(self) -> str:
        bound = f" {self.comparison} {self.bound:g}" if self.comparison else ""
        return self.measure + bound


def read_condition(text: str) -> Condition:
    """Reads a condition of the command line. Raises ArgumentTypeError."""
    if text.strip().lower() in tuple(Finding):
        return Condition(text.strip().lower())
    match = re.fullmatch(r"\s*(\w+)\s*(>=|<=|>|<)\s*(\S+)\s*", text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"'{text}': expected MEASURE > NUMBER, or >=, <, <=; or {', '.join(Finding)}"
        )
    number = checked(match[3], float, "a number, such as 2", math.isfinite)
    return Condition(match[1].lower(), match[2], number)


FIT = """examples:
  calibration-monitor fit drive.csv.gz --method variance-scaling --class Car --output car.json
  calibration-monitor fit drive.csv.gz --method covariance-scaling --by-class --output all.json
  calibration-monitor fit drive.csv.gz --method gp-normal --by class,range --output process.json
  calibration-monitor fit drive.csv.gz --method adaptive-scaling --label-delay 3s --output now.json
  calibration-monitor fit drive.npz --method variance-scaling --previous old.json --output new.json
  calibration-monitor fit fleet.state --method variance-scaling --by class --output fleet.json
  calibration-monitor fit classes.npz --method temperature --output temperature.json"""


# Independent rows that another fit counts for where a scaling is drawn towards it.
PRIOR_STRENGTH = 30.0


# Tracks, and independent rows, up to which a slice leans on the wider one with all its weight.
FEWEST_TO_STAND_ALONE = 30.0

_LEAST, _MOST = SURROGATE_LEVELS


def fit(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb `fit`."""
    parser.add_argument(
        "file", metavar="FILE", help="recorded detections with ground truth, or a state of `merge`"
    )
    add_selection(parser)
    parser.add_argument(
        "--method",
        choices=(*METHODS, *OF_CLASSES),
        help=(
            f"default {USUAL}; where no row has a covariance "
            f"{USUAL_WITHOUT_COVARIANCE}; of class probabilities {USUAL_OF_CLASSES}"
        ),
    )
    parser.add_argument("-o", "--output", metavar="F", required=True, help="JSON file to write")
    add_flag(parser, "--no-held-out", "do not judge the fit on tracks that it has not seen")
    text = "leave slices as the detector reports them unless the fit is worth it on held-out tracks"
    add_flag(parser, "--proven-only", text)
    add_json(parser)
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
        "in: a scaling is drawn towards it, ever less up to twice as many, and less where the two "
        f"plainly differ; other methods are left to it (default {FEWEST_TO_STAND_ALONE:g})"
    )
    add_value(parser, "--fewest-tracks", "N", text, above_zero)
    text = "earlier model of the method, towards which the factors of a scaling are drawn"
    add_value(parser, "--previous", "MODEL", text)
    text = (
        "independent rows that --previous counts for, or the wider slice of a thin one at most "
        f"(default {PRIOR_STRENGTH:g})"
    )
    add_value(parser, "--prior-strength", "N", text, above_zero)
    heavy = "what the scale of a scaling satisfies on heavy tails (default mean)"
    parser.add_argument("--objective", choices=tuple(Objective), type=Objective, help=heavy)
    text = (
        "of methods that estimate covariances: axes of the errors in x and y. sensor: radial and "
        "lateral; object: along and across the heading (default: sensor for "
        "covariance-regression; object for residual-covariance where there is a heading; plain "
        "without a position)"
    )
    parser.add_argument("--axes", choices=tuple(Axes), type=Axes, help=text)
    text = (
        "replace covariances that were sent by estimated ones, too; else only fill in missing ones"
    )
    add_flag(parser, "--replace", text)
    text = "print what is estimated as a table of R by class and range, for a tracker's settings"
    parser.add_argument("--export-r", choices=("yaml",), help=text)
    full = (
        "covariance-scaling of full covariances: scale keeps the detector's correlations, whiten "
        "corrects them (default scale)"
    )
    parser.add_argument("--full-input", choices=tuple(FullInput), type=FullInput, help=full)
    text = f"range of the factors on σ of a scaling (default {LEAST_FACTOR:g}:{LARGEST_FACTOR:g})"
    add_value(parser, "--clamp", "LO:HI", text, _clamp)

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

    text = f"points that carry a Gaussian process, at most (default {INDUCING})"
    add_value(parser, "--inducing", "N", text, number_of("points", MOST_INDUCING))
    text = (
        "gp-cauchy: the central interval in which the Gaussian that is forwarded agrees "
        f"with the Cauchy distribution, {_LEAST:g} to {_MOST:g} (default {SURROGATE_LEVEL:g})"
    )
    add_value(parser, "--surrogate-level", "P", text, _level)
    keeping = [method for method, keeps_mean in METHODS.items() if keeps_mean]
    text = (
        "add the mean error to the mean of each dimension where chance does not explain it, by "
        f"tracks, and fit the method to what that leaves; for {', '.join(keeping)}"
    )
    parser.add_argument("--correct-mean", action="store_true", default=None, help=text)
    text = (
        "flag detections so uncertain that without them the error is at most X: the share of "
        "wrong classes, or of Gaussians the RMSE, the root of the mean of the squared errors added "
        "up over the dimensions that are no angles; these must share a unit, which is that of X: "
        "choose them with --dimensions"
    )
    add_value(parser, "--reject-above-error", "X", text, above_zero)


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
        lambda text: tuple(map(float, text.split(","))),
        "ascending distances above 0, such as 20,40",
        lambda edges: all(a < b for a, b in pairwise((0.0, *edges, math.inf))),
    )


def _clamp(text: str) -> tuple[float, float]:
    expected = "LO:HI with 0 < LO <= HI, such as 0.5:3"
    return checked(text, pair, expected, lambda ends: 0 < ends[0] <= ends[1] < math.inf)


def _level(text: str) -> float:
    expected = f"a share from {SURROGATE_LEVELS[0]:g} to {SURROGATE_LEVELS[1]:g}, such as 0.9"
    return checked(
        text, float, expected, lambda value: SURROGATE_LEVELS[0] <= value <= SURROGATE_LEVELS[1]
    )


APPLY = """examples:
  calibration-monitor apply scaling.json drive.npz --rows 5000: --output recalibrated.npz
  calibration-monitor apply beta.json drive.npz --tau 0.05,0.5,0.95 --output quantiles.npz"""


def apply(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb `apply`."""
    parser.add_argument("model", metavar="MODEL", help="recalibrator, from fit")
    parser.add_argument("file", metavar="FILE", help=".npz, .csv or .csv.gz; truth is not needed")
    add_selection(parser)
    parser.add_argument(
        "--output",
        metavar="F",
        required=True,
        help=".csv or .csv.gz: the columns of the file, with new Gaussians; .npz: arrays (mean, "
        "var or cov, gt; of class probabilities prob and label; what else is known of each row)",
    )
    parser.add_argument(
        "--quantiles",
        action="store_true",
        default=None,
        help="write quantiles [N,K,T] at levels tau [T] also where they are those of Gaussians",
    )
    parser.add_argument(
        "--again", action="store_true", help="correct a file that was recalibrated before once more"
    )
    text = "write quantiles at these levels (default 0.05,0.1,…,0.95)"
    add_value(parser, "--tau", "T,T", text, confidence_levels)
    add_json(parser)
