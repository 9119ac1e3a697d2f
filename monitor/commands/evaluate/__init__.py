"""calibration-monitor evaluate: judges and measures the calibration of a recorded file.

Verdicts by group and dimension come first. One of two engines measures: from the rows, or from
micro-bins as the sidecar does. The measures themselves are computed in `statistics`, and those of
Gaussians are written for people in evaluation_tables.py.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from functools import partial

import numpy as np

from monitor.commands.apply import (
    check_kind,
    measured_under,
    model_as_json,
    read_any_model,
    recalibrate_classes,
)
from monitor.commands.conditions import holding
from monitor.commands.evaluate.class_rows import class_table, judged_classes, measured_classes
from monitor.commands.evaluate.errors import (
    errors_section,
    errors_table,
)
from monitor.commands.evaluate.groups import finer_parts
from monitor.commands.evaluate.measuring import Measured, measured
from monitor.commands.evaluate.sweep import sweep_figures, sweep_table, swept
from monitor.commands.evaluation_tables import (
    advice,
    all_measures,
    mixture,
    rows_line,
    summary,
    verdict_lines,
)
from monitor.commands.held_out import told
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
    refuse_options_of_gaussians,
)
from monitor.frames.words import Finding, SliceBy
from monitor.options.recorded import OF_CLASSES_ALONE, OF_GAUSSIANS
from monitor.options.rows import SELECTION, selection_words
from monitor.options.values import allow
from monitor.recalibration.selection import AnySelection, ClassSelection, Selection
from monitor.recalibration.temperature_sweep import TEMPERATURES, Sweep
from monitor.statistics.class_evaluation import (
    ClassEvaluation,
    class_as_json,
)
from monitor.statistics.measures import (
    as_json,
)
from monitor.statistics.verdicts import ClassVerdict
from monitor.store.class_recordings import ClassRecording, read_class_recording, require_labels
from monitor.store.files import is_state

# Options that only rows can answer, and a file of statistics has none.
_OF_ROWS = (
    *(name for name in OF_GAUSSIANS if name != "bins"),
    *(*OF_CLASSES_ALONE, *SELECTION, "fault", "by", "model", "report"),
)

# Exit code where a condition of --fail-if holds, or more rows are refused than may be.
FAILED = 3


def run(options: argparse.Namespace) -> int:
    """0 when the measures were printed; FAILED if --fail-if says so or too many rows are refused.

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
        selection = model if isinstance(model, Selection) else None
        every = bool(options.json or options.full or options.fail_if or options.report)
        gaussians = measured(options, selection, whole_too=every)
    found = gaussians, classes, of_classes, model
    content = document(*found, sweep=sweep) if options.json or options.fail_if else {}
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
    tables = [] if options.json else list(_tables(options, *found))
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
    if gaussians and gaussians.counts.rows:
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
        if options.full and gaussians.whole:
            yield all_measures(gaussians.whole)
        yield "\n".join(filter(None, (rows_line(gaussians.counts, gaussians.usable), said)))
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
