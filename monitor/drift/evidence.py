"""Evidence of all slices: Shiryaev-Roberts sums in hours, one for each bet of each chart.

R ← (R + Δt)·L for every bet, M = Σ w R over the bets of a severity. If each L has a mean of at
most 1 given the past, ΣM over all slices less the hours driven is a supermartingale, since every
hour is given out once: E[hours until M reaches T] ≥ T, whatever slices have in common, at any
rate of labels (Shin, Ramdas & Rinaldo, arXiv 2203.03532, with hours for observations). So M is in
hours, and T is the time between two false alarms. Which bets on detections there are is said in
bets.py, what comes of evidence in chunk.py.

A second t of track i has y = m0 + c_t + a_i + w, a_i ~ N(0, τ²), w ~ N(0, ω²). The common level
c_t is shared by all tracks of a slice: weather, or the pose of the vehicle. Nothing is wrong for
as long as it stays within the band, however it moves there; drift is a level beyond an end of it.

So the null is not one level but all paths within the band. They are weighed as a hidden Markov
chain: STATES levels from the lower to the upper end, whose probabilities are updated with every
second (the forward algorithm). With p(y | c) the normal density of a second's levels at common
level c, given the earlier seconds of their tracks, a bet on level b beyond the band is

    L = p(y | b) / Σ_c P(c | the past) p(y | c).

The mean of L is at most 1, averaged over the paths of the chain. On any one path within the band a
bet wins at most ln 1/P(the path): up to 10 nats for a jump to an end of the band, a quarter of a
nat for a second without a move. A bet on b loses on every level within the band.

Given n earlier seconds of a track with mean ȳ, of which the chain explains c̄ by the common level,
r = y − m0 − h(ȳ − m0 − c̄) is N(c_t, v): h = nτ²/(ω² + nτ²), v = ω² + τ²ω²/(ω² + nτ²). If the level
has been at b for j of the n seconds, the chain took them for the end e of the band, and r has
mean e + (b − e) f, f = 1 − jτ²/(ω² + nτ²). The change is taken to be where the evidence of the
chart began to rise; how b and j are chosen decides only how fast drift is found.

This holds if blocks are normal and tracks independent but for the common level. That is a model:
it is learned from a reference, r is cut, and what it promises on correlated and heavy-tailed
errors was simulated, not proved.

Source of the forward algorithm: Rabiner 1989, equations 19 and 20.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

import numpy as np

from monitor.drift.bets import (
    ABSOLUTE,
    BETS,
    CHARTS,
    RELATIVE,
    SCALE,
    SEVERITIES,
    Direction,
    Severity,
)
from monitor.drift.reference import Origin, Reference, UsualArrays
from monitor.frames.marks import LARGEST_COUNT, ArrayForm, MaybeNan
from monitor.frames.space import BoolArray, Columns, FloatArray, IntArray

# Bets on levels beyond the band: factors on the variance.
FACTORS = (1.25, 1.75, 2.5, 5.0)
_BEYOND = np.log(np.array(FACTORS))

# Common levels within the band, evenly from end to end: at the default tolerance a factor of 1.19
# on the variance apart.
STATES = 9

# From one second to the next the common level jumps, or moves to the next state, up or down; else
# it stays. By simulation of steps, ramps, waves and OU processes, and by delays on real drives.
_JUMPS, _MOVES = 0.02, 0.1

# Where it jumps to, and is at first: near the middle of the band, whose ends are three deviations
# off.
_USUAL = np.exp(-0.5 * (3.0 * np.linspace(-1.0, 1.0, STATES)) ** 2)
_USUAL /= _USUAL.sum()

# A second lies no farther than that outside the band: e⁴ in the variance.
_CLIP = 4.0

# Nor does it win more for any bet, in nats: one odd object must not outweigh all others.
_MOST_LOG_ODDS = 4.0


@dataclass(frozen=True, eq=False, slots=True)
class Residuals:
    """Levels less what the past of their tracks explains, all (m,).

    r         cut; N(c_t, v) at common level c_t
    v
    learning  τ²/(ω² + nτ²): by how much each second since a change dulls r
    """

    r: FloatArray
    v: FloatArray
    learning: FloatArray


def residuals(
    level: FloatArray,
    count: IntArray,
    before: IntArray,
    mean: FloatArray,
    mean_common: FloatArray,
    usual: UsualArrays,
    low: FloatArray,
    high: FloatArray,
) -> Residuals:
    """Subtracts from the levels y of m blocks what the past of their tracks explains; all (m,).

    count            detections of the block
    mean             ȳ of n = `before` earlier blocks of the track
    mean_common      c̄, mean common level of those blocks
    usual            m0, τ² and ω² of the slice of each, of seconds of `length` detections
    low, high        ends of the band, in ln of the variance over usual
    """
    within, between = usual.within, usual.between
    known = within + before * between
    # A second of fewer detections tells less; at worst as if they were independent.
    v = within * np.maximum(1.0, usual.length / count) + between * within / known
    learning = between / known
    own = before * learning * (mean - usual.mean - mean_common)
    return Residuals(np.clip(level - usual.mean - own, low - _CLIP, high + _CLIP), v, learning)


def common_level(
    chain: FloatArray,
    found: Residuals,
    at: IntArray,
    low: FloatArray,
    high: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Takes the seconds of m tracks into the chains of P slices; a slice without any stays.

    chain      (P, STATES) probabilities after the second before, from the lower to the upper end
               of the band; zeros where there was none
    at         (m,) the slice of each
    low, high  (P,) ends of the bands, low ≤ 0 ≤ high
    returns    the chain after the second; its expectation, (P,); and of the lower and the upper
               end of the band ln p(y | end) less ln Σ_c P(c) p(y | c), (2, P)
    source     Rabiner 1989, eq. 20
    """
    slices = low.size
    precision = np.bincount(at, 1 / found.v, slices)
    weighted = np.bincount(at, found.r / found.v, slices)
    level = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, STATES)
    # ln p(y | c), but for what all c have in common.
    said = level * weighted[:, None] - 0.5 * level * level * precision[:, None]
    with np.errstate(divide="ignore"):
        joint = np.log(_moved(chain)) + said
    largest = joint.max(axis=1, keepdims=True)
    weight = np.exp(joint - largest)
    total = weight.sum(axis=1, keepdims=True)
    evidence = largest[:, 0] + np.log(total[:, 0])
    after = weight / total
    there = np.bincount(at, minlength=slices) > 0
    edges = said[:, [0, -1]].T - evidence
    return np.where(there[:, None], after, chain), (after * level).sum(axis=1), edges


