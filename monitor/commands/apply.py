"""calibration-monitor apply: recalibrates a recorded file by a recalibrator from another file.

Nothing is fitted here. Which rows of a file are recalibrated is chosen in `recordings`.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from monitor.commands.output import output_file, tell, to_standard_error
from monitor.commands.recordings import (
    as_stated,
    chains_of,
    estimates_of,
    read_selected,
    refuse_options_of_gaussians,
)
from monitor.commands.soundness import sound_rows
from monitor.frames.classes import are_probabilities
from monitor.frames.detections import Estimates
from monitor.frames.slices import NO_COVARIANCE, Chain
from monitor.frames.space import BoolArray, FloatArray, IntArray, Space
from monitor.recalibration.class_probabilities import from_logits, from_probabilities
from monitor.recalibration.processes.cauchy import GpCauchy
from monitor.recalibration.recalibrator import (
    Identity,
    InvalidRecalibrator,
    Output,
    Recalibrator,
    UnfitData,
    weakest,
)
from monitor.recalibration.rejection import normalised_entropy
from monitor.recalibration.selection import AnySelection, ClassSelection, Selection
from monitor.statistics.exact_engine import OwnDistributions, generalised_deviation
from monitor.statistics.measures import TAU, Marginals
from monitor.store.class_recordings import ClassRecording, read_class_recording, write_classes
from monitor.store.recordings import (
    RECALIBRATED,
    Quantiles,
    Recording,
    write_columns,
    write_estimates,
)
from monitor.store.tables import SUFFIXES


def read_any_model(path: str) -> AnySelection:
    """Reads a recalibrator that `fit` wrote, of Gaussians or of class probabilities.

    Raises InvalidRecalibrator.
    """
    if path.endswith((".npz", ".parquet", *SUFFIXES)):
        raise InvalidRecalibrator(
            f"{path} holds detections, and no recalibrator. Give the document that fit wrote."
        )
    try:
        return _checked(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or "it is no text"
        raise InvalidRecalibrator(
            f"cannot read the recalibrator {path}: {why}. Give the document that fit wrote."
        ) from None
    except InvalidRecalibrator as error:
        raise InvalidRecalibrator(f"{path}: {error}") from None


def document_of(model: AnySelection) -> str:
    """Writes the text that a file of the model holds.

    Raises UnfitData where it would be unreadable: names or values that came of the data.
    """
    text = model.to_json()
    try:
        _checked(text)
    except InvalidRecalibrator as error:
        raise UnfitData(
            f"what was fitted makes no model that can be read again: {error} Correct the names in "
            "the file, or use more or other rows."
        ) from None
    return text


def _checked(text: str) -> AnySelection:
    """Reads a document. Raises InvalidRecalibrator."""
    # With pydantic, which takes longer than to measure a file: it comes with the first document.
    from monitor.store.documents import any_selection_from_json

    return any_selection_from_json(text)


def read_model(path: str) -> Selection:
    """Reads a recalibrator of Gaussians. Raises InvalidRecalibrator."""
    model = read_any_model(path)
    if isinstance(model, ClassSelection):
        raise InvalidRecalibrator(
            f"{path} recalibrates class probabilities ({model.method}), not Gaussians: give a "
            "model that was fitted by a method of Gaussians, such as variance-scaling."
        )
    return model


def check_kind(model: AnySelection, path: str, file: str, recording: ClassRecording | None) -> None:
    """Refuses a model that finds nothing in a file to recalibrate.

    path, file  of the model and of the recording, as they were given
    recording   the file's class probabilities, None where there are none to look at
    raises      InvalidRecalibrator
    """
    if isinstance(model, ClassSelection) and recording is None:
        raise InvalidRecalibrator(
            f"{path} recalibrates class probabilities ({model.method}), and none of {file} are "
            "looked at. Give a file with prob or logits, without --class and --where, or a model "
            "of Gaussians."
        )
    if isinstance(model, Selection) and recording is not None and not recording.gaussians:
        raise InvalidRecalibrator(
            f"{path} recalibrates Gaussians ({model.method}), and {file} has class probabilities "
            "only. Give a model of class probabilities."
        )


def check_dimensions(selection: Selection, space: Space) -> None:
    """Raises InvalidRecalibrator unless it was fitted on the dimensions a file is read with."""
    if selection.fits(space):
        return
    wanted = ",".join(selection.dimensions)
    remedy = f"give --dimensions {wanted}"
    if not set(selection.dimensions) <= set(space.names):
        remedy += ", if the file has them all; or fit a recalibrator to these"
    raise InvalidRecalibrator(
        f"the recalibrator was fitted on dimensions {wanted} but the file is read with "
        f"{','.join(space.names)}: {remedy}."
    )


def refuse_twice(names: Collection[str], *, again: bool) -> None:
    """Raises ValueError where `apply` has made the file with these columns, unless it is asked for
    again.
    """
    if RECALIBRATED in names and not again:
        raise ValueError(
            f"the file was recalibrated before (it has the column '{RECALIBRATED}'), and a second "
            "time would correct it twice: nothing is written. Give the file as the detector "
            "reported it, or --again if twice is meant."
        )


def remarks_on(made: RecalibratedRecording) -> list[str]:
    """Remarks on a recalibration that may not be what was meant."""
    selection, recording, found = made.selection, made.recording, []
    if RECALIBRATED in recording.others:
        found.append("the file was recalibrated before, and is corrected twice now")
    plain = {name for name in selection.by_slice if not name.endswith(NO_COVARIANCE)}
    sent = made.usable & ~made.assumed
    if plain:
        served = np.array([plain.isdisjoint(chain) for chain in made.chains])
        rows = int(np.count_nonzero(served[made.slices] & sent))
        if rows:
            found.append(
                f"{rows:,} of {made.usable.size:,} rows are in none of the recalibrator's slices "
                f"({', '.join(sorted(plain)[:8])}) and get that of all rows. Does the "
                "file name its classes? If its column has another name, give --map class=…"
            )
    elif selection.by_slice and sent.any() and selection.fallback.method == Identity.method:
        found.append(
            f"{np.count_nonzero(sent):,} of {sent.size:,} rows have a covariance and keep it: the "
            "recalibrator fills what is missing. Fit it with --replace to replace what is there"
        )
    if left := int(np.count_nonzero(recording.assumed)):
        found.append(
            f"{left:,} of {sent.size:,} rows have no covariance and get none: the recalibrator "
            "estimates none for them. Fit one with --method covariance-regression"
        )
    classes = selection.fitted_on.get("classes")
    if isinstance(classes, list | tuple) and (others := set(recording.classes) - set(classes)):
        found.append(
            f"the recalibrator was not fitted on {', '.join(sorted(map(str, others))[:8])}: their "
            "rows get that of all rows it was fitted on. Choose rows with --class"
        )
    return found


# Of these, what is forwarded is all that is said.
_GAUSSIANS = (Output.GAUSSIAN, Output.ESTIMATED)

# Rows whose quantiles are asked for together.
_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class RecalibratedRecording:
    """N detections after a recalibrator.

    recording  with the Gaussians that are forwarded; unusable rows as they are. Rows that are
               given a covariance count as assumed no more
    diagonal   (N,) of which only variances are forwarded
    sent       (N,) estimates as they were recorded
    usable     (N,) rows that were recalibrated
    slices     (N,) index into chains
    assumed    (N,) rows that were recorded without a covariance
    """

    selection: Selection
    recording: Recording
    diagonal: BoolArray
    sent: Estimates
    usable: BoolArray
    slices: IntArray
    chains: tuple[Chain, ...]
    assumed: BoolArray

    @property
    def filled(self) -> int:
        """Counts the rows that are given the covariance that they lacked."""
        return int(np.count_nonzero(self.assumed & ~self.recording.assumed))

    @property
    def serving(self) -> list[Recalibrator]:
        """Recalibrators that served usable rows."""
        rows = np.flatnonzero(self.usable)
        shares = self.selection.shares(self.slices[rows], self.chains).shares if rows.size else ()
        return [recalibrator for recalibrator, _ in shares]

    @property
    def untouched(self) -> BoolArray:
        """(N,) rows that are served by the identity."""
        return _untouched(self.selection, self.slices, self.chains)

    @property
    def output(self) -> Output:
        """Output of the recalibrators that served: the least that is true of all detections."""
        return weakest({one.output for one in self.serving})

    @property
    def shaped(self) -> OwnDistributions | None:
        """The methods' own distributions, for the measures; None where all are Gaussians."""
        if self.output in _GAUSSIANS:
            return None
        recording, mean = self.recording, self.sent.mean
        with np.errstate(invalid="ignore"):  # of rows that are refused
            value = mean + recording.space.error(recording.truth, mean)
        return OwnDistributions(value, self.marginals, self.output is Output.MOMENTS)

    @property
    def deviation(self) -> FloatArray:
        """(N,) σ_G = det(Σ)^(1/2K) of the joint block that is forwarded; NaN where not usable."""
        rows = np.flatnonzero(self.usable)
        found = np.full(self.usable.size, np.nan)
        found[rows] = generalised_deviation(
            self.recording.space, self.recording.covariance[rows], self.diagonal[rows]
        )
        return found

    @property
    def rejected(self) -> BoolArray | None:
        """(N,) detections that are too uncertain; None where the selection rejects none."""
        rejection = self.selection.rejection
        return None if rejection is None else rejection.rejects(self.deviation)

    def marginals(self, rows: IntArray) -> Marginals:
        """The methods' own distributions of usable rows, at least one."""
        return self.selection.marginals(self.sent.take(rows), self.slices[rows], self.chains)

    def quantiles(self, tau: FloatArray) -> Quantiles:
        """Quantiles of every detection at T levels; NaN where it is not usable."""
        n, k = self.sent.mean.shape
        values = np.full((n, k, tau.size), np.nan)
        usable = np.flatnonzero(self.usable)
        for start in range(0, usable.size, _CHUNK):
            rows = usable[start : start + _CHUNK]
            values[rows] = self.marginals(rows).quantiles(tau).transpose(1, 2, 0)
        return Quantiles(values, tau)


