"""calibration-monitor evaluate: judges and measures the calibration of a recorded file.

Verdicts by group and dimension come first. One of two engines measures: from the rows, or from
micro-bins as the sidecar does. The measures themselves are computed in `statistics`, and written
for people in evaluation_tables.py.
"""

from __future__ import annotations

import argparse
import json
import math
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from monitor.commands.apply import (
    RecalibratedRecording,
    check_kind,
    measured_under,
    model_as_json,
    read_any_model,
    recalibrate_classes,
    recalibrate_gaussians,
    remarks_on,
)
from monitor.commands.evaluation_tables import all_measures, class_table, summary, verdict_lines
from monitor.commands.options import (
    add_flag,
    add_value,
    allow,
    checked,
    confidence_levels,
    number_of,
    pair,
    shown,
)
from monitor.commands.recordings import (
    Usable,
    add_most_refused,
    add_selection,
    numbered_tracks,
    parts_of,
    ranges_of,
    read_selected,
    refuse_options_of_gaussians,
    selection_words,
    to_standard_error,
    usable_truth,
)
from monitor.frames.slices import SliceBy
from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.recalibration.selection import AnySelection, ClassSelection, Selection
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
    Evaluation,
    EvaluationError,
    as_json,
)
from monitor.statistics.reading import read
from monitor.statistics.state import observe
from monitor.statistics.verdicts import ClassVerdict, Finding, Verdict, class_verdict, verdicts
from monitor.store.class_recordings import ClassRecording, read_class_recording, require_labels
from monitor.store.recordings import OBJECT, Recording

EXAMPLE = """examples:
  calibration-monitor evaluate drive.csv.gz --dimensions x,y,z --class Car
  calibration-monitor evaluate drive.csv.gz --by range --fail-if 'nees_over_k > 2'
  calibration-monitor evaluate drive.npz --binning equal-width --range 0:10 --json
  calibration-monitor evaluate drive.npz --rows 5000: --model scaling.json
  calibration-monitor evaluate classes.npz --rows 10000: --model temperature.json
  calibration-monitor evaluate today.npz --binning frozen --edges-from reference.npz
  calibration-monitor evaluate classes.npz --class-binning equal-count --class-bins 15"""

# An octave has 32 times as many as in the sidecar, which keeps them for every slice and pane.
MICRO_BINS = 1024

# Options that mean something to Gaussians only, and to class probabilities only; by destination.
_OF_GAUSSIANS = ("binning", "bins", "range", "edges_from", "min_bin_rows", "tau", "micro_bins")
_OF_CLASSES = ("class_binning", "class_bins")

# Groups that a column may divide the rows into.
_MOST_GROUPS = 100

