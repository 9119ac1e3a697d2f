"""The Python API of offline work: evaluate, fit and apply on files, DataFrames or arrays.

`from monitor import evaluate, fit, apply, load_recalibrator`. The functions do what the verbs of
the same name do, and return values in place of text. They are imported when they are asked for.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import html
import json
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import BadZipFile

import numpy as np

from monitor.commands import evaluate as evaluate_verb
from monitor.commands import fit as fit_verb
from monitor.commands.apply import (
    check_changes,
    document_of,
    read_model,
    recalibrate_gaussians,
    refuse_twice,
    remarks_on,
    stated,
)
from monitor.commands.evaluate.measuring import measured
from monitor.commands.evaluation_tables import summary, verdict_lines
from monitor.commands.held_out import HeldOut, told
from monitor.commands.output import write_output
from monitor.commands.pages.file_report import stages_by_group
from monitor.commands.pages.report_page import notebook
from monitor.commands.recordings import read_selected
from monitor.frames.space import BoolArray, FloatArray
from monitor.frames.words import Axes, DistanceKind, SliceBy
from monitor.options import recorded
from monitor.options.rows import gates_of
from monitor.options.values import names_of
from monitor.recalibration.fitting import FITTINGS
from monitor.recalibration.selection import Selection
from monitor.statistics.measures import Evaluation, as_json
from monitor.statistics.residuals import GroupErrors
from monitor.statistics.verdicts import Verdict
from monitor.store.recordings import RECALIBRATED
from monitor.store.stored_arrays import AnyArray
from monitor.store.tables import RecordingError

# A path, a DataFrame (pandas, polars, pyarrow), or arrays by name, as docs/files.md names them.
Detections: TypeAlias = Any

# One name, or several.
Names: TypeAlias = str | Sequence[str] | None

# Names for names, as a dictionary or as OURS=THEIRS,….
Pairs: TypeAlias = Mapping[str, str] | str | None


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The calibration of recorded detections.

    verdicts  by group and dimension, the gravest first
    whole     measures of all rows that have a covariance; None where none has one
    groups    the same by group; one named "" where rows are not divided
    errors    by group, of rows without a covariance: bias, RMSE, tails, covariance
    notes     what looked wrong or was not used; a warning, too, where there is something to do
    """

    verdicts: tuple[Verdict, ...]
    whole: Evaluation | None
    groups: Mapping[str, Evaluation]
    errors: tuple[GroupErrors, ...]
    notes: tuple[str, ...]
    _document: Mapping[str, object]
    _figures: Callable[[], str] = str

    def to_dict(self) -> dict[str, object]:
        """Builds what `calibration-monitor evaluate --json` prints."""
        return dict(self._document)

    def table(self) -> list[dict[str, object]]:
        """Lists a row for each group and dimension: the verdict and the measures, to make a
        DataFrame of; of rows without a covariance, the measures of their errors.
        """
        rows: list[dict[str, object]] = [
            {"group": found.group, "dimension": one.dimension, "rows": found.rows} | one.as_json()
            for found in self.errors
            for one in found.dimensions
        ]
        for verdict in self.verdicts:
            measures = as_json(self.groups[verdict.group])["dimensions"]
            assert isinstance(measures, dict)
            numbers = {
                name: value
                for name, value in measures[verdict.dimension].items()
                if isinstance(value, int | float)
            }
            rows.append(numbers | verdict.as_json())
        return rows

    def __str__(self) -> str:
        parts = [words for found in self.errors for words in found.sentences]
        if self.whole is not None:
            said = verdict_lines(self.verdicts, full=True), summary(self.groups, self.verdicts)
            parts += ["\n\n".join(said)]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        return _as_html(self.verdicts, str(self), self._figures())


