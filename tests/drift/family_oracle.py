"""A slow account of all that a family of slices gathers, from the equations; no tests."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from scipy import integrate, stats

from monitor.drift.reference import CELLS, Reference, knot_levels

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
DETECTORS = ("absolute", "relative", "track")
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


def shares(reference: Reference) -> dict[str, float]:
    """Of a chart, by what is known."""
    tracks = reference.levels is not None
    if reference.origin == "shipped":
        found = (0.6, 0.0, 0.4 if tracks else 0.0)
    else:
        found = (0.3, 0.3, 0.4) if tracks else (0.5, 0.5, 0.0)
    return dict(zip(DETECTORS, found, strict=True))


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
    """Seconds of tracks, one row at a time."""

    def __init__(self) -> None:
        self.now: dict[int, int] = {}
        self.open: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
        self.tracks: dict[int, dict[str, Any]] = {}
        self.late = self.short = 0

    def frame(self, frame: Frame) -> tuple[int, list[dict[str, Any]]]:
        """Number and blocks of the second of its source that is over with a frame, if any."""
        source, stamp, changed, rows = frame
        before = self.now.get(source, stamp)
        back, over = stamp < before - 10 * SECOND, []
        now = stamp if back else max(stamp, before)
        if back or now // SECOND > before // SECOND:
            over = self._over(source, before // SECOND)
        if back:
            self.tracks = {t: one for t, one in self.tracks.items() if one["source"] != source}
        self.now[source] = now
        for track, g, *nees in rows:
            if track == 0:
                continue
            if stamp // SECOND < now // SECOND:
                self.late += 1
                continue
            block = self.open[source].setdefault(
                track, {"slice": g, "opened": now, "changed": False, "logs": []}
            )
            block["last"] = now
            block["changed"] |= changed
            # ln NEES is kept on a grid of 2^-24.
            block["logs"].append([round(math.log(max(e, 1e-6)) * 2**24) / 2**24 for e in nees])
        return before // SECOND, over

    def _over(self, source: int, second: int) -> list[dict[str, Any]]:
        counted = []
        for key, block in sorted(self.open.pop(source, {}).items()):
            track = self.tracks.get(key)
            if track is None or block["opened"] - track["last"] > 2 * SECOND:
                track = {"source": source, "levels": [], "common": ([], [])}
                self.tracks[key] = track
            track["last"] = block["last"]
            if len(block["logs"]) < 5:
                self.short += len(block["logs"])
                continue
            track.setdefault("first", second)
            level = [math.fsum(one) / len(one) for one in zip(*block["logs"], strict=True)]
            counted.append(
                {**block, "level": level, "earlier": list(track["levels"]), "track": track}
            )
            track["levels"].append(level)
        return counted


@dataclass
class SlowFamily:
    """Slices by index. `references` by slice and stage; T and tolerances by severity."""

    names: Sequence[str]
    references: Sequence[Mapping[int, Reference]]
    budget: Mapping[str, float]
    tolerance: Mapping[str, float]
    clock: SlowClock = field(default_factory=SlowClock)

    def __post_init__(self) -> None:
        self.R: dict[Any, float] = defaultdict(float)
        self.clean: dict[Any, int] = defaultdict(int)
        self.waiting: dict[int, float] = defaultdict(float)
        self.seconds = SlowSeconds()
        self.chain: dict[Any, list[float]] = defaultdict(list)

    def frame(self, frame: Frame) -> list[tuple[Any, ...]]:
        """Take in a frame; alarms as (slice, severity, M) and what has most of the evidence."""
        source, stamp, changed, rows = frame
        hours = self.clock.drive(source, stamp) / 3600
        self.waiting[source] += hours
        for g in range(len(self.names)):
            here = [row for row in rows if row[1] == g]
            if not here:
                continue
            part = hours * len(here) / len(rows)
            for stage in (1, 0) if changed else (1,):
                self._detections(g, stage, part, here)
        self._over(source, *self.seconds.frame(frame))
        return self._alarms()

    def _detections(self, g: int, stage: int, part: float, rows: Any) -> None:
        reference = self.references[g][stage]
        for (of, direction), (severity, _) in CHARTS.items():
            if of != stage:
                continue
            said = [
                detection_ratios(reference, direction, self.tolerance[severity], row[2 + stage])
                for row in rows
            ]
            for bet in said[0]:
                tracked = [s[bet] for s, row in zip(said, rows, strict=True) if row[0]]
                alone = [s[bet] for s, row in zip(said, rows, strict=True) if not row[0]]
                total = reference.tempering * math.fsum(tracked)
                if alone:
                    top = max(alone)
                    mean = math.fsum(math.exp(one - top) for one in alone) / len(alone)
                    total += reference.frame_tempering * (top + math.log(mean))
                key = (g, stage, direction, *bet)
                self.R[key] = (self.R[key] + part) * math.exp(min(total, 50.0))

    def _over(self, source: int, second: int, counted: list[dict[str, Any]]) -> None:
        if not counted:
            return
        hours = self.waiting.pop(source, 0.0)
        for stage in (0, 1):
            heeded = [
                one
                for one in counted
                if self.references[one["slice"]][stage].levels is not None
                and (stage == 1 or one["changed"])
            ]
            for g in {one["slice"] for one in heeded}:
                of_slice = [one for one in heeded if one["slice"] == g]
                part = hours * len(of_slice) / len(heeded)
                self._blocks(g, stage, part, of_slice, second)

    def _blocks(self, g: int, stage: int, part: float, of: Any, second: int) -> None:
        reference = self.references[g][stage]
        levels = reference.levels
        assert levels is not None
        tau2, omega2 = levels.between**2, levels.within**2
        ends = {}
        for (of_stage, direction), (severity, _) in CHARTS.items():
            if of_stage == stage:
                sign = 1 if direction == "over" else -1
                band = sign * 2 * math.log(self.tolerance[severity])
                ends[direction] = math.log(anchor(reference, direction)) + band
        low, high = ends["under"], ends["over"]
        seconds = []
        for block in of:
            level, earlier, track = block["level"], block["earlier"], block["track"]
            n = len(earlier)
            known = omega2 + n * tau2
            v = omega2 * max(1.0, levels.length / len(block["logs"])) + tau2 * omega2 / known
            own = math.fsum(one[stage] - levels.mean for one in earlier)
            own = tau2 / known * (own - math.fsum(track["common"][stage]))
            r = min(max(level[stage] - levels.mean - own, low - 4.0), high + 4.0)
            seconds.append((r, v, tau2 / known, n, track))
        states = [low + (high - low) * (place + 1) / 2 for place in PLACES]

        def logs(c: float) -> float:
            return math.fsum(-((r - c) ** 2) / (2 * v) for r, v, *_ in seconds)

        before = moved(self.chain[g, stage])
        best = max(map(logs, states))
        weights = [p * math.exp(logs(c) - best) for p, c in zip(before, states, strict=True)]
        total = math.fsum(weights)
        self.chain[g, stage] = [weight / total for weight in weights]
        common = math.fsum(p * c for p, c in zip(self.chain[g, stage], states, strict=True))
        for direction, edge in ends.items():
            chart = (g, stage, direction)
            sign = 1 if direction == "over" else -1
            of_edge = logs(edge) - best - math.log(total)
            found = dict.fromkeys(BLOCKS, of_edge)
            for r, v, learning, n, track in seconds:
                since = min(max(second - max(self.clean[chart], track["first"]), 0), n)
                for factor in BLOCKS:
                    d = math.log(factor) * (1 - since * learning)
                    found[factor] += min((d * sign * (r - edge) - d * d / 2) / v, 4.0)
            for factor in BLOCKS:
                key = (*chart, "track", factor)
                self.R[key] = (self.R[key] + part) * math.exp(min(found[factor], 50.0))
            if part > 0 and sum(self.R[*chart, "track", f] for f in BLOCKS) / 4 <= part:
                self.clean[chart] = second + 1
        for *_, track in seconds:
            track["common"][stage].append(common)

    def weight(self, key: Any) -> float:
        """w of a bet in M of its severity."""
        g, stage, direction, detector, _ = key
        many = {"absolute": 12, "relative": 8 if direction == "over" else 6, "track": 4}
        share = shares(self.references[g][stage])[detector]
        return float(CHARTS[stage, direction][1] * share / many[detector])

    def parts(self, g: int, severity: str) -> dict[tuple[int, str, str], float]:
        """M of a slice by stage, direction and detector."""
        found: dict[tuple[int, str, str], float] = defaultdict(float)
        for key, value in self.R.items():
            if key[0] == g and CHARTS[key[1], key[2]][0] == severity:
                found[key[1], key[2], key[3]] += self.weight(key) * value
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
                self.clean.pop((g, stage, direction), None)
                for key in [key for key in self.R if key[:3] == (g, stage, direction)]:
                    self.R[key] = 0.0
