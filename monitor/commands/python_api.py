"""The Python API of offline work: evaluate, fit and apply on files, DataFrames or arrays.

`from monitor import evaluate, fit, apply, load_recalibrator`. The functions do what the verbs of
the same name do, and return values in place of text. They are imported when they are asked for.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from monitor.commands import evaluate as evaluate_verb
from monitor.commands import fit as fit_verb
from monitor.commands.apply import document_of, read_model, recalibrate_gaussians, remarks_on
from monitor.commands.evaluation_tables import summary, verdict_lines
from monitor.commands.held_out import HeldOut, told
from monitor.commands.options import write_output
from monitor.commands.recordings import read_selected
from monitor.frames.slices import SliceBy
from monitor.frames.space import BoolArray, FloatArray
from monitor.recalibration.fitting import FITTINGS
from monitor.recalibration.selection import Selection
from monitor.statistics.measures import Evaluation, as_json
from monitor.statistics.verdicts import Verdict
from monitor.store.tables import RecordingError

# A path, a DataFrame (pandas, polars, pyarrow), or arrays by name, as docs/files.md names them.
Detections: TypeAlias = Any

# One name, or several.
Names: TypeAlias = str | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The calibration of recorded detections.

    verdicts  by group and dimension
    whole     measures of all rows
    groups    the same by group; one named "" where rows are not divided
    notes     what looked wrong or was not used; each is a warning, too
    """

    verdicts: tuple[Verdict, ...]
    whole: Evaluation
    groups: Mapping[str, Evaluation]
    notes: tuple[str, ...]
    _document: Mapping[str, object]

    def to_dict(self) -> dict[str, object]:
        """Builds what `calibration-monitor evaluate --json` prints."""
        return dict(self._document)

    def table(self) -> list[dict[str, object]]:
        """Lists a row for each group and dimension: the verdict and the measures, to make a
        DataFrame of.
        """
        rows = []
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
        return (
            verdict_lines(self.verdicts, full=True) + "\n\n" + summary(self.groups, self.verdicts)
        )

    def _repr_html_(self) -> str:
        return _as_html(self.verdicts, str(self))


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
        """Builds the version, the remarks and the judgement on held-out tracks."""
        return {
            "version": self.version,
            "remarks": list(self.remarks),
            "held_out": [one.as_json() for one in self.held_out],
        }

    def __str__(self) -> str:
        judged = [told(self.held_out, False)] if self.held_out else []
        return "\n".join([*self.remarks, *judged, self.version])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


@dataclass(frozen=True, slots=True)
class Recalibrated:
    """Recalibrated Gaussians of N detections in K dimensions.

    dimensions  names
    mean        (N, K); rows that cannot be recalibrated stay as they are
    covariance  (N, K, K)
    rejected    (N,) too uncertain; None if the recalibrator rejects none
    """

    dimensions: tuple[str, ...]
    mean: FloatArray
    covariance: FloatArray
    rejected: BoolArray | None


def evaluate(
    detections: Detections,
    *,
    labels: Detections = None,
    by: str | None = None,
    dimensions: Names = None,
    angles: Names = None,
    classes: Names = None,
    names: Mapping[str, str] | None = None,
    label_names: Mapping[str, str] | None = None,
    assume_std: Mapping[str, float] | None = None,
    gate: float | Mapping[str, float] | None = None,
    class_map: Mapping[str, str] | None = None,
    model: Recalibrator | None = None,
    bins: int = 20,
) -> Evaluated:
    """Judges and measures the calibration of recorded detections.

    detections   path of a file, DataFrame, or arrays by name (docs/files.md)
    labels       the same of labels that are not in the detections; they are matched
    by           "class", "range", "stream" or a column to give verdicts for; None: class
    dimensions, angles, classes  which to use; None: all, and yaw and heading as angles
    names        names of this project → names in the data; label_names for labels
    assume_std   standard deviations of dimensions without variances, in their unit
    gate         largest distance of a match, for all or by class
    class_map    class names of the labels → those of the detections
    model        recalibrator to apply first
    bins         reliability bins of equal count
    raises       RecordingError, EvaluationError, InvalidRecalibrator, ValueError; they name what
                 is wrong and what to do
    """
    options = _options(evaluate_verb.add_options, ["-"])
    for name, default in options.defaults.items():
        setattr(options, name, default)
    options.by, options.bins = by, bins
    _select(options, dimensions, angles, classes, names, assume_std)
    _match(options, labels, gate, class_map, label_names)
    options.file = _data(detections)
    if bins < 1:
        raise ValueError(f"bins {bins}: give 1 or more.")
    selection = None if model is None else model.selection
    with _in_terms_of_arguments() as notes:
        found = evaluate_verb.measured(options, selection, notes.append)
    document = evaluate_verb.document(found, None, selection)
    return Evaluated(found.verdicts, found.whole, found.groups, tuple(notes), document)


