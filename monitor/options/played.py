"""Options of the verbs that play a drive to a sidecar: reference, replay, demo."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TypeVar

from monitor.frames.words import MeasurementNoise, Mode, SliceBy
from monitor.options.rows import add_condition, add_selection
from monitor.options.sidecars import add_access
from monitor.options.values import (
    above_zero,
    add_flag,
    add_json,
    add_value,
    checked,
    number_of,
    seconds,
)

REFERENCE = """examples:
  calibration-monitor reference drive.csv.gz --where role=fit --class Car --output usual.json
  calibration-monitor reference drive.csv.gz --recalibrator car.json --output usual.json

Learns from the rows that have truth, by class, each sequence a stream of its own. The file is for
replay --reference, and for [drift] reference of a sidecar whose slices are by class.
With --recalibrator the reference also holds for the time when that one is active: give rows that it
was not fitted on, since errors on those look smaller than what will come."""


def reference(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb `reference`."""
    parser.add_argument("files", metavar="FILE", nargs="+", help=".npz, .csv or .csv.gz")
    add_selection(parser)
    parser.add_argument("--recalibrator", metavar="FILE", help="that will be active")
    text = (
        "TOML file of a sidecar, whose [drift] says how much is enough (reference_tracks, "
        "reference_detections) and when tracks end (track_idle_seconds)"
    )
    add_value(parser, "--config", "F", text)
    parser.add_argument("--output", metavar="F", required=True, help="file to write")
    add_json(parser)


REPLAY = """examples:
  calibration-monitor replay drive.csv.gz --dimensions x,y,z --class Car
  calibration-monitor replay drive.csv.gz --recalibrator car.json --ground-truth-delay 30s --json
  calibration-monitor replay drive.csv.gz --speed 1 --fault variance=0.2@t=10s
  calibration-monitor replay drive.csv.gz --where seq=3 --reference-where role=fit
  calibration-monitor replay drive.csv.gz --address 127.0.0.1:50051
  calibration-monitor replay drive.csv.gz --ground-truth labels.csv.gz --recalibrator car.json

Each sequence is a stream; every frame number from 0 to its last is sent, empty ones too.
--json prints frames, detections, matched, tau, and for each of slices and for total, by stage:
n, nees_over_k, nees_median_ratio; by dimension ence, uce, qce; and the bins they come from, whose
variance, squared_error and nees are sums over the bin's n detections and whose within counts, for
each tau, those with nees inside the chi-square quantile.

alarms are those of drift, in the order in which they were raised: slice, severity, stage, detector,
direction; t in seconds from the start of the sequence, frame, and stream where only one sequence
has a frame of that time; labelled detections of the slice by then, detections and tracks since
since_t; evidence_hours of threshold_hours; quantity (scale, bias, correlation, tail), dimension,
size and unit of what is wrong; and scale, by which factor standard deviations are too small, with
its 95 % interval. drift says how the evidence of each slice and severity stands at the
end: state (too_few: fewer than 100 labelled detections were watched, or more were left out), and
log10 of hours of the evidence, its peak and the threshold. drift_left_out counts labelled
detections that no bet (late, undated, superseded, overload, failed) or not every bet (late_seconds,
tracks) has used.

A recording gives the same JSON each time, to the byte: neither --speed nor --ground-truth-delay
nor a busy machine changes it, and no value in it is of a clock.

With --ground-truth it also prints tracking: raw, recalibrated and the reason why anything is null.
recalibrated is of tracks fed what the sidecar forwards, raw of tracks fed what the detector says:
where these differ the drive is played twice. Each holds, for all classes together and for each of
classes: mota and idf1 (1 is best), id_switches, false_positives, misses, matches, labels, frames;
position_rmse and velocity_rmse of the matches, also by dimension, against the labels and their
central differences in the moving axes of the sensor; nis_over_k and state_nees_over_k. All labels
of the frames played count. Tracks confirmed and updated in a frame are matched, by motmetrics
(pip install 'calibration-monitor[tracking]')."""


# The sidecar cuts no more.
MOST_BINS = 512


