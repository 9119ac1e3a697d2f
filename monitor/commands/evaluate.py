"""calibration-monitor evaluate: measures of calibration of a recorded file.

One of two engines measures it: from the rows, or from micro-bins as the sidecar does. Tables are at
most 100 columns wide. The measures themselves are computed in `statistics`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from monitor.commands.apply import (
    RecalibratedRecording,
    check_kind,
    measured_under,
    model_as_json,
    read_any_model,
    recalibrate_classes,
    recalibrate_gaussians,
)
from monitor.commands.options import add_value, allow, checked, confidence_levels, number_of, pair
from monitor.commands.recordings import (
    add_selection,
    left_out,
    numbered_tracks,
    read_selected,
    refuse_options_of_gaussians,
    usable_truth,
)
from monitor.frames.space import FloatArray, IntArray
from monitor.recalibration.class_selection import AnySelection, ClassSelection
from monitor.recalibration.selection import Selection
from monitor.statistics.bins import LOWEST, OCTAVES, Binning, LogBins
from monitor.statistics.class_evaluation import (
    ClassEvaluation,
    class_as_json,
    evaluate_class_rows,
    nothing_to_evaluate,
    read_classes,
)
from monitor.statistics.class_statistics import DIVISORS, NO_TRUTH, observe_classes
from monitor.statistics.clusters import ALONE, cluster_id
from monitor.statistics.exact_engine import (
    BinCut,
    evaluate_rows,
    freeze_edges,
)
from monitor.statistics.measures import (
    TAU,
    AxisMeasures,
    Evaluation,
    EvaluationError,
    as_json,
)
from monitor.statistics.reading import read
from monitor.statistics.state import observe
from monitor.store.class_recordings import ClassRecording, read_class_recording, require_labels
from monitor.store.recordings import Recording

EXAMPLE = """examples:
  calibration-monitor evaluate drive.csv.gz --dimensions x,y,z --class Car
  calibration-monitor evaluate drive.npz --binning equal-width --range 0:10 --json
  calibration-monitor evaluate drive.npz --rows 5000: --model scaling.json
  calibration-monitor evaluate classes.npz --rows 10000: --model temperature.json
  calibration-monitor evaluate today.npz --binning frozen --edges-from reference.npz
  calibration-monitor evaluate classes.npz --class-binning equal-count --class-bins 15"""

# An octave has 32 times as many as in the sidecar, which keeps them for every slice and pane.
MICRO_BINS = 1024

# Ten columns a name and nine cells of ten: 100.
_NAME, _CELL = 10, 10

# Levels whose coverage is shown: those of the grid nearest to them.
_SHOWN = (0.5, 0.9, 0.95)

# Heads and fields of the lines of the table.
_LINES = (
    (
        "accuracy  NLL  Brier  sharpness  overconf.  underconf.",
        "accuracy  nll  brier  sharpness  overconfidence  underconfidence",
    ),
    ("ECE  ECE_2  MCE  ACE  cECE  CCQS", "ece  ece2  mce  ace  cece  ccqs"),
    (
        "entropy  UCE  cUCE  UCQS  aleatoric  epistemic",
        "entropy  uce_entropy  cuce  ucqs  aleatoric  epistemic",
    ),
)

_SORTS = (("variation ratio", ""), ("entropy", "_entropy"), ("cross-entropy", "_cross_entropy"))

# Options that mean something to Gaussians only, and to class probabilities only; by destination.
_OF_GAUSSIANS = ("binning", "bins", "range", "edges_from", "min_bin_rows", "tau", "micro_bins")
_OF_CLASSES = ("class_binning", "class_bins")

# Measures of the Gaussians asked for, and what they were recalibrated by, if at all.
Measured: TypeAlias = tuple[Evaluation, RecalibratedRecording | None]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    parser.add_argument("file", metavar="FILE", help=".npz, .csv or .csv.gz")
    add_selection(parser)
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
    add_value(parser, "--tau", "T,T", text, confidence_levels, default=TAU)
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
    parser.add_argument("--model", metavar="M", help="recalibrator to apply first, from fit")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    # None until the file has been seen: only so can it be said that an option was given in vain.
    defaults = {name: parser.get_default(name) for name in _OF_GAUSSIANS + _OF_CLASSES}
    parser.set_defaults(**dict.fromkeys(defaults), defaults=defaults)


def run(options: argparse.Namespace) -> int:
    """0 when the measures were printed.

    Raises RecordingError, EvaluationError, InvalidRecalibrator.
    """
    _check(options)
    model = None if options.model is None else read_any_model(options.model)
    recording = read_class_recording(options.file, options.rows)
    only_classes = recording is not None and not recording.gaussians
    if not only_classes and (options.classes or options.where):
        # Columns choose detections, and nobody says which probabilities are theirs.
        recording = None
    _check_meaning(options, recording)
    if model is not None:
        check_kind(model, options.model, options.file, recording)
    if recording is not None:
        require_labels(options.file, recording)
    for name, value in options.defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    classes = gaussians = None
    if recording is not None:
        if isinstance(model, ClassSelection):
            recording = recalibrate_classes(model, recording)
        classes = _classes_measured(recording, options)
    if not only_classes:
        gaussians = measured(options, model if isinstance(model, Selection) else None)
    if options.json:
        print(json.dumps(_document(gaussians, classes, model)))
    else:
        print("\n\n".join(_tables(gaussians, classes, model)))
    return 0


def _check(options: argparse.Namespace) -> None:
    if options.range is not None and options.binning != "equal-width":
        raise ValueError("--range is for --binning equal-width; leave it out.")
    if options.edges_from is not None and options.binning != "frozen":
        raise ValueError("--edges-from is for --binning frozen; leave it out.")
    if options.edges_from is None and options.binning == "frozen":
        raise ValueError("--binning frozen needs a reference: give --edges-from FILE.")
    if options.micro_bins is not None and options.engine != "streaming":
        raise ValueError("--micro-bins is for --engine streaming; leave it out.")


def _check_meaning(options: argparse.Namespace, recording: ClassRecording | None) -> None:
    """Refuses what was given and would change nothing, since the file has no such thing."""
    why = (
        f"no class probabilities of {options.file} are evaluated. Leave it out, or give a file "
        "with prob and label, without --class and --where."
    )
    allow(options, recording is not None, why, *_OF_CLASSES)
    if recording is not None and not recording.gaussians:
        refuse_options_of_gaussians(
            options, _OF_GAUSSIANS, f"{options.file} has class probabilities only"
        )


def _range(text: str) -> tuple[float, float] | None:
    expected = "data or LO:HI with 0 <= LO < HI <= 1e150, such as 0:10"
    if text == "data":
        return None
    return checked(text, pair, expected, lambda ends: 0 <= ends[0] < ends[1] <= 1e150)


def measured(options: argparse.Namespace, model: Selection | None) -> Measured:
    """Measures the Gaussians asked for; under the model's own distribution if it has one.

    Raises RecordingError, InvalidRecalibrator, EvaluationError.
    """
    recording = read_selected(options.file, options)
    made = None if model is None else recalibrate_gaussians(model, recording)
    shaped = None
    if made is not None:
        recording, shaped = made.recording, made.shaped
    edges = _frozen(recording, options, model)
    cut = BinCut(options.bins, options.binning, options.range, edges, options.min_bin_rows)
    if options.engine == "streaming" and made is not None and shaped is not None:
        raise EvaluationError(
            f"--engine streaming: what {made.selection.version} says of a detection is no Gaussian "
            f"(output: {made.output}), and micro-bins keep Gaussians only. Use --engine exact."
        )
    labelled, usable = usable_truth(recording)
    if not usable.any():
        raise EvaluationError(
            f"nothing to evaluate: {left_out(labelled, usable)}. Select rows with ground truth."
        )
    refused = labelled & ~usable
    if options.engine == "exact":
        # Refused rows are counted, as by the other engine and by fit.
        evaluation = evaluate_rows(
            recording.space,
            np.where(refused[:, None], np.nan, recording.mean),
            recording.covariance,
            recording.truth,
            tau=options.tau,
            cut=cut,
            cluster=numbered_tracks(recording.sequence_index, recording.track),
            shaped=shaped,
        )
        return evaluation, made
    unlabelled, refusals = int(np.count_nonzero(~labelled)), int(np.count_nonzero(refused))
    evaluation = _streamed(recording, options, cut, np.flatnonzero(usable))
    return replace(evaluation, without_truth=unlabelled, refused=refusals), made


def _frozen(
    recording: Recording, options: argparse.Namespace, model: Selection | None
) -> tuple[FloatArray, ...] | None:
    """Edges of the reference, which is selected and recalibrated alike, but without the fault."""
    if options.edges_from is None:
        return None
    alike = argparse.Namespace(**{**vars(options), "fault": None})
    reference = read_selected(options.edges_from, alike)
    if model is not None:
        reference = recalibrate_gaussians(model, reference).recording
    if reference.space.names != recording.space.names:
        raise EvaluationError(
            f"--edges-from {options.edges_from} has dimensions "
            f"{', '.join(reference.space.names)} and not {', '.join(recording.space.names)}. "
            "Give --dimensions that both files have."
        )
    return freeze_edges(reference.space, reference.covariance, options.bins)


def _streamed(
    recording: Recording, options: argparse.Namespace, cut: BinCut, kept: IntArray
) -> Evaluation:
    """Measures some rows from micro-bins."""
    bins = LogBins(LOWEST, options.micro_bins, OCTAVES)
    binning = Binning(bins, tau=tuple(options.tau.tolist()))
    tracks = numbered_tracks(recording.sequence_index, recording.track)
    clusters = count = None
    if tracks is not None:
        of_rows = tracks[kept]
        clusters = cluster_id((of_rows,))
        clusters[of_rows < 0] = ALONE
        count = int(np.unique(of_rows[of_rows >= 0]).size)
    statistics = observe(
        recording.space,
        binning,
        recording.space.error(recording.truth[kept], recording.mean[kept]),
        recording.covariance[kept],
        clusters,
    )
    return replace(read(statistics, cut), tracks=count)


def _classes_measured(recording: ClassRecording, options: argparse.Namespace) -> ClassEvaluation:
    """Measures class probabilities.

    Raises EvaluationError when no row is left, or the engine cannot make the bins asked for: from
    micro-bins a divisor of 60, of equal width.
    """
    rows, bins = (recording.probabilities, recording.label), options.class_bins
    binning = options.class_binning
    if options.engine == "exact":
        return evaluate_class_rows(*rows, opinions=recording.opinions, bins=bins, binning=binning)
    if binning != "equal-width":
        raise EvaluationError(
            f"--class-binning {binning} sorts the rows, and --engine streaming keeps none. "
            "Use --engine exact, or leave --class-binning out."
        )
    if bins not in DIVISORS:
        raise EvaluationError(
            f"--class-bins {bins}: --engine streaming keeps class probabilities in sixtieths. "
            f"Use one of {', '.join(map(str, DIVISORS))}, or --engine exact."
        )
    statistics = observe_classes(*rows, recording.opinions)
    without = int((recording.label == NO_TRUTH).sum())
    if statistics.n == 0:
        raise nothing_to_evaluate(recording.label.size, without, statistics.classes)
    refused = recording.label.size - without - statistics.n
    return replace(read_classes(statistics, bins), without_truth=without, refused=refused)


def _document(
    gaussians: Measured | None,
    classes: ClassEvaluation | None,
    model: AnySelection | None,
) -> dict[str, object]:
    """Builds one object; a file without Gaussians has neither dimensions nor a joint block."""
    found: dict[str, object] = {}
    if gaussians:
        found = as_json(gaussians[0])
    elif classes:
        found = {
            "rows": classes.n,
            "rows_without_truth": classes.without_truth,
            "rows_refused": classes.refused,
            "dimensions": {},
            "joint": None,
        }
    if isinstance(model, ClassSelection):
        found["model"] = {"version": model.version, "method": model.method}
    elif gaussians and gaussians[1]:
        found["model"] = model_as_json(gaussians[1])
    return found | ({"classification": class_as_json(classes)} if classes else {})


def _tables(
    gaussians: Measured | None,
    classes: ClassEvaluation | None,
    model: AnySelection | None,
) -> Iterator[str]:
    if gaussians:
        evaluation, made = gaussians
        yield table(evaluation, "" if made is None else measured_under(made))
    if classes:
        said = f"recalibrated by {model.version}\n" if isinstance(model, ClassSelection) else ""
        yield said + class_table(classes)


def table(evaluation: Evaluation, recalibrated: str = "") -> str:
    """Writes all measures but those of every single τ and bin; what is not defined is a dash.

    recalibrated  what was done to the Gaussians before, to stand beneath the number of rows
    """
    rows = "\n".join(filter(None, (_rows(evaluation), recalibrated)))
    blocks = [rows, _variances(evaluation), _likelihood(evaluation)]
    blocks += [_nees(evaluation), _quantiles(evaluation)]
    return "\n\n".join(blocks)


def _rows(evaluation: Evaluation) -> str:
    tracks = "" if evaluation.tracks is None else f" of {evaluation.tracks} tracks"
    return (
        f"{evaluation.rows} rows with ground truth{tracks}, {evaluation.without_truth} without, "
        f"{evaluation.refused} refused"
    )


def _variances(evaluation: Evaluation) -> str:
    lines = [
        _line("variance", ["ENCE", "floor", "Gaussian", "κ", "n_eff", "UCE", "RMSE", "RMV", "bins"])
    ]
    outside = []
    for name, found in evaluation.dimensions.items():
        bins, floors = found.bins, (found.ence_noise_floor, found.ence_noise_floor_gaussian)
        cells = [*map(_short, (found.ence, *floors, found.kurtosis)), f"{found.n_eff:.0f}"]
        cells += map(_short, (found.uce, found.rmse, found.rmv))
        lines.append(_line(name, [*cells, str(np.count_nonzero(bins.n))]))
        if bins.below + bins.above:
            outside.append(f"{name}: {bins.below} rows below the range, {bins.above} above")
    return "\n".join(lines + outside)


def _likelihood(evaluation: Evaluation) -> str:
    heads = ("NLL", "pinball", "bias", "c_v", "sharpness", "σ factor", "MPIW")
    lines = [_line("errors", heads)]
    for name, found in evaluation.dimensions.items():
        values = [found.nll, found.pinball, found.bias, found.c_v, found.sharpness]
        values += [found.std_scaling, found.mpiw]
        lines.append(_line(name, map(_short, values)))
    lines.append(_line("joint", [_short(evaluation.joint.nll)]))
    lowest, highest, mean = map(_short, evaluation.joint.deviation)
    return "\n".join([*lines, f"σ_G: {lowest} to {highest}, mean {mean}"])


def _nees(evaluation: Evaluation) -> str:
    heads = ("mean", "median/χ²", "95 %: low", "high", "n_eff low", "high", "n", "n_eff")
    lines = [_line("NEES", heads)]
    for name, found in _axes(evaluation):
        intervals = (*found.nees_interval, *found.nees_interval_n_eff)
        cells = map(_short, (found.nees_mean, found.nees_median_ratio, *intervals))
        lines.append(_line(name, [*cells, f"{found.n:.0f}", f"{found.n_eff:.0f}"]))
    joint = evaluation.joint
    return "\n".join([*lines, f"joint, {joint.k} dimensions: NEES/K {joint.nees_over_k:.5f}"])


def _quantiles(evaluation: Evaluation) -> str:
    nearest = (int(np.argmin(np.abs(evaluation.tau - level))) for level in _SHOWN)
    levels = list(dict.fromkeys(nearest))
    covered = (f"at {evaluation.tau[i]:.3g}" for i in levels)
    lines = [_line("coverage", ("QCE", "marginal", "area", *covered))]
    for name, found in _axes(evaluation):
        values = (found.qce, found.qce_marginal, found.calibration_area)
        shares = (_share(found.coverage_by_tau[i]) for i in levels)
        lines.append(_line(name, [*map(_short, values), *shares]))
    return "\n".join(lines)


def _axes(evaluation: Evaluation) -> list[tuple[str, AxisMeasures]]:
    return [*evaluation.dimensions.items(), ("joint", evaluation.joint)]


def _short(value: float) -> str:
    if math.isnan(value):
        return "–"
    text = f"{value:.4g}"
    return text if len(text) < _CELL else f"{value:.2e}"


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def _line(name: str, cells: Iterable[str]) -> str:
    return f"{name[:_NAME]:<{_NAME}}" + "".join(f"{cell:>{_CELL}}" for cell in cells)


def class_table(evaluation: ClassEvaluation) -> str:
    """Writes the measures for the terminal; those by class are in the JSON only."""
    lines = [
        f"{evaluation.n} rows with a true class of {evaluation.classes}, "
        f"{evaluation.without_truth} without, {evaluation.refused} refused"
    ]
    for heads, fields in _LINES:
        lines.append("".join(f"{head:>12}" for head in heads.split()))
        lines.append("".join(f"{getattr(evaluation, field):12.4g}" for field in fields.split()))
    lines.append(f"{'AUSE by':>18}{'error rate':>12}{'Brier':>12}")
    for name, suffix in _SORTS:
        error_rate = getattr(evaluation, f"ause{suffix}")
        brier = getattr(evaluation, f"ause_brier{suffix}")
        lines.append(f"{name:>18}{error_rate:12.4g}{brier:12.4g}")
    fractions, errors = evaluation.rejection_fraction[::5], evaluation.rejection_error_rate[::5]
    curve = zip(fractions.tolist(), errors.tolist(), strict=True)
    points = ", ".join(f"{error:.4g} at {share:.0%}" for share, error in curve)
    lines.append(f"error rate, highest entropy rejected: {points}")
    return "\n".join(lines)
