"""Vehicles of a fleet: a small row of sums for each vehicle and slice, and which of them differ.

A row is a linear function of the sums of a slice, in exact integers: the row of an upload, added
to those before, is the row of the whole. What a vehicle is compared with is not the fleet's
parameter but its spread: healthy vehicles differ too, by weather, routes and mounts, and with a
million rows each any two of them differ significantly.

The false discovery rate is held as by Benjamini and Hochberg (1995).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri, stdtr

from monitor.frames.slices import label
from monitor.frames.space import BoolArray, FloatArray, IntArray, Space
from monitor.statistics.bins import EXPONENT, LogBins
from monitor.statistics.clusters import LARGEST, UNIT
from monitor.statistics.exact_sums import LIMB_BITS, ExactSum, carry
from monitor.statistics.observations import companion_layout

if TYPE_CHECKING:
    from monitor.statistics.state import StageStatistics, StatisticsState

# Name of a slice, whether it is an overflow slice, number of its space, and RAW or CHANGE.
RowKey = tuple[str, bool, int, int]
RAW, CHANGE = 0, 1


@dataclass(frozen=True, eq=False, slots=True)
class VehicleRow:
    """Sums of one vehicle in one slice: as sent, or what recalibration changed of these.

    sums  (W,) of row_layout
    """

    space: Space
    sums: ExactSum

    @property
    def is_zero(self) -> bool:
        """Tells that nothing is held."""
        return not (self.sums.low.any() or self.sums.high.any())


@cache
def row_layout(k: int) -> tuple[dict[str, slice], int]:
    """Numbers the columns of a row; returns their places by name, and how many there are.

    n, pairs             rows, and pairs of rows of one track
    x, square            (K + 1,) Σ x and Σ x², x = min(NEES/k, 64) at the centre of its bin
    cross, beside        (K + 1,) of clusters.design_effect
    below, sigma         (K,) Σ σ of errors below 0, and of all
    log_sigma            (K,) Σ log σ
    """
    axes = k + 1
    sizes = {"n": 1, "pairs": 1, "x": axes, "square": axes, "cross": axes, "beside": axes}
    sizes |= {"below": k, "sigma": k, "log_sigma": k}
    ends = zip(sizes.items(), accumulate(sizes.values()), strict=True)
    return {name: slice(end - size, end) for (name, size), end in ends}, sum(sizes.values())


@cache
def _centres(bins: LogBins, k: int) -> tuple[IntArray, IntArray]:
    """(2, H) x of each bin of NEES, of a dimension and of k, in units of 2^-16; and its square.

    Both are integers, and so are all sums of them.
    """
    lower, upper = bins.bounds
    centre = np.sqrt(np.append(upper[0] / 2, lower[1:]) * np.append(upper[:-1], lower[-1]))
    x = np.minimum(centre / np.array([[1.0], [k]]), LARGEST)
    units = np.rint(x / UNIT).astype(np.int64)
    return units, units * units


def row_of(stage: StageStatistics) -> ExactSum:
    """Computes the columns of row_layout, in units of 2^-32."""
    space, companion = stage.space, stage.companions
    levels = len(stage.binning.tau)
    places, _ = companion_layout(space.k, levels)
    layout, width = row_layout(space.k)
    found = ExactSum.zero((width,), EXPONENT)

    def put(name: str, low: IntArray, high: IntArray) -> None:
        found.low[layout[name]], found.high[layout[name]] = carry(low, high)

    n = np.array([stage.n])
    spare = LIMB_BITS + EXPONENT  # n · 2^32 = (n mod 2^8) · 2^32 + (n // 2^8) · 2^40
    put("n", (n & ((1 << spare) - 1)) << -EXPONENT, n >> spare)
    for name in ("pairs", "cross", "beside", "log_sigma"):
        put(name, companion.low[places[name]], companion.high[places[name]])

    bins = stage.binning.nees
    counts = np.zeros((space.k + 1, bins.count), np.int64)
    counts.ravel()[stage.nees.keys] = stage.nees.values[:, 0]
    for name, values, unit in zip(
        ("x", "square"), _centres(bins, len(space.joint)), (16, 0), strict=True
    ):
        by_axis = np.concatenate((np.repeat(values[:1], space.k, axis=0), values[1:]))
        by_axis <<= unit
        # In parts of 20 bits, so that sums over 2^42 detections stay below 2^63.
        parts = ((by_axis >> shift) & 0xFFFFF for shift in (0, 20, 40))
        a, b, c = ((counts * part).sum(axis=1) for part in parts)
        put(name, a + ((b & 0xFFFFF) << 20), c + (b >> 20))

    if 0.5 in stage.binning.tau:
        below = stage.binning.tau.index(0.5) + 1  # z < 0 lies beyond so many levels at most
        for name, ranks in (("below", below), ("sigma", levels + 1)):
            by_rank = [
                limb[places["sigma"]].reshape(space.k, -1)[:, :ranks].sum(axis=1)
                for limb in (companion.low, companion.high)
            ]
            put(name, *by_rank)
    return found


@dataclass(frozen=True, eq=False, slots=True)
class VehicleRows:
    """Rows of vehicles, by vehicle; they add up exactly, in any order.

    rows  without rows that hold nothing, and without vehicles that have none; read only
    """

    rows: Mapping[str, Mapping[RowKey, VehicleRow]] = field(default_factory=dict)

    def merge(self, other: VehicleRows) -> VehicleRows:
        """Adds up what both have of each vehicle."""
        if not other.rows:
            return self
        found = dict(self.rows)
        for vehicle, more in other.rows.items():
            ours = dict(found.get(vehicle, {}))
            for key, row in more.items():
                add_row(ours, key, row)
            found[vehicle] = ours
        return VehicleRows({vehicle: rows for vehicle, rows in found.items() if rows})

    def negated(self) -> VehicleRows:
        """Turns the sign of all sums: merging the result retracts what was added."""
        return VehicleRows(
            {
                vehicle: {key: VehicleRow(row.space, -row.sums) for key, row in rows.items()}
                for vehicle, rows in self.rows.items()
            }
        )


NO_VEHICLES = VehicleRows()


def add_row(rows: dict[RowKey, VehicleRow], key: RowKey, row: VehicleRow) -> None:
    """Adds a row to those of one vehicle, in place."""
    known = rows.get(key)
    if known is not None:
        row = VehicleRow(row.space, known.sums + row.sums)
    if row.is_zero:
        rows.pop(key, None)
    else:
        rows[key] = row


Place = tuple[str, bool, int]


def rows_by_slice(
    vehicles: VehicleRows,
) -> Iterator[tuple[Place, Space, list[tuple[str, dict[int, VehicleRow]]]]]:
    """Yields each slice, its space and, by vehicle, the rows RAW and CHANGE; all sorted."""
    found: dict[Place, dict[str, dict[int, VehicleRow]]] = {}
    for vehicle, rows in sorted(vehicles.rows.items()):
        for (name, overflow, number, stage), row in rows.items():
            place = found.setdefault((name, overflow, number), {})
            place.setdefault(vehicle, {})[stage] = row
    for key, held in sorted(found.items()):
        space = next(row.space for of in held.values() for row in of.values())
        yield key, space, list(held.items())


def stacked(sums: Sequence[ExactSum]) -> ExactSum:
    """Puts at least one sum on top of each other, (N, W)."""
    low, high = ([getattr(one, limb) for one in sums] for limb in ("low", "high"))
    return ExactSum(np.array(low), np.array(high), EXPONENT)


def of_state(vehicle: str, state: StatisticsState) -> VehicleRows:
    """Makes the rows of one vehicle from all that a state holds."""
    rows: dict[RowKey, VehicleRow] = {}
    for entry in state.slices:
        space = entry.space
        key = entry.key[2], entry.overflow, space.number
        for held in entry.panes.values():
            raw = row_of(held.raw)
            add_row(rows, (*key, RAW), VehicleRow(space, raw))
            if held.recalibrated is not held.raw:
                change = row_of(held.recalibrated) + -raw
                add_row(rows, (*key, CHANGE), VehicleRow(space, change))
    return VehicleRows({vehicle: rows} if rows else {})


def with_rows(state: StatisticsState) -> StatisticsState:
    """Returns an upload of one vehicle with the rows of that vehicle, in place of any others.

    Other states are returned as they are.
    """
    vehicles = state.holds.vehicles
    if len(vehicles) != 1:
        return state
    return replace(state, vehicles=of_state(vehicles[0], state))


# The false discovery rate; and below which a vehicle has too little data: effective detections,
# effective tracks. Fewer vehicles than this have no spread to speak of.
LEVEL, FEWEST_DETECTIONS, FEWEST_TRACKS, FEWEST_VEHICLES = 0.05, 100.0, 10.0, 5
SCALE, BIAS = "scale", "bias"
JOINT = "joint"
STAGES = ("raw", "recalibrated")

# Median of |z| of the normal distribution, and its 97.5 % quantile.
_MEDIAN, SIGNIFICANT = float(ndtri(0.75)), float(ndtri(0.975))
# The variance of a spread by the best estimate, over that of one by the median.
_EFFICIENCY = 0.37
# No fleet's errors are taken to lie all on one side, nor a vehicle's.
_LEAST_DOUBT, _MOST_ONE_SIDED = 0.05, 0.999


@dataclass(frozen=True, slots=True)
class Difference:
    """One vehicle that differs from the fleet in one slice, at one stage, in one quantity.

    quantity   SCALE or BIAS
    dimension  its name, or JOINT
    unit       of size, low and high; empty of SCALE
    size       SCALE: the factor between its errors and the fleet's for the same σ. BIAS: how far
               its errors (truth − mean) are moved against the fleet's
    low, high  95 % interval of size, of what the vehicle's own data leaves open
    z, p       deviations of the healthy fleet that it is away, and their two-sided p
    q          the false discovery rate over vehicles at which this one is found
    """

    vehicle: str
    slice: str
    stage: str
    quantity: str
    dimension: str
    unit: str
    size: float
    low: float
    high: float
    z: float
    p: float
    q: float

    @property
    def words(self) -> str:
        """Says what differs, without the vehicle."""
        of = "" if self.dimension == JOINT else f" in {self.dimension}"
        where = f"{self.slice}, {'as sent' if self.stage == STAGES[0] else 'as forwarded'}"
        if self.quantity == SCALE:
            return (
                f"{where}: errors{of} are {self.size:.2f} times ({self.low:.2f} to "
                f"{self.high:.2f}) as large for the same σ as in the fleet"
            )
        unit = f" {self.unit}" * bool(self.unit)
        return (
            f"{where}: errors{of} are moved by {self.size:+.3g}{unit} ({self.low:+.3g} to "
            f"{self.high:+.3g}) against the fleet"
        )


@dataclass(frozen=True, slots=True)
class ComparedSlice:
    """How the vehicles of one slice were compared at one stage.

    compared, too_little  vehicles
    spread                standard deviation, over healthy vehicles, of the logarithm of the joint
                          factor between errors and σ; NaN where none was compared
    """

    slice: str
    stage: str
    compared: int
    too_little: int
    spread: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Vehicles held against their fleet.

    vehicles  with a row, compared or not
    tests     of all vehicles, slices, stages and quantities
    found     the most certain first
    """

    vehicles: int
    tests: int
    slices: tuple[ComparedSlice, ...]
    found: tuple[Difference, ...]

    @property
    def by_vehicle(self) -> dict[str, list[Difference]]:
        """Groups what was found, the vehicle with the most certain difference first."""
        grouped: dict[str, list[Difference]] = {}
        for one in self.found:
            grouped.setdefault(one.vehicle, []).append(one)
        return grouped

    def different(self, at: ComparedSlice, quantity: str) -> int:
        """Counts the vehicles that differ in a quantity in one slice at one stage."""
        place = at.slice, at.stage, quantity
        return len(
            {one.vehicle for one in self.found if (one.slice, one.stage, one.quantity) == place}
        )