def fit(
    detections: Detections,
    *,
    method: str = "covariance-scaling",
    by: Names = None,
    labels: Detections = None,
    dimensions: Names = None,
    angles: Names = None,
    classes: Names = None,
    names: Mapping[str, str] | None = None,
    label_names: Mapping[str, str] | None = None,
    assume_std: Mapping[str, float] | None = None,
    gate: float | Mapping[str, float] | None = None,
    class_map: Mapping[str, str] | None = None,
    held_out: bool = True,
) -> Recalibrator:
    """Fits a recalibrator of Gaussians, and judges it on tracks that it has not seen.

    method    of docs/recalibration.md, one of those for Gaussians
    by        some of "class", "stream", "range": a recalibrator for each slice
    held_out  whether it is judged; the rest as in evaluate
    raises    RecordingError, UnfitData, InvalidRecalibrator, ValueError
    """
    if method not in FITTINGS:
        raise ValueError(f"method {method!r}: use one of {', '.join(FITTINGS)}.")
    parts = _several(by) or ()
    unknown = [part for part in parts if part not in tuple(SliceBy)]
    if unknown:
        raise ValueError(f"by {unknown[0]!r}: use some of {', '.join(SliceBy)}.")
    words = ["-", "--output", "-", "--method", method]
    options = _options(fit_verb.add_options, words)
    options.by = tuple(map(SliceBy, parts)) or None
    _select(options, dimensions, angles, classes, names, assume_std)
    _match(options, labels, gate, class_map, label_names)
    options.file, options.no_held_out = _data(detections), not held_out
    with _in_terms_of_arguments() as notes:
        selection, _, remarks, judged = fit_verb.fit_gaussians(options, notes.append)
    assert isinstance(selection, Selection)
    return Recalibrator(selection, judged, (*notes, *remarks))


def apply(recalibrator: Recalibrator, detections: Detections, **selection: Any) -> Recalibrated:
    """Recalibrates detections, with ground truth or without.

    selection  dimensions, angles, classes, names and assume_std as in evaluate
    raises     RecordingError, InvalidRecalibrator
    """
    options = _options(evaluate_verb.add_options, ["-"])
    keys = ("dimensions", "angles", "classes", "names", "assume_std")
    unknown = [name for name in selection if name not in keys]
    if unknown:
        raise TypeError(f"apply takes {', '.join(keys)}, and not {unknown[0]!r}.")
    _select(options, *(selection.get(name) for name in keys))
    with _in_terms_of_arguments() as notes:
        recording = read_selected(_data(detections), options, tell=notes.append)
        made = recalibrate_gaussians(recalibrator.selection, recording)
        notes += remarks_on(made)
    return Recalibrated(
        recording.space.names, made.recording.mean, made.recording.covariance, made.rejected
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
    names: Mapping[str, str] | None,
    assume_std: Mapping[str, float] | None,
) -> None:
    options.dimensions = _several(dimensions)
    options.angles = _several(angles)
    options.classes = _several(classes)
    options.map = None if names is None else dict(names)
    options.assume_std = None if assume_std is None else dict(assume_std)


