"""A simulated drive: honest by construction, and as awkward as real detectors are."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from monitor.commands.demo.scene import SPACE, DriveSettings, simulate, with_variance_factor
from monitor.frames.space import FloatArray
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


CROWDED = DriveSettings(crowded=True, sensors=("front",), miss_probability=0.0, false_rate=0.0)


def test_in_crowded_traffic_objects_of_a_class_come_in_twos_that_are_side_by_side():
    """Each halfway through its life, when the two are abreast; one may hide the other then."""
    alone = CROWDED.objects_per_sensor
    paths: dict[int, dict[int, tuple[int, FloatArray]]] = {}
    for frame in simulate(CROWDED, 3, 30.0):
        for track, kind, truth in zip(
            frame.track.tolist(), frame.classes.tolist(), frame.truth, strict=True
        ):
            paths.setdefault(track, {})[frame.frame_id] = (kind, truth[:2])
    nearest: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for one in range(0, alone, 2):
        both = paths.get(one, {}).keys() & paths.get(one + 1, {}).keys()
        if len(both) > 20:
            kinds = {paths[track][number][0] for track in (one, one + 1) for number in both}
            assert len(kinds) == 1
            apart = [float(np.linalg.norm(paths[one][n][1] - paths[one + 1][n][1])) for n in both]
            nearest[kinds.pop()].append(min(apart))
    assert sum(map(len, nearest.values())) > 8
    for kind, beside in enumerate((3.5, 1.0, 1.5)):
        assert np.median(nearest[kind] or [beside]) == pytest.approx(beside, rel=0.5)


def test_what_is_behind_a_nearer_object_is_not_detected():
    sparse, crowded = (
        sum(frame.ids.size for frame in simulate(settings, 5, 10.0))
        for settings in (DriveSettings(), DriveSettings(crowded=True))
    )
    # Of 30 in a sector of 60°, a car of 3 m mean side at 50 m covers 3.5°.
    assert 0.4 * sparse < crowded < 0.9 * sparse
    for frame in simulate(CROWDED, 5, 3.0):
        place, half = frame.truth[:, :2], (frame.truth[:, 3] + frame.truth[:, 4]) / 4
        distance, bearing = np.hypot(*place.T), np.arctan2(place[:, 1], place[:, 0])
        for i, j in itertools.permutations(range(len(place)), 2):
            off = abs((bearing[i] - bearing[j] + np.pi) % (2 * np.pi) - np.pi)
            assert not (distance[j] > distance[i] + 1.0 and off < half[i] / max(distance[i], 1.0))


def test_a_sensor_that_sees_all_around_has_twice_the_objects_and_changes_nothing_for_the_others():
    six = DriveSettings()
    seven = replace(six, sensors=(*six.sensors, "lidar"), around="lidar")
    alone = {(one.sensor, one.frame_id): one for one in simulate(six, 3, 0.5)}
    bearings = []
    for one in simulate(seven, 3, 0.5):
        if one.sensor != "lidar":
            other = alone[one.sensor, one.frame_id]
            np.testing.assert_array_equal(one.mean, other.mean)
            continue
        true = one.track >= 0
        assert 45 <= np.count_nonzero(true) <= 60
        bearings.append(np.arctan2(one.truth[true, 1], one.truth[true, 0]))
    quarters = np.histogram(np.concatenate(bearings), 4, (-np.pi, np.pi))[0]
    assert (quarters > 0.1 * quarters.sum()).all()
