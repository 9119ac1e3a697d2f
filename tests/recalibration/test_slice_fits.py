"""Fits by slice: which slices rows have, how a thin one borrows, and what rows are worth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from monitor.frames.words import SliceBy
from monitor.recalibration.fit_rows import FitRows, effect_on_mean, effect_on_mean_square
from monitor.recalibration.fitting import (
    WHOLE,
    SliceFit,
    borrowed,
    fit_slices,
    prior_strength,
    worth,
)
from monitor.recalibration.parts import FitSlice, Parts
from monitor.recalibration.recalibrator import Recalibrator, UnfitData
from monitor.recalibration.scaling import Prior, VarianceScaling
from monitor.recalibration.selection import Selection
from monitor.statistics.verdicts import ratio_interval
from tests.recalibration.rows import rows_of

seeds = st.integers(0, 2**32 - 1)
CLASS, STREAM, RANGE = SliceBy.CLASS, SliceBy.STREAM, SliceBy.RANGE
# front: Car near, Car far, Bus near; rear: Car near, Car near.
PARTS = Parts(
    {STREAM: ("front", "rear"), CLASS: ("Bus", "Car"), RANGE: ("<20", ">=20")},
    {
        STREAM: np.array([0, 0, 0, 1, 1]),
        CLASS: np.array([1, 1, 0, 1, 1]),
        RANGE: np.array([0, 1, 0, 0, 0]),
    },
)


def found(parts: Parts, *by: SliceBy) -> dict[str, list[int]]:
    return {entry.name: entry.rows.tolist() for entry in parts.slices(by)}


STREAMS, CLASSES = {"front": [0, 1, 2], "rear": [3, 4]}, {"Bus": [2], "Car": [0, 1, 3, 4]}
FINE = {"Bus/<20": [2], "Car/<20": [0, 3, 4], "Car/>=20": [1]}
OF_STREAMS = {"front/Bus": [2], "front/Car": [0, 1], "rear/Car": [3, 4]}


@pytest.mark.parametrize(
    ("by", "slices"),
    [
        ((STREAM,), STREAMS),
        ((CLASS, RANGE), CLASSES | FINE),
        ((STREAM, CLASS), STREAMS | CLASSES | OF_STREAMS),
    ],
)
def test_the_slices_are_those_asked_for_and_all_wider_ones(by, slices):
    assert found(PARTS, *by) == slices


def test_a_row_without_a_part_is_in_no_slice_of_it():
    parts = Parts({**PARTS.names, CLASS: ("", "Car"), RANGE: ("", ">=20")}, PARTS.index)
    assert found(parts, CLASS, RANGE) == {"Car": [0, 1, 3, 4], "Car/>=20": [1]}
    _, chains = parts.chains()
    assert ("front",) in chains


@pytest.mark.parametrize(
    ("streams", "classes", "name"),
    [(("Car", "rear"), ("Bus", "Car"), "Car"), (("a", "a/b"), ("b/c", "c"), "a/b/c")],
)
def test_two_slices_of_one_name_are_refused(streams, classes, name):
    parts = Parts(
        {STREAM: streams, CLASS: classes, RANGE: ("",)},
        {STREAM: np.array([0, 1]), CLASS: np.array([0, 1]), RANGE: np.zeros(2, np.int64)},
    )
    with pytest.raises(UnfitData, match=f"two slices are called '{name}'.* Rename one of them"):
        parts.slices((STREAM, CLASS))


# ---- borrowing


def rows(n: int, tracks: int | None = None) -> FitRows:
    error = np.random.default_rng(n).normal(size=n)
    return rows_of(np.ones(n), error, None if tracks is None else np.arange(n) % tracks)


class Fits:
    """Notes what each fit was drawn towards, if at all; the fit of n rows has the scale n."""

    def __init__(self, refuses: int = -1) -> None:
        self.seen: dict[int, Recalibrator | None] = {}
        self.refuses = refuses

    def __call__(self, part: FitRows, towards: Prior[Any] | None) -> VarianceScaling:
        if part.n == self.refuses:
            raise UnfitData("nothing to fit.")
        if towards is not None or part.n not in self.seen:
            self.seen[part.n] = None if towards is None else towards.previous
        return VarianceScaling((float(part.n),))


ALL = VarianceScaling((100.0,))


EARLIER = VarianceScaling((7.0,))


def entry(name: str, n: int, *wider: str) -> tuple[FitSlice, FitRows]:
    return FitSlice(name, np.arange(n), wider), rows(n)


def fit_each(slices, fits, *, strength: float | None = 30.0, previous=None):
    whole = SliceFit(rows(500), ALL, None)
    return fit_slices(slices, fits, whole, strength=strength, fewest=30, previous=previous)


def test_a_thin_slice_is_drawn_towards_the_finest_wider_one_that_has_a_fit():
    fits = Fits()
    slices = [
        entry("Car", 60),
        entry("Bus", 29),
        entry("front/Car", 9, "Car", "front"),
        entry("front/Bus/<20", 8, "Bus/<20", "front/Bus", "Bus", "<20", "front"),
        entry("Van", 59),
    ]
    made = fit_each(slices, fits)
    car, bus = made["Car"].recalibrator, made["Bus"].recalibrator
    assert fits.seen == {60: None, 29: ALL, 9: car, 8: bus, 59: ALL}
    leans = {name: fit.leans_on for name, fit in made.items()}
    assert leans == {
        **{"Car": None, "Bus": WHOLE, "Van": WHOLE},
        **{"front/Car": "Car", "front/Bus/<20": "Bus"},
    }
    assert (made["Car"].alone, made["Van"].alone) == (None, VarianceScaling((59.0,)))


def test_what_cannot_be_drawn_leaves_a_thin_slice_to_the_wider_one():
    fits = Fits()
    slices = [entry("Car", 40), entry("Car/<20", 12, "Car"), entry("Van", 3)]
    made = fit_each(slices, fits, strength=None)
    assert fits.seen == {40: None}
    assert made["Car/<20"].recalibrator is None
    assert made["Car/<20"].leans_on == "Car"
    assert made["Car/<20"].reason == (
        "12 rows of 12 tracks count for 12 independent ones, and 30 are needed"
    )
    assert made["Van"].leans_on == WHOLE


def test_a_slice_that_was_left_is_no_parent():
    slices = [entry("Car", 12), entry("Car/<20", 40, "Car"), entry("Car/x", 5, "Car")]
    made = fit_each(slices, Fits(), strength=None)
    assert made["Car/x"].leans_on == WHOLE
    fits = Fits(refuses=12)
    made = fit_each(slices, fits)
    assert (made["Car"].recalibrator, made["Car"].reason) == (None, "nothing to fit")
    assert fits.seen[5] is ALL


def test_an_earlier_fit_of_the_slice_goes_before_the_wider_one_and_stays_where_none_can_be():
    previous = Selection(("x",), ALL, {"Car": EARLIER, "Van": EARLIER, "Tram": EARLIER})
    fits = Fits(refuses=12)
    slices = [entry("Car", 40), entry("Van", 4), entry("Bus", 5), entry("Taxi", 60)]
    slices += [entry("Tram", 12), entry("Truck", 12)]
    made = fit_each(slices, fits, previous=previous)
    assert fits.seen == {40: EARLIER, 4: EARLIER, 5: ALL, 60: None}
    for name in ("Car", "Van", "Tram"):
        assert made[name].leans_on == previous.version
    assert made["Bus"].leans_on == WHOLE
    assert made["Tram"].recalibrator is EARLIER
    assert made["Truck"].recalibrator is None


def part_of(z: np.ndarray, size: float, tracks: int) -> FitRows:
    """The first tracks of ten rows each, with errors `size` times as large as σ says."""
    n = 10 * tracks
    return rows_of(np.ones(n), size * z[:n], np.arange(n) // 10)


@pytest.mark.parametrize("size", [1.0, 1.3, 2.0])
def test_one_track_more_changes_little_of_what_is_borrowed(size):
    z = np.random.default_rng(5).normal(size=700)
    wider = part_of(np.random.default_rng(6).normal(size=4000), 1.0, 400)
    parts = [part_of(z, size, tracks) for tracks in range(10, 71)]
    share = [worth(part) / (worth(part) + borrowed(part, wider, 30.0, 30.0)) for part in parts]
    differs = [np.log(part.square.mean() / wider.square.mean()) / 2 for part in parts]
    # By how much ln of the factor is drawn: half of `differs` with 30 tracks that are alike.
    drawn = (1 - np.array(share)) * np.array(differs)
    assert np.abs(np.diff(drawn)).max() < 0.03
    assert drawn[-1] == 0
    if size == 2.0:
        assert share[15] > 0.95


def test_a_slice_borrows_by_what_chance_explains_of_its_difference():
    wider = part_of(np.random.default_rng(6).normal(size=4000), 1.0, 400)
    part = part_of(np.random.default_rng(5).normal(size=200), 2.0, 20)
    lower, upper = ratio_interval(part.square[:, 0], part.track)
    deviation = np.log(upper / lower) / 2 / 1.96
    d = np.log(part.square.mean() / wider.square.mean())
    tau = d**2 - deviation**2
    drawn = borrowed(part, wider, 30.0, 30.0)
    # The share of its own rows is τ²/(τ² + v).
    assert worth(part) / (worth(part) + drawn) == pytest.approx(tau / (tau + deviation**2))
    # No interval, nothing known: all is borrowed.
    assert borrowed(part_of(np.ones(10), 2.0, 1), wider, 30.0, 30.0) == 30.0


def test_rows_are_worth_no_more_than_their_tracks():
    assert worth(rows(60, tracks=7)) <= 7
    assert worth(rows(60)) == 60
    assert worth(rows(0)) == 0


def test_a_prior_outweighs_the_rows_of_few_tracks_as_it_would_as_many_rows():
    for part in (rows(200), rows(200, tracks=1), rows(200, tracks=3)):
        strength = prior_strength(part, 30.0)
        effective = part.n * part.weight
        assert effective / (effective + strength) == pytest.approx(
            worth(part) / (worth(part) + 30.0)
        )
    assert prior_strength(rows(0), 30.0) == 30.0


# ---- what rows are worth

TRACK = np.repeat(np.arange(60), 10)


def alike(seed, share):
    """Gaussian errors of 60 tracks; `share` is the correlation within one."""
    random = np.random.default_rng(seed)
    common, own = random.normal(size=60)[TRACK], random.normal(size=600)
    return np.sqrt(share) * common + np.sqrt(1 - share) * own


def slow_effect(x, track):
    """D = max(1, Σ_c (Σ_{i∈c} (x_i − m))² / Σ_i (x_i − m)²), Kish 1965."""
    off = x - x.mean()
    together = sum(off[track == c].sum() ** 2 for c in set(track.tolist()))
    return max(1.0, together / sum(value * value for value in off))


@given(seeds, st.floats(0.0, 0.9), st.floats(-4.0, 4.0))
def test_the_effects_are_those_of_the_definition_in_any_unit(seed, share, unit):
    z = alike(seed, share)
    size = np.median(z * z) / chi2.median(1)
    expected = slow_effect(np.minimum(z * z / size, 64.0), TRACK)
    signed = slow_effect(np.clip(z / np.sqrt(size), -8.0, 8.0), TRACK)
    scaled = 10.0**unit * z[:, None]
    assert effect_on_mean_square(scaled**2, TRACK) == pytest.approx([expected], rel=1e-9)
    assert effect_on_mean(scaled, TRACK) == pytest.approx([signed], rel=1e-9)


def test_each_dimension_has_a_weight_of_its_own():
    z = np.stack([alike(3, 0.8), alike(4, 0.0)], axis=1)
    rows = rows_of(np.ones(z.shape), z, TRACK)
    assert rows.size_weight[0] < 0.4 < 0.7 < rows.size_weight[1]
    assert rows.weight == rows.size_weight[0]
    for i in range(2):
        alone = rows_of(np.ones(600), z[:, i], TRACK)
        assert rows.size_weight[i] == pytest.approx(alone.weight, rel=1e-12)


def test_an_outlier_does_not_hide_how_alike_the_others_are():
    z = alike(6, 0.7)
    spoilt = z.copy()
    spoilt[17] = 1e200
    found = rows_of(np.ones(600), spoilt, TRACK)
    assert found.weight < 0.6
    assert found.location_weight[0] < 0.4