def stated(
    selection: Selection | None, recording: Recording, options: argparse.Namespace
) -> Recording:
    """Takes covariances that --assume-std states for those of the file, unless the recalibrator
    is there to estimate what is missing.
    """
    fills = selection is not None and NO_COVARIANCE in selection.by_slice
    return recording if fills else as_stated(recording, options)


def _untouched(selection: Selection, slices: IntArray, chains: tuple[Chain, ...]) -> BoolArray:
    left = [selection.of(chain).method == Identity.method for chain in chains]
    return np.array(left, bool)[slices]


def recalibrate_gaussians(selection: Selection, recording: Recording) -> RecalibratedRecording:
    """Recalibrates each usable row by the recalibrator of its slice.

    Raises InvalidRecalibrator when it was fitted on other dimensions.
    """
    check_dimensions(selection, recording.space)
    slices, chains = chains_of(recording, selection.ranges)
    sent = estimates_of(recording)
    usable = sound_rows(recording)
    rows = np.flatnonzero(usable)
    made = selection.apply(sent.take(rows), slices[rows], chains)
    mean, covariance = recording.mean.copy(), recording.covariance.copy()
    mean[rows], covariance[rows] = made.mean, made.covariance
    diagonal = sent.diagonal.copy()
    diagonal[rows] = made.diagonal
    estimated = np.array([selection.estimates(chain) for chain in chains], bool)[slices]
    assumed = recording.assumed & ~(usable & estimated)
    forwarded = replace(
        recording,
        space=replace(recording.space, assumed=bool(assumed.all())),
        mean=mean,
        covariance=covariance,
        diagonal=bool(diagonal[~assumed].all()),
        assumed=assumed,
    )
    how = usable, slices, chains, recording.assumed
    return RecalibratedRecording(selection, forwarded, diagonal, sent, *how)


