"""Evidence of all slices: Shiryaev-Roberts sums in hours, one for each bet of each chart.

R ← (R + Δt)·L for every bet, M = Σ w R over the bets of a severity. If each L has a mean of at
most 1 given the past, ΣM over all slices less the hours driven is a supermartingale, since every
hour is given out once: E[hours until M reaches T] ≥ T, whatever slices have in common, at any
rate of labels (Shin, Ramdas & Rinaldo, arXiv 2203.03532, with hours for observations). So M is in
hours, and T is the time between two false alarms. Which bets on detections there are is said in
bets.py, what comes of evidence in chunk.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Annotated

import numpy as np

from monitor.drift.bets import ABSOLUTE, BETS, SCALE
from monitor.drift.channels import (
    BIASES,
    CHANNELS,
    CORRELATIONS,
    JOINT,
    MOST_NAMED,
    SCALES,
    SHIPPED,
    channels,
)
from monitor.drift.charts import (
    CHARTS,
    DETECTORS,
    ONLY_OVER,
    SEVERITIES,
    UNKNOWN,
    Detector,
    Direction,
    Origin,
    Scale,
    Severity,
)
from monitor.drift.levels import FACTORS, STATES
from monitor.drift.reference import Reference, is_thin
from monitor.frames.marks import LARGEST_COUNT, ArrayForm
from monitor.frames.space import (
    MOST_DIMENSIONS,
    BoolArray,
    Columns,
    FloatArray,
    IntArray,
    read_only,
)

HOUR = 3600.0
# Of a Gaussian: 95 % lie within.
_TWO_SIDED = 1.96


def scale_of(run: FloatArray, tempering: float) -> Scale:
    """√(mean x) with its 95 % interval, x = NEES/K cut at 64.

    run        (SAID,) of which the first are detections, Σ x and Σ x²
    tempering  γ: independent detections that one is worth
    """
    n, total, square = run[:3].tolist()
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
    bias_tolerance      on the mean, in σ
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
    idle_seconds        without a label of it that end a track; from one labelled frame to the next
                        a quarter of it counts at most
    """

    hours_between_false_pages: float = 1000.0
    hours_between_false_tickets: float = 1000.0
    page_tolerance: float = 2.0**0.5
    ticket_tolerance: float = 2.0**0.5
    bias_tolerance: float = 1.0
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


# Columns of bets on seconds of tracks: of each channel that it lies beyond the end of the band that
# the direction of the chart is about; then of each bias that it lies beyond the other end.
COLUMNS = CHANNELS + MOST_NAMED
OTHER_BIASES = slice(CHANNELS, COLUMNS)

# Of each column its channel, and whether it is about the other end.
CHANNEL_OF = np.append(np.arange(CHANNELS), np.arange(BIASES, BIASES + MOST_NAMED))
IS_OTHER_END = np.arange(COLUMNS) >= CHANNELS

_TAILS = len(FACTORS)
OF_TAIL = slice(BETS, BETS + _TAILS)
OF_TRACKS = slice(BETS + _TAILS, BETS + _TAILS + COLUMNS * len(FACTORS))
ALL_BETS = OF_TRACKS.stop


def _columns(first: int, count: int) -> slice:
    """Places of the bets of some columns among all bets."""
    begin = OF_TRACKS.start + first * len(FACTORS)
    return slice(begin, begin + count * len(FACTORS))


# Bets of each detector, in the order of Detector.
PLACES: dict[Detector, tuple[slice, ...]] = {
    Detector.ABSOLUTE: (slice(0, ABSOLUTE),),
    Detector.RELATIVE: (slice(ABSOLUTE, BETS),),
    Detector.TAIL: (OF_TAIL,),
    Detector.TRACK: (_columns(JOINT, 1),),
    Detector.SHIPPED: (_columns(SHIPPED, 1),),
    Detector.DIMENSION: (_columns(SCALES, MOST_NAMED),),
    Detector.BIAS: (_columns(BIASES, MOST_NAMED), _columns(CHANNELS, MOST_NAMED)),
    Detector.CORRELATION: (_columns(CORRELATIONS, MOST_NAMED),),
    Detector.CONFIDENCE: (),
}


def _detector_of() -> IntArray:
    """Number of the detector of each bet, (ALL_BETS,)."""
    found = np.zeros(ALL_BETS, np.int64)
    for number, places in enumerate(PLACES.values()):
        for place in places:
            found[place] = number
    return found


_DETECTOR_OF = _detector_of()
_IS_OF = np.arange(len(DETECTORS)) == _DETECTOR_OF[:, None]

# s of driving that evidence is given while nothing is wrong, and more or less holds: a chart with
# no more than that has not begun to rise.
_FRESH_SECONDS = 30.0

# A bet wins no more at a time than e to this, so that no number overflows.
_MOST = 50.0

# What is said of the detections of a chart: their number, Σ x and Σ x² with x = NEES/K cut at 64,
# how many are far outside; and by dimension Σ of error, z, z² and u², the last three cut as well.
_OF_ALL = 4
SAID = _OF_ALL + 4 * MOST_NAMED
SAID_ERROR, SAID_Z, SAID_ZZ, SAID_UU = (
    slice(_OF_ALL + i * MOST_NAMED, _OF_ALL + (i + 1) * MOST_NAMED) for i in range(4)
)

