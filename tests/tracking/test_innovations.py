"""Statistics of the innovations, against plain loops and against sequences of known correlation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.tracking.kalman import InnovationSums, innovation_sums, no_innovations
from tests.laws import assert_same
from tests.tracking.scenes import XY, model_of, run, seen

CLASSES = 4
NAMES = InnovationSums.__slots__
quick = settings(max_examples=50)
seeds = st.integers(0, 2**32 - 1)


def a_frame(seed, m=12, j=3):
    random = np.random.default_rng(seed)
    before = random.normal(size=(m, j))
    before[random.random(m) < 0.4] = np.nan
    return (
        random.integers(0, CLASSES - 1, m), random.normal(size=(m, j)), before,
        random.integers(0, CLASSES, random.integers(0, 5)),
    )  # fmt: skip


def sums(seed):
    return innovation_sums(CLASSES, *a_frame(seed))


def slow_sums(classes, kinds, whitened, before, rejected):
    """One value after the other, in plain numbers."""
    total = {name: [0.0] * classes for name in NAMES}
    for kind, now, earlier in zip(kinds, whitened.tolist(), before.tolist(), strict=True):
        total["updates"][kind] += 1
        total["values"][kind] += len(now)
        total["nis"][kind] += sum(u * u for u in now)
        if not math.isnan(earlier[0]):
            total["pairs"][kind] += len(now)
            total["product"][kind] += sum(u * v for u, v in zip(now, earlier, strict=True))
            total["square"][kind] += sum(u * u for u in now)
            total["square_before"][kind] += sum(v * v for v in earlier)
    for kind in rejected:
        total["rejected"][kind] += 1
    return total


def values(found):
    return {name: getattr(found, name) for name in NAMES}


@quick
@given(seeds, st.integers(0, 20), st.integers(1, 4))
def test_the_sums_are_those_of_plain_loops(seed, m, j):
    frame = a_frame(seed, m, j)
    found, expected = innovation_sums(CLASSES, *frame), slow_sums(CLASSES, *frame)
    for name, value in values(found).items():
        assert value == pytest.approx(np.array(expected[name]), rel=1e-12), name


@quick
@given(seeds, seeds)
def test_sums_of_two_frames_add_up(left, right):
    both = [np.concatenate(parts) for parts in zip(a_frame(left), a_frame(right), strict=True)]
    added, whole = sums(left) + sums(right), innovation_sums(CLASSES, *both)
    for name in NAMES:
        assert getattr(added, name) == pytest.approx(getattr(whole, name), rel=1e-9), name
    assert_same(sums(left) + no_innovations(CLASSES), sums(left))


@quick
@given(seeds, st.floats(1e-6, 1))
def test_fading_changes_weights_and_no_ratio(seed, factor):
    found = sums(seed)
    faded = found.fade(factor)
    for name in NAMES:
        np.testing.assert_allclose(getattr(faded, name), factor * getattr(found, name))
    for ratio in ("nis_ratio", "correlation", "reject_ratio"):
        np.testing.assert_allclose(getattr(faded, ratio), getattr(found, ratio))


@quick
@given(seeds, st.lists(st.integers(-1, 2), min_size=CLASSES, max_size=CLASSES))
def test_groups_are_sums_of_their_classes(seed, group):
    found = sums(seed)
    grouped = found.by_group(np.array(group), 3)
    for name in NAMES:
        for one in range(3):
            members = [getattr(found, name)[c] for c in range(CLASSES) if group[c] == one]
            assert getattr(grouped, name)[one] == pytest.approx(sum(members)), name


def test_where_nothing_was_seen_the_ratios_are_nan_and_nothing_is_inflated():
    nothing = no_innovations(2)
    for ratio in (nothing.nis_ratio, nothing.correlation, nothing.reject_ratio):
        assert np.isnan(ratio).all()
    assert nothing.inflation.tolist() == [1.0, 1.0]


def autoregressive(rho, frames=400, tracks=100, j=2, seed=0):
    """uₜ = ρ uₜ₋₁ + √(1 − ρ²) eₜ: unit variance, lag-1 correlation ρ."""
    random = np.random.default_rng(seed)
    u = random.normal(size=(tracks, j))
    total, before = no_innovations(1), np.full((tracks, j), np.nan)
    none = np.zeros(0, int)
    for _ in range(frames):
        total += innovation_sums(1, np.zeros(tracks, int), u, before, none)
        before, u = u, rho * u + math.sqrt(1 - rho**2) * random.normal(size=u.shape)
    return total


@pytest.mark.parametrize("rho", [-0.8, -0.3, 0.0, 0.3, 0.6, 0.85, 0.97])
def test_the_correlation_of_an_autoregressive_sequence_is_found(rho):
    found = autoregressive(rho)
    assert found.nis_ratio[0] == pytest.approx(1.0, abs=0.1)
    assert found.correlation[0] == pytest.approx(rho, abs=0.02)
    bounded = min(max(rho, 0.0), 0.9)
    expected = (1 + bounded) / (1 - bounded)
    assert found.inflation[0] == pytest.approx(expected, rel=0.05)


def test_a_few_values_inflate_little():
    few, many = autoregressive(0.8, frames=5, tracks=2), autoregressive(0.8)
    assert few.correlation[0] > 0.5
    assert few.inflation[0] < 1.2
    assert many.inflation[0] > 8.0


@quick
@given(st.lists(st.floats(-1e6, 1e6), min_size=len(NAMES), max_size=len(NAMES)))
def test_inflation_is_never_below_one_nor_without_bound(numbers):
    u = np.array([numbers[:2]])
    one = innovation_sums(1, np.zeros(1, int), u, np.array([numbers[2:4]]), np.zeros(0, int))
    for copies in (1, 10**6):
        found = one.fade(copies).inflation
        assert 1.0 <= found[0] <= 19.0 + 1e-9


def test_half_a_life_later_a_stream_s_sums_weigh_half():
    model = model_of(XY, half_life_seconds=2.0, coast_seconds=100.0)
    spots = [[0.0, 0.0], [50.0, 0.0]]
    steps = run(model, [*(seen(i, spots) for i in range(10)), seen(0, [], stamp_ns=2_900_000_000)])
    before, after = (step.state.innovations for step in steps[-2:])
    assert before.updates[0] > 5
    np.testing.assert_allclose(after.updates, 0.5 * before.updates)
    np.testing.assert_allclose(after.nis, 0.5 * before.nis)


def test_only_confirmed_tracks_are_counted():
    steps = run(model_of(XY, confirm_detections=3), [seen(i, [[0.0, 0.0]]) for i in range(6)])
    # The third detection confirms; from the fourth on each update counts, each with one before.
    decay = 0.5 ** (0.1 / 60)
    counts = [step.state.innovations.updates[0] for step in steps]
    assert counts == pytest.approx([0, 0, 0, 1, 1 + decay, 1 + decay + decay**2])
    assert steps[-1].state.innovations.pairs[0] == pytest.approx(2 * counts[-1])


def test_noise_that_is_inflated_is_that_of_correlated_errors():
    """A detector whose errors last: R grows, and with it the covariance of the tracks."""
    random, error, frames = np.random.default_rng(0), np.zeros((40, 2)), []
    place = np.column_stack([20.0 * np.arange(40), np.zeros(40)])
    for number in range(80):
        error = 0.9 * error + math.sqrt(0.19) * random.normal(0, 0.1, error.shape)
        frames.append(seen(number, place + error))
    plain, inflated = (
        run(model_of(XY, inflate_for_correlation=choice), frames)[-1].state
        for choice in (False, True)
    )
    assert plain.innovations.correlation[0] > 0.3
    assert inflated.innovations.inflation[0] > 1.5
    ratio = inflated.tracks.covariance[:, 0, 0] / plain.tracks.covariance[:, 0, 0]
    assert (ratio > 1.2).all()
