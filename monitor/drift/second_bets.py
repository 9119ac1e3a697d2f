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
    CORRELATIONS,
    JOINT,
    MOST_NAMED,
    SCALES,
    SHIPPED,
    channels,
    degrees_of,
)
from monitor.drift.charts import CHARTS, CHARTS_OF, Direction, Stage
from monitor.drift.correlation import Records, summed
from monitor.drift.evidence import CHANNEL_OF, IS_OTHER_END, DriftSettings
from monitor.drift.levels import (
    FACTORS,
    Past,
    Residuals,
    UsualLevels,
    common_level,
    log_ratios,
    not_too_low,
    residuals,
    steepest,
    tail_log_ratios,
)
from monitor.drift.reference import UsualArrays, shipped_levels
from monitor.frames.space import BoolArray, FloatArray, IntArray, read_only

# A second of a track speaks for a chart if it says more than so many nats; or if its level lies so
# far beyond the band of a calibrated detector, which may be usual. By chance some say a little.
SPEAKS, _FAR = 1.0, 0.5

# On a level of correlation: it is as high where a stated correlation of 0.25 is not there.
_CORRELATION_TOLERANCE = 0.3

# τ² of a track of which evidence of the last run may hold seconds: its own level of then is not
# known any more, so that only how it changes since the restart may be a bet (E[L] ≤ 1 whatever the
# level is).
_ANY_LEVEL = 1e9


@dataclass(frozen=True, eq=False, slots=True)
class Side:
    """Bets of a chart that levels lie beyond one end of their bands.

    chart    its number
    end      0 the lower, 1 the upper one
    columns  of the bets
    places   of their channels, among channels(k)
    """

    chart: int
    end: int
    columns: IntArray
    places: IntArray

    @property
    def sign(self) -> int:
        """+1 beyond the upper end, −1 beyond the lower one."""
        return 1 if self.end else -1


