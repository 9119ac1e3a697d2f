"""Measures of class probabilities written down from the papers, row by row, with plain loops.

Rows are pairs of a list of probabilities and the true class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from tests.statistics import oracle

Row = tuple[list[float], int]
Rows = Sequence[Row]
OfRow = Callable[[Row], float]


def confidence(row: Row) -> float:
    return max(row[0])


def predicted(row: Row) -> int:
    return row[0].index(confidence(row))


def right(row: Row) -> float:
    return float(predicted(row) == row[1])


def wrong(row: Row) -> float:
    return 1.0 - right(row)


def entropy_of(p: Sequence[float]) -> float:
    """Over log C; Wolf et al. 2024, eq. 4."""
    return -math.fsum(x * math.log(x) for x in p if x > 0) / math.log(len(p))


def entropy(row: Row) -> float:
    return entropy_of(row[0])


def cross_entropy(row: Row) -> float:
    return -math.log(row[0][row[1]])


def brier(row: Row) -> float:
    p, label = row
    return math.fsum((x - (1.0 if c == label else 0.0)) ** 2 for c, x in enumerate(p))


def skewness(values: Sequence[float]) -> float:
    """The third standardised moment: Wolf et al. 2024, section 4.1."""
    mean = math.fsum(values) / len(values)
    second, third = (math.fsum((x - mean) ** k for x in values) / len(values) for k in (2, 3))
    return third / math.sqrt(second) ** 3


def bin_of(value: float, edges: Sequence[float]) -> int:
    """Closed on the left, the last bin on both sides."""
    return max((i for i in range(len(edges) - 1) if value >= edges[i]), default=0)


def binned(rows: Rows, value: OfRow, edges: Sequence[float]) -> list[list[Row]]:
    cells: list[list[Row]] = [[] for _ in edges[:-1]]
    for row in rows:
        cells[bin_of(value(row), edges)].append(row)
    return cells


def gaps(
    rows: Rows, value: OfRow, outcome: OfRow, edges: Sequence[float]
) -> list[tuple[float, float]]:
    """Weight and |mean outcome − mean value| of each occupied bin."""
    return [
        (len(cell) / len(rows), abs(fmean(map(outcome, cell)) - fmean(map(value, cell))))
        for cell in binned(rows, value, edges)
        if cell
    ]


def expected(found: Sequence[tuple[float, float]], q: float = 1.0) -> float:
    """ECE_q, after Naeini et al. 2015; UCE is its form in Laves et al. 2019, eq. 15."""
    mean = math.fsum(w * g**q for w, g in found)
    return math.pow(mean, 1 / q)


def classwise_ece(rows: Rows, c: int, edges: Sequence[float]) -> float:
    """Class c against the others, over all rows; Kull et al. 2019."""
    return expected(gaps(rows, lambda row: row[0][c], lambda row: float(row[1] == c), edges))


def classwise_uce(rows: Rows, c: int, edges: Sequence[float]) -> float:
    """Of the rows predicted as c; Laves et al. 2019, eq. 18."""
    own = [row for row in rows if predicted(row) == c]
    return expected(gaps(own, entropy, wrong, edges)) if own else math.nan


def area_score(rows: Rows, value: OfRow, outcome: OfRow, edges: Sequence[float]) -> float:
    """1 − A/0.25, A of the occupied bins' bars; Wolf et al. 2024, eq. 7."""
    area = math.fsum(gap / (len(edges) - 1) for _, gap in gaps(rows, value, outcome, edges))
    return 1 - area / 0.25


def remaining(rows: Rows, uncertainty: OfRow, merit: OfRow) -> list[float]:
    """Mean merit once 0 … N − 1 of the most uncertain rows are gone; ties share their mean."""
    return oracle.sparsification([*map(uncertainty, rows)], [*map(merit, rows)])[::-1]


def ause(rows: Rows, uncertainty: OfRow, merit: OfRow) -> float:
    return oracle.ause([*map(uncertainty, rows)], [*map(merit, rows)])


def entropy_parts(opinions: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Mean entropy, and mean Kullback-Leibler divergence from the mean; Wolf et al., eq. 10."""
    middle = [fmean(column) for column in zip(*opinions, strict=True)]
    divergence = fmean(
        math.fsum(x * math.log(x / m) for x, m in zip(p, middle, strict=True) if x > 0)
        for p in opinions
    )
    return fmean(map(entropy_of, opinions)), divergence / math.log(len(middle))
