"""Writes a report: one HTML file with the verdict first, then figures, measures, and how it came.

It is built from values alone. However many slices and rows there were, the file stays below 1 MB:
figures are drawn for the slices that are furthest off, until the room for them is used up.
"""

from __future__ import annotations

import hashlib
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import scipy

from monitor import __version__
from monitor.figures.evaluations import (
    JOINT,
    change_figure,
    class_figure,
    coverage_figure,
    evaluation_figures,
    factors,
    slices_figure,
)
from monitor.figures.page import document
from monitor.figures.svg import Figure, number
from monitor.figures.tables import Table, fact, html_table
from monitor.frames.space import Space
from monitor.statistics.class_evaluation import ClassEvaluation
from monitor.statistics.measures import Evaluation
from monitor.statistics.reading import is_assumed
from monitor.store.column_names import some_of

# Bytes of figures of slices, and of the table of measures, of the megabyte of a report.
_MOST_FIGURES, _MOST_MEASURES = 600_000, 200_000

# Verdicts that have a card each: of what is wrong, and of what is well.
_MOST_WRONG, _MOST_WELL = 24, 2

_OF_DIMENSION = ("nees_mean", "ence", "ence_noise_floor", "uce", "qce", "rmse", "rmv", "bias")
_OF_JOINT = ("nees_over_k", "nees_median_ratio", "qce", "nll", "n_eff")
_HEADS = {
    "n": "rows", "nees_mean": "NEES", "ence": "ENCE", "ence_noise_floor": "floor of ENCE",
    "uce": "UCE", "qce": "QCE", "rmse": "RMSE", "rmv": "root mean variance", "bias": "bias",
    "nees_over_k": "NEES/K", "nees_median_ratio": "median NEES ratio", "nll": "NLL",
    "n_eff": "n_eff",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Slice:
    """Measures of one slice or group, by the name of the stage, the raw one first."""

    name: str
    space: Space
    stages: Mapping[str, Evaluation]

    @property
    def last(self) -> Evaluation:
        """The measures of what is forwarded."""
        return list(self.stages.values())[-1]

    @property
    def assumed(self) -> bool:
        """Tells whether σ is assumed: no covariance came, and none was estimated."""
        stages = list(self.stages.values())
        return is_assumed(self.space, stages[0], stages[-1])

    @property
    def off(self) -> float:
        """How far the worst dimension of any stage is from calibrated, |ln factor|; 0: unknown."""
        found = [abs(math.log(one)) for stage in self.stages.values() for one in _known(stage)]
        return max(found, default=0.0)


def _known(evaluation: Evaluation) -> Iterator[float]:
    yield from (one for one in factors(evaluation).values() if math.isfinite(one) and one > 0)


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence of the verdict; `kind` is page (surely wrong), ticket, well, unknown, or note."""

    kind: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report: a title over paragraphs, figures, tables and printed text, in turn."""

    title: str
    paragraphs: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    preformatted: str = ""

    def html(self) -> str:
        """Writes the section."""
        drawn = "".join(figure.html() for figure in self.figures)
        return (
            f"<section><h2>{escape(self.title)}</h2>"
            + "".join(f"<p>{escape(words)}</p>" for words in self.paragraphs)
            + f'<div class="grid">{drawn}</div>' * bool(drawn)
            + "".join(
                table.html(f"{self.title}, table {i}") for i, table in enumerate(self.tables, 1)
            )
            + f'<pre class="wide" tabindex="0">{escape(self.preformatted)}</pre>'
            * bool(self.preformatted)
            + "</section>"
        )


@dataclass(frozen=True, slots=True)
class Report:
    """All that a report says.

    title    what was measured
    verdict  sentences, the gravest first
    classes  measures of class probabilities, by slice and stage
    opening, sections  what is told before the slices, and behind them; None is left out
    made     how it was measured: words for what they name
    """

    title: str
    verdict: Sequence[Said]
    slices: Sequence[Slice]
    classes: Sequence[tuple[str, Mapping[str, ClassEvaluation]]] = ()
    opening: Sequence[Section | None] = ()
    sections: Sequence[Section | None] = ()
    made: Mapping[str, str] | None = None


def written(report: Report) -> str:
    """Writes the report as one HTML document that asks for no other address."""
    libraries = f"{platform.python_version()}, {np.__version__}, {scipy.__version__}"
    versions = {"calibration-monitor": __version__, "Python, numpy, scipy": libraries}
    made = Table(("what", "how"), tuple({**(report.made or {}), **versions}.items()))
    classes = [class_figure(*one) for one in report.classes[:12]]
    of_classes = Section("Class probabilities", figures=classes) if classes else None
    sections = (*report.opening, *_of_slices(report.slices), of_classes, *report.sections)
    parts = [
        f"<header><h1>{escape(report.title)}</h1></header><main>",
        f'<section aria-label="verdict">{_verdict(report.verdict)}</section>',
        *(section.html() for section in sections if section is not None),
        _measures(report.slices),
        f"<section><h2>How it was measured</h2>{made.html('how it was measured')}</section></main>",
    ]
    return document(report.title, "".join(parts))


def _verdict(said: Sequence[Said]) -> str:
    """Writes what is wrong as a card each, and what is well in a fold if it is much."""
    wrong = [one for one in said if one.kind not in ("well", "unknown")]
    others = [one for one in said if one not in wrong]
    folded = ""
    if len(others) > _MOST_WELL:
        lines = "".join(f"<li>{escape(one.sentence)}</li>" for one in others)
        well = sum(one.kind == "well" for one in others)
        text = f"Calibrated: {well} verdicts" + f", {len(others) - well} with too little data" * (
            well < len(others)
        )
        folded = f"<details><summary>{text}</summary><ul>{lines}</ul></details>"
        others = [] if wrong else [Said("well", f"Calibrated: {well} of {len(said)} verdicts.")]
    cards = (
        f'<div class="card {one.kind}">{escape(one.sentence)}</div>'
        for one in (*wrong[:_MOST_WRONG], *others)
    )
    more = len(wrong) - _MOST_WRONG
    return "".join(cards) + f"<p>… and {more} more like these.</p>" * (more > 0) + folded


def _of_slices(slices: Sequence[Slice]) -> Iterator[Section]:
    """Yields the overview and then the slices, the worst first, while there is room."""
    if not slices:
        return
    overview = [slices_figure([(one.name, one.last) for one in slices])]
    changed = [
        (one.name, first, last)
        for one in slices
        if len(one.stages) > 1
        for first, last in [[stage.joint.nees_over_k for stage in one.stages.values()]]
        if first > 0 and last > 0
    ]
    if changed:
        names, before, after = zip(*changed, strict=True)
        title = "NEES/K before and after the recalibrator"
        overview.append(change_figure(title, names, np.array(before), np.array(after)))
    yield Section("Slices", figures=overview)
    room, left = _MOST_FIGURES, []
    for one in sorted(slices, key=lambda one: -one.off):
        units = {dimension.name: dimension.unit for dimension in one.space.dimensions}
        found = evaluation_figures(one.name, one.stages, units)
        size = sum(len(figure.html()) for figure in found)
        if size > room:
            left.append(one.name)
            continue
        room -= size
        yield Section(one.name, figures=found)
    if left:
        words = f"Without figures of their own, to keep this file small: {some_of(left, 20)}."
        yield Section("Further slices", (words,))


def _measures(slices: Sequence[Slice]) -> str:
    """Writes a row for each slice, stage and dimension; each cell names what it holds."""
    if not slices:
        return ""
    heads = list(dict.fromkeys(("n", *_OF_DIMENSION, *_OF_JOINT)))
    rows: list[list[str]] = []
    room, told = _MOST_MEASURES, 0
    for one in slices:
        if room < 0:
            break
        told += 1
        for stage, evaluation in one.stages.items():
            blocks = {**evaluation.dimensions, JOINT: evaluation.joint}
            for name, block in blocks.items():
                wanted = ("n", *(_OF_JOINT if name == JOINT else _OF_DIMENSION))
                of = one.name, stage, name
                cells = (
                    fact(number(getattr(block, head)), *of, head) if head in wanted else ""
                    for head in heads
                )
                rows.append([escape(", ".join(of)), *cells])
                room -= sum(map(len, rows[-1]))
    more = len(slices) - told
    titles = ("slice, stage, dimension", *(escape(_HEADS[head]) for head in heads))
    return (
        "<section><h2>Measures</h2>"
        + f"<p>{more} more slices are left out, to keep this file small.</p>" * (more > 0)
        + f"{html_table('measures', titles, rows)}</section>"
    )


def file_hash(path: str | Path) -> str:
    """Computes the SHA-256 of a file, in hexadecimal. Raises OSError."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hashed(path: str | Path) -> str:
    """Names a file, or a folder of sequences, with its SHA-256. Raises OSError."""
    return f"{path}, {digest_of(path)}"


def digest_of(path: str | Path) -> str:
    """Writes the SHA-256 of a file, or that of what sha256sum prints of the files of a folder."""
    if not Path(path).is_dir():
        return f"SHA-256 {file_hash(path)}"
    lines = [f"{file_hash(one)}  {one.name}\n" for one in sorted(Path(path).glob("*.txt"))]
    return f"SHA-256 of `sha256sum *.txt` {hashlib.sha256(''.join(lines).encode()).hexdigest()}"


def notebook(slices: Sequence[Slice]) -> str:
    """Writes figures for a notebook: pictures, whose style cannot touch the page around them."""
    figures = [slices_figure([(one.name, one.last) for one in slices])]
    figures += [coverage_figure(one.name, one.stages) for one in slices[:4]]
    return "".join(figure.picture() for figure in figures)