def check_changes(made: RecalibratedRecording) -> None:
    """Raises InvalidRecalibrator where no row has a covariance, and none is given one."""
    if made.recording.bare:
        raise InvalidRecalibrator(
            f"no row has a covariance, and {made.selection.version} estimates none for them: "
            "nothing is written. Fit a recalibrator that does by --method covariance-regression, "
            "or state a covariance by --assume-std."
        )


def _filled(made: RecalibratedRecording) -> list[str]:
    """Counts the rows that had no covariance: those that are given one, and those that are not."""
    if not made.assumed.any():
        return []
    left = int(np.count_nonzero(made.recording.assumed))
    words = f"{made.filled:,} rows had no covariance and have an estimated one"
    return [f"{words}, {left:,} stay without" if left else words]


def _output(made: RecalibratedRecording) -> list[str]:
    """Says what mean and covariance stand for, where that is no Gaussian of the method itself."""
    match made.output:
        case Output.GAUSSIAN:
            return []
        case Output.ESTIMATED:
            return [
                "mean and covariance: of a Gaussian whose covariance is estimated from the errors "
                "of like\ndetections (output: estimated)"
            ]
        case Output.MOMENTS:
            return [
                "mean and covariance: moments of a distribution of another shape (output: moments)"
            ]
        case Output.SURROGATE:
            levels = ", ".join(f"{level:.4g}" for level in _surrogate_levels(made))
            return [
                "mean and covariance: of a Gaussian that stands in for a Cauchy distribution, with "
                f"the same\ncentral interval of {levels} (output: surrogate)"
            ]