def _moved(chain: FloatArray) -> FloatArray:
    """Returns P(c | the past) a second later, (P, STATES); as at first where there is no past."""
    moves = np.zeros_like(chain)
    moves[:, 1:] += chain[:, :-1]
    moves[:, :-1] += chain[:, 1:]
    # Beyond an end there is nowhere to go.
    moves[:, 0] += chain[:, 0]
    moves[:, -1] += chain[:, -1]
    later = (1 - _JUMPS - 2 * _MOVES) * chain + _MOVES * moves + _JUMPS * _USUAL
    return np.where(chain.any(axis=1, keepdims=True), later, _USUAL)


def log_ratios(found: Residuals, sign: int, edge: FloatArray, since: IntArray) -> FloatArray:
    """Returns ln p(y | b)/p(y | e) of each block for each of FACTORS, (m, 4).

    sign   +1 beyond the upper end, −1 beyond the lower one
    edge   (m,) e, the end of the band
    since  (m,) j, blocks of the track since the change
    """
    r = sign * (found.r - edge)
    d = _BEYOND * (1 - since * found.learning)[:, None]
    said = (d * r[:, None] - 0.5 * d * d) / found.v[:, None]
    cut: FloatArray = np.minimum(said, _MOST_LOG_ODDS)
    return cut


@dataclass(frozen=True, slots=True)
class Scale:
    """√(mean NEES/K): by how much σ is too small, with its 95 % interval; NaN where unknown."""

    estimate: MaybeNan
    lower: MaybeNan
    upper: MaybeNan


HOUR = 3600.0
UNKNOWN = Scale(math.nan, math.nan, math.nan)

# Of a Gaussian: 95 % lie within.
_TWO_SIDED = 1.96


def scale_of(run: FloatArray, tempering: float) -> Scale:
    """√(mean x) with its 95 % interval, x = NEES/K cut at 64.

    run        (3,) detections, Σ x, Σ x²
    tempering  γ: independent detections that one is worth
    """
    n, total, square = run.tolist()
    if n < 2:
        return UNKNOWN
    mean = total / n
    variance = max(0.0, square / n - mean * mean)
    error = _TWO_SIDED * math.sqrt(variance / (n * tempering))
    return Scale(math.sqrt(mean), math.sqrt(max(0.0, mean - error)), math.sqrt(mean + error))


class Unit(StrEnum):
    """Units that may be configured to count as one observation."""

    TRACK_SECOND = "track-second"  # seconds of tracks, and detections tempered by correlation
    DETECTION = "detection"  # detections alone, tempered by correlation


