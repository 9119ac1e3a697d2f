"""Sweeps the temperature of recorded class probabilities, and writes it for people.

A sentence says whether the measures agree on a temperature; a table and figures show it. The
measures at each temperature come from `recalibration.temperature_sweep`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from monitor.commands.apply import opinions_of
from monitor.commands.evaluation_tables import short
from monitor.commands.output import shown, table
from monitor.figures.svg import Figure
from monitor.figures.sweep import Curve, temperature_sweep_figure
from monitor.recalibration.temperature_sweep import (
    BY_CLASS,
    MEASURES,
    SCORES,
    Sweep,
    temperature_sweep,
)
from monitor.statistics.class_evaluation import ClassEvaluation
from monitor.statistics.class_statistics import NO_TRUTH
from monitor.store.class_recordings import ClassRecording

# Two steps of the grid: temperatures no further apart are told as one.
_ALIKE = 1.26

# Classes whose best temperatures are shown: those that are predicted most often.
_MOST_CLASSES = 20

_LEGEND = """\
best at  T between 0.1 and 10 that makes the measure lowest, CCQS and UCQS highest; ≤ or ≥ at an
         end, – where no T changes it. AUSE V, S, CE: by variation ratio, entropy, cross-entropy
by class ECE of the class against the others; UCE and AUSE of the rows that are predicted as it"""


def swept(
    recording: ClassRecording,
    measured: Callable[[ClassRecording], ClassEvaluation],
    done: Callable[[float], object],
) -> Sweep:
    """Measures the rows that are usable and have a true class at each temperature of the grid.

    done  is told of how many further rows at a temperature
    """
    log_probabilities, usable = opinions_of(recording)
    usable &= recording.label != NO_TRUTH
    # A copy of what may be the largest array there is only if it is smaller.
    kept = log_probabilities if usable.all() else log_probabilities[usable]
    labelled = replace(recording, label=recording.label[usable], opinions=None, logits=None)
    return temperature_sweep(
        kept, lambda made: measured(replace(labelled, probabilities=made)), done=done
    )


def written_temperature(sweep: Sweep, temperature: float) -> str:
    """Writes a best temperature: a dash for none, ≤ or ≥ at an end, since it may lie beyond."""
    if np.isnan(temperature):
        return "–"
    ends = {float(sweep.temperature[0]): "≤ ", float(sweep.temperature[-1]): "≥ "}
    return f"{ends.get(temperature, '')}{temperature:.2g}"


def agreement(sweep: Sweep) -> str:
    """Says in a sentence or two whether the measures are best at one temperature."""
    best = {name: at for name, at in sweep.best.items() if np.isfinite(at)}
    if "nll" not in best:
        return "No temperature changes the NLL: the probabilities of a row are all the same."
    chosen = best["nll"]
    at = written_temperature(sweep, chosen)
    at_chosen = f"T {at}" if at[0] in "≤≥" else f"T = {at}"
    others: dict[float, list[str]] = {}
    for name, other in best.items():
        if abs(np.log(other / chosen)) > np.log(_ALIKE):
            others.setdefault(other, []).append(MEASURES[name])
    if not others:
        return (
            f"The measures agree: each is best within a factor {_ALIKE:g} of {at_chosen}, where "
            "NLL is."
        )
    alike = [MEASURES[name] for name in best if name != "nll" and best[name] not in others]
    same = f" (and {_in_words(alike)} within a factor {_ALIKE:g})" if alike else ""
    rest = ", ".join(
        f"{_in_words(names)} at {written_temperature(sweep, one)}"
        for one, names in sorted(others.items())
    )
    return (
        f"The measures disagree: NLL is best at {at_chosen}{same}, but {rest}. "
        "fit takes the T of NLL, since NLL is proper: on average nothing beats the true "
        "probabilities."
    )


def _in_words(names: list[str]) -> str:
    """Joins names with commas and a last `and`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def sweep_table(sweep: Sweep, class_names: Sequence[str]) -> str:
    """Writes where each measure is best, of all rows and by class, and whether they agree."""
    best, chosen = sweep.best, sweep.best["nll"]
    heads = ("", "at T = 1", "best at T", "there", "at T of NLL")
    rows = []
    for name, words in MEASURES.items():
        first, there, under_nll = (
            "–" if math.isnan(at) else short(float(sweep.measures[name][sweep.at(at)]))
            for at in (1.0, best[name], chosen)
        )
        rows.append((words, first, written_temperature(sweep, best[name]), there, under_nll))
    lowest, highest = float(sweep.accuracy.min()), float(sweep.accuracy.max())
    accuracy = f"accuracy {lowest:.4g} at every T, since a temperature changes no order"
    if highest > lowest:
        words = "the mean of several opinions may put another class first"
        accuracy = f"accuracy {lowest:.4g} to {highest:.4g}: {words}"
    by_class, of_classes = sweep.best_by_class, []
    for c in np.argsort(-sweep.n_by_class, kind="stable")[:_MOST_CLASSES].tolist():
        name = class_names[c] if class_names else f"class {c}"
        temperatures = (written_temperature(sweep, float(by_class[one][c])) for one in BY_CLASS)
        of_classes.append((shown(name), f"{sweep.n_by_class[c]:,}", *temperatures))
    parts = [agreement(sweep), f"{table(heads, rows)}\n{accuracy}"]
    parts.append(table(("best T by class", "predicted", *BY_CLASS.values()), of_classes))
    return "\n\n".join([*parts, _LEGEND])


def sweep_figures(sweep: Sweep) -> list[Figure]:
    """Draws the curves of scores and reliability, and those of sparsification and areas."""
    best = sweep.best
    curves = [
        Curve(words, sweep.measures[name], best[name], name in SCORES)
        for name, words in MEASURES.items()
    ]
    says = agreement(sweep)
    return [
        temperature_sweep_figure(f"Temperature: {what}", says, sweep.temperature, some)
        for what, some in (("scores and gaps", curves[:6]), ("order and areas", curves[6:]))
    ]
