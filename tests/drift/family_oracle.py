"""A slow account of all that a family of slices gathers, from the equations; no tests."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from scipy import integrate, stats

from monitor.drift.reference import CELLS, Levels, Reference, knot_levels, shipped
from tests.drift.drives import as_sent, errors_of

SECOND = 10**9
COVERAGE = [(tau, s) for tau in (0.5, 0.9, 0.99) for s in (1.25, 1.5, 2.0, 3.0)]
SCALES = (1.15, 1.25, 1.4, 1.6, 2.0, 3.0)
STUDENTS = (3, 5)
BLOCKS = (1.25, 1.75, 2.5, 5.0)
# The common level of tracks: nine states from end to end of the band, and where it jumps to.
PLACES = [i / 4 - 1 for i in range(9)]
JUMPS, MOVES = 0.02, 0.1
# Stage, direction: severity and share of its budget.
CHARTS = {
    (1, "over"): ("page", 1.0),
    (1, "under"): ("ticket", 0.6),
    (0, "over"): ("ticket", 0.2),
    (0, "under"): ("ticket", 0.2),
}
# Bets on each of the tail, and of the scale of all dimensions against what is usual and shipped.
TAILS = (2.0, 4.0, 8.0, 16.0)
BIAS_TOLERANCE, CORRELATION_TOLERANCE = 1.0, 0.3
IDLE = 2 * SECOND
# Source, stamp, whether a recalibrator changed them, and (track, slice, raw, recalibrated NEES).
Frame = tuple[int, int, bool, list[tuple[int, int, float, float]]]


def _ends(direction: str, tolerance: float, s: float) -> tuple[float, float]:
    """The edge of the band, and a scale that lies further out."""
    return (tolerance, tolerance * s) if direction == "over" else (1 / tolerance, 1 / tolerance / s)


@cache
def coverage_ratio(k: int, direction: str, tolerance: float, tau: float, s: float) -> Any:
    """ln L below the threshold and above it, and the threshold."""
    a, law = stats.chi2(k).ppf(tau), stats.chi2(k)
    edge, far = _ends(direction, tolerance, s)
    below = law.logcdf(a / far**2) - law.logcdf(a / edge**2)
    above = law.logsf(a / far**2) - law.logsf(a / edge**2)
    return float(below), float(above), float(a)


def scale_ratio(k: int, direction: str, tolerance: float, s: float, e: float) -> float:
    """ln of Gaussian densities, further out over the edge of the band."""
    edge, far = _ends(direction, tolerance, s)
    return k * (math.log(edge) - math.log(far)) + e / 2 * (edge**-2 - far**-2)


def _tails(k: int, nu: float, u: float) -> float:
    """ln Student-t of unit covariance over Gaussian, at squared distance u."""
    student = (
        math.lgamma((nu + k) / 2)
        - math.lgamma(nu / 2)
        - k / 2 * math.log((nu - 2) * math.pi)
        - (nu + k) / 2 * math.log1p(u / (nu - 2))
    )
    return student + k / 2 * math.log(2 * math.pi) + u / 2


@cache
def _mean_of_tails(k: int, nu: float) -> float:
    """E f(max(χ²_K, K + 2))."""
    cut, law = k + 2.0, stats.chi2(k)
    below = math.exp(_tails(k, nu, cut)) * law.cdf(cut)
    above = integrate.quad(
        lambda u: math.exp(_tails(k, nu, u) + law.logpdf(u)), cut, math.inf, epsabs=1e-13
    )
    return float(below + above[0])


def student_ratio(k: int, tolerance: float, nu: float, e: float) -> float:
    """ln L; monotone beyond a tolerance of 1."""
    u = e / tolerance**2
    if tolerance == 1:
        return _tails(k, nu, u)
    return _tails(k, nu, max(u, k + 2.0)) - math.log(_mean_of_tails(k, nu))


@cache
def _quantile(k: int, level: float) -> float:
    return float(stats.chi2.ppf(level, k))


def _between(xs: list[float], ys: list[float], x: float) -> float:
    """Straight between knots."""
    i = max((i for i in range(len(xs) - 1) if xs[i] <= x), default=0)
    return ys[i] + (x - xs[i]) * (ys[i + 1] - ys[i]) / (xs[i + 1] - xs[i])


def mapped(reference: Reference, e: float) -> float:
    """e' with the law χ²_K where e has that of the reference."""
    if not reference.quantiles.size:
        return e
    k = reference.k
    xs = [math.log(q) for q in reference.quantiles.tolist()]
    ys = [math.log(_quantile(k, level)) for level in knot_levels().tolist()]
    x = math.log(max(e, 1e-300))
    if x <= xs[0]:
        y = ys[0] + x - xs[0]
    elif x >= xs[-1]:
        y = ys[-1] + x - xs[-1]
    else:
        # Straight within each of CELLS cells of equal width.
        width = (xs[-1] - xs[0]) / CELLS
        cell = min(int((x - xs[0]) / width), CELLS - 1)
        left, right = (_between(xs, ys, xs[0] + i * width) for i in (cell, cell + 1))
        y = left + (x - xs[0] - cell * width) / width * (right - left)
    worth = max(1.0, reference.detections * reference.tempering)
    low, high = _quantile(k, 1 / (2 * worth)), float(stats.chi2.isf(1 / (2 * worth), k))
    return min(max(math.exp(y), low), high)