@dataclass(frozen=True, slots=True)
class DriftSettings:
    """Settings of all slices: the budgets, what counts as drift, what a reference needs.

    hours_between_false_pages, hours_between_false_tickets
                        T, in hours of driving, over all slices together
    page_tolerance, ticket_tolerance
                        on σ; what is off by less is no drift
    class_tolerance     on the odds that the likeliest class is right
    unit                what counts as one observation
    reference_tracks    that a reference is learned from, at least; after ten times as many
                        detections as are asked for, tracks are waited for no longer
    reference_detections
                        that a reference is learned from, at least
    reference_seconds   of driving with truth of a slice that it is learned over, at least
    shortest_reference  fewer tracks teach nothing of how tracks differ: then detections count; a
                        constant, which no configuration names
    fewest_tracks       that say so, before there is an alarm where tracks are known
    calm_hours          of driving without a further alarm that end one; 0: it stays
    most_open           tracks that are followed at a time, over all slices
    idle_seconds        of event time without truth that end a track
    """

    hours_between_false_pages: float = 1000.0
    hours_between_false_tickets: float = 1000.0
    page_tolerance: float = 2.0**0.5
    ticket_tolerance: float = 2.0**0.5
    class_tolerance: float = 2.0
    unit: Unit = Unit.TRACK_SECOND
    reference_tracks: int = 30
    reference_detections: int = 2000
    reference_seconds: float = 60.0
    shortest_reference: int = 10
    fewest_tracks: int = 2
    calm_hours: float = 0.5
    most_open: int = 16384
    idle_seconds: float = 2.0

    @property
    def idle_ns(self) -> int:
        """Returns the idle seconds in ns."""
        return round(self.idle_seconds * 1e9)

    def hours(self, severity: Severity) -> float:
        """T of a severity."""
        pages = severity is Severity.PAGE
        return self.hours_between_false_pages if pages else self.hours_between_false_tickets

    def tolerance(self, severity: Severity) -> float:
        """s0 of a severity, on σ."""
        return self.page_tolerance if severity is Severity.PAGE else self.ticket_tolerance


ALL_BETS = BETS + len(FACTORS)
OF_TRACKS = slice(BETS, ALL_BETS)

# Bets of each detector, side by side.
_WIDTHS = (ABSOLUTE, RELATIVE, len(FACTORS))
_STARTS = np.concatenate([[0], np.cumsum(_WIDTHS)[:-1]])

# s of driving that evidence is given while nothing is wrong, and more or less holds: a chart with
# no more than that has not begun to rise.
_FRESH_SECONDS = 30.0

# A bet wins no more at a time than e to this, so that no number overflows.
_MOST = 50.0

# h; what has no share in M is reset by no alarm, and infinity times nothing would be NaN. No R says
# more, and sums of it stay finite.
LARGEST_SUM = 1e200
_SUM = ArrayForm(np.float64, (None, len(CHARTS), ALL_BETS), 0.0, LARGEST_SUM)
_SHARE = ArrayForm(np.float64, (None, len(CHARTS), len(_WIDTHS)), 0.0, 1.0)
# Stamps come as they will: any that a frame may have.
_TIME = ArrayForm(np.int64, (None, len(CHARTS)), -(2**63), 2**63 - 1)
_RUN = ArrayForm(np.float64, (None, len(CHARTS), 3), 0.0, 1e15)
_NUMBER = ArrayForm(np.int64, (None, len(CHARTS)), 0, LARGEST_COUNT)
_HOURS = ArrayForm(np.float64, (None,), 0.0, 1e12)
_PEAK = ArrayForm(np.float64, (None, len(SEVERITIES)), 0.0, LARGEST_SUM)
_CHAIN = ArrayForm(np.float64, (None, 2, STATES), 0.0, 1.0)


def _inner_weights() -> FloatArray:
    """Weighs each bet within its detector, by chart: (4, ALL_BETS)."""
    weights = np.zeros((len(CHARTS), ALL_BETS))
    for chart, of_chart in zip(CHARTS, weights, strict=True):
        of_chart[:ABSOLUTE] = 1 / ABSOLUTE
        # Tails are of errors that are too large.
        relative = RELATIVE if chart.direction is Direction.OVER else SCALE
        of_chart[ABSOLUTE : ABSOLUTE + relative] = 1 / relative
        of_chart[OF_TRACKS] = 1 / len(FACTORS)
    return weights


_INNER = _inner_weights()
_SHARES = np.array([chart.share for chart in CHARTS])

# (4, 2) whether a chart is of a severity.
OF_SEVERITY = np.array(
    [[chart.severity is severity for severity in SEVERITIES] for chart in CHARTS]
)


