"""Bets of the seconds of tracks of one source that are over by one frame, at one stage.

Each channel of each slice has a band that its common level may move in, a chain of levels within
it, and bets that the level lies beyond an end of it (levels.py); the tail has bets of its own.
What has come of a second before, and what becomes of the bets, is not looked after here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from monitor.drift.bets import Aim
from monitor.drift.channels import (
    BIASES,
    CHANNELS,
    CORRELATIONS,
    JOINT,
    MOST_NAMED,
    SCALES,
    SHIPPED,
    channels,
    degrees_of,
)
from monitor.drift.charts import CHARTS, CHARTS_OF, Direction, Stage
from monitor.drift.correlation import Records
from monitor.drift.evidence import CHANNEL_OF, COLUMNS, IS_OTHER_END, DriftSettings
from monitor.drift.levels import (
    FACTORS,
    Beyond,
    Past,
    Unexplained,
    UsualLevels,
    common_level,
    not_too_low,
    steepest,
    summed_log_ratios,
    tail_log_ratios,
    unexplained,
)
from monitor.drift.reference import UsualArrays, shipped_levels
from monitor.frames.space import BoolArray, Columns, FloatArray, IntArray, read_only

# A second of a track speaks for a chart if it says more than so many nats; or if its level lies so
# far beyond the band of a calibrated detector, which may be usual. By chance some say a little.
SPEAKS, _FAR = 1.0, 0.5

# On a level of correlation: it is as high where a stated correlation of 0.25 is not there.
_CORRELATION_TOLERANCE = 0.3

# τ² of a track of which evidence of the last run may hold seconds: its own level of then is not
# known any more, so that only how it changes since the restart may be a bet (E[L] ≤ 1 whatever the
# level is).
_ANY_LEVEL = 1e9

# Fields of UsualLevels, and of UsualArrays.
_LEVELS = ("mean", "between", "within", "spread", "length")


@dataclass(frozen=True, eq=False, slots=True)
class Sides:
    """Bets of both charts of a stage that levels lie beyond an end of their bands, W side by side.

    chart    (W,) 0 the first of the stage, 1 the second
    column   (W,) of the bet
    place    (W,) of its channel, among channels(k)
    end      (W,) 0 the lower, 1 the upper one
    sign     (W,) +1 beyond the upper end, −1 beyond the lower one
    degrees  (W,) of freedom of levels that are a mean ln NEES; 0 of others
    """

    chart: IntArray
    column: IntArray
    place: IntArray
    end: IntArray
    sign: IntArray
    degrees: FloatArray


@cache
def sides_of(k: int, stage: Stage) -> Sides:
    """Lists the bets of the charts of a stage.

    Errors are too large where a mean is off, either way: those charts have both ends of biases.
    """
    there, found = channels(k), []
    for number, chart in enumerate(CHARTS[CHARTS_OF[stage]]):
        over = chart.direction is Direction.OVER
        for other in (False, True) if over else (False,):
            columns = np.flatnonzero(np.isin(CHANNEL_OF, there) & (other == IS_OTHER_END))
            found += [(number, one, int(over != other)) for one in columns.tolist()]
    charts, column, end = np.array(found, np.int64).T.copy()
    place = np.searchsorted(there, CHANNEL_OF[column])
    sign, degrees = read_only(2 * end - 1), read_only(degrees_of(k)[column])
    charts, column, place, end = map(read_only, (charts, column, place, end))
    return Sides(charts, column, place, end, sign, degrees)


@cache
def _scale_of_channel(k: int) -> IntArray:
    """Finds among channels(k) the scale that the errors of each channel have."""
    there = channels(k)
    named = (there - BIASES) % MOST_NAMED + SCALES
    known = np.where((there >= BIASES) & np.isin(named, there), named, JOINT)
    return read_only(np.searchsorted(there, known))


@dataclass(frozen=True, eq=False, slots=True)
class Bands:
    """Ends of the bands of P slices in the channels of channels(k), over usual: (P, C) each."""

    low: FloatArray
    high: FloatArray


def bands_of(k: int, usual: UsualArrays, aims: Sequence[Aim], settings: DriftSettings) -> Bands:
    """Finds the ends of the bands of P slices.

    Of scales, ln of the variance: the tolerances, from calibrated where usual is better; what is
    shipped is calibrated. Of what has no scale, both ends alike; what would be right is always
    within.

    aims  overconfidence, and underconfidence
    """
    there = channels(k)
    to_anchor = (there != SHIPPED)[None, :]
    high, low = (
        aim.direction.sign * 2 * math.log(aim.tolerance)
        + np.log(usual.anchor(aim.direction))[:, None] * to_anchor
        for aim in aims
    )
    right = -usual.mean[:, there]
    for first, tolerance in (
        (BIASES, settings.bias_tolerance),
        (CORRELATIONS, _CORRELATION_TOLERANCE),
    ):
        ours = (there >= first) & (there < first + MOST_NAMED)
        low[:, ours] = np.minimum(-tolerance, right[:, ours])
        high[:, ours] = np.maximum(tolerance, right[:, ours])
    return Bands(low, high)


@dataclass(frozen=True, eq=False, slots=True)
class SecondBets(Columns):
    """m seconds of tracks at one stage, and all of their bets that nothing before them changes.

    at         (m,) the slice of each; seconds of a group are by slice
    heeded     (m,) whether anything is bet on it
    found      of its levels, (m, C) each
    rows       (m, 1) detections of the earlier seconds of its track, at least 1
    first, before, second
               (m, 1) as in SECOND
    worth      (m, 1) earlier seconds that their mean counts as, for each of them
    steepest   (m, W) largest slope of the bets of sides_of
    far        (m, W) whether its level lies far beyond the band of a calibrated detector, where
               that is looked at
    begins     (m,) whether it is the first in a row with detections far outside
    tails      (m, 4) ln L of the bets on tails
    """

    at: IntArray
    heeded: BoolArray
    found: Unexplained
    rows: IntArray
    first: IntArray
    before: IntArray
    second: IntArray
    worth: FloatArray
    steepest: FloatArray
    far: BoolArray
    begins: BoolArray
    tails: FloatArray


def second_bets(
    k: int,
    stage: Stage,
    seconds: Records,
    at: IntArray,
    usual: UsualArrays,
    aims: Sequence[Aim],
) -> SecondBets:
    """Measures m seconds of tracks.

    at     (m,) the slice of each, of those in usual
    aims   overconfidence, and underconfidence
    """
    there, sides, count = channels(k), sides_of(k, stage), seconds["count"]
    rows, before = np.maximum(seconds["rows"], 1)[:, None], seconds["before"][:, None]
    known = UsualLevels(*(getattr(usual, name)[:, there][at] for name in _LEVELS))
    level = seconds["level"][:, stage][:, there]
    far = sides.sign * (level - shipped_levels(k).mean)[:, sides.place] > _far(k, stage, aims)
    # Channels of the NEES come first.
    of_nees = (getattr(known, name)[:, :SCALES] for name in _LEVELS)
    level[:, :SCALES] = not_too_low(level[:, :SCALES], count, UsualLevels(*of_nees))
    known.between[seconds["older"]] = _ANY_LEVEL
    past = Past(count, seconds["rows"], seconds["rows2"])
    mean = seconds["total"][:, stage][:, there] / rows
    heeded = usual.levels[at]
    asked, outside = seconds["trial"][:, stage], seconds["outside"][:, stage]
    tails = tail_log_ratios(outside, count, usual.outside[at], usual.onsets[at])
    tails[~asked] = 0.0
    return SecondBets(
        at=at,
        heeded=heeded & seconds["changed"] if stage is Stage.RAW else heeded,
        found=unexplained(level, past, mean, known),
        rows=rows,
        first=seconds["first"][:, None],
        before=before,
        second=seconds["second"][:, None],
        worth=past.seconds[:, None] / np.maximum(before, 1),
        steepest=steepest(sides.sign, sides.degrees, count[:, None]),
        far=far,
        begins=asked & (outside > 0),
        tails=tails,
    )


@cache
def _far(k: int, stage: Stage, aims: Sequence[Aim]) -> FloatArray:
    """Says how far off calibrated a level is that lies far beyond the band, by sides_of; (W,).

    Seconds of few detections say little of correlations and of errors that are too small, each
    by itself: there these channels are looked at as well; infinity: others are not.
    """
    sides = sides_of(k, stage)
    tolerance = np.array([aim.tolerance for aim in aims])[sides.chart]
    over = np.array([aim.direction is Direction.OVER for aim in aims])[sides.chart]
    of_correlation = (sides.column >= CORRELATIONS) & (sides.column < CHANNELS)
    wide = (sides.column < np.where(over, SCALES, BIASES)) | of_correlation
    end = np.where(of_correlation, _CORRELATION_TOLERANCE, 2 * np.log(tolerance))
    return read_only(np.where(wide, end + _FAR, np.inf))


@dataclass(frozen=True, eq=False, slots=True)
class GroupBets:
    """The bets of a group: seconds of tracks of one source that are over together, of P slices.

    counts  (P,) seconds of each slice
    chain   (P, C, STATES) of the common levels, after this second
    common  (P, C) their expectations
    said    (P, 2, COLUMNS, 4) ln L of the channels, by chart of the stage
    tails   (P, 4) ln L of the bets on tails
    start   where the seconds of each slice that has any begin
    speaks  (m, W) whether a second says that something is wrong, by sides_of
    """

    counts: IntArray
    chain: FloatArray
    common: FloatArray
    said: FloatArray
    tails: FloatArray
    start: IntArray
    speaks: BoolArray


def group_bets(
    k: int,
    stage: Stage,
    bets: SecondBets,
    bands: Bands,
    chain: FloatArray,
    clean: IntArray,
    common_before: FloatArray,
) -> GroupBets:
    """Bets on the same second of m tracks of one source.

    Where the errors of a slice are larger within the band, what they show of means varies more in
    proportion.

    bets           of these seconds alone
    chain          (P, C, STATES) of the common levels, before this second
    clean          (P, 2, COLUMNS) second from which tracks may have changed, by chart of the stage
    common_before  (m, CHANNELS) Σ of the common levels of the earlier seconds of each track, each
                   times its detections
    """
    at, sides, there = bets.at, sides_of(k, stage), channels(k)
    start = np.flatnonzero(np.append(True, at[1:] != at[:-1]))
    slices, count = chain.shape[:2]
    low, high, width = bands.low, bands.high, sides.place
    left = bets.found.residuals(common_before[:, there] / bets.rows, low[at], high[at])
    left = replace(left, v=left.v * _wider(k, bands, chain)[at])
    # Each channel of each slice has a chain of its own.
    after, mean, ends = common_level(
        chain.reshape(-1, chain.shape[-1]),
        left.flat(),
        (at[:, None] * count + np.arange(count)).ravel(),
        low.ravel(),
        high.ravel(),
    )
    edge = np.where(sides.end, high[:, width], low[:, width])
    later = bets.second - np.maximum(clean[:, sides.chart, sides.column][at], bets.first)
    since = np.minimum(np.maximum(later, 0), bets.before) * bets.worth
    beyond = Beyond(
        sides.sign * (left.r[:, width] - edge[at]),
        left.v[:, width],
        1 - since * left.learning[:, width],
        bets.steepest,
    )
    sums, loud = summed_log_ratios(beyond, start, SPEAKS)
    # Against the end of the band, and that against the chain.
    of_edges = ends.reshape(2, slices, count)[sides.end, :, width].T
    run = at[start]
    said, tails = np.zeros((slices, 2, COLUMNS, len(FACTORS))), np.zeros((slices, len(FACTORS)))
    said[run[:, None], sides.chart, sides.column] = sums + of_edges[run][..., None]
    tails[run] = np.add.reduceat(bets.tails, start)
    speaks = bets.far.copy()
    speaks[loud] = True
    return GroupBets(
        counts=np.bincount(at, minlength=slices),
        chain=after.reshape(chain.shape),
        common=mean.reshape(slices, count),
        said=said,
        tails=tails,
        start=start,
        speaks=speaks,
    )


def _wider(k: int, bands: Bands, chain: FloatArray) -> FloatArray:
    """Returns by how much more levels of P slices vary than usual, (P, C), at least 1."""
    there = channels(k)
    step = np.linspace(0.0, 1.0, chain.shape[-1])
    level = bands.low[..., None] + (bands.high - bands.low)[..., None] * step
    factor = np.maximum((chain * np.exp(level)).sum(axis=-1), 1.0)
    means = (there >= BIASES) & (there < CORRELATIONS)
    found: FloatArray = np.where(means, factor[:, _scale_of_channel(k)], 1.0)
    return found