NOTHING_COMPARED = Comparison(0, 0, (), ())


def compare(rows: VehicleRows, level: float = LEVEL) -> Comparison:
    """Holds each vehicle against the centre and the spread of the fleet, by slice and stage.

    level  the false discovery rate: of the vehicles that are named, so many by chance at most
    """
    names = sorted(rows.rows)
    number = {name: i for i, name in enumerate(names)}
    slices: list[ComparedSlice] = []
    columns: list[_Column] = []
    for name, stage, space, held, values in _tables(rows):
        found = _Estimates.of(space, values)
        enough = found.enough
        compared, spread = int(enough.sum()), math.nan
        if compared < FEWEST_VEHICLES:
            compared = 0
        else:
            vehicles = np.array([number[one] for one in held])[enough]
            here = list(_columns((name, stage), space, vehicles, found.take(enough)))
            joint = (one.spread / 2 for one in here if one.kind[:2] == (SCALE, JOINT))
            spread = next(joint, math.nan)
            columns += here
        slices.append(ComparedSlice(name, stage, compared, len(held) - compared, spread))
    # Of equal certainty, which may have come to 0, the largest first.
    differences = sorted(
        _found(names, columns, level),
        key=lambda one: (one.q, one.p, -abs(one.z), one.vehicle, one.slice),
    )
    tests = sum(column.p.size for column in columns)
    return Comparison(len(names), tests, tuple(slices), tuple(differences))