@dataclass(frozen=True, slots=True)
class Recalibrator:
    """A fitted recalibrator of Gaussians.

    held_out  what it does to tracks that it has not seen, by slice; empty where that is not known
    remarks   on slices that lean on others, and on rows that were not used
    """

    selection: Selection
    held_out: tuple[HeldOut, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """Names the method and what was fitted."""
        return self.selection.version

    def save(self, path: str | Path) -> None:
        """Writes the document that `serve`, `apply` and load_recalibrator read.

        Raises CannotWrite.
        """
        write_output(str(path), document_of(self.selection))

    def to_dict(self) -> dict[str, object]:
        """Builds the version, the remarks, the judgement on held-out tracks and, as document, all
        that was fitted.
        """
        return {
            "version": self.version,
            "remarks": list(self.remarks),
            "held_out": [one.as_json() for one in self.held_out],
            "document": json.loads(document_of(self.selection)),
        }

    def __str__(self) -> str:
        judged = [_as_arguments(told(self.held_out))] if self.held_out else []
        return "\n".join([*self.remarks, *judged, self.version])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


@dataclass(frozen=True, slots=True)
class Recalibrated:
    """Recalibrated Gaussians of N detections in K dimensions.

    dimensions  names
    mean        (N, K); rows that cannot be recalibrated stay as they are
    covariance  (N, K, K); NaN of rows that have none, and are given none
    rejected    (N,) too uncertain; None if the recalibrator rejects none
    version     of the recalibrator
    """

    dimensions: tuple[str, ...]
    mean: FloatArray
    covariance: FloatArray
    rejected: BoolArray | None
    version: str

    def columns(self) -> dict[str, AnyArray]:
        """Lists means, variances, covariances and the version by the names of docs/files.md: for a
        DataFrame of these rows, `frame.assign(**made.columns())`.
        """
        found: dict[str, AnyArray] = {
            name: self.mean[:, i] for i, name in enumerate(self.dimensions)
        }
        for i, name in enumerate(self.dimensions):
            found[f"var_{name}"] = self.covariance[:, i, i]
            for j, other in enumerate(self.dimensions[:i]):
                if np.nan_to_num(self.covariance[:, i, j]).any():
                    found[f"cov_{other}_{name}"] = self.covariance[:, i, j]
        found[RECALIBRATED] = np.full(len(self.mean), self.version)
        return found


def evaluate(
    detections: Detections,
    *,
    labels: Detections = None,
    by: Names = None,
    dimensions: Names = None,
    angles: Names = None,
    classes: Names = None,
    names: Pairs = None,
    label_names: Pairs = None,
    assume_std: Mapping[str, float] | str | None = None,
    gate: float | Mapping[str, float] | str | None = None,
    distance: str | None = None,
    label_gap: float | None = None,
    class_map: Pairs = None,
    model: Recalibrator | None = None,
    bins: int = 20,
) -> Evaluated:
    """Judges and measures the calibration of recorded detections.

    detections   path of a file, DataFrame, or arrays by name (docs/files.md)
    labels       the same of labels that are not in the detections; they are matched
    by           some of "class", "range", "stream" and columns to give verdicts for; None: class
    dimensions, angles, classes  which to use; None: all, and as angles those of docs/files.md
    names        names of this project → names in the data; label_names for labels. These and
                 other dictionaries may be texts as on the command line: "var_x=x_variance"
    assume_std   standard deviations where there are no variances, in the unit of the dimension;
                 None: 1, and then errors are measured in place of calibration
    gate         largest distance of a match, for all or by class
    distance     how it is measured: "centre" (the default), "bev-iou", "image-iou", "mahalanobis"
    label_gap    most seconds between two labels that are interpolated, as --label-gap
    class_map    class names of the labels → those of the detections
    model        recalibrator to apply first
    bins         reliability bins of equal count
    raises       RecordingError, EvaluationError, InvalidRecalibrator, ValueError; they name what
                 is wrong and what to do
    """
    options = _options(recorded.evaluate, ["-"])
    for name, default in options.defaults.items():
        setattr(options, name, default)
    options.by, options.bins = _several(by), bins
    _select(options, dimensions, angles, classes, names, assume_std)
    _match(options, labels, gate, distance, label_gap, class_map, label_names)
    options.file = _data(detections)
    if bins < 1:
        raise ValueError(f"bins {bins}: give 1 or more.")
    selection = None if model is None else model.selection
    with _in_terms_of_arguments() as notes:
        found = measured(options, selection, notes.append)
        if found.usable.refused:
            notes.append(f"{found.usable.told()}. {found.usable.remedy(found.recording)}")
    remarks = notes[: len(found.remarks)]
    document = evaluate_verb.document(found, None, None, selection) | {"remarks": remarks}
    figures = functools.partial(notebook, stages_by_group(found.groups, {}, found.recording))
    errors = found.bare.every if found.bare else ()
    measures = found.whole, found.groups, errors
    return Evaluated(found.verdicts, *measures, tuple(notes), document, figures)


def fit(
    detections: Detections,
    *,
    method: str | None = None,
    by: Names = None,
    labels: Detections = None,
    dimensions: Names = None,
    angles: Names = None,
    classes: Names = None,
    names: Pairs = None,
    label_names: Pairs = None,
    assume_std: Mapping[str, float] | str | None = None,
    gate: float | Mapping[str, float] | str | None = None,
    distance: str | None = None,
    label_gap: float | None = None,
    class_map: Pairs = None,
    fewest_tracks: float | None = None,
    correct_mean: bool = False,
    proven_only: bool = False,
    held_out: bool = True,
    axes: str | None = None,
    replace: bool = False,
) -> Recalibrator:
    """Fits a recalibrator of Gaussians, and judges it on tracks that it has not seen.

    method    of docs/recalibration.md, one of those for Gaussians; None: covariance-scaling, or
              covariance-regression where no row has a covariance
    by        some of "class", "stream", "range", or the data's own names of the first two: a
              recalibrator for each slice
    fewest_tracks  tracks below which a slice of `by` leans on the wider one; None: 30
    correct_mean   add the mean error to means first, where chance does not explain it
    proven_only    leave slices as the detector reports them unless the fit is worth it on tracks
                   that it has not seen
    held_out  whether it is judged; the rest as in evaluate
    axes      of errors, for methods that estimate covariances: "plain", "sensor" or "object"
    replace   whether such a method replaces what was sent, too, or only fills in what is missing
    raises    RecordingError, UnfitData, InvalidRecalibrator, ValueError
    """
    if method is not None and method not in FITTINGS:
        raise ValueError(f"method {method!r}: use one of {', '.join(FITTINGS)}.")
    names = _mapping(names)
    meant = {theirs: ours for ours, theirs in (names or {}).items()}
    parts = [meant.get(part, part) for part in _several(by) or ()]
    # The stream of a recorded row is its sequence.
    parts = [str(SliceBy.STREAM) if part == "seq" else part for part in parts]
    unknown = [part for part in parts if part not in tuple(SliceBy)]
    if unknown:
        raise ValueError(
            f"by {unknown[0]!r}: use some of {', '.join(SliceBy)}, which a recalibrator can tell "
            f"in a vehicle. If it is the column of one, give names={{'class': {unknown[0]!r}}} or "
            f"names={{'seq': {unknown[0]!r}}}, too."
        )
    if axes is not None and axes not in tuple(Axes):
        raise ValueError(f"axes {axes!r}: use one of {', '.join(Axes)}.")
    options = _options(recorded.fit, ["-", "--output", "-"])
    options.method, options.replace = method, replace
    options.axes = None if axes is None else Axes(axes)
    options.by = tuple(map(SliceBy, parts)) or None
    _select(options, dimensions, angles, classes, names, assume_std)
    _match(options, labels, gate, distance, label_gap, class_map, label_names)
    if fewest_tracks is not None and not 0 < fewest_tracks < math.inf:
        raise ValueError(f"fewest_tracks {fewest_tracks}: give a number above 0.")
    options.fewest_tracks, options.proven_only = fewest_tracks, proven_only
    options.correct_mean = correct_mean or None
    options.file, options.no_held_out = _data(detections), not held_out
    with _in_terms_of_arguments() as notes:
        recording = fit_verb.read_to_fit(options, notes.append)
        fit_verb.check(options)
        selection, _, remarks, judged = fit_verb.fit_gaussians(options, recording, notes.append)
    assert isinstance(selection, Selection)
    return Recalibrator(selection, judged, (*notes, *map(_as_arguments, remarks)))


def apply(
    recalibrator: Recalibrator, detections: Detections, *, again: bool = False, **selection: Any
) -> Recalibrated:
    """Recalibrates detections, with ground truth or without.

    again      correct detections that were recalibrated before once more
    selection  dimensions, angles, classes, names and assume_std as in evaluate
    raises     RecordingError, InvalidRecalibrator, ValueError
    """
    options = _options(recorded.evaluate, ["-"])
    keys = ("dimensions", "angles", "classes", "names", "assume_std")
    unknown = [name for name in selection if name not in keys]
    if unknown:
        raise TypeError(f"apply takes {', '.join(keys)}, and not {unknown[0]!r}.")
    _select(options, *(selection.get(name) for name in keys))
    with _in_terms_of_arguments() as notes:
        dimensions = recalibrator.selection.dimensions
        data = _data(detections)
        recording = read_selected(data, options, tell=notes.append, fitted=dimensions)
        refuse_twice(recording.others, again=again)
        model = recalibrator.selection
        made = recalibrate_gaussians(model, stated(model, recording, options))
        check_changes(made)
        notes += remarks_on(made)
    return Recalibrated(
        recording.space.names,
        made.recording.mean,
        np.where(made.recording.assumed[:, None, None], np.nan, made.recording.covariance),
        made.rejected,
        recalibrator.version,
    )


def load_recalibrator(path: str | Path) -> Recalibrator:
    """Reads a recalibrator of Gaussians that `fit` wrote. Raises InvalidRecalibrator."""
    return Recalibrator(read_model(str(path)))


def _options(
    add: Callable[[argparse.ArgumentParser], None], words: list[str]
) -> argparse.Namespace:
    """Makes the options of a verb at their defaults."""
    parser = argparse.ArgumentParser()
    add(parser)
    return parser.parse_args(words)


def _select(
    options: argparse.Namespace,
    dimensions: Names,
    angles: Names,
    classes: Names,
    names: Pairs,
    assume_std: Mapping[str, float] | str | None,
) -> None:
    options.dimensions = _several(dimensions)
    options.angles = _several(angles)
    options.classes = _several(classes)
    options.map = _mapping(names)
    spread = _mapping(assume_std)
    options.assume_std = None if spread is None else {k: float(v) for k, v in spread.items()}


def _several(names: Names) -> tuple[str, ...] | None:
    if names is None:
        return None
    return (names,) if isinstance(names, str) else tuple(names)


def _mapping(given: Mapping[str, Any] | str | None) -> dict[str, Any] | None:
    """Takes a dictionary, or a text as on the command line. Raises ValueError."""
    if not isinstance(given, str):
        return None if given is None else dict(given)
    try:
        return dict(names_of(given))
    except argparse.ArgumentTypeError as error:
        raise ValueError(str(error)) from None


_ARGUMENTS = {
    "--labels FILE": "labels",
    "--label-map": "label_names",
    "--label-gap": "label_gap",
    "--label-format": "format",
    "--format": "format",
    "--distance": "distance",
    "--class-map": "class_map",
    "--map": "names",
    "--labels": "labels",
    "--gate": "gate",
    "--assume-std": "assume_std",
    "--dimensions": "dimensions",
    "--angles": "angles",
    "--class": "classes",
    "--by": "by",
    "--fewest-tracks": "fewest_tracks",
    "--proven-only": "proven_only",
    "--replace": "replace=True",
    "--method ": "method=",
    "--no-held-out": "held_out=False",
    "--again": "again=True",
}


# Options that become dictionaries, with their values; and one that becomes a tuple.
_OF_PAIRS = re.compile(
    r"(--map|--label-map|--class-map|--assume-std|--gate) "
    r"('[^']*=[^']*'|[^\s=,']+=[^\s=,']+(?:,[^\s=,']+=[^\s=,']+)*)"
)
_OF_NAMES = re.compile(r"(--angles) (''|[^\s']+)")
_OF_A_NUMBER = re.compile(r"(--gate|--label-gap|--fewest-tracks) (?=\d)")


def _as_dictionary(found: re.Match[str]) -> str:
    option, text = found[1], found[2].strip("'")
    pairs = text.rstrip(".:;)")
    values: dict[str, Any] = dict(part.split("=", 1) for part in pairs.split(",") if "=" in part)
    if option in ("--assume-std", "--gate"):
        with contextlib.suppress(ValueError):
            values = {name: float(value) for name, value in values.items()}
    return f"{option}={values}{text[len(pairs) :]}"


def _as_tuple(found: re.Match[str]) -> str:
    names = tuple(filter(None, found[2].strip("'").split(",")))
    return f"{found[1]}={names}"


def _as_arguments(words: str) -> str:
    """Writes arguments in place of options: their names, and values that can be pasted."""
    words = _OF_NAMES.sub(_as_tuple, _OF_PAIRS.sub(_as_dictionary, words))
    words = _OF_A_NUMBER.sub(r"\1=", words)
    for option, argument in _ARGUMENTS.items():
        words = words.replace(option, argument)
    return words


# Lines on columns that nobody uses, and on what became of labels, without a sentence on what to do.
_NOTHING_TO_DO = re.compile(r".*: not used: [^.]*|.* detections without a label")


@contextlib.contextmanager
def _in_terms_of_arguments() -> Iterator[list[str]]:
    """Yields a list for notes, which become warnings at the end unless nothing is to be done.

    Notes, and errors of the work in between, name arguments in place of options.
    """
    notes: list[str] = []
    try:
        yield notes
    except ValueError as error:
        raise type(error)(_as_arguments(str(error))) from None
    notes[:] = map(_as_arguments, notes)
    for words in notes:
        if _NOTHING_TO_DO.fullmatch(words):
            continue
        # Past this generator, the end of its context and the function of the API.
        warnings.warn(words, UserWarning, stacklevel=4)


def _match(
    options: argparse.Namespace,
    labels: Detections,
    gate: float | Mapping[str, float] | str | None,
    distance: str | None,
    label_gap: float | None,
    class_map: Pairs,
    label_names: Pairs,
) -> None:
    options.labels = None if labels is None else _data(labels)
    options.gate = _gates(gate)
    if distance is not None and distance not in tuple(DistanceKind):
        raise ValueError(f"distance {distance!r}: use one of {', '.join(DistanceKind)}.")
    options.distance = None if distance is None else DistanceKind(distance)
    if label_gap is not None and not 0 <= label_gap < math.inf:
        raise ValueError(f"label_gap {label_gap}: give seconds, from 0 on.")
    options.label_gap = label_gap
    options.class_map, options.label_map = _mapping(class_map), _mapping(label_names)


def _gates(gate: float | Mapping[str, float] | str | None) -> dict[str, float] | None:
    """Takes gates by class, the name '' for all. Raises ValueError."""
    if gate is None:
        return None
    try:
        if isinstance(gate, Mapping):
            return {name: gates_of(str(one))[""] for name, one in gate.items()}
        return gates_of(str(gate))
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"gate {error}") from None