def anchor(reference: Reference, direction: str) -> float:
    """From usual squared errors to calibrated ones, where usual ones are better than that."""
    if direction == "over":
        return max(0.8 / max(reference.nees_ratio, 1e-6), 1.0)
    return min(1.25 / max(reference.nees_ratio, 1e-6), 1.0)


def detection_ratios(
    reference: Reference, direction: str, tolerance: float, e: float
) -> dict[tuple[str, Any], float]:
    """ln L of one detection by detector and bet."""
    k = reference.k
    found: dict[tuple[str, Any], float] = {}
    for tau, s in COVERAGE:
        below, above, a = coverage_ratio(k, direction, tolerance, tau, s)
        found["absolute", (tau, s)] = below if e <= a else above
    usual = mapped(reference, e) / anchor(reference, direction)
    for s in SCALES:
        found["relative", s] = scale_ratio(k, direction, tolerance, s, usual)
    if direction == "over":
        for nu in STUDENTS:
            found["relative", ("t", nu)] = student_ratio(k, tolerance, nu, usual)
    return found


def is_thin(reference: Reference) -> bool:
    """Tells whether a reference is of so few tracks that what is shipped is watched beside it."""
    if reference.origin == "shipped" or not of_tracks(reference):
        return False
    return reference.levels is None or reference.levels.tracks < 30


def of_tracks(reference: Reference) -> bool:
    """Tells whether seconds of tracks say anything."""
    return reference.levels is not None or reference.tracks > 0


def shares(reference: Reference, direction: str) -> dict[str, float]:
    """Of a chart, by what is known."""
    named = {"tail": 0.05, "dimension": 0.06, "bias": 0.06, "correlation": 0.03}
    if not of_tracks(reference):
        shipped_only = reference.origin == "shipped"
        found = {"absolute": 0.6} if shipped_only else {"absolute": 0.45, "relative": 0.55}
    elif reference.origin == "shipped":
        found = {"absolute": 0.45, "shipped": 0.35, **named}
    elif reference.levels is None:
        found = {"absolute": 0.3, "relative": 0.15, "shipped": 0.35, **named}
    elif is_thin(reference):
        found = {"absolute": 0.2, "relative": 0.1, "track": 0.25, "shipped": 0.25, **named}
    else:
        found = {"absolute": 0.2, "relative": 0.2, "track": 0.4, **named}
    if direction == "over":
        return found
    # No tail and no bias makes errors smaller, and coverage sees little of it.
    rest = found.pop("tail", 0.0) + found.pop("bias", 0.0)
    if "relative" in found:
        found["absolute"] /= 2
        found["relative"] += rest + found["absolute"]
    else:
        found["absolute"] += rest
    return found