def _found(names: list[str], columns: Sequence[_Column], level: float) -> Iterator[Difference]:
    """Yields what is found of which vehicles.

    First which vehicles differ in anything (Simes), at the level over vehicles; then in what each
    of them differs, at the level times the share of vehicles that do. So a bad vehicle, which is
    bad in many ways, does not pay for false finds of others.

    source  Benjamini and Bogomolov 2014
    """
    p = np.full((len(names), len(columns)), np.nan)
    for j, column in enumerate(columns):
        p[column.vehicles, j] = column.p
    p = p[compared := np.flatnonzero(np.isfinite(p).any(axis=1))]
    within = _false_discovery(p)
    q = _false_discovery(np.nanmin(within, axis=1, initial=1.0))
    share = np.count_nonzero(q <= level) / max(q.size, 1)
    for i in np.flatnonzero(q <= level).tolist():
        for j in np.flatnonzero(within[i] <= level * share).tolist():
            at = int(np.searchsorted(columns[j].vehicles, compared[i]))
            yield columns[j].difference(at, names[compared[i]], float(q[i]))


def _tables(rows: VehicleRows) -> Iterator[tuple[str, str, Space, list[str], FloatArray]]:
    """Yields each slice at each stage: its name, the stage, and the sums (V, W) of its vehicles.

    The second stage only of slices in which recalibration changed anything.
    """
    taken: set[str] = set()
    for (name, _, _), space, held in rows_by_slice(rows):
        shown = label(name, space, taken)
        taken.add(shown)
        values = np.zeros((2, len(held), row_layout(space.k)[1]))
        for stage in (RAW, CHANGE):
            there = [(i, of[stage].sums) for i, (_, of) in enumerate(held) if stage in of]
            if there:
                at, sums = zip(*there, strict=True)
                values[stage, at] = stacked(sums).value
        vehicles = [vehicle for vehicle, _ in held]
        yield shown, STAGES[0], space, vehicles, values[RAW]
        if values[CHANGE].any():
            yield shown, STAGES[1], space, vehicles, values[RAW] + values[CHANGE]


