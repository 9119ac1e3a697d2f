"""How many independent detections those on tracks are worth, over the wire of a real process."""

from __future__ import annotations

import re

import numpy as np
import pytest

from monitor.frames.space import FloatArray
from monitor.v1 import frame_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from tests.calibration import statistics_oracle
from tests.labelled import SECOND, calibration, converse, header
from tests.served import BY_STREAM, Sidecar, eventually

RHO, OBJECTS, FRAMES = 0.95, 30, 100


def correlated(random: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Normal errors with an AR(1) over the first axis."""
    error = random.normal(size=shape)
    for i in range(1, shape[0]):
        error[i] = RHO * error[i - 1] + np.sqrt(1 - RHO**2) * error[i]
    return error


def send_objects(sidecar: Sidecar, stream: str, error, *, upstream: bool) -> None:
    """Objects far apart that drive at 1 m/s, ten frames a second; σ = 0.3 m."""
    messages = [header(stream)]
    for i, errors in enumerate(error):
        frame = frame_pb2.Frame(frame_id=i, stamp_ns=i * SECOND // 10)
        for j in range(OBJECTS):
            truth = np.array([20.0 * j + 0.1 * i, 5.0])
            frame.detections.add(
                id=j,
                class_index=0,
                mean=truth - 0.3 * errors[j],
                covariance=[0.09, 0.09],
                ground_truth=truth,
            )
            if upstream:
                frame.detections[-1].upstream_track_id = j + 1000
        messages.append(pb.ProcessRequest(frame=frame))
    converse(sidecar, *messages)


def slow_n_eff(error) -> list[float]:
    """n over the design effect of x, y and both; plain loops over the tracks."""
    tracks = [j + 1 for _ in range(FRAMES) for j in range(OBJECTS)]
    flat = error.reshape(-1, 2)
    x = [np.square(flat[:, 0]), np.square(flat[:, 1]), np.square(flat).sum(axis=1) / 2]
    return [
        len(tracks) / statistics_oracle.design_effect(tracks, np.minimum(axis, 64).tolist())
        for axis in x
    ]


def n_eff_of(sidecar: Sidecar, name: str) -> list[float]:
    stage = calibration(sidecar, name).slices[0].stages[0]
    assert stage.n == FRAMES * OBJECTS
    return [*(found.n_eff for found in stage.dimensions), stage.joint.n_eff]


def test_correlated_errors_of_the_detectors_own_tracks_are_worth_fewer(shared):
    error = correlated(np.random.default_rng(1), (FRAMES, OBJECTS, 2))
    send_objects(shared, "upstream", error, upstream=True)
    send_objects(shared, "untracked", error, upstream=False)
    found = n_eff_of(shared, "upstream")
    # What is read is the centre of a bin of NEES, within some hundredths.
    assert found == pytest.approx(slow_n_eff(error), rel=0.1)
    assert max(found) < 0.25 * FRAMES * OBJECTS
    assert n_eff_of(shared, "untracked") == [FRAMES * OBJECTS] * 3
    floors = [
        calibration(shared, name).slices[0].stages[0].dimensions[0].ence_noise_floor
        for name in ("upstream", "untracked")
    ]
    assert floors[0] > 1.5 * floors[1]
    exact = calibration(shared, "upstream").slices[0].stages[0].joint
    wide = exact.nees_interval_n_eff[1] - exact.nees_interval_n_eff[0]
    assert wide > 1.5 * (exact.nees_interval[1] - exact.nees_interval[0])
    assert eventually(lambda: effective(shared, "upstream") == exact.n_eff)


def effective(sidecar: Sidecar, name: str) -> float:
    pattern = rf'^calibration_effective_detections{{slice="{name}",stage="raw"}} (\S+)$'
    found = re.search(pattern, sidecar.get("/metrics"), re.MULTILINE)
    return float(found[1]) if found else float("nan")


def test_independent_errors_on_tracks_are_worth_nearly_all_of_them(shared):
    error = np.random.default_rng(2).normal(size=(FRAMES, OBJECTS, 2))
    send_objects(shared, "independent", error, upstream=True)
    assert min(n_eff_of(shared, "independent")) > 0.5 * FRAMES * OBJECTS


def test_correlated_errors_on_the_embedded_trackers_tracks_are_worth_fewer(start):
    sidecar = start(BY_STREAM + '[tracker]\nkind = "embedded"\n')
    error = correlated(np.random.default_rng(3), (FRAMES, OBJECTS, 2))
    send_objects(sidecar, "embedded", error, upstream=False)
    found = n_eff_of(sidecar, "embedded")
    # It makes the tracks that there are: objects are far apart.
    assert found == pytest.approx(slow_n_eff(error), rel=0.15)
    assert max(found) < 0.3 * FRAMES * OBJECTS
