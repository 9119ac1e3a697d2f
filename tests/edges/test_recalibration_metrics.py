"""What Prometheus sees of recalibrators: closed labels, and no series twice."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from monitor.pipeline.promotions import (
    FIT_OUTCOMES,
    SWAP_OUTCOMES,
    TRIAL_OUTCOMES,
    Promotions,
    RecalibrationCounters,
)
from monitor.pipeline.recalibrators import ActiveRecalibrator
from monitor.promotion.records import SWAPS, Factor, TrialStanding, TrialState
from monitor.service.slice_metrics import recalibrators
from tests import exported
from tests.administered import EVIDENCE, FACTORS
from tests.piped import pipeline_of

IN_FORCE = (ActiveRecalibrator("variance-scaling-0123456789ab", "variance-scaling", "gaussian"),)
OUTCOMES = {
    "recalibrator_swaps": ("promoted", "rolled_back", "adapted"),
    "recalibrator_fits": ("candidate", "nothing", "refused", "failed", "superseded"),
    "recalibrator_trials": (
        *("began", "proven", "promoted"),
        *("discarded_worse", "discarded_unsound", "discarded_over", "superseded"),
    ),
}


def promotions(**laid_down) -> exported.LaidDown:
    return exported.LaidDown(pipeline_of(), **laid_down)


def samples(
    promotions: Promotions, factors: Mapping[str, tuple[Factor, ...]] | None = None
) -> dict[tuple[str, tuple[str, ...]], float]:
    """By name, without the prefix, and the values of the labels, in the order of their names."""
    text = "".join(recalibrators(IN_FORCE, "apply", promotions, factors or {}))
    found: dict[tuple[str, tuple[str, ...]], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in sorted(sample.labels))
            key = sample.name.removeprefix("calibration_"), labels
            assert key not in found, f"{key} is written twice"
            found[key] = sample.value
    return found


def standing(state=TrialState.RUNNING, slice="car", **changes) -> TrialStanding:
    return TrialStanding(slice, "v", state, replace(EVIDENCE, **changes), ())


def test_before_anything_has_happened_all_counters_are_there_at_zero_and_no_slice_is():
    found = samples(promotions())
    expected = {
        (f"{name}_total", (outcome,)): 0.0
        for name, outcomes in OUTCOMES.items()
        for outcome in outcomes
    }
    info = ("recalibrator_info", ("variance-scaling", "apply", "gaussian", IN_FORCE[0].version))
    assert found == expected | {
        info: 1.0,
        ("recalibrator_pinned", ()): 0.0,
        ("learning_left_out_total", ()): 0.0,
    }


@pytest.mark.parametrize(
    ("name", "outcomes"),
    [
        ("recalibrator_swaps", SWAP_OUTCOMES),
        ("recalibrator_fits", FIT_OUTCOMES),
        ("recalibrator_trials", TRIAL_OUTCOMES),
    ],
)
def test_every_outcome_is_counted_under_its_own_name(name, outcomes):
    counts = {outcome: number for number, outcome in enumerate(outcomes, 1)}
    field = name.removeprefix("recalibrator_")
    found = samples(promotions(counters=RecalibrationCounters(**{field: counts})))
    for number, outcome in enumerate(OUTCOMES[name], 1):
        assert found[f"{name}_total", (outcome,)] == number


def test_whatever_puts_another_recalibrator_in_force_has_an_outcome():
    assert {str(what) for what in SWAPS} == set(OUTCOMES["recalibrator_swaps"])


def test_the_typical_factor_of_each_slice_and_dimension_is_shown():
    factors = {"car": FACTORS, "bus": (Factor("x", 1, 1, 1),)}
    found = samples(promotions(), factors)
    shown = {key: value for key, value in found.items() if key[0] == "recalibration_factor"}
    assert shown == {
        ("recalibration_factor", ("x", "car")): 4.0,
        ("recalibration_factor", ("y", "car")): 0.75,
        ("recalibration_factor", ("x", "bus")): 1.0,
    }


def test_a_trial_shows_evidence_both_ways_its_threshold_and_its_tracks():
    trials = (standing(), standing(TrialState.GUARD, tracks=5), standing(slice="bus"))
    found = samples(promotions(standing=trials))
    assert found["trial_log10_evidence", ("better", "car", "running")] == EVIDENCE.log10_better
    assert found["trial_log10_evidence", ("worse", "car", "running")] == EVIDENCE.log10_worse
    assert found["trial_log10_threshold", ("bus", "running")] == EVIDENCE.log10_threshold
    assert found["trial_tracks", ("car", "guard")] == 5
    assert found["trial_tracks", ("car", "running")] == EVIDENCE.tracks
    # Nobody bets on a guard being worse.
    assert ("trial_log10_evidence", ("worse", "car", "guard")) not in found
    assert sum(name.startswith("trial_") for name, _ in found) == 4 + 3 + 4


def test_evidence_that_is_infinite_is_exported_as_such():
    found = samples(promotions(standing=(standing(log10_worse=float("-inf")),)))
    assert found["trial_log10_evidence", ("worse", "car", "running")] == float("-inf")


def test_a_pin_and_what_was_not_learned_from_are_shown():
    given = promotions()
    given.learning.register.pinned = True
    given.learning._open.left_out = 4
    found = samples(given)
    assert found["recalibrator_pinned", ()] == 1.0
    assert found["learning_left_out_total", ()] == 4.0
