"""A simulated drive: honest by construction, and as awkward as real detectors are."""

import numpy as np
import pytest

from monitor.commands.demo.scene import SPACE, DriveSettings, simulate, with_variance_factor
from tests.laws import assert_same

SHORT = DriveSettings(objects_per_sensor=8)


@pytest.fixture(scope="module")
def long_drive():
    """Frame, track, error over reported deviation (N, 7) and NEES over K of true detections.

    240 objects a sensor for 30 s give the tracks of 30 for 4 min, at an eighth of the frames.
    """
    parts = []
    for frame in simulate(DriveSettings(objects_per_sensor=240), 1, 30.0):
        real = frame.track >= 0
        error, covariance = SPACE.error(frame.truth[real], frame.mean[real]), frame.covariance[real]
        sigma = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
        # Of the six lengths; the yaw has no covariance with them.
        solved = np.linalg.solve(covariance[:, :6, :6], error[:, :6, None])[..., 0]
        nees = (error[:, :6] * solved).sum(axis=1) / 6
        parts.append((np.full(len(error), frame.frame_id), frame.track[real], error / sigma, nees))
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def test_the_same_seed_gives_the_same_drive_and_another_seed_another():
    first, again, other = (tuple(simulate(SHORT, seed, 2.0)) for seed in (3, 3, 4))
    assert_same(first, again)
    assert not np.array_equal(first[0].mean, other[0].mean)


def test_mean_nees_of_an_unfaulted_drive_is_one_within_its_sampling_error(long_drive):
    _, track, _, nees = long_drive
    # Detections of a track share its scale; tracks are independent. So the sampling variance
    # is that of sums over whole tracks, and var(NEES/K) = E[w²](1 + 2/K) − 1 = 3 at ν = 5
    # gives the number of independent detections they are worth.
    _, position = np.unique(track, return_inverse=True)
    by_track = np.bincount(position, weights=nees - 1)
    standard_error = np.sqrt(np.sum(by_track**2)) / len(nees)
    effective = 3 / standard_error**2
    assert 10_000 < effective < len(nees) / 5
    assert nees.mean() == pytest.approx(1, abs=3.5 * standard_error)


def test_errors_of_a_track_are_correlated_as_asked_at_ten_hertz(long_drive):
    frame, track, normalised, _ = long_drive
    order = np.lexsort((frame, track))
    now, then = order[:-1], order[1:]
    adjacent = (track[now] == track[then]) & (frame[now] + 1 == frame[then])
    now, then = normalised[now[adjacent]], normalised[then[adjacent]]
    correlation = (now * then).mean(axis=0) / (normalised**2).mean(axis=0)
    assert correlation == pytest.approx(np.full(7, 0.65), abs=0.05)


def test_the_fault_scales_the_covariance_and_every_sensor_keeps_its_rate_and_phase():
    settings = DriveSettings(objects_per_sensor=2, start_ns=1_000)
    frames = list(simulate(settings, 0, 3.0))
    for frame in frames[:10]:
        faulted = with_variance_factor(frame, 0.25)
        assert np.array_equal(faulted.covariance, 0.25 * frame.covariance)
        assert faulted.mean is frame.mean and faulted.truth is frame.truth
    stamps = np.array([frame.stamp_ns for frame in frames])
    assert (np.diff(stamps) >= 0).all()
    assert (stamps[0], stamps[-1] < 1_000 + 3_000_000_000) == (1_000, True)
    for i, sensor in enumerate(settings.sensors):
        own = [frame for frame in frames if frame.sensor == sensor]
        assert [frame.frame_id for frame in own] == list(range(30))
        assert own[0].stamp_ns - 1_000 == pytest.approx(i * 1e9 / 60, abs=1)
        assert np.diff([frame.stamp_ns for frame in own]) == pytest.approx(1e8, abs=1)
