"""Options of replay that have to do with tracks, and what they ask for."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from monitor.calibration.space import DimensionKind
from monitor.config import TrackerConfig, TrackerKind, load
from monitor.edges.labels import labels_of, read_label_table
from monitor.tracking.labels import Labels
from monitor.tracking.settings import MeasurementNoise
from monitor.verbs.option_values import above_zero
from monitor.verbs.playback import Sequence
from monitor.verbs.toml_section import toml_section

# Which classes are small, by how a word of their name begins, and how far off a match of
# them may be.
_SMALL = re.compile(r"\b(ped|person|cycl)", re.IGNORECASE)
_SMALL_DISTANCE, _DISTANCE = 1.0, 2.0  # m


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What tracks are held against.

    labels          by stream, then by class
    match_distance  by class, in the unit of the stream: no match is farther off
    """

    labels: Mapping[str, Mapping[str, Labels]]
    match_distance: Mapping[str, float]


def add_tracking(parser: argparse.ArgumentParser) -> None:
    """Options of a verb that plays detections to a tracker."""
    group = parser.add_argument_group("tracking quality")
    group.add_argument(
        "--ground-truth",
        metavar="LABELS",
        help=".csv or .csv.gz with columns seq, frame, t, class, gt_id and the dimensions, a row "
        "for each labelled object and frame: let the sidecar track, and hold the tracks "
        "against these",
    )
    group.add_argument(
        "--match-distance",
        metavar="D|C=D,C=D",
        type=_distances,
        help="how far a track may be off in the first two dimensions that move, for all classes "
        "or by class (default 1 for pedestrians, persons and cyclists, else 2)",
    )
    group.add_argument(
        "--measurement-noise",
        choices=tuple(MeasurementNoise),
        type=MeasurementNoise,
        help="R of the started tracker: the covariance of the detection, or the identity "
        "(default detection)",
    )
    group.add_argument(
        "--birth-score",
        metavar="S",
        type=_score,
        help="detections with a lower score begin no track (default: all may)",
    )


def check_tracking(options: argparse.Namespace) -> None:
    """Raises ValueError where options of the tracker have nothing to act on."""
    of_tracker = {
        "--measurement-noise": options.measurement_noise,
        "--birth-score": options.birth_score,
    }
    given = [name for name, value in of_tracker.items() if value is not None]
    if options.address and given:
        raise ValueError(
            f"--address {options.address}: {' and '.join(given)} would be settings of that "
            "sidecar's tracker. Leave them out, or leave --address out."
        )
    given += ["--match-distance"] if options.match_distance is not None else []
    if given and options.ground_truth is None:
        raise ValueError(
            f"{' and '.join(given)}: there is nothing to hold tracks against. "
            "Give --ground-truth LABELS as well."
        )


def tracker_section(options: argparse.Namespace) -> str:
    """[tracker] of the sidecar to be started, as TOML. Raises InvalidConfiguration."""
    base = TrackerConfig() if options.config is None else load(options.config).tracker
    section = base.model_dump(mode="json", exclude_none=True) | {"kind": TrackerKind.EMBEDDED}
    if options.measurement_noise is not None:
        section["measurement_noise"] = options.measurement_noise
    if options.birth_score is not None:
        section["birth_score"] = options.birth_score
    return toml_section("tracker", section)


def read_yardstick(options: argparse.Namespace, files: list[list[Sequence]]) -> Yardstick:
    """Labels for all that is played.

    files   sequences of each file
    raises  RecordingError, ValueError
    """
    spaces = {sequence.header.space for found in files for sequence in found}
    if len(spaces) > 1:
        names = " and ".join(sorted(",".join(space.names) for space in spaces))
        raise ValueError(
            f"--ground-truth: the files have dimensions {names}. "
            "Give --dimensions that all have, or replay them one by one."
        )
    if not any(d.kind is DimensionKind.LENGTH for space in spaces for d in space.dimensions):
        raise ValueError(
            "--ground-truth: without a length among the dimensions no track has a place. "
            "Give --dimensions that say where an object is."
        )
    table = read_label_table(options.ground_truth)
    labels: dict[str, Mapping[str, Labels]] = {}
    for found in files:
        recording = found[0].recording
        if recording.frame is None:
            raise ValueError(
                "--ground-truth: the recording has no column frame, so no frame has labels. "
                "Add it, with the numbers that the labels use."
            )
        by_sequence = labels_of(
            table,
            sequences=recording.sequences,
            classes=recording.classes,
            dimensions=recording.space.names,
        )
        for sequence in found:
            labels[sequence.header.stream] = by_sequence[sequence.name]
    classes = tuple(dict.fromkeys(name for found in files for name in found[0].recording.classes))
    return Yardstick(labels, _match_distances(options.match_distance, classes))


def _match_distances(
    asked: float | dict[str, float] | None, classes: tuple[str, ...]
) -> dict[str, float]:
    if isinstance(asked, float):
        return dict.fromkeys(classes, asked)
    by_class = asked or {}
    unknown = [name for name in by_class if name not in classes]
    if unknown:
        raise ValueError(
            f"--match-distance: there is no class {unknown[0]!r}. "
            f"Classes there are: {', '.join(classes)}."
        )
    usual = {
        name: _SMALL_DISTANCE if _SMALL.search(name.replace("_", " ")) else _DISTANCE
        for name in classes
    }
    return usual | by_class


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
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"'{text}': expected a score, such as 2")
    return value
