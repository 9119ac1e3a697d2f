"""What is usual of a slice at one stage: what drift is told from. Frozen once it is learned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import numpy as np
from scipy.special import digamma, gammaincinv, polygamma

from monitor.calibration.space import FloatArray

# Levels at which a reference knows the NEES: evenly in ln(u / (1 − u)), so that tails are fine.
KNOTS = 64
_OUTMOST = 1e-4


@cache
def knot_levels() -> FloatArray:
    """(KNOTS,) u, ascending."""
    edge = math.log(_OUTMOST / (1 - _OUTMOST))
    levels: FloatArray = 1 / (1 + np.exp(-np.linspace(edge, -edge, KNOTS)))
    levels.setflags(write=False)
    return levels


@cache
def chi_square_knots(k: int) -> FloatArray:
    """(KNOTS,) quantiles of χ²_K at the levels."""
    quantiles: FloatArray = 2 * gammaincinv(k / 2, knot_levels())
    quantiles.setflags(write=False)
    return quantiles


class Origin(StrEnum):
    """Where a reference comes from."""

    LEARNED = "learned"  # from this sidecar's own stream, in this epoch
    FILE = "file"  # from recorded drives
    SHIPPED = "shipped"  # from simulation: nothing better is known yet


@dataclass(frozen=True, slots=True)
class Levels:
    """How the mean log NEES of seconds of tracks varies: y = m0 + a_track + w.

    mean      m0
    between   τ, deviation of a over tracks
    within    ω, deviation of w over the seconds of a track, of `length` detections each
    tracks    it is known from, and their seconds
    blocks
    """

    mean: float
    between: float
    within: float
    length: float
    tracks: int
    blocks: int


@dataclass(frozen=True, eq=False, slots=True)
class Reference:
    """Of one slice at one stage; K degrees of freedom.

    quantiles      (KNOTS,) NEES at knot_levels(), ascending, > 0; () where nothing is known
    detections     it is known from
    nees_ratio     mean of NEES/K, of a detection 64 at most
    tempering      γ of a detection whose track is known: L counts as L^γ
    frame_tempering
                   γ of a frame where no tracks are known
    levels         None where too few tracks are known
    """

    k: int
    origin: Origin
    quantiles: FloatArray
    detections: int
    nees_ratio: float
    tempering: float
    frame_tempering: float
    levels: Levels | None


@cache
def calibrated_level(k: int) -> float:
    """Mean ln NEES of a calibrated detector of K degrees of freedom.

    Of a Gaussian E ln χ²_K = ψ(K/2) + ln 2; heavy tails of the same variance have less.
    """
    return float(digamma(k / 2)) + math.log(2) - 0.15


@cache
def shipped(k: int) -> Reference:
    """What is assumed where nothing is known: on the safe side of simulated tracks, whose errors
    are calibrated, AR(1) with ρ = 0.65 at 10 Hz and t-distributed with 5 degrees of freedom. There
    τ is 0.22 to 0.51, by how much the level differs from track to track, ω 0.42 to 0.52, γ 0.16 to
    0.5, and m0 lies 0.19 to 0.33 below that of a Gaussian. In one and two dimensions ω is larger,
    as Var ln χ²_K = ψ′(K/2) is.
    """
    spread = math.sqrt(max(1.0, float(polygamma(1, k / 2) / polygamma(1, 3 / 2))))
    return Reference(
        k=k,
        origin=Origin.SHIPPED,
        quantiles=np.zeros(0),
        detections=0,
        nees_ratio=1.0,
        tempering=0.15,
        frame_tempering=0.15,
        levels=Levels(
            calibrated_level(k), between=0.6, within=0.7 * spread, length=10.0, tracks=0, blocks=0
        ),
    )
