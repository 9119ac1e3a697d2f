"""Bets on the seconds of tracks that one frame ends, of one source.

A slice at a stage is a place of its own: both stages are bet on alike, and together.

Each channel of each slice has a band that its common level may move in, a chain of levels within
it, and bets that the level lies beyond an end of it (levels.py); the tail has bets of its own.
What earlier seconds showed, and what evidence makes of the bets, lives elsewhere.
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
from monitor.drift.charts import Direction, Stage
from monitor.drift.correlation import Records
from monitor.drift.evidence import CHANNEL_OF, COLUMNS, IS_OTHER_END, DriftSettings
from monitor.drift.levels import (
    FACTORS,
    Beyond,
    Past,
    Unexplained,
    UsualLevels,
    common_level,
    may_be_bounded,
    may_exceed,
    not_too_low,
    of_factors,
    steepest,
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
    """Bets of the charts of a stage that levels lie beyond an end of their bands, W side by side.

    chart    (W,) 0 of errors that are too large, 1 of those that are too small
    column   (W,) of the bet
    place    (W,) of its channel, among channels(k)
    end      (W,) 0 the lower, 1 the upper one
    sign     (W,) +1 beyond the upper end, −1 beyond the lower one
    degrees  (W,) of freedom of levels that are a mean ln NEES; 0 of others
    of_end   (2, C, 2) by end and channel, the bets of both charts; −1 where there is none
    """

    chart: IntArray
    column: IntArray
    place: IntArray
    end: IntArray
    sign: IntArray
    degrees: FloatArray
    of_end: IntArray


@cache
def sides_of(k: int) -> Sides:
    """Lists the bets of the charts of a stage, the same at both.

    Errors are too large where a mean is off, either way: those charts have both ends of biases.
    """
    there, found = channels(k), []
    for number, direction in enumerate((Direction.OVER, Direction.UNDER)):
        over = direction is Direction.OVER
        for other in (False, True) if over else (False,):
            columns = np.flatnonzero(np.isin(CHANNEL_OF, there) & (other == IS_OTHER_END))
            found += [(number, one, int(over != other)) for one in columns.tolist()]
    charts, column, end = np.array(found, np.int64).T.copy()
    place = np.searchsorted(there, CHANNEL_OF[column])
    sign, degrees = read_only(2 * end - 1), read_only(degrees_of(k)[column])
    charts, column, place, end = map(read_only, (charts, column, place, end))
    of_end = np.full((2, there.size, 2), -1)
    of_end[end, place, charts] = np.arange(column.size)
    return Sides(charts, column, place, end, sign, degrees, read_only(of_end))


@cache
def _scale_of_channel(k: int) -> IntArray:
    """Finds among channels(k) the scale that the errors of each channel have."""
    there = channels(k)
    named = (there - BIASES) % MOST_NAMED + SCALES
    known = np.where((there >= BIASES) & np.isin(named, there), named, JOINT)
    return read_only(np.searchsorted(there, known))


@dataclass(frozen=True, eq=False, slots=True)
class Bands(Columns):
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
    """m seconds of tracks, each at one stage, and of their bets what nothing before them changes.

    at         (m,) the place of each: Q are the slices at the one stage, then those at the other.
               Seconds of a group are by place
    row        (m,) number of the second
    found      of its levels, (m, C) each
    rows       (m, 1) detections of the earlier seconds of its track, at least 1
    common     (m, C) Σ of the common levels of these, each times its detections
    first, before, second
               (m,) as in SECOND
    worth      (m,) earlier seconds that their mean counts as, for each of them
    steepest   (m,) largest slope of bets that errors are too small, on channels of the NEES
    far        (m, W) whether its level lies far beyond the band of a calibrated detector, where
               that is looked at
    begins     (m,) whether it is the first in a row with detections far outside
    tails      (m, 4) ln L of the bets on tails
    """

    at: IntArray
    row: IntArray
    found: Unexplained
    rows: IntArray
    common: FloatArray
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
    slices: IntArray,
    usual: UsualArrays,
    aims: Sequence[Aim],
) -> SecondBets:
    """Measures the seconds of tracks that are bet on at a stage.

    slices  of each second, of those in usual
    aims    overconfidence, and underconfidence
    """
    heeded = usual.levels[slices]
    if stage is Stage.RAW:
        heeded = heeded & seconds["changed"]
    row = np.flatnonzero(heeded)
    seconds, at = (seconds, slices) if heeded.all() else (seconds.take(row), slices[row])
    there, sides, count = channels(k), sides_of(k), seconds["count"]
    rows, before = np.maximum(seconds["rows"], 1)[:, None], seconds["before"]
    known = UsualLevels(*(getattr(usual, name)[:, there][at] for name in _LEVELS))
    level = seconds["level"][:, stage][:, there]
    far = sides.sign * (level - shipped_levels(k).mean)[:, sides.place] > _far(k, aims)
    # Channels of the NEES come first.
    of_nees = (getattr(known, name)[:, :SCALES] for name in _LEVELS)
    level[:, :SCALES] = not_too_low(level[:, :SCALES], count, UsualLevels(*of_nees))
    known.between[seconds["older"]] = _ANY_LEVEL
    past = Past(count, seconds["rows"], seconds["rows2"])
    mean = seconds["total"][:, stage][:, there] / rows
    asked, outside = seconds["trial"][:, stage], seconds["outside"][:, stage]
    tails = tail_log_ratios(outside, count, usual.outside[at], usual.onsets[at])
    tails[~asked] = 0.0
    return SecondBets(
        at=at + stage * usual.levels.size,
        row=row,
        found=unexplained(level, past, mean, known),
        rows=rows,
        common=seconds["common_total"][:, stage][:, there],
        first=seconds["first"],
        before=before,
        second=seconds["second"],
        worth=past.seconds / np.maximum(before, 1),
        steepest=steepest(-1, np.array(float(k)), count),
        far=far,
        begins=asked & (outside > 0),
        tails=tails,
    )


@cache
def _far(k: int, aims: Sequence[Aim]) -> FloatArray:
    """Says how far off calibrated a level is that lies far beyond the band, by sides_of; (W,).

    Seconds of few detections say little of correlations and of errors that are too small, each
    by itself: there these channels are looked at as well; infinity: others are not.
    """
    sides = sides_of(k)
    tolerance = np.array([aim.tolerance for aim in aims])[sides.chart]
    over = np.array([aim.direction is Direction.OVER for aim in aims])[sides.chart]
    of_correlation = (sides.column >= CORRELATIONS) & (sides.column < CHANNELS)
    wide = (sides.column < np.where(over, SCALES, BIASES)) | of_correlation
    end = np.where(of_correlation, _CORRELATION_TOLERANCE, 2 * np.log(tolerance))
    return read_only(np.where(wide, end + _FAR, np.inf))


@dataclass(frozen=True, eq=False, slots=True)
class GroupBets:
    """The bets of a group: seconds of tracks of one source that are over together, of Q places.

    counts  (Q,) seconds of each place
    chain   (Q, C, STATES) of the common levels, after this second
    common  (Q, C) their expectations
    said    (Q, 2, COLUMNS, 4) ln L of the channels, by chart of the stage
    tails   (Q, 4) ln L of the bets on tails
    start   where the seconds of each place that has any begin
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
    bets: SecondBets,
    bands: Bands,
    chain: FloatArray,
    clean: IntArray,
) -> GroupBets:
    """Bets on the same second of m tracks of one source.

    Where the errors of a slice are larger within the band, what they show of means varies more in
    proportion.

    bets   of these seconds alone
    chain  (Q, C, STATES) of the common levels, before this second
    clean  (Q, 2, COLUMNS) second from which tracks may have changed, by chart of the stage
    """
    at, sides = bets.at, sides_of(k)
    start = np.flatnonzero(np.append(True, at[1:] != at[:-1]))
    size, run = np.diff(start, append=at.size), at[start]
    low, high, slices = bands.low, bands.high, chain.shape[0]
    left = bets.found.residuals(bets.common / bets.rows, low[at], high[at])
    left = replace(left, v=left.v * _wider(k, bands, chain)[at])
    # Each channel of each slice has a chain of its own.
    weight = 1 / left.v
    precision, weighted = (np.add.reduceat(one, start) for one in (weight, weight * left.r))
    after, mean, ends = common_level(
        chain[run].reshape(-1, chain.shape[-1]),
        *(one.ravel() for one in (precision, weighted, low[run], high[run])),
    )
    chain, common = chain.copy(), np.zeros(low.shape)
    chain[run], common[run] = after.reshape(chain[run].shape), mean.reshape(precision.shape)

    # Bets that have not risen: their tracks may have changed in this second at the earliest.
    edge = np.where(sides.end, high[:, sides.place], low[:, sides.place])[run]
    clean = clean[run][:, sides.chart, sides.column]
    square = precision[:, sides.place]
    sums = np.stack([sides.sign * (weighted[:, sides.place] - edge * square), square])

    def beyond(row: IntArray, of_run: IntArray, side: IntArray) -> Beyond:
        """Looks at some seconds as bets see them."""
        place, began = sides.place[side], np.maximum(clean[of_run, side], bets.first[row])
        since = np.minimum(np.maximum(bets.second[row] - began, 0), bets.before[row])
        dulled = 1 - since * bets.worth[row] * left.learning[row, place]
        r = sides.sign[side] * (left.r[row, place] - edge[of_run, side])
        return Beyond(r, left.v[row, place], dulled)

    risen = np.nonzero(clean < bets.second[0])
    if risen[0].size:
        many = size[risen[0]]
        begins = np.cumsum(many) - many
        row = np.arange(many.sum()) + np.repeat(start[risen[0]] - begins, many)
        each = beyond(row, *(np.repeat(one, many) for one in risen))
        sums[:, risen[0], risen[1]] = np.add.reduceat(each.terms, begins, axis=1)
    said = of_factors(sums)

    # What is cut or bounded, or speaks, is looked at one by one.
    speaks, of_run = bets.far.copy(), np.repeat(np.arange(run.size), size)
    for end, off in enumerate((low[at] - left.r, left.r - high[at])):
        odd = may_exceed(off, left.v, SPEAKS)
        if end == 0:
            odd[:, :SCALES] |= may_be_bounded(bets.steepest[:, None], left.v[:, :SCALES])
        row, place = np.nonzero(odd)
        for side in sides.of_end[end, place].T:
            rows, bet = row[side >= 0], side[side >= 0]
            each = beyond(rows, of_run[rows], bet)
            bounded = (sides.degrees[bet] > 0) & (end == 0)
            won = each.log_ratios(np.where(bounded, bets.steepest[rows], np.inf))
            np.add.at(said, (of_run[rows], bet), won - of_factors(each.terms))
            loud = won.max(axis=1, initial=-np.inf) > SPEAKS
            speaks[rows[loud], bet[loud]] = True

    of_edges = ends.reshape(2, *precision.shape)[sides.end, :, sides.place].T
    of_all, tails = np.zeros((slices, 2, COLUMNS, len(FACTORS))), np.zeros((slices, len(FACTORS)))
    # Against the end of the band, and that against the chain.
    of_all[run[:, None], sides.chart, sides.column] = said + of_edges[..., None]
    tails[run] = np.add.reduceat(bets.tails, start)
    counts = np.bincount(at, minlength=slices)
    return GroupBets(counts, chain, common, of_all, tails, start, speaks)


def _wider(k: int, bands: Bands, chain: FloatArray) -> FloatArray:
    """Returns by how much more levels of P slices vary than usual, (P, C), at least 1."""
    there = channels(k)
    step = np.linspace(0.0, 1.0, chain.shape[-1])
    level = bands.low[..., None] + (bands.high - bands.low)[..., None] * step
    factor = np.maximum((chain * np.exp(level)).sum(axis=-1), 1.0)
    means = (there >= BIASES) & (there < CORRELATIONS)
    found: FloatArray = np.where(means, factor[:, _scale_of_channel(k)], 1.0)
    return found
