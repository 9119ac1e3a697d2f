"""Measures and judges the class probabilities of a recorded file, and writes the measures."""

from __future__ import annotations

import argparse
from dataclasses import replace

from monitor.commands.apply import usable_opinions
from monitor.commands.recordings import numbered_tracks
from monitor.statistics.class_evaluation import (
    ClassEvaluation,
    evaluate_class_rows,
    nothing_to_evaluate,
    read_classes,
)
from monitor.statistics.class_statistics import DIVISORS, NO_TRUTH, observe_classes
from monitor.statistics.measures import EvaluationError
from monitor.statistics.verdicts import ClassVerdict, class_verdict
from monitor.store.class_recordings import ClassRecording

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

_LEGEND = """\
ECE      mean of |share of right classes − confidence| over bins; ECE_2 its root mean square, MCE
         the largest, ACE without weights, cECE the mean over classes, each against the others: 0
CCQS     1 − 4 times the area between confidence and the share of right classes: 1 is calibrated
UCE      as ECE, of entropy and the share of wrong classes, and not 0 of calibrated rows: watch its
         change; cUCE the mean over predicted classes, UCQS as CCQS
AUSE     area between the error left when the rows said to be most uncertain are taken out, and that
         when the worst are: 0 is the best order"""


def judged_classes(recording: ClassRecording) -> ClassVerdict | None:
    """Judges the rows with a true class and usable probabilities; None without any."""
    usable = usable_opinions(recording)
    usable &= (recording.label >= 0) & (recording.label < recording.probabilities.shape[1])
    if not usable.any():
        return None
    tracks = numbered_tracks(recording, usable)
    return class_verdict(recording.probabilities[usable], recording.label[usable], tracks)


def measured_classes(recording: ClassRecording, options: argparse.Namespace) -> ClassEvaluation:
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
    # Four times the mean gap over all bins is what CCQS lacks to 1: Wolf et al. 2024, section 4.1.
    skewness, gap = evaluation.confidence_skewness, (1.0 - evaluation.ccqs) / 4.0
    if abs(skewness) > 1.0 and gap > 2.0 * evaluation.ece:
        lines.append(
            f"confidence is skewed ({skewness:.2g}): a few bins hold most rows and decide ECE, "
            f"{evaluation.ece:.2g}; the mean gap of all bins alike, as in CCQS, is {gap:.2g}"
        )
    fractions, errors = evaluation.rejection_fraction[::5], evaluation.rejection_error_rate[::5]
    curve = zip(fractions.tolist(), errors.tolist(), strict=True)
    points = ", ".join(f"{error:.4g} at {share:.0%}" for share, error in curve)
    lines.append(f"error rate, highest entropy rejected: {points}")
    return "\n".join([*lines, "", _LEGEND])
