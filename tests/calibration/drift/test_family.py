"""A family of slices against a slow account in dictionaries, and the laws of its budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from monitor.calibration.drift.alarm import Why
from monitor.calibration.drift.charts import SEVERITIES, Severity, Stage
from monitor.calibration.drift.evidence import by_severity
from monitor.calibration.drift.family import Family
from monitor.calibration.drift.reference import Levels, Origin, Reference, knot_levels, shipped
from monitor.calibration.drift.settings import DriftSettings
from tests.calibration.drift.family_oracle import SlowFamily
from tests.calibration.drift.watched_rows import Frame, cut, some_frames, watched

K = 3
NAMES = ("car", "van", "bus")
quick = settings(deadline=None, max_examples=5)
seeds = st.integers(0, 2**32 - 1)
cuts = st.lists(st.integers(0, 120), max_size=12)
SHORT = DriftSettings(
    hours_between_false_pages=0.02, hours_between_false_tickets=0.02, calm_hours=0.0
)
LONG = replace(SHORT, hours_between_false_pages=1e300, hours_between_false_tickets=1e300)


def some_reference(random: np.random.Generator) -> Reference:
    """Of any kind: shipped, with tracks and without."""
    if random.random() < 0.3:
        return replace(shipped(K), levels=shipped(K).levels if random.random() < 0.7 else None)
    quantiles = np.quantile(random.chisquare(K, 400) * random.uniform(0.5, 2.0), knot_levels())
    levels = Levels(random.normal(0.5, 0.4), random.uniform(0.1, 0.8), 0.6, 12.0, 40, 200)
    return Reference(
        k=K,
        origin=Origin.FILE,
        quantiles=np.maximum.accumulate(quantiles + 1e-9 * np.arange(quantiles.size)),
        detections=400,
        nees_ratio=1.0,
        tempering=random.uniform(0.05, 1.0),
        frame_tempering=random.uniform(0.05, 1.0),
        levels=levels if random.random() < 0.7 else None,
    )


def some_references(seed: int):
    random = np.random.default_rng(seed)
    return [{stage: some_reference(random) for stage in Stage} for _ in NAMES]


def family_of(wanted: DriftSettings, references=None) -> Family:
    family = Family(wanted, dict(zip(NAMES, references, strict=True)) if references else {})
    for name in NAMES:
        family.grow(name, K)
    return family


def oracle_of(wanted: DriftSettings, references) -> SlowFamily:
    return SlowFamily(
        NAMES,
        references,
        {severity.value: wanted.hours(severity) for severity in SEVERITIES},
        {severity.value: wanted.tolerance(severity) for severity in SEVERITIES},
    )


def faulty_frames(seed: int, frames: int = 120, *, wild: bool = False) -> list[Frame]:
    """Frames with detections; every slice errs by a factor of its own, or all by much the same."""
    random = np.random.default_rng(seed)
    factors = 10 ** random.uniform(-0.6, 0.6, (2, 1 if seed % 2 else len(NAMES)))
    factors = np.broadcast_to(factors, (2, len(NAMES)))
    return [
        (source, stamp, changed, [(t, g, a * factors[0, g], b * factors[1, g]) for t, g, a, b in of])
        for source, stamp, changed, of in some_frames(seed, frames, wild=wild)
        if of
    ]


def evidence_of(family: Family) -> np.ndarray:
    return by_severity(family.evidence.by_chart(family.evidence.weights))


@pytest.mark.parametrize("wild", [False, True])
@pytest.mark.parametrize("tolerance", [1.0, 1.1])
@quick
@given(seeds)
def test_evidence_and_alarms_are_those_of_the_slow_account(wild, tolerance, seed):
    wanted = replace(SHORT, page_tolerance=tolerance, ticket_tolerance=1.2)
    references = some_references(seed)
    family, slow = family_of(wanted, references), oracle_of(wanted, references)
    for frame in faulty_frames(seed, 60, wild=wild):
        changes = family.take(K, watched([frame])).changes
        family.acknowledge((), "test")
        expected = slow.frame(frame)
        assert [(one.alarm.slice, one.alarm.severity) for one in changes] == [
            one[:2] for one in expected
        ]
        for change, (_, _, evidence, concerned, most) in zip(changes, expected, strict=True):
            assert change.why is Why.RAISED
            assert change.alarm.evidence == pytest.approx(evidence, rel=1e-9)
            assert set(change.concerned) == set(concerned)
            if most:
                alarm = change.alarm
                assert (alarm.stage, alarm.direction, alarm.detector) == most
        assert_allclose(
            evidence_of(family),
            [[slow.evidence(g, severity) for severity in SEVERITIES] for g in range(len(NAMES))],
            rtol=1e-9,
            atol=1e-300,
        )


def test_the_slow_account_has_alarms_of_every_kind():
    found = set()
    for seed in range(8):
        slow = oracle_of(SHORT, [{stage: shipped(K) for stage in Stage}] * len(NAMES))
        for frame in faulty_frames(seed, 60):
            found |= {(one[0] == "total", one[1]) for one in slow.frame(frame)}
    assert found == {(total, severity) for total in (False, True) for severity in SEVERITIES}


@quick
@given(seeds, cuts, st.sampled_from([SHORT, LONG]))
def test_how_frames_are_cut_into_chunks_changes_no_evidence(seed, cuts, wanted):
    frames = faulty_frames(seed)
    references = some_references(seed)
    one_by_one, in_pieces = family_of(wanted, references), family_of(wanted, references)
    for frame in frames:
        one_by_one.take(K, watched([frame]))
    for piece in cut(frames, cuts):
        if piece.n:
            in_pieces.take(K, piece)
    for name in one_by_one.evidence.__dataclass_fields__:
        ours, theirs = getattr(in_pieces.evidence, name), getattr(one_by_one.evidence, name)
        assert_allclose(ours, theirs, rtol=1e-9, err_msg=name)
    assert in_pieces.alarms.latched.keys() == one_by_one.alarms.latched.keys()
    for key, latched in in_pieces.alarms.latched.items():
        assert latched.alarm.event_ns == one_by_one.alarms.latched[key].alarm.event_ns
    assert_allclose(in_pieces.peak, one_by_one.peak, rtol=1e-9)
    assert_allclose(in_pieces.evidence.peak, one_by_one.evidence.peak, rtol=1e-9)
    assert in_pieces.labelled.tolist() == one_by_one.labelled.tolist()
    assert in_pieces.fed == pytest.approx(one_by_one.fed)
    assert in_pieces.clock.driven == pytest.approx(one_by_one.clock.driven)