def gamma(reference: Reference, apart: float | None, *, careful: bool = True) -> float:
    """What a detection counts that comes so many seconds after the last of its track."""
    spacings, worth = reference.spacings.tolist(), reference.temperings.tolist()
    if careful and is_thin(reference):
        assumed = shipped(reference.k)
        worth = [
            max(one, gamma(assumed, at, careful=False))
            for one, at in zip(worth, spacings, strict=True)
        ]
    apart = apart or spacings[0]
    if apart < spacings[0]:
        found = math.tanh(math.atanh(min(worth[0], 1 - 1e-9)) * apart / spacings[0])
    elif apart >= spacings[-1]:
        found = worth[-1]
    else:
        logs = [math.log(one) for one in spacings], [math.log(one) for one in worth]
        found = math.exp(_between(*logs, math.log(apart)))
    return min(max(found, 0.02), 1.0)


# Channel of a second of a track: what it is of, and the number of the dimension; −1 of all.
Channel = tuple[str, int]


def channels(k: int) -> list[Channel]:
    """Lists what is looked at of K dimensions."""
    found = [("joint", -1), ("shipped", -1)]
    found += [("scale", i) for i in range(k) if k > 1]
    found += [("bias", i) for i in range(k)]
    return found + [("correlation", i) for i in range(1, k)]


def observed(k: int, e: float, z: Any, u: Any) -> list[float]:
    """What each channel sees of a detection, on a grid of 2^-24."""
    found = [math.log(max(e, 1e-6))] * 2
    found += [math.log(z[i] ** 2 + 0.05) for i in range(k) if k > 1]
    found += [min(max(z[i], -4.0), 4.0) for i in range(k)]
    for i in range(1, k):
        a, b = u[i] ** 2, z[i] ** 2
        found.append(2.0 if a > b else -2.0 if a < b else 0.0)
    return [round(float(one) * 2**24) / 2**24 for one in found]


@dataclass
class UsualLevel:
    """What is usual of one channel: m0, τ², ω², S² and N."""

    mean: float
    tau2: float
    omega2: float
    s2: float
    length: float


def _variance(usual: UsualLevel, few: float) -> float:
    """Returns that of a second of 1/few detections; of many it is 0.85 ω² at least."""
    found = usual.omega2 + usual.s2 * (max(few, 0.85 / usual.length) - 1 / usual.length)
    return max(found, 0.85 * usual.omega2)


def usual_level(reference: Reference, channel: Channel) -> UsualLevel:
    """Of a reference with levels; of what is shipped in the channel of that name."""
    of_shipped = channel[0] == "shipped"
    found = None if of_shipped else reference.levels
    found = found or shipped(reference.k).levels
    assert found is not None
    at = channels(reference.k).index(channel)
    mean = float(found.mean[at])
    known = {name: float(getattr(found, name)[at]) for name in ("between", "within", "spread")}
    if channel[0] == "correlation" and reference.levels is not None:
        # As if all detections had been stated to be correlated.
        total = math.fsum(value**2 for value in known.values())
        scaled = {name: value * math.sqrt(max(4 / total, 1.0)) for name, value in known.items()}
        known = scaled if total >= 1 else {"between": 1.2, "within": 1.2, "spread": 1.6}
    tau2, omega2, s2 = (value**2 for value in known.values())
    return UsualLevel(mean, tau2, omega2, s2, found.length)


def tail_ratio(levels: Levels, count: int, outside: int, factor: float) -> float:
    """ln L of a second of so many detections, of which so many are outside."""
    p0 = min(
        count * max(2 * levels.outside, 0.01),
        max(2 * levels.onsets, 0.05),
        0.9,
    )
    q = max(p0, min(factor * p0, 0.9))
    return math.log(q / p0) if outside else math.log((1 - q) / (1 - p0))


def moved(chain: Sequence[float]) -> list[float]:
    """Probabilities of the states a second later."""
    usual = [math.exp(-((3 * place) ** 2) / 2) for place in PLACES]
    usual = [one / math.fsum(usual) for one in usual]
    if not chain:
        return usual
    found = [JUMPS * one for one in usual]
    for state, probability in enumerate(chain):
        found[state] += (1 - JUMPS - 2 * MOVES) * probability
        for step in (-1, 1):
            # Beyond an end there is nowhere to go.
            found[min(max(state + step, 0), len(PLACES) - 1)] += MOVES * probability
    return found