def replay(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb `replay`."""
    parser.add_argument("files", metavar="FILE", nargs="+", help=".npz, .csv or .csv.gz")
    add_selection(parser)
    parser.add_argument("--address", metavar="H:P", help="of a running sidecar; default: start one")
    add_access(parser)
    text = "event time by which labels come late, such as 30s (default 0s)"
    add_value(parser, "--ground-truth-delay", "S", text, seconds, default=0.0)
    text = "max, or N times the recorded pace (default max)"
    add_value(parser, "--speed", "max|N", text, _speed, default=math.inf)
    parser.add_argument("--recalibrator", metavar="FILE|none", help="promote this one first")
    parser.add_argument(
        "--mode", choices=tuple(Mode), type=Mode, default=Mode.APPLY, help="of the started sidecar"
    )
    text = "slices of the started sidecar (default class)"
    add_value(parser, "--slice-by", "class,stream", text, _slice_by, default=(SliceBy.CLASS,))
    parser.add_argument("--bins", metavar="N", type=number_of("bins", MOST_BINS), default=20)
    add_json(parser)
    add_value(parser, "--report", "F", "HTML file to write: verdict, figures, drift, measures")
    text = "TOML file whose [drift] and, with --ground-truth, [tracker] the started sidecar takes"
    add_value(parser, "--config", "F", text)
    add_drift(parser)
    add_tracking(parser)


def add_drift(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a verb that plays detections to a sidecar which watches for drift."""
    group = parser.add_argument_group("drift")
    usual = group.add_mutually_exclusive_group()
    text = (
        "reference that `calibration-monitor reference` wrote (default: the started sidecar "
        "learns it from what is played)"
    )
    add_value(usual, "--reference", "F", text)
    add_condition(
        usual,
        "--reference-where",
        "learn the reference from the rows of the files whose column has this value, in place of "
        "--where, before anything is played; may be repeated",
    )


def add_tracking(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a verb that plays detections to a tracker."""
    group = parser.add_argument_group("tracking quality")
    text = (
        ".csv or .csv.gz with columns seq, frame, t, class, gt_id and the dimensions, a row "
        "for each labelled object and frame: let the sidecar track, and hold the tracks "
        "against these"
    )
    add_value(group, "--ground-truth", "LABELS", text)
    text = (
        "how far a track may be off in the first two dimensions that move, for all classes "
        "or by class (default 1 for pedestrians, persons and cyclists, else 2)"
    )
    add_value(group, "--match-distance", "D|C=D,C=D", text, _distances)
    group.add_argument(
        "--measurement-noise",
        choices=tuple(MeasurementNoise),
        type=MeasurementNoise,
        help="R of the started tracker: the covariance of the detection, or the identity "
        "(default detection)",
    )
    text = "detections with a lower score begin no track (default: all may)"
    add_value(group, "--birth-score", "S", text, _score)


def _speed(text: str) -> float:
    if text == "max":
        return math.inf
    return checked(text, float, "max, or a positive factor such as 1", lambda value: value > 0)


def _slice_by(text: str) -> tuple[SliceBy, ...]:
    expected = "class, stream or class,stream"
    return checked(text, lambda text: tuple(map(SliceBy, text.split(","))), expected)


def _distances(text: str) -> float | dict[str, float]:
    try:
        if "=" not in text:
            return above_zero(text)
        parts = (part.rpartition("=") for part in text.split(","))
        return {name.strip(): above_zero(value) for name, _, value in parts}
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"'{text}': expected a positive distance, or one by class such as Car=2,Pedestrian=1"
        ) from None


def _score(text: str) -> float:
    return checked(text, float, "a score, such as 2", math.isfinite)


DEMO = """examples:
  calibration-monitor demo --hold
  calibration-monitor demo --duration 30 --speed 2 --seed 3 --output demo.html
  calibration-monitor demo --json > summary.json
  calibration-monitor demo --print-config > sidecar.toml
  calibration-monitor demo --address 127.0.0.1:50051 --forever"""


DEFAULT = 60.0  # s, of a drive that ends
DEFAULT_CYCLE = 120.0  # s, of a drive in cycles
_SHORTEST, _LONGEST = 20.0, 3600.0  # s
_FASTEST = 10.0
N = TypeVar("N", int, float)


def demo(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb `demo`."""
    text = "of the drive (default 4)"
    add_value(parser, "--seed", "N", text, _number(int, 0, 2**32 - 1), default=4)
    default = f"default {DEFAULT:g}; with --forever {DEFAULT_CYCLE:g}, of a cycle"
    text = f"of the drive at least, {_SHORTEST:g} to {_LONGEST:g} seconds ({default})"
    add_value(parser, "--duration", "S", text, _number(float, _SHORTEST, _LONGEST))
    text = f"seconds of the drive in a second, 0.1 to {_FASTEST:g} (default 1)"
    add_value(parser, "--speed", "X", text, _number(float, 0.1, _FASTEST), default=1.0)
    text = "write the report (HTML) here (default: a new file in the folder for temporary files)"
    add_value(parser, "--output", "FILE", text)
    add_json(parser)
    text = "gRPC of a sidecar that runs already, with the settings that --print-config prints"
    add_value(parser, "--address", "H:P", text)
    text = "cycle after cycle until SIGTERM; with --address, a sidecar that is away is waited for"
    add_flag(parser, "--forever", text)
    text = "for which it is waited then, in seconds, before an error (default: for ever)"
    add_value(parser, "--patience", "S", text, seconds, default=math.inf)
    text = "print the configuration of the sidecar (TOML), and do nothing else"
    add_flag(parser, "--print-config", text)
    text = "leave the sidecar and its status page open after the end, until Ctrl-C"
    add_flag(parser, "--hold", text)
    add_access(parser)


def _number(kind: Callable[[str], N], low: float, high: float) -> Callable[[str], N]:
    def read(text: str) -> N:
        expected = f"a number of {low:g} to {high:g}"
        return checked(text, kind, expected, lambda value: low <= value <= high)

    return read
