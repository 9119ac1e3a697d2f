"""Wrong covariances cost tracking what the README says, on ten drives of the demo's crowded scene.

The embedded tracker follows one camera; the truth of the drive says which object each detection is
of. Nothing is fitted here.
"""

from __future__ import annotations

import pytest

from monitor.commands.demo.scene import DriveSettings, simulate, with_variance_factor
from monitor.commands.demo.tracks import Fed, TrackingQuality, TrackingRecord

CAMERA, DURATION_S = "camera_front", 20.0


@pytest.fixture(scope="module", params=range(1, 11))
def by_factor(request) -> dict[float, TrackingQuality]:
    """Tracking of one drive, by the factor on the variances that the camera reports."""
    records = {factor: TrackingRecord() for factor in (0.2, 1.0, 5.0)}
    for frame in simulate(DriveSettings(crowded=True), request.param, DURATION_S):
        if frame.sensor == CAMERA:
            for factor, record in records.items():
                record.add_raw(with_variance_factor(frame, factor), "drive")
    found = {factor: one.quality()["drive"][Fed.RAW] for factor, one in records.items()}
    for factor, one in found.items():
        print(f"seed {request.param}, × {factor:g}: {one}")
    return found


@pytest.mark.campaign
def test_variances_five_times_too_small_cost_tracks_in_every_drive(by_factor):
    wrong, right = by_factor[0.2], by_factor[1.0]
    assert wrong.id_switches > 1.4 * right.id_switches
    assert wrong.tracked < 0.95 * right.tracked
    assert wrong.velocity_rmse > right.velocity_rmse


@pytest.mark.campaign
def test_variances_five_times_too_large_give_detections_to_the_tracks_of_others(by_factor):
    wrong, right = by_factor[5.0], by_factor[1.0]
    assert wrong.wrong > 1.4 * right.wrong
    assert wrong.position_rmse > right.position_rmse