def measured_under(made: RecalibratedRecording, file: str) -> str:
    """Says, above the measures of a file, what they are measures of."""
    lines = [f"recalibrated by {made.selection.version}", *_output(made)]
    if made.selection.fitted_on.get("file") == Path(file).name:
        lines.append(
            "It was fitted on a file of this name: on the rows it was fitted on, measures look "
            "better than on others."
        )
    if made.output not in (Output.GAUSSIAN, Output.ESTIMATED):
        lines.append("NLL, pinball, MPIW, coverage and QCE: of the method's own distribution")
    return "\n".join(lines)


def model_as_json(made: RecalibratedRecording) -> dict[str, object]:
    """The object `model` of `evaluate --json`."""
    selection = made.selection
    found: dict[str, object] = {"version": selection.version, "method": selection.method}
    found["output"] = str(made.output)
    if levels := _surrogate_levels(made):
        # Slices are fitted with one level; of a document made by hand the lowest is told.
        found["surrogate_level"] = levels[0]
    return found


def _surrogate_levels(made: RecalibratedRecording) -> list[float]:
    """The levels of the recalibrators that served any row, ascending."""
    return sorted({one.surrogate_level for one in made.serving if isinstance(one, GpCauchy)})


def opinions_of(recording: ClassRecording) -> tuple[FloatArray, BoolArray]:
    """(N, M, C) log-probabilities, of the logits where there are some; (N,) which can be used.

    The rules are those for received frames. A logit of −infinity is a probability of 0; NaN,
    +infinity and nothing but −infinity have no softmax.
    """
    usable = usable_opinions(recording)
    with np.errstate(invalid="ignore", over="ignore"):
        if recording.logits is not None:
            return from_logits(_each_opinion(recording.logits)), usable
        return from_probabilities(_each_opinion(_probabilities(recording))), usable


def usable_opinions(recording: ClassRecording) -> BoolArray:
    """Tells which rows have sound opinions alone, (N,)."""
    opinions = _each_opinion(_probabilities(recording))
    return np.asarray(are_probabilities(opinions.transpose(2, 0, 1)).all(axis=1))


def _probabilities(recording: ClassRecording) -> FloatArray:
    return recording.probabilities if recording.opinions is None else recording.opinions


def _each_opinion(values: FloatArray) -> FloatArray:
    return values[:, None] if values.ndim == 2 else values


def rejected_rows(selection: ClassSelection, made: ClassRecording) -> BoolArray | None:
    """(N,) detections whose recalibrated entropy is too high; None where none are rejected."""
    if selection.rejection is None:
        return None
    with np.errstate(invalid="ignore"):
        return selection.rejection.rejects(normalised_entropy(made.probabilities))


def check_classes(selection: ClassSelection, recording: ClassRecording) -> None:
    """Raises InvalidRecalibrator unless it was fitted on the classes of the file."""
    classes = recording.probabilities.shape[1]
    fitted = len(selection.classes) or selection.recalibrator.classes
    if fitted is not None and fitted != classes:
        raise InvalidRecalibrator(
            f"the recalibrator was fitted on {fitted} classes and the file has {classes}. Give a "
            "file with the same classes, or fit again."
        )
    if recording.class_names and not selection.fits(recording.class_names):
        raise InvalidRecalibrator(
            f"the recalibrator was fitted on classes {', '.join(selection.classes)}, and the file "
            f"has {', '.join(recording.class_names)}. Give a file with the same classes in the "
            "same order, or fit again."
        )


def recalibrate_classes(selection: ClassSelection, recording: ClassRecording) -> ClassRecording:
    """Recalibrates probabilities, which keep the shape of what they were made from.

    Rows that cannot be used stay as they are, for the measures to refuse; of logits they are NaN.

    raises  InvalidRecalibrator when it was fitted on other classes
    """
    check_classes(selection, recording)
    log_probabilities, usable = opinions_of(recording)
    logits = recording.logits
    made = _probabilities(recording).copy() if logits is None else np.full_like(logits, np.nan)
    _each_opinion(made)[usable] = selection.apply(log_probabilities[usable])
    several = made.ndim == 3
    return replace(
        recording,
        probabilities=made.mean(axis=1) if several else made,
        opinions=made if several else None,
        logits=None,
    )


