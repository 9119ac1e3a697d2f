"""calibration-monitor evaluate: judges and measures the calibration of a recorded file.

Verdicts by group and dimension come first. One of two engines measures: from the rows, or from
micro-bins as the sidecar does. The measures themselves are computed in `statistics`, and those of
Gaussians are written for people in evaluation_tables.py.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

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
    stated,
)
from monitor.commands.conditions import holding
from monitor.commands.evaluate.class_rows import class_table, judged_classes, measured_classes
from monitor.commands.evaluate.errors import (
    WithoutCovariance,
    errors_section,
    errors_table,
    measured_errors,
)
from monitor.commands.evaluate.groups import apart_from_filled, divided, finer_parts
from monitor.commands.evaluate.sweep import sweep_figures, sweep_table, swept
from monitor.commands.evaluation_tables import (
    advice,
    all_measures,
    mixture,
    rows_line,
    summary,
    verdict_lines,
)
from monitor.commands.held_out import HeldOut, compared, told
from monitor.commands.output import tell, to_standard_error, working, write_output
from monitor.commands.pages.file_report import (
    fullest_frame,
    in_pieces,
    labels_section,
    recalibrator_section,
    said,
    stages_by_group,
)
from monitor.commands.pages.report_page import Report, Said, Section, hashed, written
from monitor.commands.recordings import (
    Usable,
    numbered_tracks,
    overlaps,
    read_selected,
    refuse_options_of_gaussians,
    usable_truth,
)
from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.frames.words import Finding, SliceBy
from monitor.options.recorded import OF_CLASSES_ALONE, OF_GAUSSIANS
from monitor.options.rows import SELECTION, selection_words
from monitor.options.values import allow
from monitor.recalibration.selection import AnySelection, ClassSelection, Selection
from monitor.recalibration.temperature_sweep import TEMPERATURES, Sweep
from monitor.statistics.bins import LOWEST, OCTAVES, Binning, LogBins
from monitor.statistics.class_evaluation import (
    ClassEvaluation,
    class_as_json,
)
from monitor.statistics.clusters import ALONE, cluster_id
from monitor.statistics.exact_engine import (
    BinCut,
    evaluate_rows,
    freeze_edges,
    generalised_deviation,
)
from monitor.statistics.measures import (
    TAU,
    Evaluation,
    EvaluationError,
    JointMeasures,
    as_json,
)
from monitor.statistics.reading import read
from monitor.statistics.sparsification import ErrorRanking, rank_twice
from monitor.statistics.state import observe
from monitor.statistics.verdicts import ClassVerdict, Verdict, gravest_first, verdicts
from monitor.store.class_recordings import ClassRecording, read_class_recording, require_labels
from monitor.store.files import is_state
from monitor.store.recordings import Recording

# Options that only rows can answer, and a file of statistics has none.
_OF_ROWS = (
    *(name for name in OF_GAUSSIANS if name != "bins"),
    *(*OF_CLASSES_ALONE, *SELECTION, "fault", "by", "model", "report"),
)

# Exit code where a condition of --fail-if holds, or more rows are refused than may be.
FAILED = 3


@dataclass(frozen=True, slots=True)
class Measured:
    """The Gaussians asked for, measured.

    whole     all rows; None where none has a covariance
    groups    the same by group; one without a name where rows are not divided
    verdicts  of each group and dimension, the gravest first
    usable    which rows could be measured, and why others could not
    unused    columns of the file that were not looked at
    remarks   what looked wrong, as it was told
    matched   how many labels of another file had which outcome; None: truth came along
    by        what the groups are divided by
    mixed     classes that groups mix; empty where each group has one
    made      by what they were recalibrated first; None if they were not
    gains     before and after it, of all rows and by group; empty where they are no Gaussians
    recording the rows, recalibrated where there is a recalibrator
    evaluated measures some of the rows (N,)
    judged    (N,) rows whose covariance is judged
    bare      errors of the rows without a covariance; None where each has one
    """

    whole: Evaluation | None
    groups: Mapping[str, Evaluation]
    verdicts: tuple[Verdict, ...]
    usable: Usable
    unused: tuple[str, ...]
    remarks: tuple[str, ...]
    matched: Mapping[str, int] | None
    by: tuple[str, ...]
    mixed: tuple[str, ...]
    made: RecalibratedRecording | None
    gains: tuple[HeldOut, ...]
    recording: Recording
    evaluated: Callable[[BoolArray], Evaluation]
    judged: BoolArray
    bare: WithoutCovariance | None


def run(options: argparse.Namespace) -> int:
    """0 when the measures were printed.

    Raises RecordingError, EvaluationError, InvalidRecalibrator.
    """
    if is_state(options.file):
        # It shares with `report` what brings gRPC along, which the Python API does without.
        from monitor.commands.evaluate.of_state import evaluate_state

        return FAILED if evaluate_state(options, _OF_ROWS) else 0
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
    classes = gaussians = of_classes = sweep = None
    if recording is not None:
        if isinstance(model, ClassSelection):
            recording = recalibrate_classes(model, recording)
        with working("measuring class probabilities"):
            classes = measured_classes(recording, options)
            of_classes = judged_classes(recording)
        if options.sweep is not None:
            steps = float(classes.n * TEMPERATURES.size)
            with working("sweeping the temperature", steps) as done:
                sweep = swept(recording, partial(measured_classes, options=options), done)
    if not only_classes:
        gaussians = measured(options, model if isinstance(model, Selection) else None)
    found = gaussians, classes, of_classes, model
    content = document(*found, sweep=sweep)
    failures = list(holding(options.fail_if or (), content))
    if gaussians is not None and gaussians.usable.share_refused > options.most_refused:
        failures.append(
            f"{gaussians.usable.share_refused:.1%} of the rows with ground truth are refused, more "
            f"than --most-refused {options.most_refused:g}: {gaussians.usable.reasons()}. Correct "
            "these rows, or allow more by --most-refused."
        )
    if options.report is not None:
        write_output(options.report, _report(options, *found, sweep))
    if options.fail_if or failures:
        content["failed"] = failures
    tables = list(_tables(options, *found))
    if sweep is not None and recording is not None:
        tables.append(sweep_table(sweep, recording.class_names))
    tell(options, content, "\n\n".join(tables))
    for line in failures:
        to_standard_error(f"calibration-monitor evaluate: {line}")
    return FAILED if failures else 0


def _report(
    options: argparse.Namespace,
    gaussians: Measured | None,
    classes: ClassEvaluation | None,
    of_classes: ClassVerdict | None,
    model: AnySelection | None,
    sweep: Sweep | None,
) -> str:
    """Writes the report; where a model was applied, the file is measured without it as well."""
    before = None
    if gaussians is not None and gaussians.made is not None:
        before = measured(options, None, lambda words: None)
    found = [] if of_classes is None else [said(of_classes, matters=True)]
    opening, slices = [], []
    sections: list[Section | None] = []
    if gaussians is not None:
        found += [said(one, matters=one.matters) for one in gaussians.verdicts]
        found += [Said("unknown", words) for words in gaussians.bare.said] if gaussians.bare else []
        recording = gaussians.recording
        slices = stages_by_group(gaussians.groups, before.groups if before else {}, recording)
        drawn = (before.recording, recording) if before else (recording, None)
        reasons = gaussians.usable.as_json()
        if gaussians.groups:
            opening = [in_pieces(recording, gaussians.judged, gaussians.evaluated)]
        sections = [
            errors_section(gaussians.bare),
            fullest_frame(*drawn) if gaussians.groups else None,
            recalibrator_section(gaussians.gains, model.version if model else ""),
            labels_section(gaussians.whole, reasons, gaussians.matched)
            if gaussians.whole
            else None,
        ]
    if sweep is not None:
        sections.append(Section("Sweep over the temperature", figures=sweep_figures(sweep)))
    files = {"file": options.file, "labels": options.labels, "recalibrator": options.model}
    made = {what: hashed(path) for what, path in files.items() if path is not None}
    words = " ".join(selection_words(options))
    made["asked"] = f"evaluate {words} --engine {options.engine} --binning {options.binning}"
    of_all = [("all", {"confidence": classes})] if classes else []
    title = f"Calibration of {options.file}"
    return written(Report(title, found, slices, of_all, opening, sections, made))


def _check(options: argparse.Namespace) -> None:
    if options.report is not None and options.file == "-":
        raise ValueError("--report: it names the file by its hash, and - has none. Give a file.")
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
    allow(options, recording is not None, why, *OF_CLASSES_ALONE)
    if recording is not None and not recording.gaussians:
        refuse_options_of_gaussians(
            options, OF_GAUSSIANS, f"{options.file} has class probabilities only"
        )


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
    asked = [ours_of.get(name, name) for name in options.by or ()]
    # A sequence is what a stream is called in files.
    by = tuple(dict.fromkeys(SliceBy.STREAM if name == "seq" else name for name in asked))
    beside = tuple(name for name in by if name not in tuple(SliceBy))
    remarks: list[str] = []

    def remark(words: str) -> None:
        remarks.append(words)
        tell(words)

    dimensions = () if model is None else model.dimensions
    recording = read_selected(options.file, options, beside, remark, dimensions)
    recording = before = stated(model, recording, options)
    made = None if model is None else recalibrate_gaussians(model, recording)
    shaped = None
    if made is not None:
        recording, shaped = made.recording, made.shaped
        for words in remarks_on(made):
            remark(f"model: {words}")
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

    # Errors of what was sent without a covariance are measured; a covariance is not judged.
    judged = usable.rows & ~recording.assumed
    tracks = numbered_tracks(recording)
    overlap = overlaps(recording, judged)

    def evaluated(
        rows: BoolArray, done: Callable[[float], object] = lambda rows: None
    ) -> Evaluation:
        kept = rows & judged
        if options.engine == "exact":
            # Distributions of the model's own are those of all rows.
            some = slice(None) if shaped is not None else np.flatnonzero(kept)
            found = evaluate_rows(
                recording.space,
                recording.mean[some],
                recording.covariance[some],
                np.where(kept[some, None], recording.truth[some], np.nan),
                tau=_levels(options),
                cut=cut,
                cluster=None if tracks is None else tracks[some],
                shaped=shaped,
                done=done,
            )
        else:
            found = _streamed(recording, options, cut, np.flatnonzero(kept), tracks, done)
        if overlap is not None:
            found = replace(found, joint=_with_overlap(found.joint, recording, overlap, kept))
        return replace(
            found,
            without_truth=int(np.count_nonzero(rows & ~usable.labelled)),
            refused=int(np.count_nonzero(rows & usable.labelled & ~usable.rows)),
        )

    filled = judged & before.assumed & ~recording.assumed
    groups = dict(apart_from_filled(by, recording, judged, filled))
    there = [recording.classes[i] for i in np.unique(recording.class_index[judged])]
    kept = np.flatnonzero(judged)
    rows_of = {name: np.flatnonzero(rows & judged) for name, rows in groups.items()}
    apart = [name for name, rows in groups.items() if not rows.all()]
    total = kept.size + sum(rows_of[name].size for name in apart)
    said: list[Verdict] = []
    with working("measuring", total + sum(rows.size for rows in rows_of.values())) as done:
        whole = evaluated(np.ones(usable.rows.size, bool), done) if kept.size else None
        of_groups = {
            name: whole if whole and name not in apart else evaluated(rows, done)
            for name, rows in groups.items()
        }
        for name, some in rows_of.items():
            said += _verdicts(recording, some, tracks, name)
            done(some.size)
    gains: tuple[HeldOut, ...] = ()
    if made is not None and shaped is None and kept.size:
        named = {name: some for name, some in rows_of.items() if name}
        gains = compared(before, recording, kept, named)
    bare = usable.rows & recording.assumed
    errors = None
    if bare.any():
        finer = by or finer_parts(recording)
        parts = [dict(divided(one, recording, bare)) for one in (by, finer)]
        errors = measured_errors(recording, bare, usable, tracks, *parts)
    return Measured(
        whole=whole,
        groups=of_groups,
        verdicts=gravest_first(said),
        usable=usable,
        unused=recording.unused,
        remarks=tuple(remarks),
        matched=recording.matched,
        by=by,
        mixed=tuple(there) if by and SliceBy.CLASS not in by and len(there) > 1 else (),
        made=made,
        gains=gains,
        recording=recording,
        evaluated=evaluated,
        judged=judged,
        bare=errors,
    )


def _with_overlap(
    joint: JointMeasures, recording: Recording, overlap: FloatArray, rows: BoolArray
) -> JointMeasures:
    """Adds how far boxes overlap the true ones, and whether σ_G ranks them; some rows (N,)."""
    covariance, error = recording.covariance[rows], 1.0 - overlap[rows]
    no_variances_only = np.zeros(error.size, bool)
    deviation = generalised_deviation(recording.space, covariance, no_variances_only)
    ranking = ErrorRanking(partial(rank_twice, deviation, error))
    return replace(joint, mean_iou=float(overlap[rows].mean()), ause_iou=ranking.ause)


def _verdicts(
    recording: Recording, rows: IntArray, tracks: IntArray | None, group: str
) -> tuple[Verdict, ...]:
    """Judges the Gaussians of some rows."""
    variance = np.diagonal(recording.covariance, axis1=1, axis2=2)[rows]
    return verdicts(
        recording.space.names,
        [dimension.unit for dimension in recording.space.dimensions],
        recording.space.error(recording.truth[rows], recording.mean[rows]),
        variance,
        None if tracks is None else tracks[rows],
        group,
        None if recording.between is None else recording.between[rows, 0],
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


def _levels(options: argparse.Namespace) -> FloatArray:
    """(T,) confidence levels."""
    return TAU if options.tau is None else np.array(options.tau)


def _streamed(
    recording: Recording,
    options: argparse.Namespace,
    cut: BinCut,
    kept: IntArray,
    tracks: IntArray | None,
    done: Callable[[float], object],
) -> Evaluation:
    """Measures some rows from micro-bins; `done` is told of how many further ones."""
    bins = LogBins(LOWEST, options.micro_bins, OCTAVES)
    binning = Binning(bins, tau=tuple(_levels(options).tolist()))
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
        done,
    )
    return replace(read(statistics, cut), tracks=count)


def document(
    gaussians: Measured | None,
    classes: ClassEvaluation | None,
    of_classes: ClassVerdict | None,
    model: AnySelection | None,
    sweep: Sweep | None = None,
) -> dict[str, object]:
    """Builds one object; a file without Gaussians has neither dimensions nor a joint block."""
    found: dict[str, object] = {}
    if gaussians:
        usable = gaussians.usable
        without_truth = int(np.count_nonzero(~usable.labelled))
        none = _nothing(0, without_truth, usable.n_refused)
        found = as_json(gaussians.whole) if gaussians.whole else none
        found |= {
            "rows_refused_by": usable.as_json(),
            "columns_not_used": list(gaussians.unused),
            "remarks": list(gaussians.remarks),
            "labels": gaussians.matched,
            "verdicts": [verdict.as_json() for verdict in gaussians.verdicts],
            "groups": {name: as_json(one) for name, one in gaussians.groups.items() if name},
        }
        if gaussians.bare:
            found["without_covariance"] = gaussians.bare.as_json()
    elif classes:
        found = _nothing(classes.n, classes.without_truth, classes.refused)
    if isinstance(model, ClassSelection):
        found["model"] = {"version": model.version, "method": model.method}
    elif gaussians and gaussians.made:
        gains = [one.as_json() for one in gaussians.gains]
        found["model"] = model_as_json(gaussians.made) | ({"before_after": gains} if gains else {})
    if classes:
        swept_over = {"sweep": sweep.as_json()} if sweep else {}
        found["classification"] = class_as_json(classes) | swept_over
    if of_classes:
        found["class_verdict"] = of_classes.as_json()
    return found


def _nothing(rows: int, without_truth: int, refused: int) -> dict[str, object]:
    """Builds the object where no covariance is judged."""
    return {
        "rows": rows,
        "rows_without_truth": without_truth,
        "rows_refused": refused,
        "dimensions": {},
        "joint": None,
    }


def _tables(
    options: argparse.Namespace,
    gaussians: Measured | None,
    classes: ClassEvaluation | None,
    of_classes: ClassVerdict | None,
    model: AnySelection | None,
) -> Iterator[str]:
    if of_classes is not None:
        wrong = of_classes.finding in (Finding.OVERCONFIDENT, Finding.UNDERCONFIDENT)
        file = [shlex.quote(str(options.file)), *selection_words(options, ("rows", "map"))]
        words = f"{' '.join(file)} --method temperature --output classes.json"
        mends = f"Do: calibration-monitor fit {words}"
        yield of_classes.sentence + (f"\n{mends}" if wrong and options.model is None else "")
    if gaussians and gaussians.bare:
        yield errors_table(gaussians.bare, _fills(options, gaussians), full=options.full)
    if gaussians and gaussians.whole:
        said = "" if gaussians.made is None else measured_under(gaussians.made, str(options.file))
        lines = [verdict_lines(gaussians.verdicts, full=options.full)]
        lines += [mixture(options.by, gaussians.mixed)] if gaussians.mixed else []
        biased = any(verdict.biased for verdict in gaussians.verdicts)
        if options.model is None and (biased or any(one.matters for one in gaussians.verdicts)):
            words = _mend(options, gaussians) + " --correct-mean" * biased
            lines.append(advice(words, gaussians.matched))
        yield "\n".join(lines)
        if gaussians.gains:
            judged = told(gaussians.gains, "before → after")
            yield f"{judged}\nOnly tracks that the recalibrator was not fitted on prove a gain."
        if options.full:
            yield all_measures(gaussians.whole)
        yield "\n".join(filter(None, (rows_line(gaussians.whole, gaussians.usable), said)))
        yield summary(gaussians.groups, gaussians.verdicts)
    if classes:
        said = f"recalibrated by {model.version}\n" if isinstance(model, ClassSelection) else ""
        yield said + class_table(classes)


def _fills(options: argparse.Namespace, gaussians: Measured) -> str:
    """Spells the fit that fills what is missing, by class and range where rows have them."""
    parts = [part for part in SliceBy if part in (gaussians.by or finer_parts(gaussians.recording))]
    by = f" --by {','.join(parts)}" if parts else ""
    words = " ".join([shlex.quote(str(options.file)), *selection_words(options)])
    return f"{words} --method covariance-regression{by} --output model.json"


def _mend(options: argparse.Namespace, gaussians: Measured) -> str:
    """Spells the fit by slices of what the groups are, and by class where these mix classes."""
    parts = [SliceBy.CLASS] if gaussians.mixed else []
    parts += [part for part in SliceBy if part in gaussians.by]
    if not gaussians.by and len(gaussians.groups) > 1:
        parts = [SliceBy.CLASS]
    by = f" --by {','.join(parts)}" if parts else ""
    words = " ".join([shlex.quote(str(options.file)), *selection_words(options)])
    return f"{words}{by} --proven-only --output model.json"
