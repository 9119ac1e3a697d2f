"""Draws one frame from above: detections with their ellipses, tracks and labels, in metres."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor.figures.svg import Figure, Plot, Scale, number
from monitor.figures.tables import Table
from monitor.frames.space import FloatArray

_CIRCLE = np.linspace(0.0, math.tau, 49)


@dataclass(frozen=True, slots=True)
class Gaussians:
    """Means (n, 2) and covariances (n, 2, 2) on the ground plane, in m and m²; drawn at 2 σ."""

    name: str
    mean: FloatArray
    covariance: FloatArray

    def ellipses(self) -> FloatArray:
        """Returns points (n, 49, 2) of the 2-σ ellipses; NaN where a covariance is not positive."""
        found = np.full((self.mean.shape[0], _CIRCLE.size, 2), np.nan)
        unit = 2.0 * np.stack([np.cos(_CIRCLE), np.sin(_CIRCLE)], axis=1)
        for i, covariance in enumerate(self.covariance):
            try:
                found[i] = self.mean[i] + unit @ np.linalg.cholesky(covariance).T
            except np.linalg.LinAlgError:
                continue
        return found


def top_view(
    title: str,
    says: str,
    gaussians: Sequence[Gaussians],
    truth: FloatArray | None = None,
    paths: Sequence[FloatArray] = (),
) -> Figure:
    """Draws a frame with equal scales on both axes.

    gaussians  one or two stages of the same detections
    truth      (m, 2) labelled positions, as crosses
    paths      (N, 2) positions of each track, oldest first
    """
    ellipses = [one.ellipses() for one in gaussians]
    labels = np.zeros((0, 2)) if truth is None else truth
    every = np.concatenate(
        [
            np.zeros((0, 2)),
            *(one.mean for one in gaussians),
            *(e.reshape(-1, 2) for e in ellipses),
            labels,
        ]
    )
    plot = _equal(every[np.isfinite(every).all(axis=1)])
    plot.axes("x [m]", "y [m]")
    for path in paths:
        plot.line(path[:, 0], path[:, 1], "ideal")
    rows: list[tuple[str, ...]] = []
    for kind, one, rings in zip("ab", gaussians, ellipses, strict=False):
        for ring in rings:
            plot.line(ring[:, 0], ring[:, 1], f"{kind} ring")
        plot.dots(one.mean[:, 0], one.mean[:, 1], kind, radius=1.0)
        rows += [
            (one.name, *(number(float(v)) for v in (*mean, math.sqrt(c[0, 0]), math.sqrt(c[1, 1]))))
            for mean, c in zip(one.mean, one.covariance, strict=True)
        ]
    for x, y in labels.tolist():
        at, up = float(plot.x(x)), float(plot.y(y))
        plot.marks.append(f'<path class="label" d="M{at - 4:.1f} {up - 4:.1f}l8 8m0 -8l-8 8"/>')
        rows.append(("ground truth", number(x), number(y), "", ""))
    names = [(kind, one.name) for kind, one in zip("ab", gaussians, strict=False)]
    plot.legend([*names, ("c", "ground truth")] if labels.size else names)
    return Figure(title, says, plot.svg(says), Table(("", "x", "y", "σ x", "σ y"), tuple(rows)))


def _equal(points: FloatArray) -> Plot:
    """Builds a plot on which a metre is as long to the side as ahead."""
    plot = Plot(Scale(0.0, 1.0), Scale(0.0, 1.0), height=300)
    across, up = plot.x.end - plot.x.start, plot.y.start - plot.y.end
    if not points.size:
        points = np.zeros((1, 2))
    centre = (points.min(axis=0) + points.max(axis=0)) / 2
    size = np.maximum(points.max(axis=0) - points.min(axis=0), 1.0) * 1.06
    metres = max(size[0] / across, size[1] / up)
    half_x, half_y = metres * across / 2, metres * up / 2
    return Plot(
        Scale(centre[0] - half_x, centre[0] + half_x),
        Scale(centre[1] - half_y, centre[1] + half_y),
        height=300,
    )