# Options of the verb that mean something to Gaussians only, by destination.
_OF_GAUSSIANS = ("quantiles", "tau")


def run(options: argparse.Namespace) -> int:
    """0 when the file was written.

    Raises RecordingError, InvalidRecalibrator, CannotWrite.
    """
    if not options.output.endswith((".npz", *SUFFIXES)):
        raise ValueError(f"--output {options.output}: the name must end in .npz, .csv or .csv.gz.")
    if options.output.endswith(SUFFIXES) and options.file.endswith(".npz"):
        raise ValueError(f"--output {options.output}: arrays are written as arrays: give .npz.")
    if Path(options.output).resolve() == Path(options.file).resolve():
        raise ValueError(f"--output {options.output}: is the file that is read. Name another one.")
    if options.output.endswith(SUFFIXES) and options.file == "-":
        raise ValueError(
            f"--output {options.output}: columns are read twice, and standard input comes once. "
            "Give a file, or write .npz."
        )
    model = read_any_model(options.model)
    recording = read_class_recording(options.file, options.rows, options.map)
    check_kind(model, options.model, options.file, recording)
    if isinstance(model, Selection):
        rows, remarks = _apply_to_gaussians(model, options)
    else:
        assert recording is not None
        rows, remarks = _apply_to_classes(model, recording, options)
    content = {"version": model.version, "rows": rows, "output": options.output, "remarks": remarks}
    written = f"{rows} rows by {model.version}, written to {options.output}"
    tell(options, content, "\n".join([written, *remarks]))
    return 0


def _apply_to_gaussians(selection: Selection, options: argparse.Namespace) -> tuple[int, list[str]]:
    """Writes the recalibrated Gaussians; returns how many there are, and remarks."""
    recording = read_selected(options.file, options, fitted=selection.dimensions)
    refuse_twice(recording.others, again=options.again)
    made = recalibrate_gaussians(selection, stated(selection, recording, options))
    check_changes(made)
    for remark in remarks_on(made):
        to_standard_error(f"calibration-monitor apply: {remark}")
    asked, rejected = options.quantiles or options.tau is not None, made.rejected
    if options.output.endswith(SUFFIXES):
        if asked:
            raise ValueError(
                f"--output {options.output}: quantiles are written as arrays. Give a name in .npz, "
                "or leave --quantiles and --tau out."
            )
        with output_file(Path(options.output)) as path:
            source, names = Path(options.file), options.map or {}
            version, kind = selection.version, options.format
            write_columns(path, source, names, made.recording, rejected, version, kind)
        return made.usable.size, [*_filled(made), *_output(made), *_rejected(rejected)]
    tau = TAU if options.tau is None else np.array(options.tau)
    asked = asked or made.output not in _GAUSSIANS
    quantiles = made.quantiles(tau) if asked else None
    with output_file(Path(options.output)) as path:
        written = write_estimates(path, made.recording, quantiles, rejected, selection.version)
    return made.usable.size, [
        *_filled(made),
        *_output(made),
        *([f"quantiles at {tau.size} levels: of the method's own distribution"] if asked else []),
        *_rejected(rejected),
        *_left_out(made.recording.others, written),
    ]


def _apply_to_classes(
    selection: ClassSelection, recording: ClassRecording, options: argparse.Namespace
) -> tuple[int, list[str]]:
    """Writes the recalibrated probabilities; returns how many rows there are, and remarks."""
    refuse_options_of_gaussians(
        options, _OF_GAUSSIANS, f"{options.model} recalibrates class probabilities"
    )
    refuse_twice(recording.names, again=options.again)
    made = recalibrate_classes(selection, recording)
    rejected = rejected_rows(selection, made)
    with output_file(Path(options.output)) as path:
        written = write_classes(path, made, rejected, selection.version)
    return made.label.size, [
        "prob: recalibrated probabilities, each opinion by itself",
        *_rejected(rejected),
        *_left_out(made.names, written),
    ]


def _rejected(rows: BoolArray | None) -> list[str]:
    if rows is None:
        return []
    return [f"rejected: {np.count_nonzero(rows)} rows are too uncertain, and written like the rest"]


def _left_out(there: Collection[str], written: Collection[str]) -> list[str]:
    """Names the arrays that were not written; an array gt_id is written as track."""
    missing = [name for name in there if name not in written]
    if "track" in written:
        missing = [name for name in missing if name != "gt_id"]
    return [f"of the file not in it: {', '.join(missing)}"] if missing else []
