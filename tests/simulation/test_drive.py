"""A simulated drive: honest by construction, and as awkward as real detectors are."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields

import numpy as np
import pytest

from monitor.commands.demo.scene import (
    SPACE,
    DriveSettings,
    SimulatedFrame,
    simulate,
    with_variance_factor,
)
from monitor.frames.space import FloatArray, IntArray

SHORT = DriveSettings(objects_per_sensor=8)


def same(left: SimulatedFrame, right: SimulatedFrame, *, but: str = "") -> bool:
    """Bit for bit, so that NaN equals NaN."""
    return all(
        np.asarray(getattr(left, name)).tobytes() == np.asarray(getattr(right, name)).tobytes()
        for name in (field.name for field in fields(SimulatedFrame))
        if name != but
    )


@dataclass(frozen=True, slots=True)
class Errors:
    """The true detections of a whole drive, row by row."""

    sensor: IntArray
    frame_id: IntArray
    track: IntArray
    normalised: FloatArray  # (N, 7) error over reported deviation
    nees_over_k: FloatArray  # (N,) over the six lengths


def errors_of(settings: DriveSettings, seed: int, duration_s: float) -> Errors:
    parts: list[list[np.ndarray]] = [[] for _ in range(5)]
    for frame in simulate(settings, seed, duration_s):
        real = frame.track >= 0
        error = SPACE.error(frame.truth[real], frame.mean[real])
        covariance = frame.covariance[real]
        variance = np.diagonal(covariance, axis1=1, axis2=2)
        # eᵀΣ⁻¹e by hand: 2×2 for x and y, one by one for z, l, w, h (a test holds the pattern).
        x, y, cross = error[:, 0], error[:, 1], covariance[:, 0, 1]
        determinant = variance[:, 0] * variance[:, 1] - cross**2
        plane = (variance[:, 1] * x**2 - 2 * cross * x * y + variance[:, 0] * y**2) / determinant
        nees = plane + (error[:, 2:6] ** 2 / variance[:, 2:6]).sum(axis=1)
        n = len(error)
        rows = (
            np.full(n, settings.sensors.index(frame.sensor)),
            np.full(n, frame.frame_id),
            frame.track[real],
            error / np.sqrt(variance),
            nees / 6,
        )
        for part, row in zip(parts, rows, strict=True):
            part.append(row)
    return Errors(*(np.concatenate(part) for part in parts))


@pytest.fixture(scope="module")
def long_drive() -> Errors:
    # 240 objects a sensor for 30 s give the tracks of 30 for 4 min, at an eighth of the frames.
    return errors_of(DriveSettings(objects_per_sensor=240), seed=1, duration_s=30)


def lagged_pairs(errors: Errors) -> tuple[IntArray, IntArray]:
    """Positions of detections of one track in one frame and the next."""
    order = np.lexsort((errors.frame_id, errors.track))
    now, then = order[:-1], order[1:]
    adjacent = (errors.track[now] == errors.track[then]) & (
        errors.frame_id[now] + 1 == errors.frame_id[then]
    )
    return now[adjacent], then[adjacent]


def lag_one_correlation(errors: Errors, dimension: int) -> float:
    now, then = lagged_pairs(errors)
    value = errors.normalised[:, dimension]
    # About the known mean 0, with one variance for both frames: the process is stationary.
    return float(np.mean(value[now] * value[then]) / np.mean(value**2))


def test_the_same_seed_gives_the_same_drive_and_another_seed_another():
    first, again, other = (list(simulate(SHORT, seed, 2.0)) for seed in (3, 3, 4))
    assert len(first) == len(again) == len(other)
    assert all(itertools.starmap(same, zip(first, again, strict=True)))
    assert not any(itertools.starmap(same, zip(first, other, strict=True)))


def test_covariances_are_symmetric_positive_definite_and_correlate_only_x_and_y():
    correlations = []
    for frame in simulate(DriveSettings(), 5, 2.0):
        covariance = frame.covariance
        assert np.array_equal(covariance, covariance.transpose(0, 2, 1))
        np.linalg.cholesky(covariance)  # raises if not positive definite
        off_diagonal = covariance * (1 - np.eye(7))
        correlations.append(
            off_diagonal[:, 0, 1] / np.sqrt(covariance[:, 0, 0] * covariance[:, 1, 1])
        )
        off_diagonal[:, [0, 1], [1, 0]] = 0
        assert not off_diagonal.any()
    assert np.abs(np.concatenate(correlations)).max() > 0.5


def test_mean_nees_of_an_unfaulted_drive_is_one_within_its_sampling_error(
    long_drive: Errors,
):
    nees = long_drive.nees_over_k
    # Detections of a track share its scale; tracks are independent. So the sampling variance
    # is that of sums over whole tracks, and var(NEES/K) = E[w²](1 + 2/K) − 1 = 3 at ν = 5
    # gives the number of independent detections they are worth.
    _, position = np.unique(long_drive.track, return_inverse=True)
    by_track = np.bincount(position, weights=nees - 1)
    standard_error = np.sqrt(np.sum(by_track**2)) / len(nees)
    effective = 3 / standard_error**2
    assert 10_000 < effective < len(nees) / 5
    assert standard_error < 0.018
    assert nees.mean() == pytest.approx(1, abs=3.5 * standard_error)


@pytest.mark.parametrize("dimension", range(7))
def test_errors_of_a_track_are_correlated_as_asked_at_ten_hertz(long_drive: Errors, dimension: int):
    assert lag_one_correlation(long_drive, dimension) == pytest.approx(0.65, abs=0.05)


def test_the_fault_scales_the_covariance_and_nothing_else():
    for frame in simulate(SHORT, 7, 1.0):
        faulted = with_variance_factor(frame, 0.25)
        assert np.array_equal(faulted.covariance, 0.25 * frame.covariance)
        assert same(faulted, frame, but="covariance")


def test_stamps_never_fall_and_every_sensor_keeps_its_rate_and_phase():
    settings = DriveSettings(objects_per_sensor=2, start_ns=1_000)
    frames = list(simulate(settings, 0, 3.0))
    stamps = np.array([frame.stamp_ns for frame in frames])
    assert (np.diff(stamps) >= 0).all()
    assert stamps[0] == 1_000
    assert stamps[-1] < 1_000 + 3_000_000_000
    for i, sensor in enumerate(settings.sensors):
        own = [frame for frame in frames if frame.sensor == sensor]
        assert [frame.frame_id for frame in own] == list(range(30))
        assert own[0].stamp_ns - 1_000 == pytest.approx(i * 1e9 / 60, abs=1)
        assert np.diff([frame.stamp_ns for frame in own]) == pytest.approx(1e8, abs=1)


def test_objects_are_missed_and_false_detections_occur_as_often_as_asked():
    settings = DriveSettings(miss_probability=0.2, false_rate=3.0)
    frames = list(simulate(settings, 8, 20.0))
    real = np.array([np.sum(frame.track >= 0) for frame in frames])
    false = np.array([np.sum(frame.track < 0) for frame in frames])
    # Four standard errors of a binomial and of a Poisson mean over 1,200 frames.
    assert real.mean() == pytest.approx(24, abs=4 * np.sqrt(30 * 0.16 / 1200))
    assert false.mean() == pytest.approx(3, abs=4 * np.sqrt(3 / 1200))
    for frame in frames:
        assert np.array_equal(np.isnan(frame.truth).all(axis=1), frame.track == -1)
        assert np.array_equal(np.isnan(frame.truth).any(axis=1), frame.track == -1)
        assert np.isfinite(frame.mean).all()


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
