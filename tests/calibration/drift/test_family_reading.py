"""How slices stand, as it is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monitor.drift.alarms import DriftState
from monitor.drift.bets import SEVERITIES, Severity, Stage
from monitor.drift.evidence import DriftSettings, scale_of
from monitor.drift.family import family_reading
from tests.calibration.drift.drives import drive, exact_reference, family_of, fed, from_ten

STAYS = DriftSettings(calm_hours=0.0)


def read(family):
    return family_reading(family, (("late", 3),))


def standing(family, slice="car", severity=Severity.PAGE):
    return next(
        one for one in read(family).standings if (one.slice, one.severity) == (slice, severity)
    )


def test_every_slice_and_all_together_stand_under_both_severities():
    family = family_of(STAYS, ("car", "van"), exact_reference())
    fed(family, drive(5, slices=(0, 1)))
    reading = read(family)
    assert [(one.slice, one.severity) for one in reading.standings] == [
        (slice, severity) for slice in ("car", "van", "total") for severity in SEVERITIES
    ]
    for severity in SEVERITIES:
        of = {one.slice: one for one in reading.standings if one.severity is severity}
        assert of["total"].evidence == pytest.approx(of["car"].evidence + of["van"].evidence)
        assert all(one.peak >= one.evidence * (1 - 1e-12) for one in of.values())
        assert {one.threshold for one in of.values()} == {1000.0}
    assert reading.driven == pytest.approx(4.9 / 3600)
    assert reading.left_out == (("late", 3),)
    assert reading.epochs == (("car", 0), ("van", 0))
    assert [(one.slice, one.stage) for one in reading.stages] == [
        (slice, stage) for slice in ("car", "van") for stage in Stage
    ]


def test_a_slice_with_few_detections_has_too_few_and_then_is_ok():
    family = family_of(STAYS, reference=exact_reference())
    fed(family, drive(1))
    assert standing(family).state is DriftState.TOO_FEW
    fed(family, drive(1, 1, begin=1.0))
    assert standing(family).state is DriftState.OK
    assert standing(family, "total").state is DriftState.OK


def test_a_tenth_of_what_an_alarm_needs_is_a_warning():
    family = family_of(replace(STAYS, hours_between_false_pages=1e-9), reference=exact_reference())
    family.thresholds = np.full(2, 1e9)
    fed(family, drive(3))
    assert standing(family).state is DriftState.WARNING


def test_an_alarm_stays_in_the_reading_until_it_is_over():
    family = family_of(STAYS, reference=exact_reference())
    fed(family, drive(15, made=from_ten(5.0)))
    found = standing(family)
    assert found.state is DriftState.ALARM
    assert found.alarm is not None
    assert found.peak >= found.alarm.evidence >= 1000
    family.acknowledge((), "anna")
    assert standing(family).alarm is None
    assert standing(family).peak == 0
    assert sum(one.alarms for one in read(family).counts) == 1


def test_a_stage_says_what_it_rests_on():
    family = family_of(STAYS, ("car",), exact_reference(tracks=False, tempering=0.25))
    told = read(family).stages[0]
    assert (told.reference, told.unit) == ("file", "detection")
    assert told.effective_ratio == 0.25
    assert told.reference_detections == 10**9
    family = family_of(STAYS)
    assert read(family).stages[1].reference == "shipped"
    assert read(family).stages[1].unit == "track-second"


def test_where_no_track_is_known_lately_a_frame_counts_by_its_own_ratio():
    reference = replace(exact_reference(tempering=0.25), frame_tempering=0.5)
    family = family_of(STAYS, reference=reference)
    fed(family, drive(5))
    assert (read(family).stages[1].unit, read(family).stages[1].effective_ratio) == (
        "track-second",
        0.25,
    )
    fed(family, drive(5, 1, begin=5.0, tracked=False))
    told = read(family).stages[1]
    assert (told.unit, told.effective_ratio) == ("frame", 0.5)
    # Eight detections in a frame count as one.
    assert family.usual.worth(0, Stage.RECALIBRATED) == pytest.approx(0.5 / 8)
    number = int(np.argmax(family.evidence.by_chart(family.evidence.weights)[0, :2]))
    assert told.scale == scale_of(family.evidence.run[0, number], 0.5 / 8)
