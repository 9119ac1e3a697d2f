"""The life of a track: born, confirmed, updated, coasting, ended; and what no input may break."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.frame import EgoMotion, Pose, TrackStatus, Twist
from monitor.frames.space import DimensionKind
from monitor.frames.words import MeasurementNoise
from monitor.tracking.motion import Association
from tests.laws import assert_same
from tests.tracking.scenes import (
    SPACES,
    XY,
    XYZ,
    covariances,
    is_sound,
    model_of,
    named,
    run,
    seen,
)

HERE, THERE = [0.0, 0.0], [50.0, 0.0]
TENTATIVE, CONFIRMED, COASTING = TrackStatus
seeds = st.integers(0, 2**32 - 1)


def ids(steps):
    return [sorted(step.state.tracks.id.tolist()) for step in steps]


def statuses(steps):
    return [step.reported().status.tolist() for step in steps]


def frames(*spots, **more):
    """One frame after the other, each with these spots."""
    return [seen(i, spot, **more) for i, spot in enumerate(spots)]


# Births


def test_a_detection_begins_a_track_where_it_is_with_a_speed_nobody_knows():
    noise = covariances(np.random.default_rng(0), 2, 3)
    (step,) = run(
        model_of(XYZ, initial_speed=7.0, dimensions={}),
        [seen(4, [[1.0, 2.0, 3.0], [-9.0, 8.0, 7.0]], covariance=noise, kind=[2, 0])],
    )
    tracks = step.state.tracks
    assert tracks.id.tolist() == [4001, 4002]
    assert tracks.class_index.tolist() == [2, 0]
    assert tracks.state.tolist() == [[1, 2, 3, 0, 0, 0], [-9, 8, 7, 0, 0, 0]]
    assert np.array_equal(tracks.covariance[:, :3, :3], noise)
    assert np.array_equal(tracks.covariance[:, 3:, 3:], np.tile(49.0 * np.eye(3), (2, 1, 1)))
    assert not tracks.covariance[:, :3, 3:].any()
    assert tracks.detections.tolist() == [1, 1]


def test_a_track_is_confirmed_by_its_detections():
    for needed in (1, 2, 4):
        steps = run(model_of(XY, confirm_detections=needed), frames(*[[HERE]] * 5))
        expected = [[CONFIRMED if i + 1 >= needed else TENTATIVE] for i in range(5)]
        assert statuses(steps) == expected
        assert steps[-1].state.tracks.detections.tolist() == [5]


def test_detections_with_a_low_score_begin_no_track_and_those_without_a_score_do():
    spots = [[0.0, 0.0], [50.0, 0.0], [100.0, 0.0], [150.0, 0.0]]
    score = [0.29, 0.3, 0.9, float("nan")]
    (step,) = run(model_of(XY, birth_score=0.3), [seen(0, spots, score=score)])
    assert step.state.tracks.id.tolist() == [2, 3, 4]
    (step,) = run(model_of(XY, birth_score=0.3), [seen(0, spots)])
    assert step.state.tracks.id.tolist() == [1, 2, 3, 4]


def test_there_are_never_more_tracks_than_may_be():
    spots = [[50.0 * i, 0.0] for i in range(8)]
    steps = run(model_of(XY, max_tracks=5), frames(spots[:3], spots, spots[4:], spots))
    assert [step.state.tracks.n for step in steps] == [3, 5, 4, 5]
    assert steps[1].row.tolist() == [0, 1, 2, 3, 4]


# Ends


@pytest.mark.parametrize("missed", [0, 1, 4])
def test_a_track_outlives_as_many_frames_without_a_detection_as_its_status_allows(missed):
    model = model_of(XY, tentative_misses=missed + 1, coast_frames=missed, coast_seconds=100.0)
    confirmed = run(model, frames(*[[HERE]] * 3, *[[]] * 6))
    expected = [[CONFIRMED]] + [[COASTING]] * missed + [[]] * (6 - missed)
    assert statuses(confirmed)[2:] == expected
    unconfirmed = run(model, frames([HERE], [HERE], *[[]] * 6))
    assert statuses(unconfirmed)[1:] == [[TENTATIVE]] * (missed + 1) + [[]] * (6 - missed)


@pytest.mark.parametrize("detections", [1, 5])
def test_no_track_outlives_the_time_without_a_detection(detections):
    model = model_of(XY, coast_seconds=1.0, coast_frames=100, tentative_misses=100)
    last = (detections - 1) * 100_000_000
    stamps = [last + ns for ns in (600_000_000, 1_000_000_000, 1_000_000_001)]
    steps = run(
        model, [*frames(*[[HERE]] * detections), *(seen(0, [], stamp_ns=ns) for ns in stamps)]
    )
    assert [step.state.tracks.n for step in steps[-3:]] == [1, 1, 0]
    # One long pause does the same as many frames.
    steps = run(model, [*frames(*[[HERE]] * detections), seen(9, [HERE], stamp_ns=stamps[-1])])
    assert ids(steps)[-1] == [9001]


# Noise


def test_unit_noise_is_the_identity_whatever_the_detector_says():
    unit = model_of(XY, measurement_noise=MeasurementNoise.UNIT)
    spots = [[HERE, THERE], [[0.3, 0.1], [49.8, 0.0]]]
    told = run(model_of(XY), frames(*spots, covariance=1.0))
    assert_same(run(unit, frames(*spots, covariance=1e-4))[-1], told[-1])


# Association


def test_classes_never_share_a_track():
    # Two objects of different classes on one spot; now both are seen, now one.
    kinds = [[0, 1], [1, 0], [1]]
    steps = run(model_of(XY), [seen(i, [HERE] * len(k), kind=k) for i, k in enumerate(kinds)])
    assert ids(steps[:2]) == [[1, 2], [1, 2]]
    assert steps[1].row.tolist() == [1, 0]
    assert steps[1].state.tracks.class_index.tolist() == [0, 1]
    detected = dict(zip(steps[2].state.tracks.id.tolist(), steps[2].row.tolist(), strict=True))
    assert (detected[2], detected.get(1, -1)) == (0, -1)


# Upstream ids


def upstream(*rows):
    """Frames of (spot, id) pairs."""
    return [
        seen(i, [spot for spot, _ in row], upstream=[one for _, one in row])
        for i, row in enumerate(rows)
    ]


TOLD = {"association": Association.UPSTREAM}
FAR = [0.0, 900.0]


@pytest.mark.parametrize(
    ("choices", "rows", "expected"),
    [
        # However far it goes, an id is followed; 0 is one too.
        (TOLD, [[(HERE, 7)], [(THERE, 7)], [(FAR, 7)]], [[1], [1], [1]]),
        (TOLD, [[(HERE, 0)], [(THERE, 0)]], [[1], [1]]),
        (TOLD, [[(HERE, 7), (THERE, 8)], [(HERE, 8), (THERE, 7)]], [[1, 2], [2, 1]]),
        ({}, [[(HERE, 7), (THERE, 8)], [(HERE, 8), (THERE, 7)]], [[1, 2], [1, 2]]),
        # Of two detections with one id the first counts, and the other begins nothing.
        (TOLD, [[(HERE, 7), (THERE, 7)], [(THERE, 7), (HERE, 7)]], [[1, 0], [1, 0]]),
        # Detections without an id are tracked among themselves.
        (
            TOLD,
            [[(HERE, 7), (THERE, None)], [(HERE, None), (THERE, 7)], [(HERE, None), (THERE, 7)]],
            [[1, 2], [1001, 1], [1001, 1]],
        ),
        (TOLD, [[(HERE, None)], [(HERE, None)], [(THERE, None)]], [[1], [1], [2001]]),
        # An id that was away for long comes back as another track.
        (TOLD, [[(HERE, 7)], [], [], [(HERE, 7)]], [[1], [], [], [3001]]),
    ],
)
def test_told_ids_lead_detections_to_their_tracks_whatever_the_distance(choices, rows, expected):
    for row, step, wanted in zip(
        rows, run(model_of(XY, **choices), upstream(*rows)), expected, strict=True
    ):
        track_of = dict(zip(step.row.tolist(), step.state.tracks.id.tolist(), strict=True))
        assert [track_of.get(i, 0) for i in range(len(row))] == wanted


# What lies outside the gate


@pytest.mark.parametrize(
    ("away", "kind", "rejected"),
    [(0.1, 0, 0), (1.0, 0, 1), (2.0, 0, 1), (10.0, 0, 0), (None, 0, 0), (1.0, 1, 0)],
)
def test_a_confirmed_track_with_a_detection_near_but_outside_its_gate_is_counted(
    away, kind, rejected
):
    # The gate reaches half a metre here, five of them two and a half.
    before = run(model_of(XY), frames(*[[HERE]] * 30))[-1].state
    last = seen(30, [], kind=[]) if away is None else seen(30, [[away, 0.0]], kind=[kind])
    (step,) = run(model_of(XY), [last], before)
    faded = before.innovations.of("rejected") * 0.5 ** (0.1 / 60.0)
    assert step.state.innovations.of("rejected") - faded == pytest.approx([rejected, 0, 0])
    never = model_of(XY, confirm_detections=50)
    unconfirmed = run(never, [*frames(*[[HERE]] * 30), last])[-1].state
    assert not unconfirmed.innovations.of("rejected").any()


PAUSES = [0, 1, 1000, 10**6, 10**8, 10**8, 10**8, 10**10, 10**15, 4 * 10**17]  # ns
KEPT = {"coast_seconds": 1e9, "coast_frames": 20, "tentative_misses": 20, "confirm_detections": 2}


def absurd_drive(seed, space, objects, fragments, deviations, told, frames=12):
    """Objects that jump, come in fragments and turn round, at any pace, with any covariance."""
    random, k, stamp = np.random.default_rng(seed), space.k, 0
    low, high = deviations
    truth, made = random.uniform(-100, 100, (objects, k)), []
    for number in range(frames):
        stamp += int(random.choice(PAUSES))
        here = np.repeat(np.flatnonzero(random.random(objects) < 0.9), fragments)
        if random.random() < 0.1:
            here = here[:0]
        noise = covariances(random, here.size, k, low, high)
        factor = np.linalg.cholesky(noise)
        mean = truth[here] + np.einsum("nij,nj->ni", factor, random.normal(size=(here.size, k)))
        for i, dimension in enumerate(space.dimensions):
            if dimension.kind is not DimensionKind.LENGTH:
                mean[:, i] += np.pi * (random.random(here.size) < 0.3)
        turn = random.normal(size=4)
        pose = Pose(random.uniform(-1e4, 1e4, 3), turn / np.linalg.norm(turn))
        twist = Twist(random.normal(0, 10, 3), random.normal(0, 1, 3))
        made.append(
            seen(
                number,
                np.clip(mean, -1e8, 1e8),
                k=k,
                covariance=noise,
                stamp_ns=stamp,
                kind=random.integers(0, 2, here.size),
                score=np.where(random.random(here.size) < 0.5, np.nan, random.random(here.size)),
                upstream=[int(i) if random.random() < told else None for i in here],
                ego=(None, EgoMotion(pose), EgoMotion(None, twist))[random.integers(0, 3)],
            )
        )
    return made


@pytest.mark.parametrize("space", SPACES, ids=named)
@given(
    seed=seeds,
    objects=st.sampled_from([0, 1, 3, 20]),
    fragments=st.sampled_from([1, 1, 5]),
    deviations=st.sampled_from([(0.05, 0.5), (1e-6, 1e-6), (1e5, 1e5), (1e-6, 1e5), (1e-2, 1e2)]),
    association=st.sampled_from(Association),
    told=st.sampled_from([0.0, 0.5, 1.0]),
    kept=st.booleans(),
)
def test_whatever_comes_tracks_stay_finite_and_positive_definite(
    space, seed, objects, fragments, deviations, association, told, kept
):
    model = model_of(
        space,
        association=association,
        inflate_for_correlation=bool(seed % 2),
        **KEPT if kept else {},
    )
    made = absurd_drive(seed, space, objects, fragments, deviations, told)
    for step in run(model, made):
        is_sound(model, step)