# Shares of the detectors in the evidence of a chart, in the order of Detector; at most 1 in sum. A
# detector with nothing to bet on has none. While a slice is watched, a share may fall, or rise
# from 0: else M would be no martingale. A new detector must take its share from these.
Shares = tuple[float, float, float]

# No reference but what is shipped, with levels of tracks and without; a reference, without and with
# them.
NO_REFERENCE: Shares = (0.6, 0.0, 0.4)
ONLY_COVERAGE: Shares = (0.6, 0.0, 0.0)
WITHOUT_TRACKS: Shares = (0.5, 0.5, 0.0)
WITH_TRACKS: Shares = (0.3, 0.3, 0.4)


def shares_of(reference: Reference, unit: Unit, *, of_change: bool) -> Shares:
    """Chooses the shares of a chart, by what its reference knows.

    of_change  a change is asked for, not calibration: coverage's share goes to the others, and with
               the shipped reference the chart is silent
    """
    of_tracks = unit is Unit.TRACK_SECOND and reference.levels is not None
    if reference.origin is Origin.SHIPPED:
        shares = NO_REFERENCE if of_tracks else ONLY_COVERAGE
        return (0.0, 0.0, 0.0) if of_change else shares
    shares = WITH_TRACKS if of_tracks else WITHOUT_TRACKS
    rest = shares[1] + shares[2]
    return (0.0, shares[1] / rest, shares[2] / rest) if of_change else shares


@dataclass(frozen=True, eq=False, slots=True)
class FrameStretch:
    """F frames that evidence has taken in.

    begin     number of the first of them, of all frames
    stamp_ns  (F,) event time
    seconds   (F,) of driving that each added
    hours     (F, G) given to each slice
    evidence  (F, G, 4) M of each chart after each frame
    said      (F, G, 4, 3) by chart: detections, Σ x and Σ x², x = NEES/K
    driven    s of driving up to the last of them, of all
    """

    begin: int
    stamp_ns: IntArray
    seconds: FloatArray
    hours: FloatArray
    evidence: FloatArray
    said: FloatArray
    driven: float


