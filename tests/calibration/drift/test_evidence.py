"""Evidence in hours keeps its budget: by simulation, many streams side by side."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from monitor.drift.bets import (
    ABSOLUTE,
    SCALE,
    Aim,
    DetectionCells,
    Direction,
    log_likelihoods,
    row_log_likelihoods,
)
from monitor.drift.evidence import (
    NO_REFERENCE,
    OF_TRACKS,
    ONLY_COVERAGE,
    WITH_TRACKS,
    WITHOUT_TRACKS,
    Evidence,
    Shares,
    by_severity,
)
from monitor.drift.reference import Origin, Reference
from monitor.drift.usual import ReferenceLearner
from monitor.frames.space import FloatArray
from tests.calibration.drift.drives import mapped

K = 4
FORWARDED = slice(0, 2)
AIMS = (Aim(Direction.OVER, 1.0), Aim(Direction.UNDER, 1.0))


def streams(many: int, shares: Shares) -> Evidence:
    found = Evidence()
    found.grow(many)
    for number in range(many):
        found.set_shares(number, FORWARDED, shares)
    return found


def alarms_of(
    nees: FloatArray,
    budget: float,
    shares: Shares,
    aims: tuple[Aim, Aim] = AIMS,
    usual: Reference | None = None,
) -> FloatArray:
    """(2,) alarms by severity, of (steps, streams) NEES; one hour a detection.

    usual  None: χ², exactly
    """
    many = nees.shape[1]
    board, found = streams(many, shares), np.zeros(2)
    weights, hours = board.weights, np.ones(many)
    for e in nees:
        like = e if usual is None else mapped(usual, e)
        said = row_log_likelihoods(K, e, like, aims, [np.ones(many)] * len(aims))
        board.add_detections(FORWARDED, hours, np.exp(said))
        over = by_severity(board.by_chart(weights)) >= budget
        found += over.sum(axis=0)
        for stream, severity in np.argwhere(over).tolist():
            board.begin_anew(stream, np.array([severity == 0, severity == 1, False, False]))
    return found


def test_run_lengths_keep_the_budget_on_independent_errors():
    nees = np.random.default_rng(0).chisquare(K, (2000, 80))
    alarms = alarms_of(nees, 200.0, WITHOUT_TRACKS)
    assert (alarms >= 200).all()
    assert (nees.size / alarms >= 200).all()


def test_a_fault_is_found_in_a_few_detections():
    nees = 4.0 * np.random.default_rng(1).chisquare(K, (400, 80))
    assert nees.size / alarms_of(nees, 200.0, WITHOUT_TRACKS)[0] < 10
    small = 0.25 * np.random.default_rng(1).chisquare(K, (400, 80))
    assert small.size / alarms_of(small, 200.0, WITHOUT_TRACKS)[1] < 20


@pytest.mark.parametrize("shares", [ONLY_COVERAGE, WITHOUT_TRACKS])
def test_heavy_tails_that_are_calibrated_in_the_mean_are_no_page_within_the_band(shares):
    errors = np.random.default_rng(2).standard_t(5, (2250, 80, K)) * math.sqrt(3 / 5)
    nees = (errors**2).sum(axis=2)
    aims = (Aim(Direction.OVER, math.sqrt(2)), Aim(Direction.UNDER, math.sqrt(2)))
    learner = ReferenceLearner(K)
    learner.add(nees[:250].ravel(), np.zeros(250 * 80, np.uint64), np.repeat(np.arange(250), 80))
    usual = learner.learned(Origin.LEARNED, 10)
    assert alarms_of(nees[250:], 1e5, shares, aims, usual)[0] == 0


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("tolerance", [1.0, math.sqrt(2)])
def test_at_the_edge_of_the_band_evidence_of_coverage_is_what_was_driven(direction, tolerance):
    many, steps = 4000, 12
    edge = tolerance ** (2 * direction.sign)
    random = np.random.default_rng(3)
    aims = (Aim(direction, tolerance),) * 2
    board = streams(many, ONLY_COVERAGE)
    for _ in range(steps):
        e = edge * random.chisquare(K, many)
        said = row_log_likelihoods(K, e, e, aims, [np.ones(e.size)] * len(aims))
        board.add_detections(FORWARDED, np.ones(many), np.exp(said))
    sums = board.sums[:, 0, :ABSOLUTE].mean(axis=1)
    error = sums.std() / math.sqrt(many)
    assert abs(sums.mean() - steps) < 4 * error


@pytest.mark.parametrize("direction", list(Direction))
def test_within_the_band_evidence_is_less_than_what_was_driven(direction):
    many, steps = 2000, 30
    random = np.random.default_rng(4)
    aims = (Aim(direction, math.sqrt(2)),) * 2
    board = streams(many, WITHOUT_TRACKS)
    for _ in range(steps):
        e = random.chisquare(K, many)
        said = row_log_likelihoods(K, e, e, aims, [np.ones(e.size)] * len(aims))
        board.add_detections(FORWARDED, np.ones(many), np.exp(said))
    assert board.by_chart(board.weights)[:, 0].mean() < steps / 2


def test_tempered_evidence_of_detections_that_are_all_the_same_is_less_than_what_was_driven():
    # Ten detections of a frame with one error: as bad as correlation can be.
    many, frames, copies = 2000, 10, 10
    random = np.random.default_rng(5)
    board = streams(many, ONLY_COVERAGE)
    cell = np.repeat(np.arange(many), copies)
    tempering = np.full(many, 1 / copies)
    for _ in range(frames):
        e = np.repeat(random.chisquare(K, many), copies)
        cells = DetectionCells(
            K, e, e, cell, np.ones(e.size, bool), many, tempering, tempering, [np.ones(many)] * 2
        )
        said = log_likelihoods(cells, AIMS)
        board.add_detections(FORWARDED, np.ones(many), np.exp(said))
    sums = board.sums[:, 0, :ABSOLUTE].mean(axis=1)
    assert abs(sums.mean() - frames) < 4 * sums.std() / math.sqrt(many)


@pytest.mark.parametrize(
    "shares", [NO_REFERENCE, ONLY_COVERAGE, WITHOUT_TRACKS, WITH_TRACKS], ids=str
)
def test_weights_of_a_severity_sum_to_no_more_than_one(shares):
    board = Evidence()
    board.grow(1)
    for charts in (slice(0, 2), slice(2, 4)):
        board.set_shares(0, charts, shares)
    page, tickets = by_severity(board.weights.sum(axis=2))[0]
    given = shares.absolute + shares.relative + shares.track
    assert page == pytest.approx(given)
    assert tickets == pytest.approx(given)
    assert given <= 1
    assert_allclose(board.weights.min(), 0)


def test_a_detector_that_had_no_share_begins_at_nothing_and_others_go_on():
    board = streams(1, ONLY_COVERAGE)
    board.add_detections(FORWARDED, np.ones(1), np.ones((1, 2, ABSOLUTE + SCALE + 2)))
    board.set_shares(0, FORWARDED, WITH_TRACKS)
    assert (board.sums[0, FORWARDED, :ABSOLUTE] == 1).all()
    assert (board.sums[0, FORWARDED, ABSOLUTE:] == 0).all()
    assert (board.sums[0, FORWARDED, OF_TRACKS] == 0).all()


def test_room_for_more_slices_changes_none_of_those_there_are():
    board = streams(2, WITH_TRACKS)
    board.add_detections(FORWARDED, np.ones(2), np.full((2, 2, ABSOLUTE + SCALE + 2), 2.0))
    before = board.by_detector()
    board.grow(5)
    assert board.slices == 5
    assert board.by_detector()[:2].tolist() == before.tolist()
    some = board.take(np.array([1, 3]))
    some.sums += 1
    board.put(np.array([1, 3]), some)
    assert board.by_detector()[0].tolist() == before[0].tolist()
    assert (board.by_detector()[1, FORWARDED] > before[1, FORWARDED]).all()
