"""Sweeps the temperature of simulated classifiers: at which T is each measure best?

`python -m benchmarks.decoupling` writes docs/decoupling.svg and prints the tables of "Measures
disagree" in docs/class_measures.md. After Wolf et al. 2024, figure 3 and table 1, whose network and
images nobody else has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from scipy.special import softmax

from monitor.commands.evaluate.sweep import written_temperature
from monitor.figures.svg import STYLE
from monitor.figures.sweep import Curve, temperature_sweep_figure
from monitor.frames.space import FloatArray
from monitor.recalibration.class_probabilities import from_probabilities
from monitor.recalibration.temperature_sweep import (
    BY_CLASS,
    MEASURES,
    SCORES,
    Sweep,
    temperature_sweep,
)
from monitor.statistics.class_evaluation import evaluate_class_rows

PICTURE = Path(__file__).parents[1] / "docs" / "decoupling.svg"
ROWS, CLASSES, SEED = 5_000, 10, 1

# Of a figure there are six series at most.
DRAWN = ("nll", "ece", "uce_entropy", "ause", "ause_entropy", "ccqs")
WIDTH, HEIGHT, TITLE = 360, 240, 22

Random = np.random.Generator


def calibrated(random: Random) -> tuple[FloatArray, FloatArray]:
    """Draws true probabilities, and claims these."""
    z = 2 * random.normal(size=(ROWS, CLASSES))
    return z, z


def overconfident(random: Random) -> tuple[FloatArray, FloatArray]:
    """Claims twice the log-odds, with errors of their own."""
    z = 2 * random.normal(size=(ROWS, CLASSES))
    return z, 2 * (z + 0.5 * random.normal(size=z.shape))


def dominated(random: Random) -> tuple[FloatArray, FloatArray]:
    """Fills four fifths of an image with one class, nearly certain and claimed with half its
    log-odds, as after a focal loss; claims twice the log-odds of the others, along its edges.
    """
    z = random.normal(size=(ROWS, CLASSES))
    inside = random.random(ROWS) < 0.8
    z[inside, 0] += 7
    z[~inside] *= 2
    return z, np.where(inside, 0.5, 2.0)[:, None] * z


def imbalanced(random: Random) -> tuple[FloatArray, FloatArray]:
    """Makes each class rarer than the one before, and claims more of its log-odds."""
    z = 1.5 * random.normal(size=(ROWS, CLASSES)) - 0.5 * np.arange(CLASSES)
    return z, (0.6 * 1.2 ** z.argmax(axis=1))[:, None] * z


CLASSIFIERS: Mapping[str, Callable[[Random], tuple[FloatArray, FloatArray]]] = {
    "calibrated": calibrated,
    "overconfident": overconfident,
    "one class dominates": dominated,
    "rare classes": imbalanced,
}


def swept(classifier: Callable[[Random], tuple[FloatArray, FloatArray]]) -> Sweep:
    """Draws rows of a classifier, logits of the truth and of its claims, and sweeps."""
    random = np.random.default_rng(SEED)
    true, claimed = classifier(random)
    drawn = softmax(true, axis=1).cumsum(axis=1) > random.random((ROWS, 1))
    label = drawn.argmax(axis=1)
    claims = from_probabilities(softmax(claimed, axis=1))[:, None]
    return temperature_sweep(claims, lambda made: evaluate_class_rows(made, label))


def picture(sweeps: Mapping[str, Sweep]) -> str:
    """Draws the curves of each classifier, two beside each other, as an SVG file."""
    parts = []
    for i, (name, sweep) in enumerate(sweeps.items()):
        best = sweep.best
        curves = [
            Curve(MEASURES[one], sweep.measures[one], best[one], one in SCORES) for one in DRAWN
        ]
        x, y = i % 2 * WIDTH, i // 2 * (HEIGHT + TITLE)
        drawing = temperature_sweep_figure(name, name, sweep.temperature, curves).svg
        marks = drawing.split(">", 1)[1].removesuffix("</svg>")
        parts.append(
            f'<g transform="translate({x} {y})"><text x="46" y="15" font-weight="bold">{name}'
            f'</text><g transform="translate(0 {TITLE})">{marks}</g></g>'
        )
    size = f"0 0 {2 * WIDTH} {(len(sweeps) + 1) // 2 * (HEIGHT + TITLE)}"
    says = "Measures of four simulated classifiers over the temperature: best at different places"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" role="img" aria-label="{says}">'
    )
    back = '<rect width="100%" height="100%" fill="var(--bg)"/>'
    return "\n".join([head, f"<style>{STYLE}</style>{back}", *parts, "</svg>\n"])


def best_temperatures(sweeps: Mapping[str, Sweep]) -> str:
    """Writes the T of each measure and classifier as a table of Markdown."""
    lines = [f"| best T | {' | '.join(sweeps)} |", f"| --- {'| --- ' * len(sweeps)}|"]
    for name, words in MEASURES.items():
        cells = (written_temperature(sweep, sweep.best[name]) for sweep in sweeps.values())
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def best_by_class(sweep: Sweep) -> str:
    """Writes the T of three classes that are predicted most, and three least, as table 1 does."""
    order = np.argsort(-sweep.n_by_class, kind="stable")
    lines = [f"| best T by class | predicted | {' | '.join(BY_CLASS.values())} |"]
    lines.append(f"| --- | --- {'| --- ' * len(BY_CLASS)}|")
    by_class = sweep.best_by_class
    for c in [*order[:3].tolist(), *order[-3:].tolist()]:
        cells = (written_temperature(sweep, float(by_class[name][c])) for name in BY_CLASS)
        lines.append(f"| {c} | {sweep.n_by_class[c]:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Sweeps all classifiers, writes the picture and prints the tables."""
    sweeps = {name: swept(classifier) for name, classifier in CLASSIFIERS.items()}
    PICTURE.write_text(picture(sweeps), encoding="utf-8")
    print(best_temperatures(sweeps), best_by_class(sweeps["rare classes"]), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