@dataclass(slots=True)
class Evidence(Columns):
    """Sums of all bets on G slices, 1,224 bytes each.

    sums     (G, 4, ALL_BETS) R, in hours
    shares   (G, 4, 3) of each detector, in M
    since    (G, 4) event time after which it may have begun, in ns: of the last frame that is not
             counted in `run`, or right before the first that came; 0: nothing came yet
    clean    (G, 4) second from which tracks may have changed
    run      (G, 4, 3) since then: detections, Σ x and Σ x² of x = NEES/K
    begun    (G, 4) number of the first frame that is counted, of all frames
    fresh    (G,) hours that it was given of late
    peak     (G, 2) largest M since the last acknowledgement, epoch or calm, by severity
    chain    (G, 2, STATES) probabilities of the common level of tracks, by Stage; 0 at first
    """

    sums: Annotated[FloatArray, _SUM] = field(default_factory=_SUM.none)
    shares: Annotated[FloatArray, _SHARE] = field(default_factory=_SHARE.none)
    since: Annotated[IntArray, _TIME] = field(default_factory=_TIME.none)
    clean: Annotated[IntArray, _TIME] = field(default_factory=_TIME.none)
    run: Annotated[FloatArray, _RUN] = field(default_factory=_RUN.none)
    begun: Annotated[IntArray, _NUMBER] = field(default_factory=_NUMBER.none)
    fresh: Annotated[FloatArray, _HOURS] = field(default_factory=_HOURS.none)
    peak: Annotated[FloatArray, _PEAK] = field(default_factory=_PEAK.none)
    chain: Annotated[FloatArray, _CHAIN] = field(default_factory=_CHAIN.none)

    @property
    def slices(self) -> int:
        """G."""
        return int(self.fresh.size)

    def grow(self, slices: int) -> None:
        """Makes room for so many slices at least."""
        more = slices - self.slices
        if more <= 0:
            return
        for name in self.__dataclass_fields__:
            array = getattr(self, name)
            room = np.zeros((more, *array.shape[1:]), array.dtype)
            setattr(self, name, np.concatenate([array, room]))

    def put(self, chosen: IntArray, some: Evidence) -> None:
        """Puts back a copy that `take` made."""
        for name in self.__dataclass_fields__:
            getattr(self, name)[chosen] = getattr(some, name)

    # ---- shares

    def set_shares(self, slice: int, charts: slice, shares: Shares) -> None:
        """Sets the shares of some charts of a slice; a detector that had none begins at nothing."""
        new = np.array(shares)
        begins = np.repeat((self.shares[slice, charts] == 0) & (new > 0), _WIDTHS, axis=-1)
        self.sums[slice, charts][begins] = 0.0
        self.shares[slice, charts] = new

    def begin_anew(self, slice: int, charts: BoolArray) -> None:
        """Forgets what some charts (4,) of a slice have gathered."""
        self.sums[slice, charts] = 0.0
        self.run[slice, charts] = 0.0
        self.since[slice, charts] = 0
        self.clean[slice, charts] = 0

    # ---- evidence

    @property
    def weights(self) -> FloatArray:
        """Returns w of each bet, (G, 4, ALL_BETS)."""
        found: FloatArray = np.repeat(self.shares, _WIDTHS, axis=-1)
        found *= _INNER
        found *= _SHARES[:, None]
        return found

    def by_chart(self, weights: FloatArray) -> FloatArray:
        """Returns M of each chart, (G, 4)."""
        found: FloatArray = np.einsum("gcb,gcb->gc", self.sums, weights)
        return found

    def by_detector(self) -> FloatArray:
        """Returns M by chart and detector, (G, 4, 3)."""
        return np.add.reduceat(self.sums * self.weights, _STARTS, axis=2)

    def add_detections(self, charts: slice, hours: FloatArray, likelihood: FloatArray) -> None:
        """Takes in a frame at one stage.

        hours       (G,) given to each slice
        likelihood  (G, 2, BETS) L
        """
        _bet(self.sums[:, charts, :BETS], hours, likelihood)

    def settle(self, stretch: FrameStretch) -> None:
        """Lets charts that do not rise, or fell in between, count from there on.

        A frame without detections of a slice changes nothing of it.
        """
        there = stretch.said[..., 0].max(axis=2) > 0
        decay = np.exp(np.cumsum(stretch.seconds[:, None] * there, axis=0) / _FRESH_SECONDS)
        fresh = (self.fresh + np.cumsum(stretch.hours * decay, axis=0)) / decay
        self.fresh = fresh[-1]
        calm = (stretch.evidence <= fresh[:, :, None] * _SHARES) & there[:, :, None]
        frames = calm.shape[0]
        any_calm = calm.any(axis=0)
        # Number of the first frame after the last calm one.
        begins = np.where(any_calm, frames - np.argmax(calm[::-1], axis=0), 0)
        counts = np.arange(frames)[:, None, None] >= begins
        counted = counts & (stretch.said[..., 0] > 0)
        # The first frame that is counted, where it is among these.
        first = counted.any(axis=0) & (any_calm | (self.run[..., 0] == 0))
        at = counted.argmax(axis=0)
        self.since[any_calm] = stretch.stamp_ns[begins[any_calm] - 1]
        since_ever = first & (self.since == 0)
        self.since[since_ever] = stretch.stamp_ns[at[since_ever]] - 1
        self.begun[any_calm] = stretch.begin + begins[any_calm]
        self.begun[first] = stretch.begin + at[first]
        self.run *= ~any_calm[..., None]
        self.run += np.einsum("fgcx,fgc->gcx", stretch.said, counts)
        np.maximum(self.peak, by_severity(stretch.evidence).max(axis=0), out=self.peak)

    def add_blocks(
        self, charts: slice, hours: FloatArray, log_likelihood: FloatArray, second: int
    ) -> None:
        """Takes in the seconds of tracks of one source that are over, at one stage.

        hours           (G,) given to each slice
        log_likelihood  (G, 2, 4)
        second          that is over
        """
        sums = self.sums[:, charts, OF_TRACKS]
        _bet(sums, hours, bounded_likelihood(log_likelihood))
        fallen = (sums.mean(axis=2) <= hours[:, None]) & (hours > 0)[:, None]
        self.clean[:, charts][fallen] = second + 1


def _bet(sums: FloatArray, hours: FloatArray, likelihood: FloatArray) -> None:
    """Puts R ← (R + Δt)·L in place of sums (G, 2, bets); Δt is `hours`, (G,)."""
    sums += hours[:, None, None]
    sums *= likelihood
    np.minimum(sums, LARGEST_SUM, out=sums)


def by_severity(by_chart: FloatArray) -> FloatArray:
    """Returns M of each severity, (…, 2), from M of each chart, (…, 4)."""
    found: FloatArray = by_chart @ OF_SEVERITY
    return found


def bounded_likelihood(log_likelihood: FloatArray) -> FloatArray:
    """L, of which none is beyond what a number can hold."""
    return np.exp(np.minimum(log_likelihood, _MOST))