@dataclass(frozen=True, eq=False, slots=True)
class _Estimates:
    """Holds what is known of V vehicles in one slice, by axis: of x, the last is the joint one.

    n, crowd      (V, 1) rows; and rows of the same track beside a row
    correlation   (V, A) of x of rows of one track, mean over pairs
    mean          (V, A) of x
    variation     (V, A) Var(x) / mean²
    alike         (V, K) correlation of errors of one track, its root mean square over pairs
    side          (V, K) 1 − 2 Σ_{error < 0} σ / Σ σ; NaN where it is not counted
    sigma         (V, K) mean σ
    unevenness    (V, K) mean σ² / (mean σ)²
    """

    n: FloatArray
    crowd: FloatArray
    correlation: FloatArray
    mean: FloatArray
    variation: FloatArray
    alike: FloatArray
    side: FloatArray
    sigma: FloatArray
    unevenness: FloatArray

    @classmethod
    def of(cls, space: Space, values: FloatArray) -> _Estimates:
        """Reads sums (V, W) of row_layout, of which more may have been retracted than came."""
        layout, _ = row_layout(space.k)
        sums = {name: values[:, place] for name, place in layout.items()}
        n, rows = np.maximum(sums["n"], 0), np.maximum(sums["n"], 1)
        mean, sigma = sums["x"] / rows, sums["sigma"] / rows
        pairs = np.maximum(sums["pairs"], 0)
        # Mean over pairs of (x_i − m) (x_j − m), as in clusters.design_effect.
        together = sums["cross"] - mean * sums["beside"] + mean**2 * pairs
        together /= np.maximum(pairs, 1)
        variance = sums["square"] / rows - mean**2
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            # Normal errors of correlation ρ have squares of covariance 2 ρ² mean². Their
            # correlation is less where tails are heavy, and would understate ρ.
            alike = np.sqrt(np.clip(together / (2 * mean**2), 0, 1))[:, :-1]
            # σ is taken as log-normal: mean σ² = (mean σ)⁴ / exp(2 mean ln σ).
            uneven = np.maximum((sigma / np.exp(sums["log_sigma"] / rows)) ** 2, 1)
            return cls(
                n=n,
                crowd=2 * pairs / rows,
                correlation=np.clip(together / variance, 0, 1),
                mean=mean,
                variation=variance / mean**2,
                alike=alike,
                side=1 - 2 * sums["below"] / sums["sigma"],
                sigma=sigma,
                unevenness=uneven,
            )

    def take(self, chosen: BoolArray) -> _Estimates:
        """Selects vehicles."""
        return _Estimates(*(getattr(self, one.name)[chosen] for one in fields(self)))

    @property
    def enough(self) -> BoolArray:
        """(V,) which of the vehicles have enough data to be compared."""
        sound = (self.mean > 0).all(axis=1) & np.isfinite(self.unevenness).all(axis=1)
        effective = self.n / (1 + self.crowd * self.correlation)
        # So many tracks of equal length would know as much of what is the same along a track.
        tracks = self.n / (1 + self.crowd)
        known = (effective >= FEWEST_DETECTIONS).all(axis=1) & (tracks[:, 0] >= FEWEST_TRACKS)
        found: BoolArray = sound & known
        return found

    def scales(self) -> tuple[FloatArray, FloatArray]:
        """t = ln (mean x) and its variance v = D · c_v² / n by the delta method, (V, A)."""
        effect = 1 + self.crowd * _at_least_usual(self.correlation)
        return np.log(self.mean), effect * _at_least_usual(self.variation) / self.n

    def sides(self) -> tuple[FloatArray, FloatArray]:
        """t = side and its variance v = (1 − m²) · D · unevenness / n, m its median; (V, K).

        D is that of signs, whose correlation is (2/π) asin ρ for normal errors of correlation ρ.
        """
        alike = (2 / math.pi) * np.arcsin(_at_least_usual(self.alike))
        effect = 1 + self.crowd * alike
        spread = np.maximum(1 - np.median(self.side, axis=0) ** 2, _LEAST_DOUBT)
        return self.side, spread * effect * self.unevenness / self.n


