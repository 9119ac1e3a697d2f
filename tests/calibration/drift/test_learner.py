"""What is usual of a slice, learned from its detections and seconds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, kstest

from monitor.drift.reference import Origin, Reference, shipped
from monitor.drift.usual import ReferenceLearner
from tests.calibration.drift.correlated import correlated
from tests.calibration.drift.drives import mapped

quick = settings(max_examples=30)


def taught(nees, tracks, k=4, frames_a_call=16, seconds=True) -> ReferenceLearner:
    """NEES and ids of (F, T), at 10 Hz; seconds of at least 5 detections."""
    learner = ReferenceLearner(k)
    for at in range(0, len(nees), frames_a_call):
        e, ids = nees[at : at + frames_a_call], tracks[at : at + frames_a_call]
        learner.add(e.ravel(), ids.ravel(), np.repeat(np.arange(at, at + len(e)), e.shape[1]))
    known: dict[int, list[float]] = {}
    for at in range(0, len(nees) if seconds else 0, 10):
        e, ids = nees[at : at + 10].ravel(), tracks[at : at + 10].ravel()
        for key in np.unique(ids).tolist():
            of_track = e[ids == key]
            earlier = known.setdefault(key, [])
            if of_track.size < 5:
                continue
            y = float(np.log(of_track).mean())
            learner.seconds.add(
                np.array([y]),
                np.array([of_track.size]),
                np.array([len(earlier)]),
                np.array([np.mean(earlier) if earlier else 0.0]),
            )
            earlier.append(y)
    return learner


def learned(learner: ReferenceLearner) -> Reference:
    return learner.learned(Origin.LEARNED, 10)


def test_rows_of_the_law_that_was_learned_are_chi_square():
    random = np.random.default_rng(4)
    # Overconfident by 1.7, with tails of t5.
    rows, fresh = (
        1.7**2 * random.chisquare(4, n) * 3 / random.chisquare(5, n) for n in (20_000, 3000)
    )
    reference = learned(taught(rows.reshape(-1, 8), np.zeros((2500, 8), np.uint64)))
    found = mapped(reference, fresh)
    # Quantiles of 20,000 rows are off by 0.01, and so are those of 3,000.
    assert kstest(found, chi2(4).cdf).pvalue > 1e-3
    assert reference.nees_ratio == pytest.approx(1.7**2, rel=0.05)
    assert reference.detections == 20_000


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("factor", [1.25, 2.0, 3.0, 0.8, 0.5])
def test_bets_on_scale_gain_nothing_on_the_average_over_references_of_the_same_law(k, factor):
    random = np.random.default_rng(7)
    gains = []
    for _ in range(40):
        rows = random.chisquare(k, 300) / random.gamma(3.0, 1 / 3, 300)
        learner = ReferenceLearner(k)
        learner.add(rows, np.zeros(300, np.uint64), np.arange(300))
        reference = replace(learned(learner), tempering=1.0)
        fresh = random.chisquare(k, 5000) / random.gamma(3.0, 1 / 3, 5000)
        e = mapped(reference, fresh)
        gains.append((factor**-k * np.exp(e / 2 * (1 - factor**-2))).mean())
    error = float(np.std(gains)) / np.sqrt(len(gains))
    assert np.mean(gains) < 1 + 3 * error
    # And an unlucky reference is not lost: the cap bounds what its last row may say.
    assert max(gains) < 1.6


def test_all_of_it_is_known_of_a_stream_with_tracks():
    nees, tracks = correlated(3, 4, 0.6, 600)
    learner = taught(nees, tracks)
    reference = learned(learner)
    assert learner.tracks > 0
    assert learner.tracks == np.unique(tracks).size
    assert learner.detections == reference.detections == nees.size
    assert reference.levels is not None
    assert reference.levels.mean == pytest.approx(np.log(nees).mean(), abs=0.1)
    assert (reference.k, reference.origin) == (4, Origin.LEARNED)


def test_a_stream_without_tracks_knows_frames_and_assumes_the_rest():
    nees, tracks = correlated(3, 4, 0.6, 600)
    learner = taught(nees, np.zeros_like(tracks), seconds=False)
    reference = learned(learner)
    assert learner.tracks == 0
    assert reference.levels is None
    assert reference.tempering == shipped(4).tempering
    assert 0.2 < reference.frame_tempering < 0.5


def test_of_nothing_all_is_as_shipped_but_levels():
    reference, assumed = learned(ReferenceLearner(3)), shipped(3)
    assert reference.quantiles.size == 0
    assert reference.levels is None
    for name in ("k", "detections", "nees_ratio", "tempering", "frame_tempering"):
        assert getattr(reference, name) == getattr(assumed, name)


@quick
@given(st.integers(0, 2**32 - 1), st.integers(1, 90), st.integers(1, 90))
def test_the_cut_of_a_stream_into_calls_does_not_matter_beyond_rounding(seed, cut, looked_at):
    nees, tracks = correlated(seed, 3, 0.5, 90)
    one = learned(taught(nees, tracks, 3, 90, seconds=False))
    learner = ReferenceLearner(3)
    frame = np.arange(90)[:, None] + np.zeros(8, np.int64)
    for at in range(0, 90, cut):
        rows = slice(at, at + cut)
        learner.add(nees[rows].ravel(), tracks[rows].ravel(), frame[rows].ravel())
        if at >= looked_at:
            assert learner.tracks == np.unique(tracks[: at + cut]).size
    other = learned(learner)
    assert np.array_equal(one.quantiles, other.quantiles)
    for name in ("nees_ratio", "tempering", "frame_tempering"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-6)


def test_an_outlier_counts_as_one_error():
    learner = ReferenceLearner(3)
    learner.add(np.array([3.0, 1e300]), np.zeros(2, np.uint64), np.zeros(2, np.int64))
    assert learned(learner).nees_ratio == pytest.approx((1 + 64) / 2)
    assert np.isfinite(learned(learner).quantiles).all()