# Exit code where a condition of --fail-if holds, or more rows are refused than may be.
FAILED = 3

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A bound on a measure, as `--fail-if` takes it."""

    measure: str
    comparison: str
    bound: float

    def __str__(self) -> str:
        return f"{self.measure} {self.comparison} {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Measured:
    """The Gaussians asked for, measured.

    whole     all rows
    groups    the same by group; one without a name where rows are not divided
    verdicts  of each group and dimension
    usable    which rows could be measured, and why others could not
    unused    columns of the file that were not looked at
    matched   how many labels of another file had which outcome; None: truth came along
    made      by what they were recalibrated first; None if they were not
    """

    whole: Evaluation
    groups: Mapping[str, Evaluation]
    verdicts: tuple[Verdict, ...]
    usable: Usable
    unused: tuple[str, ...]
    matched: Mapping[str, int] | None
    made: RecalibratedRecording | None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    parser.add_argument("file", metavar="FILE", help="recorded detections (docs/files.md)")
    add_selection(parser)
    text = "class, range, stream or a column: what verdicts are given for (default class)"
    add_value(parser, "--by", "COLUMN", text)
    add_flag(parser, "--full", "print all measures and verdicts, not only the summary")
    text = (
        "end with exit code 3 if a measure is so in any group, such as 'nees_over_k > 2'; may be "
        "repeated"
    )
    parser.add_argument("--fail-if", metavar="M>N", type=_condition, action="append", help=text)
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
    recording = read_class_recording(options.file, options.rows, options.map)
    only_classes = recording is not None and not recording.gaussians
    if not only_classes and (options.classes or options.where):
        # Columns choose detections, and which probabilities are theirs is unknown.
        recording = None
    _check_meaning(options, recording)
    if model is not None:
        check_kind(model, options.model, options.file, recording)
    if recording is not None:
        require_labels(options.file, recording)
    for name, value in options.defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    classes = gaussians = of_classes = None
    if recording is not None:
        if isinstance(model, ClassSelection):
            recording = recalibrate_classes(model, recording)
        classes = _classes_measured(recording, options)
        of_classes = _class_verdict(recording)
    if not only_classes:
        gaussians = measured(options, model if isinstance(model, Selection) else None)
    failures = list(_failures(options, gaussians, classes))
    if options.json:
        print(json.dumps(document(gaussians, classes, model, of_classes)))
    else:
        print("\n\n".join(_tables(options, gaussians, classes, model, of_classes)))
    for line in failures:
        to_standard_error(f"calibration-monitor evaluate: {line}")
    return FAILED if failures else 0


def _failures(
    options: argparse.Namespace, gaussians: Measured | None, classes: ClassEvaluation | None
) -> Iterator[str]:
    """Yields which conditions hold, and whether too many rows were refused.

    Raises ValueError for a measure that there is not.
    """
    if gaussians is not None and gaussians.usable.share_refused > options.most_refused:
        yield (
            f"{gaussians.usable.share_refused:.1%} of the rows with ground truth are refused, more "
            f"than --most-refused {options.most_refused:g}"
        )
    for condition in options.fail_if or ():
        values = list(_values(condition.measure, gaussians, classes))
        if not values:
            raise ValueError(
                f"--fail-if '{condition}': there is no measure {condition.measure!r}. Give one of "
                "those that --json prints for joint, a dimension, a verdict or classification, "
                "such as nees_over_k, ence, qce, sigma_factor or ece."
            )
        holds = _COMPARISONS[condition.comparison]
        for where, value in values:
            if value is None:
                yield f"{where}: {condition.measure} is not defined, and --fail-if asks for it"
            elif isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"--fail-if '{condition}': {condition.measure} is no number.")
            elif holds(value, condition.bound):
                yield f"{where}: {condition.measure} is {value:.4g}, and --fail-if says {condition}"


def _values(
    measure: str, gaussians: Measured | None, classes: ClassEvaluation | None
) -> Iterator[tuple[str, Any]]:
    """Finds a measure wherever it is: by group jointly and by dimension, and of classes."""
    if gaussians is not None:
        for group, evaluation in gaussians.groups.items():
            found: dict[str, Any] = as_json(evaluation)
            blocks = {"joint": found["joint"], **found["dimensions"]}
            for name, block in blocks.items():
                if measure in block:
                    yield ", ".join(filter(None, (group, name))), block[measure]
        for verdict in gaussians.verdicts:
            told = verdict.as_json()
            if measure in told:
                yield ", ".join(filter(None, (verdict.group, verdict.dimension))), told[measure]
    if classes is not None and measure in (told := class_as_json(classes)):
        yield "classification", told[measure]


def _condition(text: str) -> Condition:
    match = re.fullmatch(r"\s*(\w+)\s*(>=|<=|>|<)\s*(\S+)\s*", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"'{text}': expected MEASURE > NUMBER, or >=, <, <=")
    number = checked(match[3], float, "a number, such as 2", math.isfinite)
    return Condition(match[1].lower(), match[2], number)


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


def measured(
    options: argparse.Namespace,
    model: Selection | None,
    tell: Callable[[str], None] = to_standard_error,
) -> Measured:
    """Measures the Gaussians asked for; under the model's own distribution if it has one.

    tell    is told what looks wrong, a line each
    raises  RecordingError, InvalidRecalibrator, EvaluationError
    """
    ours_of = {theirs: ours for ours, theirs in (options.map or {}).items()}
    by = options.by = ours_of.get(options.by, options.by)
    beside = () if by is None or by in tuple(SliceBy) else (by,)
    recording = read_selected(options.file, options, beside, tell)
    made = None if model is None else recalibrate_gaussians(model, recording)
    shaped = None
    if made is not None:
        recording, shaped = made.recording, made.shaped
        for remark in remarks_on(made):
            tell(f"model: {remark}")
    edges = _frozen(recording, options, model)
    cut = BinCut(options.bins, options.binning, options.range, edges, options.min_bin_rows)
    if options.engine == "streaming" and made is not None and shaped is not None:
        raise EvaluationError(
            f"--engine streaming: what {made.selection.version} says of a detection is no Gaussian "
            f"(output: {made.output}), and micro-bins keep Gaussians only. Use --engine exact."
        )
    usable = usable_truth(recording)
    if not usable.rows.any():
        raise EvaluationError(f"nothing to evaluate: {usable.told()}. {usable.remedy(recording)}")

    def evaluated(rows: BoolArray) -> Evaluation:
        kept = rows & usable.rows
        if options.engine == "exact":
            found = evaluate_rows(
                recording.space,
                recording.mean,
                recording.covariance,
                np.where(kept[:, None], recording.truth, np.nan),
                tau=options.tau,
                cut=cut,
                cluster=numbered_tracks(recording.sequence_index, recording.track),
                shaped=shaped,
            )
        else:
            found = _streamed(recording, options, cut, np.flatnonzero(kept))
        return replace(
            found,
            without_truth=int(np.count_nonzero(rows & ~usable.labelled)),
            refused=int(np.count_nonzero(rows & usable.labelled & ~usable.rows)),
        )

    groups = dict(_groups(options, recording, usable.rows))
    whole = evaluated(np.ones(usable.rows.size, bool))
    return Measured(
        whole=whole,
        groups={name: whole if rows.all() else evaluated(rows) for name, rows in groups.items()},
        verdicts=tuple(
            verdict
            for name, rows in groups.items()
            for verdict in _verdicts(recording, np.flatnonzero(rows & usable.rows), name)
        ),
        usable=usable,
        unused=recording.unused,
        matched=recording.matched,
        made=made,
    )


def _groups(
    options: argparse.Namespace, recording: Recording, usable: BoolArray
) -> Iterator[tuple[str, BoolArray]]:
    """Divides all rows (N,) as --by asks; groups without usable rows (N,) are left out."""
    by = options.by or "class"
    if by in recording.beside:
        values = recording.beside[by]
        names, index = np.unique(values, return_inverse=True)
        if names.size > _MOST_GROUPS:
            raise ValueError(
                f"--by {by}: the column has {names.size} different values, and at most "
                f"{_MOST_GROUPS} groups are told apart. Name a column with fewer."
            )
        parts = tuple(names.tolist()), index
    else:
        divided = parts_of(recording, ranges_of(recording.space) if by == SliceBy.RANGE else None)
        parts = divided.names[SliceBy(by)], divided.index[SliceBy(by)]
    if options.by is None and parts[0] == (OBJECT,):
        yield "", np.ones(usable.size, bool)
        return
    for i, name in enumerate(parts[0]):
        rows = parts[1] == i
        if (rows & usable).any():
            yield shown(name), rows


def _verdicts(recording: Recording, rows: IntArray, group: str) -> tuple[Verdict, ...]:
    """Judges the Gaussians of some rows."""
    tracks = numbered_tracks(recording.sequence_index, recording.track)
    variance = np.diagonal(recording.covariance, axis1=1, axis2=2)[rows]
    return verdicts(
        recording.space.names,
        [dimension.unit for dimension in recording.space.dimensions],
        recording.space.error(recording.truth[rows], recording.mean[rows]),
        variance,
        None if tracks is None else tracks[rows],
        group,
    )


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


def _class_verdict(recording: ClassRecording) -> ClassVerdict | None:
    """Judges the rows with a true class and usable probabilities; None without any."""
    usable = np.isfinite(recording.probabilities).all(axis=1)
    usable &= (recording.label >= 0) & (recording.label < recording.probabilities.shape[1])
    if not usable.any():
        return None
    tracks = numbered_tracks(recording.sequence_index, recording.track)
    return class_verdict(
        recording.probabilities[usable],
        recording.label[usable],
        None if tracks is None else tracks[usable],
    )


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


def document(
    gaussians: Measured | None,
    classes: ClassEvaluation | None,
    model: AnySelection | None,
    of_classes: ClassVerdict | None = None,
) -> dict[str, object]:
    """Builds one object; a file without Gaussians has neither dimensions nor a joint block."""
    found: dict[str, object] = {}
    if gaussians:
        found = as_json(gaussians.whole) | {
            "rows_refused_by": gaussians.usable.as_json(),
            "columns_not_used": list(gaussians.unused),
            "labels": gaussians.matched,
            "verdicts": [verdict.as_json() for verdict in gaussians.verdicts],
            "groups": {name: as_json(one) for name, one in gaussians.groups.items() if name},
        }
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
    elif gaussians and gaussians.made:
        found["model"] = model_as_json(gaussians.made)
    if classes:
        found["classification"] = class_as_json(classes)
    if of_classes:
        found["class_verdict"] = of_classes.as_json()
    return found


def _tables(
    options: argparse.Namespace,
    gaussians: Measured | None,
    classes: ClassEvaluation | None,
    model: AnySelection | None,
    of_classes: ClassVerdict | None,
) -> Iterator[str]:
    if of_classes is not None:
        wrong = of_classes.finding in (Finding.OVERCONFIDENT, Finding.UNDERCONFIDENT)
        file = [shlex.quote(str(options.file)), *selection_words(options, ("rows", "map"))]
        words = f"{' '.join(file)} --method temperature --output classes.json"
        mends = f"Do: calibration-monitor fit {words}"
        yield of_classes.sentence + (f"\n{mends}" if wrong and options.model is None else "")
    if gaussians:
        said = "" if gaussians.made is None else measured_under(gaussians.made, str(options.file))
        yield verdict_lines(gaussians.verdicts, full=options.full) + _advice(options, gaussians)
        if options.full:
            yield all_measures(gaussians.whole)
        yield "\n".join(filter(None, (_rows(gaussians), said)))
        yield summary(gaussians.groups, gaussians.verdicts)
    if classes:
        said = f"recalibrated by {model.version}\n" if isinstance(model, ClassSelection) else ""
        yield said + class_table(classes)


def _rows(gaussians: Measured) -> str:
    whole, usable = gaussians.whole, gaussians.usable
    tracks = "" if whole.tracks is None else f" of {whole.tracks:,} tracks"
    lines = [
        f"{whole.rows:,} rows with ground truth{tracks}, {whole.without_truth:,} without, "
        f"{whole.refused:,} refused"
    ]
    if usable.refused:
        lines.append(usable.told())
    return "\n".join(lines)


def _advice(options: argparse.Namespace, gaussians: Measured) -> str:
    """Says which command mends what the verdicts found; nothing where nothing is worth it."""
    if options.model is not None or not any(verdict.matters for verdict in gaussians.verdicts):
        return ""
    if gaussians.matched is not None and gaussians.matched["missed"] > gaussians.matched["matched"]:
        return "\nFirst see why most labels match no detection: the verdicts rest on the others."
    by = options.by or ("class" if len(gaussians.groups) > 1 else None)
    by = f" --by {by}" if by in tuple(SliceBy) else ""
    words = " ".join([shlex.quote(str(options.file)), *selection_words(options)])
    return (
        f"\nDo: calibration-monitor fit {words}{by} --proven-only --output model.json\n"
        "    It says whether the recalibrator is worth it, on tracks that it was not fitted on."
    )