def _at_least_usual(values: FloatArray) -> FloatArray:
    """Raises values (V, A) to their median over vehicles.

    A vehicle that has not yet met the tail of its errors would claim to know them well.
    """
    return np.maximum(values, np.median(values, axis=0))


@dataclass(frozen=True, eq=False, slots=True)
class _Column:
    """One quantity of V vehicles, in one slice at one stage, held against the fleet.

    place          slice and stage
    kind           quantity, dimension and unit, as in Difference
    vehicles       (V,) their numbers, ascending
    t, v           (V,) estimates and their variances
    error          (V,) the typical error, in the unit
    centre, spread m and s: healthy vehicles are taken as t ~ N(m, s² + v)
    z, p           (V,) (t − m) / √(s² + v), and its two-sided p
    """

    place: tuple[str, str]
    kind: tuple[str, str, str]
    vehicles: IntArray
    t: FloatArray
    v: FloatArray
    error: FloatArray
    centre: float
    spread: float
    z: FloatArray
    p: FloatArray

    def difference(self, i: int, name: str, q: float) -> Difference:
        """Describes how vehicle number i of these differs."""
        reach = SIGNIFICANT * math.sqrt(self.v[i])
        size, low, high = (self._size(i, self.t[i] + by) for by in (0.0, -reach, reach))
        certain = float(self.z[i]), float(self.p[i]), q
        return Difference(name, *self.place, *self.kind, size, low, high, *certain)

    def _size(self, i: int, t: float) -> float:
        if self.kind[0] == SCALE:
            return math.exp((t - self.centre) / 2)
        # Of a normal distribution that is moved by so many deviations, a share (1 + t) / 2 is
        # above 0.
        at, centre = np.clip((t, self.centre), -_MOST_ONE_SIDED, _MOST_ONE_SIDED)
        return float((ndtri((1 + at) / 2) - ndtri((1 + centre) / 2)) * self.error[i])