def _data(data: Detections) -> str | dict[str, Any]:
    """Takes a path as it is, and a table as arrays by name. Raises RecordingError."""
    if isinstance(data, str | Path):
        path, there = str(data), set[str]()
        with contextlib.suppress(OSError, ValueError, BadZipFile):
            if path.endswith(".npz"):
                with np.load(path) as archive:
                    there = set(archive.files)
        _refuse_classes(path, there)
        return path
    if hasattr(data, "collect") and not hasattr(data, "__len__"):
        data = data.collect()  # a LazyFrame of polars
    if isinstance(data, Mapping):
        _refuse_classes("detections", data.keys())
        return {str(name): np.asarray(values) for name, values in data.items()}
    names = getattr(data, "column_names", None) or getattr(data, "columns", None)
    if names is None:
        raise RecordingError(
            f"detections: {type(data).__name__} has no columns. Give a path, a DataFrame, or "
            "arrays by name (docs/files.md)."
        )
    return {str(name): np.asarray(data[name]) for name in names}


def _refuse_classes(name: str, there: Collection[str]) -> None:
    if ("prob" in there or "logits" in there) and "mean" not in there:
        raise RecordingError(
            f"{name}: class probabilities are read from .npz files, by the command line."
        )


_COLOURS = {"overconfident": "#b3261e", "underconfident": "#8a5a00", "calibrated": "#1b6e3c"}


def _as_html(verdicts: tuple[Verdict, ...], text: str, figures: str) -> str:
    """Writes verdicts for a notebook, with figures, and all measures behind a fold."""
    lines = "".join(
        f'<li style="color:{_COLOURS.get(verdict.finding, "inherit")}">'
        f"{html.escape(verdict.sentence)}</li>"
        for verdict in verdicts
    )
    return (
        f"<ul>{lines}</ul>{figures}<details><summary>measures</summary>"
        f"<pre>{html.escape(text)}</pre></details>"
    )