# h; what has no share in M is reset by no alarm, and infinity times nothing would be NaN. No R says
# more, and sums of it stay finite.
LARGEST_SUM = 1e200
_SUM = ArrayForm(np.float64, (None, len(CHARTS), ALL_BETS), 0.0, LARGEST_SUM)
_SHARE = ArrayForm(np.float64, (None, len(CHARTS), len(DETECTORS)), 0.0, 1.0)
# Stamps come as they will: any that a frame may have.
_TIME = ArrayForm(np.int64, (None, len(CHARTS)), -(2**63), 2**63 - 1)
_CLEAN = ArrayForm(np.int64, (None, len(CHARTS), COLUMNS), -(2**63), 2**63 - 1)
_RUN = ArrayForm(np.float64, (None, len(CHARTS), SAID), -1e15, 1e15)
_NUMBER = ArrayForm(np.int64, (None, len(CHARTS)), 0, LARGEST_COUNT)
_DEGREES = ArrayForm(np.int64, (None,), 0, MOST_DIMENSIONS)
_HOURS = ArrayForm(np.float64, (None,), 0.0, 1e12)
_PEAK = ArrayForm(np.float64, (None, len(SEVERITIES)), 0.0, LARGEST_SUM)
_CHAIN = ArrayForm(np.float64, (None, 2, CHANNELS, STATES), 0.0, 1.0)


@cache
def _inner_weights(k: int) -> FloatArray:
    """Weighs each bet within its detector, by chart, for K degrees of freedom: (4, ALL_BETS)."""
    weights, there = np.zeros((len(CHARTS), ALL_BETS)), np.zeros(COLUMNS, bool)
    named = channels(k)
    there[named] = True
    there[OTHER_BIASES] = there[BIASES : BIASES + MOST_NAMED]
    bets = np.repeat(there, len(FACTORS))
    weights[:, : OF_TAIL.stop] = 1.0
    weights[:, OF_TRACKS] = bets
    # Student-t tails are of errors that are too large. What else is has no share in other charts.
    under = [chart.direction is Direction.UNDER for chart in CHARTS]
    weights[under, ABSOLUTE + SCALE : BETS] = 0.0
    total = weights @ _IS_OF
    weights /= np.maximum(total, 1.0)[:, _DETECTOR_OF]
    return read_only(weights)


_SHARES = np.array([chart.share for chart in CHARTS])

# (4, 2) whether a chart is of a severity.
OF_SEVERITY = np.array(
    [[chart.severity is severity for severity in SEVERITIES] for chart in CHARTS]
)


# Shares of the detectors in the evidence of a chart, by Detector; at most 1 in sum. A detector with
# nothing to bet on has none. While a slice is watched, a share may fall, or rise from 0: else M
# would be no martingale. A new detector must take its share from these.
Shares = Mapping[Detector, float]

_NAMED: Shares = {
    Detector.TAIL: 0.05,
    Detector.DIMENSION: 0.06,
    Detector.BIAS: 0.06,
    Detector.CORRELATION: 0.03,
}

# No reference but what is shipped, with levels of tracks and without.
NO_REFERENCE: Shares = {Detector.ABSOLUTE: 0.45, Detector.SHIPPED: 0.35, **_NAMED}
ONLY_COVERAGE: Shares = {Detector.ABSOLUTE: 0.6}

# A reference where no tracks are known, and where they are; of so few that what was watched without
# one is watched further on beside it; and of so few that nothing is known of how they differ.
WITHOUT_TRACKS: Shares = {Detector.ABSOLUTE: 0.45, Detector.RELATIVE: 0.55}
WITH_TRACKS: Shares = {
    Detector.ABSOLUTE: 0.2,
    Detector.RELATIVE: 0.2,
    Detector.TRACK: 0.4,
    **_NAMED,
}
OF_FEWEST_TRACKS: Shares = {
    Detector.ABSOLUTE: 0.3,
    Detector.RELATIVE: 0.15,
    Detector.SHIPPED: 0.35,
    **_NAMED,
}
OF_FEW_TRACKS: Shares = {
    Detector.ABSOLUTE: 0.2,
    Detector.RELATIVE: 0.1,
    Detector.TRACK: 0.25,
    Detector.SHIPPED: 0.25,
    **_NAMED,
}


def _of_too_large(shares: Shares) -> Shares:
    """Returns shares of a chart on errors that are too small: no tail or bias makes them so.

    What these have goes to what bets on detections, of change where it is known.
    """
    rest = {one: share for one, share in shares.items() if one not in ONLY_OVER}
    more = sum(shares.get(one, 0.0) for one in ONLY_OVER)
    if Detector.RELATIVE in rest:
        # Coverage sees little of errors that are too small.
        more += rest[Detector.ABSOLUTE] / 2
        rest[Detector.ABSOLUTE] /= 2
        rest[Detector.RELATIVE] += more
    else:
        rest[Detector.ABSOLUTE] += more
    return rest