@cache
def sides(k: int, stage: Stage) -> tuple[Side, ...]:
    """Lists the sides of the charts of a stage.

    Errors are too large where a mean is off, either way: those charts have both ends of biases.
    """
    there, found = channels(k), []
    for chart in range(CHARTS_OF[stage].start, CHARTS_OF[stage].stop):
        over = CHARTS[chart].direction is Direction.OVER
        for other in (False, True) if over else (False,):
            columns = np.flatnonzero(np.isin(CHANNEL_OF, there) & (other == IS_OTHER_END))
            places = read_only(np.searchsorted(there, CHANNEL_OF[columns]))
            found.append(Side(chart, int(over != other), read_only(columns), places))
    return tuple(found)


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
class Group:
    """m seconds of tracks, the same second of one source, and the P slices that they are of.

    at  (m,) the slice of each
    """

    k: int
    stage: Stage
    seconds: Records
    at: IntArray
    slices: int

    @property
    def levels(self) -> FloatArray:
        """Returns y, (m, C)."""
        found: FloatArray = self.seconds["level"][:, self.stage][:, channels(self.k)]
        return found

    @property
    def past(self) -> Past:
        """Returns how many detections the seconds and the earlier ones of their tracks have."""
        return Past(self.seconds["count"], self.seconds["rows"], self.seconds["rows2"])

    def left(
        self, usual: UsualArrays, bands: Bands, chain: FloatArray, common_before: FloatArray
    ) -> Residuals:
        """Returns levels less what the past of their tracks explains, all (m, C).

        Where the errors of a slice are larger within the band, what they show of means varies more
        in proportion.

        chain          (P, C, STATES) of the common levels, before this second
        common_before  (m, CHANNELS) Σ of those of the earlier seconds, each times its detections
        """
        there, seconds, at = channels(self.k), self.seconds, self.at
        known = UsualLevels(
            *(
                getattr(usual, name)[at][:, there]
                for name in ("mean", "between", "within", "spread", "length")
            )
        )
        rows = np.maximum(seconds["rows"], 1)[:, None]
        older = seconds["older"][:, None]
        seen = not_too_low(self.levels, seconds["count"], known, degrees_of(self.k)[there])
        found = residuals(
            seen,
            self.past,
            seconds["total"][:, self.stage][:, there] / rows,
            common_before[:, there] / rows,
            replace(known, between=np.where(older, _ANY_LEVEL, known.between)),
            bands.low[at],
            bands.high[at],
        )
        return replace(found, v=found.v * self._wider(bands, chain)[at])

    def _wider(self, bands: Bands, chain: FloatArray) -> FloatArray:
        """Returns by how much more levels vary than usual, (P, C), at least 1."""
        there = channels(self.k)
        step = np.linspace(0.0, 1.0, chain.shape[-1])
        level = bands.low[..., None] + (bands.high - bands.low)[..., None] * step
        factor = np.maximum((chain * np.exp(level)).sum(axis=-1), 1.0)
        means = (there >= BIASES) & (there < CORRELATIONS)
        found: FloatArray = np.where(means, factor[:, _scale_of_channel(self.k)], 1.0)
        return found

    def common_levels(
        self, chain: FloatArray, left: Residuals, bands: Bands
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Takes the seconds into the chains of their slices: see levels.common_level.

        chain    (P, C, STATES)
        returns  it after the second; its expectations, (P, C); and those of the ends, (2, P, C)
        """
        count = channels(self.k).size
        # Each channel of each slice has a chain of its own.
        place = (self.at[:, None] * count + np.arange(count)).ravel()
        after, mean, ends = common_level(
            chain.reshape(-1, chain.shape[-1]),
            left.flat(),
            place,
            bands.low.ravel(),
            bands.high.ravel(),
        )
        shape = (self.slices, count)
        return after.reshape(chain.shape), mean.reshape(shape), ends.reshape(2, *shape)

    def beyond(self, side: Side, left: Residuals, bands: Bands, clean: IntArray) -> FloatArray:
        """Returns ln p(y | b)/p(y | e) of each second for the bets of a side, (m, columns, 4).

        clean  (P, columns) second from which tracks may have changed
        """
        seconds, at, width = self.seconds, self.at, side.places
        edge = (bands.high if side.end else bands.low)[at][:, width]
        began = np.maximum(clean[at], seconds["first"][:, None])
        before = seconds["before"][:, None]
        since = np.clip(seconds["second"][:, None] - began, 0, before)
        # As many as a mean weighted by detections is worth.
        since = since * self.past.seconds[:, None] / np.maximum(before, 1)
        slope = steepest(side.sign, degrees_of(self.k)[side.columns], seconds["count"][:, None])
        chosen = Residuals(left.r[:, width], left.v[:, width], left.learning[:, width]).flat()
        found = log_ratios(chosen, side.sign, edge.ravel(), since.ravel(), slope.ravel())
        return found.reshape(at.size, width.size, -1)

    def far_off(self, aim: Aim) -> tuple[IntArray, BoolArray]:
        """Tells which seconds lie far beyond the band of a calibrated detector.

        Seconds of few detections say little of correlations and of errors that are too small, each
        by itself: there these channels are looked at as well.

        returns  channels (c,), which are columns as well, and (m, c)
        """
        there = channels(self.k)
        wide = there < (SCALES if aim.direction is Direction.OVER else BIASES)
        wide |= there >= CORRELATIONS
        off = self.levels[:, wide] - shipped_levels(self.k).mean[wide]
        of_scale = 2 * math.log(aim.tolerance)
        end = np.where(there[wide] >= CORRELATIONS, _CORRELATION_TOLERANCE, of_scale)
        found: BoolArray = aim.direction.sign * off > end + _FAR
        return there[wide], found

    def tails(self, usual: UsualArrays) -> tuple[BoolArray, FloatArray]:
        """Returns which seconds begin to be far outside, (m,), and ln L of the P slices, (P, 4)."""
        asked = self.seconds["trial"][:, self.stage]
        outside, slices = self.seconds["outside"][:, self.stage], self.at
        ratios = tail_log_ratios(
            outside, self.seconds["count"], usual.outside[slices], usual.onsets[slices]
        )
        found = summed(np.where(asked[:, None], ratios, 0.0), slices, self.slices)
        begins: BoolArray = asked & (outside > 0)
        return begins, found.reshape(self.slices, len(FACTORS))