def _columns(
    place: tuple[str, str], space: Space, vehicles: IntArray, of: _Estimates
) -> Iterator[_Column]:
    """Yields all quantities of one slice that are known of enough vehicles."""
    units = {one.name: one.unit for one in space.dimensions}
    for quantity, (t, v) in ((SCALE, of.scales()), (BIAS, of.sides())):
        for i, name in enumerate((*space.names, JOINT)[: t.shape[1]]):
            # Sides are not counted without 0.5 among the levels of tau, nor known where Σσ is 0.
            kept = np.isfinite(t[:, i]) & np.isfinite(v[:, i])
            if np.count_nonzero(kept) < FEWEST_VEHICLES:
                continue
            its, at, doubt = vehicles[kept], t[kept, i], v[kept, i]
            unit = units[name] if quantity == BIAS else ""
            error = np.sqrt(of.mean[kept, i]) * (of.sigma[kept, i] if quantity == BIAS else 1.0)
            centre, spread = _usual(at, doubt)
            z = (at - centre) / np.sqrt(spread**2 + doubt + np.finfo(float).tiny)
            # Student's, with as many degrees of freedom as such an estimate of s is worth.
            p = 2 * stdtr(max(1.0, _EFFICIENCY * (its.size - 1)), -np.abs(z))
            kind = quantity, name, unit
            yield _Column(place, kind, its, at, doubt, error, centre, spread, z, p)


def _usual(t: FloatArray, v: FloatArray) -> tuple[float, float]:
    """Estimates centre m and spread s of healthy vehicles, t ~ N(m, s² + v).

    m is the median, and s such that half of all |t − m| / √(s² + v) lie below the median of a
    normal |z|: bad vehicles cannot move them far, however bad, as long as they are few. The half
    with most data must agree, for s is most of their variance, and v may be put too high.
    """
    centre = float(np.median(t))
    square = (t - centre) ** 2 / _MEDIAN**2
    best = v <= np.median(v)
    return centre, math.sqrt(max(_between(square, v), _between(square[best], v[best])))


def _between(square: FloatArray, v: FloatArray) -> float:
    """Finds the least s² ≥ 0 with square ≤ s² + v for half of them."""
    return max(0.0, float(np.median(square - v)))


def _false_discovery(p: FloatArray) -> FloatArray:
    """Computes the false discovery rate at which each of N comparisons is found, (…, N).

    q of the i-th smallest p is the least N p_(j) / j over j ≥ i. NaN where nothing was compared.

    source  Benjamini and Hochberg 1995
    """
    order = np.argsort(p, axis=-1)  # NaN last
    n = np.isfinite(p).sum(axis=-1, keepdims=True)
    ratio = np.take_along_axis(p, order, -1) * n / np.arange(1, p.shape[-1] + 1)
    q = np.empty(p.shape)
    least = np.fmin.accumulate(ratio[..., ::-1], axis=-1)[..., ::-1]
    np.put_along_axis(q, order, least, -1)
    return q