def shares_of(reference: Reference, unit: Unit, direction: Direction, *, of_change: bool) -> Shares:
    """Chooses the shares of a chart, by what its reference knows and which way it asks.

    of_change  a change is asked for, not calibration: the share of what asks for calibration goes
               to the others, and with the shipped reference the chart is silent
    """
    of_tracks = unit is Unit.TRACK_SECOND and reference.is_of_tracks
    if reference.origin is Origin.SHIPPED:
        shares = NO_REFERENCE if of_tracks else ONLY_COVERAGE
        if of_change:
            return {}
    elif not of_tracks:
        shares = WITHOUT_TRACKS
    else:
        thin = OF_FEW_TRACKS if reference.levels is not None else OF_FEWEST_TRACKS
        shares = thin if is_thin(reference) else WITH_TRACKS
    if direction is Direction.UNDER:
        shares = _of_too_large(shares)
    if not of_change:
        return shares
    rest = {
        detector: share
        for detector, share in shares.items()
        if detector not in (Detector.ABSOLUTE, Detector.SHIPPED)
    }
    return {detector: share / sum(rest.values()) for detector, share in rest.items()}


@dataclass(frozen=True, eq=False, slots=True)
class FrameStretch:
    """F frames that evidence has taken in.

    begin     number of the first of them, of all frames
    stamp_ns  (F,) event time
    seconds   (F,) of driving that each added
    hours     (F, G) given to each slice
    evidence  (F, G, 4) M of each chart after each frame
    said      (F, G, 4, SAID) by chart, what is said of the detections
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
    """Sums of all bets on G slices, some 12 kB each.

    degrees  (G,) K
    sums     (G, 4, ALL_BETS) R, in hours
    shares   (G, 4, DETECTORS) of each detector, in M
    since    (G, 4) event time after which it may have begun, in ns: of the last frame that is not
             counted in `run`, or right before the first that came; 0: nothing came yet
    clean    (G, 4, COLUMNS) second from which tracks may have changed
    run      (G, 4, SAID) since then, what is said of the detections
    begun    (G, 4) number of the first frame that is counted, of all frames
    fresh    (G,) hours that it was given of late
    peak     (G, 2) largest M since the last acknowledgement, epoch or calm, by severity
    chain    (G, 2, CHANNELS, STATES) probabilities of the common levels of tracks, by Stage; 0 at
             first
    """

    degrees: Annotated[IntArray, _DEGREES] = field(default_factory=_DEGREES.none)
    sums: Annotated[FloatArray, _SUM] = field(default_factory=_SUM.none)
    shares: Annotated[FloatArray, _SHARE] = field(default_factory=_SHARE.none)
    since: Annotated[IntArray, _TIME] = field(default_factory=_TIME.none)
    clean: Annotated[IntArray, _CLEAN] = field(default_factory=_CLEAN.none)
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

    def set_shares(self, slice: int, chart: int, shares: Shares) -> None:
        """Sets the shares of a chart of a slice; a detector that had none begins at nothing."""
        new = np.array([shares.get(detector, 0.0) for detector in DETECTORS])
        begins = ((self.shares[slice, chart] == 0) & (new > 0))[_DETECTOR_OF]
        self.sums[slice, chart][begins] = 0.0
        self.shares[slice, chart] = new

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
        found: FloatArray = self.shares[:, :, _DETECTOR_OF]
        for k in np.unique(self.degrees).tolist():
            found[self.degrees == k] *= _inner_weights(k)
        found *= _SHARES[:, None]
        return found

    def by_chart(self, weights: FloatArray) -> FloatArray:
        """Returns M of each chart, (G, 4)."""
        found: FloatArray = np.einsum("gcb,gcb->gc", self.sums, weights)
        return found

    def by_detector(self) -> FloatArray:
        """Returns M by chart and detector, (G, 4, DETECTORS)."""
        found: FloatArray = (self.sums * self.weights) @ _IS_OF
        return found

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

    def add_seconds(
        self, charts: slice, hours: FloatArray, said: FloatArray, tails: FloatArray, second: int
    ) -> None:
        """Takes in the seconds of tracks of one source that are over, at one stage.

        hours   (G,) given to each slice
        said    (G, 2, COLUMNS, 4) ln L of the channels
        tails   (G, 4) ln L of the bets on tails
        second  that is over
        """
        slices, factors = hours.size, len(FACTORS)
        sums = self.sums[:, charts, OF_TRACKS]
        _bet(sums, hours, bounded_likelihood(said.reshape(slices, 2, COLUMNS * factors)))
        by_column = sums.reshape(slices, 2, COLUMNS, factors).mean(axis=3)
        fallen = (by_column <= hours[:, None, None]) & (hours > 0)[:, None, None]
        self.clean[:, charts][fallen] = second + 1
        for chart in range(charts.start, charts.stop):
            if CHARTS[chart].direction is Direction.OVER:
                of_tail = self.sums[:, chart : chart + 1, OF_TAIL]
                _bet(of_tail, hours, bounded_likelihood(tails)[:, None])


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