@dataclass
class SlowClock:
    """Every source drives by its own time, at its part of one vehicle."""

    driven: float = 0.0
    latest: dict[int, int] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)
    frames: int = 0
    active: int = 1

    def drive(self, source: int, stamp: int) -> float:
        """Seconds that a frame adds."""
        self.frames += 1
        if source not in self.latest:
            for gone in [s for s, at in self.seen.items() if at < self.frames - 4096]:
                del self.seen[gone], self.latest[gone]
            self.latest[source], self.seen[source] = stamp, self.frames
            return 0.0
        step = (stamp - self.latest[source]) / SECOND
        self.seen[source] = self.frames
        if step > 0 or step < -10:
            self.latest[source] = stamp
        if step <= 0:
            return 0.0
        silent = max(50, 20 * self.active)
        self.active = sum(at >= self.frames - silent for at in self.seen.values())
        self.driven += min(step, 5.0) / self.active
        return min(step, 5.0) / self.active


class SlowSeconds:
    """Seconds of tracks, one row at a time.

    Time with labels goes by at most a quarter of the idle time from frame to frame.
    """

    def __init__(self, k: int, far: float) -> None:
        self.k, self.far = k, far
        self.now: dict[int, int] = {}
        self.heard: dict[int, int] = defaultdict(int)
        self.open: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
        self.tracks: dict[int, dict[str, Any]] = {}
        # Of each track its source, and the time of its last label, also with labels.
        self.labelled: dict[int, tuple[int, int, int]] = {}
        self.late = 0

    def frame(self, frame: Frame) -> tuple[int, list[dict[str, Any]], list[float | None]]:
        """Takes in a frame.

        returns  number and blocks of the second of its source that is over with it, if any; and
                 the seconds since the last label of the track of each row
        """
        source, stamp, changed, rows = frame
        before = self.now.get(source, stamp)
        back, over = stamp < before - 10 * SECOND, []
        now = stamp if back else max(stamp, before)
        step = 0 if back else now - before
        if back or now // SECOND > before // SECOND:
            over = self._over(source, before // SECOND)
        if back:
            self.tracks = {t: one for t, one in self.tracks.items() if one["source"] != source}
            self.labelled = {t: one for t, one in self.labelled.items() if one[0] != source}
        self.now[source] = now
        self.heard[source] += min(step, IDLE // 4)
        heard = self.heard[source]
        found: list[float | None] = []
        for track, g, *nees in rows:
            found.append(None)
            if track == 0:
                continue
            if stamp // SECOND < now // SECOND:
                self.late += 1
                continue
            _, last, last_heard = self.labelled.get(track, (source, -(10**18), 0))
            if heard - last_heard > IDLE or now - last > 15 * IDLE:
                last = stamp - step
            if stamp > last:
                found[-1] = (stamp - last) / SECOND
            self.labelled[track] = (source, now, heard)
            block = self.open[source].setdefault(
                track, {"slice": g, "opened": now, "changed": False, "seen": []}
            )
            block["last"], block["heard"] = now, heard
            block["changed"] |= changed
            z, u = errors_of(np.array(nees)[:, None], self.k)
            block["seen"].append(
                [
                    (observed(self.k, e, z[i, :, 0], u[i, :, 0]), e > self.far)
                    for i, e in enumerate(nees)
                ]
            )
        return before // SECOND, over, found

    def _over(self, source: int, second: int) -> list[dict[str, Any]]:
        counted = []
        for key, block in sorted(self.open.pop(source, {}).items()):
            track = self.tracks.get(key)
            if (
                track is None
                or block["heard"] - track["heard"] > IDLE
                or block["opened"] - track["last"] > 15 * IDLE
            ):
                track = {"source": source, "seconds": [], "first": second}
                self.tracks[key] = track
            track["last"], track["heard"] = block["last"], block["heard"]
            count = len(block["seen"])
            level = [
                [math.fsum(one[stage][0][c] for one in block["seen"]) / count for c in range(width)]
                for stage, width in enumerate([len(channels(self.k))] * 2)
            ]
            outside = [sum(one[stage][1] for one in block["seen"]) for stage in (0, 1)]
            counted.append(
                {
                    **block,
                    "count": count,
                    "level": level,
                    "outside": outside,
                    # Those of a second without any before it are trials, too.
                    "trial": [not was for was in track.get("outside", (0, 0))],
                    "earlier": list(track["seconds"]),
                    "first": track["first"],
                }
            )
            track["outside"] = outside
            # Levels of a second by stage, its detections, and its common levels by stage.
            block_common: tuple[list[float], list[float]] = (
                [0.0] * len(level[0]),
                [0.0] * len(level[0]),
            )
            counted[-1]["common"] = block_common
            track["seconds"].append((level, count, block_common))
        return counted


def _detector(key: Any) -> str:
    """Name of the detector of a bet: of a channel, by what that is of."""
    what = key[3]
    if isinstance(what, str):
        return what
    return str({"joint": "track", "scale": "dimension"}.get(what[0], what[0]))


@dataclass
class SlowFamily:
    """Slices by index. `references` by slice and stage; T and tolerances by severity."""

    names: Sequence[str]
    references: Sequence[Mapping[int, Reference]]
    budget: Mapping[str, float]
    tolerance: Mapping[str, float]
    k: int = 3
    clock: SlowClock = field(default_factory=SlowClock)

    def __post_init__(self) -> None:
        self.R: dict[Any, float] = defaultdict(float)
        self.clean: dict[Any, int] = defaultdict(int)
        self.waiting: dict[int, float] = defaultdict(float)
        far = self.tolerance["page"] ** 2 * float(stats.chi2.ppf(0.99, self.k))
        self.seconds = SlowSeconds(self.k, far)
        self.chain: dict[Any, list[float]] = defaultdict(list)

    def frame(self, frame: Frame) -> list[tuple[Any, ...]]:
        """Take in a frame; alarms as (slice, severity, M) and what has most of the evidence."""
        source, stamp, changed, _ = frame
        rows = as_sent(frame)
        hours = self.clock.drive(source, stamp) / 3600
        self.waiting[source] += hours
        second, counted, apart = self.seconds.frame((source, stamp, changed, rows))
        for g in range(len(self.names)):
            here = [(row, at) for row, at in zip(rows, apart, strict=True) if row[1] == g]
            if not here:
                continue
            part = hours * len(here) / len(rows)
            for stage in (1, 0) if changed else (1,):
                self._detections(g, stage, part, here)
        self._over(source, second, counted)
        return self._alarms()

    def _detections(self, g: int, stage: int, part: float, rows: Any) -> None:
        reference = self.references[g][stage]
        for (of, direction), (severity, _) in CHARTS.items():
            if of != stage:
                continue
            said = [
                detection_ratios(reference, direction, self.tolerance[severity], row[2 + stage])
                for row, _ in rows
            ]
            for bet in said[0]:
                of_rows = [(one[bet], *row) for one, row in zip(said, rows, strict=True)]
                alone = [one for one, row, _ in of_rows if not row[0]]
                total = math.fsum(gamma(reference, at) * one for one, row, at in of_rows if row[0])
                if alone:
                    top = max(alone)
                    mean = math.fsum(math.exp(one - top) for one in alone) / len(alone)
                    total += reference.frame_tempering * (top + math.log(mean))
                self._bet((g, stage, direction, *bet), part, total)

    def _bet(self, key: Any, part: float, log_ratio: float) -> None:
        self.R[key] = (self.R[key] + part) * math.exp(min(log_ratio, 50.0))

    def _over(self, source: int, second: int, counted: list[dict[str, Any]]) -> None:
        if not counted:
            return
        hours = self.waiting.pop(source, 0.0)
        for stage in (0, 1):
            heeded = [
                one
                for one in counted
                if of_tracks(self.references[one["slice"]][stage])
                and (stage == 1 or one["changed"])
            ]
            for g in {one["slice"] for one in heeded}:
                of_slice = [one for one in heeded if one["slice"] == g]
                part = hours * len(of_slice) / len(heeded)
                self._blocks(g, stage, part, of_slice, second)

    def _blocks(self, g: int, stage: int, part: float, of: Any, second: int) -> None:
        # As they were before this second.
        wider = {channel: self._wider(g, stage, channel) for channel in channels(self.k)}
        for channel in channels(self.k):
            self._channel(g, stage, channel, part, of, second, wider[channel])
        levels = self.references[g][stage].levels or shipped(self.k).levels
        assert levels is not None
        for factor in TAILS:
            total = math.fsum(
                tail_ratio(levels, one["count"], one["outside"][stage], factor)
                for one in of
                if one["trial"][stage]
            )
            self._bet((g, stage, "over", "tail", factor), part, total)

    def ends(self, g: int, stage: int, channel: Channel) -> dict[str, float]:
        """Ends of the band of a channel, over usual, by direction."""
        reference, (what, _) = self.references[g][stage], channel
        found = {}
        for (of_stage, direction), (severity, _) in CHARTS.items():
            if of_stage != stage:
                continue
            sign = 1 if direction == "over" else -1
            if what in ("bias", "correlation"):
                tolerance = BIAS_TOLERANCE if what == "bias" else CORRELATION_TOLERANCE
                right = -usual_level(reference, channel).mean
                found[direction] = sign * max(tolerance, sign * right)
            else:
                found[direction] = sign * 2 * math.log(self.tolerance[severity])
                if what != "shipped":
                    found[direction] += math.log(anchor(reference, direction))
        return found

    def _wider(self, g: int, stage: int, channel: Channel) -> float:
        """Returns by how much more a mean varies where errors are larger."""
        if channel[0] != "bias":
            return 1.0
        scale = next(one for one in channels(self.k) if one[0] == "joint")
        if ("scale", channel[1]) in channels(self.k):
            scale = ("scale", channel[1])
        ends = self.ends(g, stage, scale)
        low, high = ends["under"], ends["over"]
        chain = self.chain[g, stage, scale]
        factors = [math.exp(low + (high - low) * (place + 1) / 2) for place in PLACES]
        return max(1.0, math.fsum(p * f for p, f in zip(chain, factors, strict=False)))

    def _channel(
        self,
        g: int,
        stage: int,
        channel: Channel,
        part: float,
        of: Any,
        second: int,
        wider: float,
    ) -> None:
        usual = usual_level(self.references[g][stage], channel)
        at = channels(self.k).index(channel)
        ends = self.ends(g, stage, channel)
        low, high = ends["under"], ends["over"]
        seconds = []
        for block in of:
            earlier, count = block["earlier"], block["count"]
            rows = sum(one[1] for one in earlier)
            n = rows**2 / sum(one[1] ** 2 for one in earlier) if earlier else 0.0
            now = _variance(usual, 1 / count)
            then = _variance(usual, n / rows if rows else 0.0)
            known = then + n * usual.tau2
            v = wider * (now + usual.tau2 * then / known)
            learning = usual.tau2 / known
            own = math.fsum(
                one[1] * (one[0][stage][at] - usual.mean - one[2][stage][at]) for one in earlier
            )
            own = n * learning * own / rows if rows else 0.0
            level = block["level"][stage][at]
            if channel[0] in ("joint", "shipped"):
                # The left tail of ln NEES is cut at 2 ∛n deviations.
                below = 2 * count ** (1 / 3) * math.sqrt(now + usual.tau2)
                level = max(level, usual.mean - below)
            r = min(max(level - usual.mean - own, low - 4.0), high + 4.0)
            seconds.append((r, v, learning, block))
        states = [low + (high - low) * (place + 1) / 2 for place in PLACES]

        def logs(c: float) -> float:
            return math.fsum(-((r - c) ** 2) / (2 * v) for r, v, *_ in seconds)

        before = moved(self.chain[g, stage, channel])
        best = max(map(logs, states))
        weights = [p * math.exp(logs(c) - best) for p, c in zip(before, states, strict=True)]
        total = math.fsum(weights)
        chain = self.chain[g, stage, channel] = [weight / total for weight in weights]
        common = math.fsum(p * c for p, c in zip(chain, states, strict=True))
        for block in of:
            block["common"][stage][at] = common
        bets = [("over", "over"), ("under", "under")]
        if channel[0] == "bias":
            # A mean that is off either way is more than a covariance allows.
            bets = [("over", "over"), ("over", "under")]
        for direction, end in bets:
            edge, sign = ends[end], 1 if end == "over" else -1
            of_edge = logs(edge) - best - math.log(total)
            chart = (g, stage, direction, (*channel, end))
            found = dict.fromkeys(BLOCKS, of_edge)
            for r, v, learning, block in seconds:
                since = second - max(self.clean[chart], block["first"])
                earlier = block["earlier"]
                since = min(max(since, 0), len(earlier))
                if earlier:
                    worth = sum(one[1] for one in earlier) ** 2 / sum(
                        one[1] ** 2 for one in earlier
                    )
                    since = since * worth / len(earlier)
                for factor in BLOCKS:
                    d = math.log(factor) * (1 - since * learning)
                    wide = v
                    if sign < 0 and channel[0] in ("joint", "shipped"):
                        # ln χ² has a long tail to the left.
                        wide = max(v, d / (0.2 * self.k * block["count"]))
                    found[factor] += min((d * sign * (r - edge) - d * d / 2) / wide, 4.0)
            for factor in BLOCKS:
                self._bet((*chart, factor), part, found[factor])
            if part > 0 and sum(self.R[*chart, f] for f in BLOCKS) / 4 <= part:
                self.clean[chart] = second + 1

    def weight(self, key: Any) -> float:
        """w of a bet in M of its severity."""
        g, stage, direction, *_ = key
        detector, of = _detector(key), self.k
        many = {
            "absolute": 12,
            "relative": 8 if direction == "over" else 6,
            "tail": 4,
            "track": 4,
            "shipped": 4,
            "dimension": 4 * of,
            "bias": 8 * of,
            "correlation": 4 * (of - 1),
        }
        share = shares(self.references[g][stage], direction).get(detector, 0.0)
        return float(CHARTS[stage, direction][1] * share / many[detector])

    def parts(self, g: int, severity: str) -> dict[tuple[int, str, str], float]:
        """M of a slice by stage, direction and detector."""
        found: dict[tuple[int, str, str], float] = defaultdict(float)
        for key, value in self.R.items():
            if key[0] == g and CHARTS[key[1], key[2]][0] == severity:
                found[key[1], key[2], _detector(key)] += self.weight(key) * value
        return found

    def evidence(self, g: int, severity: str) -> float:
        """M of a slice."""
        return math.fsum(self.parts(g, severity).values())

    def concerned(self, severity: str) -> list[str]:
        """Slices of which the k-th largest M is at least T / k, for the largest such k."""
        ranked = sorted(range(len(self.names)), key=lambda g: -self.evidence(g, severity))
        enough = [
            k
            for k, g in enumerate(ranked, 1)
            if self.evidence(g, severity) >= self.budget[severity] / k
        ]
        return [self.names[g] for g in ranked[: max(enough, default=0)]]

    def _alarms(self) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for severity, threshold in self.budget.items():
            evidence = [self.evidence(g, severity) for g in range(len(self.names))]
            if math.fsum(evidence) < threshold:
                continue
            concerned = self.concerned(severity)
            alone = [g for g, m in enumerate(evidence) if m >= threshold]
            for g in alone:
                parts = self.parts(g, severity)
                most = max(parts, key=lambda part: parts[part])
                others = [one for one in concerned if one != self.names[g]]
                found.append((self.names[g], severity, evidence[g], others, most))
            if not alone:
                found.append(("total", severity, math.fsum(evidence), concerned, None))
            for g in alone:
                parts = self.parts(g, severity)
                self._begin_anew(g, severity, max(parts, key=lambda part: parts[part])[:2])
                # T hours of evidence are gone with the alarm.
                rest, left = self.evidence(g, severity), evidence[g] - threshold
                for key in [key for key in self.R if key[0] == g and rest > left]:
                    if CHARTS[key[1], key[2]][0] == severity:
                        self.R[key] *= left / rest
            for g in [] if alone else range(len(self.names)):
                self._begin_anew(g, severity)
        return found

    def _begin_anew(self, g: int, severity: str, only: Any = None) -> None:
        for (stage, direction), (of, _) in CHARTS.items():
            if of == severity and only in (None, (stage, direction)):
                for key in [key for key in self.clean if key[:3] == (g, stage, direction)]:
                    del self.clean[key]
                for key in [key for key in self.R if key[:3] == (g, stage, direction)]:
                    self.R[key] = 0.0