def _several(names: Names) -> tuple[str, ...] | None:
    if names is None:
        return None
    return (names,) if isinstance(names, str) else tuple(names)


_ARGUMENTS = {
    "--label-map": "label_names",
    "--class-map": "class_map",
    "--map": "names",
    "--labels": "labels",
    "--gate": "gate",
    "--assume-std": "assume_std",
    "--dimensions": "dimensions",
    "--angles": "angles",
    "--class": "classes",
    "--by": "by",
}


# Options whose value is a mapping, with one.
_PAIRS = re.compile(r"(--(?:label-map|class-map|map|gate|assume-std)) ([^\s,:=]+=\S*[^\s.,:;?])")


def _as_mapping(found: re.Match[str]) -> str:
    pairs = dict(pair.split("=", 1) for pair in found[2].split(",") if "=" in pair)
    numbers = found[1] in ("--gate", "--assume-std")
    written = (f"{ours!r}: {theirs if numbers else repr(theirs)}" for ours, theirs in pairs.items())
    return f"{_ARGUMENTS[found[1]]}={{{', '.join(written)}}}"


def _as_arguments(words: str) -> str:
    """Writes arguments in place of options: names={'t': 'time'} in place of --map t=time."""
    words = _PAIRS.sub(_as_mapping, words)
    for option, argument in _ARGUMENTS.items():
        words = words.replace(option, argument)
    return words


@contextlib.contextmanager
def _in_terms_of_arguments() -> Iterator[list[str]]:
    """Yields a list for notes, which become warnings at the end.

    Notes, and errors of the work in between, name arguments in place of options.
    """
    notes: list[str] = []
    try:
        yield notes
    except ValueError as error:
        raise type(error)(_as_arguments(str(error))) from None
    notes[:] = map(_as_arguments, notes)
    for words in notes:
        # Past this generator, the end of its context and the function of the API.
        warnings.warn(words, UserWarning, stacklevel=4)


def _match(
    options: argparse.Namespace,
    labels: Detections,
    gate: float | Mapping[str, float] | None,
    class_map: Mapping[str, str] | None,
    label_names: Mapping[str, str] | None,
) -> None:
    options.labels = None if labels is None else _data(labels)
    by_class = gate is None or isinstance(gate, Mapping)
    options.gate = gate if by_class else {"": float(cast(float, gate))}
    options.class_map = None if class_map is None else dict(class_map)
    options.label_map = None if label_names is None else dict(label_names)


def _data(data: Detections) -> str | dict[str, Any]:
    """Takes a path as it is, and a table as arrays by name. Raises RecordingError."""
    if isinstance(data, str | Path):
        return str(data)
    if isinstance(data, Mapping):
        if {"prob", "logits"} & data.keys() and "mean" not in data:
            raise RecordingError(
                "detections: class probabilities are read from .npz files, by the command line."
            )
        return {str(name): np.asarray(values) for name, values in data.items()}
    names = getattr(data, "column_names", None) or getattr(data, "columns", None)
    if names is None:
        raise RecordingError(
            f"detections: {type(data).__name__} has no columns. Give a path, a DataFrame, or "
            "arrays by name (docs/files.md)."
        )
    return {str(name): np.asarray(data[name]) for name in names}


_COLOURS = {"overconfident": "#b3261e", "underconfident": "#8a5a00", "calibrated": "#1b6e3c"}


def _as_html(verdicts: tuple[Verdict, ...], text: str) -> str:
    """Writes verdicts for a notebook, with all measures behind a fold."""
    lines = "".join(
        f'<li style="color:{_COLOURS.get(verdict.finding, "inherit")}">'
        f"{html.escape(verdict.sentence)}</li>"
        for verdict in verdicts
    )
    return (
        f"<ul>{lines}</ul><details><summary>measures</summary>"
        f"<pre>{html.escape(text)}</pre></details>"
    )
