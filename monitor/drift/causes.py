"""The cause that an alarm names: which quantity of which dimension is wrong, and by how much.

An alarm rests on the evidence of a chart as a whole. Its cause is the simplest one that the bets of
the chart speak for: a mean that is off makes errors too large as well, but nothing else makes it
off; one dimension that is wrong makes the NEES too large, but not the others; and errors far
outside say no more than the scale where that is wrong. Names have no promised rate of false ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor.drift.bets import ABSOLUTE, BETS, SCALE
from monitor.drift.channels import (
    BIASES,
    CORRELATIONS,
    JOINT,
    MOST_NAMED,
    SCALES,
    SHIPPED,
)
from monitor.drift.charts import CHARTS, Quantity, Scale
from monitor.drift.evidence import (
    COLUMNS,
    OF_TAIL,
    OF_TRACKS,
    OTHER_BIASES,
    SAID_ERROR,
    SAID_UU,
    SAID_Z,
    SAID_ZZ,
    Evidence,
)
from monitor.drift.levels import FACTORS
from monitor.frames.space import Dimension, FloatArray

# Nats of evidence from which on a cause is believed, and its least share of those of the chart.
_SPEAKS = 5.0
_SHARE = 1 / 3

# A mean that is off is the cause where it makes so much of the squared errors.
_EXPLAINS = 0.4

# Detections of which a mean alone tells that.
_KNOWN = 64

# Further dimensions are named if they are off by half as much as that with most evidence, in ln σ.
_AS_WELL = 0.5

# Bets on detections that tell tails, not a factor.
_OF_STUDENT = slice(ABSOLUTE + SCALE, BETS)


@dataclass(frozen=True, slots=True)
class Cause:
    """Names what is wrong.

    dimensions  by number, of the joint block; () where all are
    """

    quantity: Quantity
    dimensions: tuple[int, ...] = ()

    def names(self, known: Sequence[Dimension]) -> str:
        """Names the dimensions; '' where all are meant."""
        return ", ".join(known[one].name for one in self.dimensions)

    def unit(self, known: Sequence[Dimension]) -> str:
        """Returns the unit of the size."""
        return known[self.dimensions[0]].unit if self.quantity is Quantity.BIAS else ""

    def size(self, run: FloatArray, scale: Scale) -> float:
        """Returns by how much it is wrong, over all detections since the change.

        scale        factor on σ: √(mean z²) of the dimensions, of all √(mean NEES/K)
        bias         mean error, true less reported, in its unit
        correlation  factor on σ given the dimensions before it beside that on σ alone
        tail         share of detections far outside
        confidence   accuracy less stated confidence

        run    (SAID,) of the chart
        scale  of the same
        """
        count, there = float(run[0]), list(self.dimensions)
        if not count:
            return math.nan
        z, u = run[SAID_ZZ][there], run[SAID_UU][there]
        match self.quantity:
            case Quantity.BIAS:
                return float(run[SAID_ERROR][there[0]]) / count
            case Quantity.CORRELATION:
                return math.sqrt(float(u[0] / z[0])) if z[0] > 0 else math.nan
            case Quantity.TAIL:
                return float(run[3]) / count
            case Quantity.CONFIDENCE:
                # x of a vote is 1 + stated confidence − accuracy.
                return 1 - float(run[1]) / count
        return math.sqrt(float(z.mean()) / count) if there else scale.estimate


def _explained(run: FloatArray) -> FloatArray:
    """Returns which part of the squared errors of each dimension their mean makes."""
    total = run[0] * run[SAID_ZZ]
    part: FloatArray = np.divide(run[SAID_Z] ** 2, total, np.zeros(total.size), where=total > 0)
    return part


def cause_of(evidence: Evidence, slice: int, chart: int) -> Cause:
    """Finds the cause that the bets of a chart of a slice speak for."""
    there, run = evidence.weights[slice, chart] > 0, evidence.run[slice, chart]
    sums = np.where(there, evidence.sums[slice, chart], 0.0)
    # Over what evidence is worth while nothing is wrong.
    fresh = max(float(evidence.fresh[slice]), 1e-12)
    with np.errstate(divide="ignore"):
        nats = np.log(sums / fresh)
    columns = nats[OF_TRACKS].reshape(COLUMNS, len(FACTORS)).max(axis=1)
    enough = max(_SPEAKS, _SHARE * float(nats.max()))

    biases = np.maximum(columns[BIASES : BIASES + MOST_NAMED], columns[OTHER_BIASES])
    largest = int(biases.argmax())
    if biases[largest] >= enough and _explained(run)[largest] >= _EXPLAINS:
        return Cause(Quantity.BIAS, (largest,))
    scales = columns[SCALES : SCALES + MOST_NAMED]
    named = np.flatnonzero(there[OF_TRACKS][:: len(FACTORS)][SCALES : SCALES + MOST_NAMED])
    if named.size and scales.max() >= enough:
        squares = run[SAID_ZZ][named] / max(float(run[0]), 1.0)
        off = CHARTS[chart].direction.sign * np.log(np.maximum(squares, 1e-12))
        meant = named[off >= _AS_WELL * off[int(scales[named].argmax())]]
        all_are = meant.size == named.size
        return Cause(Quantity.SCALE, () if all_are else tuple(meant.tolist()))
    correlations = columns[CORRELATIONS : CORRELATIONS + MOST_NAMED]
    if correlations.max() >= enough:
        first = int(correlations.argmax())
        # The mean of a dimension or of one before it, off by less than bets on means ask for.
        means = _explained(run)[: first + 1]
        if means.max() >= _EXPLAINS and run[0] >= _KNOWN:
            return Cause(Quantity.BIAS, (int(means.argmax()),))
        return Cause(Quantity.CORRELATION, (first,))
    whole = max(float(nats[: _OF_STUDENT.start].max()), float(columns[[JOINT, SHIPPED]].max()))
    tail = max(float(nats[_OF_STUDENT].max()), float(nats[OF_TAIL].max()))
    if tail >= max(_SPEAKS, whole):
        return Cause(Quantity.TAIL)
    return Cause(Quantity.SCALE)
