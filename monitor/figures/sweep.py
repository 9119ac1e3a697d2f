"""Draws measures over the temperature, each scaled to its own range: where is each best?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor.figures.svg import SERIES, Figure, Plot, Scale, number
from monitor.figures.tables import Table
from monitor.frames.space import FloatArray


@dataclass(frozen=True, slots=True)
class Curve:
    """A measure over the temperature.

    values  (G,)
    best    T at which it is best; NaN where there is none
    rising  best where it is highest
    """

    name: str
    values: FloatArray
    best: float
    rising: bool = False

    @property
    def share(self) -> FloatArray:
        """(G,) how far the values are from the best, as a share of their range; 0 is best."""
        known = np.isfinite(self.values)
        # Halves, since the range of finite numbers need not be finite.
        loss = np.where(known, -self.values if self.rising else self.values, np.nan) / 2
        above = loss - loss[known].min(initial=np.inf)
        shares: FloatArray = above / (above[known].max(initial=0.0) or 1.0)
        return shares


def temperature_sweep_figure(
    title: str, says: str, temperature: FloatArray, curves: Sequence[Curve]
) -> Figure:
    """Draws at most six curves on a logarithmic axis of T, a marker where each is best.

    temperature  (G,) ascending, above 0
    source       Wolf et al. 2024, figure 3
    """
    low, high = (temperature[0], temperature[-1]) if temperature.size else (0.1, 10.0)
    plot = Plot(Scale(float(low), float(high), log=True), Scale(0.0, 1.0))
    plot.axes("temperature T", "0 is best")
    plot.line(np.array([1.0, 1.0]), np.array([0.0, 1.0]), "ideal")
    drawn = list(zip(SERIES, curves, strict=False))
    for kind, one in drawn:
        plot.line(temperature, one.share, f"{kind} line")
    for kind, one in drawn:
        plot.dots(np.array([one.best]), np.array([0.0]), kind, 3.5)
    plot.legend([(kind, one.name) for kind, one in drawn])
    rows = [
        tuple(map(number, row))
        for row in zip(temperature.tolist(), *(one.values.tolist() for one in curves), strict=True)
    ]
    rows.append(("best at", *(number(one.best) for one in curves)))
    return Figure(
        title, says, plot.svg(says), Table(("T", *(one.name for one in curves)), tuple(rows))
    )
