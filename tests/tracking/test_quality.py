"""Tracks against labels: which are matched, how far off they are, and what they score."""

import itertools
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.store.labels import HOW_TO_INSTALL, NoMotmetrics, match, scores
from monitor.tracking.quality import (
    FrameTracks,
    Labels,
    Pairs,
    Scene,
    TrackErrors,
    finite_mean,
    moving,
    rmse,
    rmse_by_dimension,
    scenes,
    state_nees_over_k,
    track_errors,
)

DIMENSIONS = ("yaw", "x", "y", "z", "x_velocity", "y_velocity", "z_velocity")
AXES = moving(DIMENSIONS)
K, S = 4, 7


def labels(*rows, period=0.1):
    """(frame, object, x, y) each; yaw is 9 and z is 1 everywhere."""
    frame, id, x, y = (list(column) for column in zip(*rows, strict=True)) if rows else [[]] * 4
    position = np.column_stack([np.full(len(x), 9.0), x, y, np.ones(len(x))]).reshape(-1, K)
    frames = np.array(frame, np.int64)
    ignore = np.zeros(frames.size, bool)
    return Labels(frames, np.array(id, np.int64), frames * period, position, ignore)


def tracks(*rows, ignore=()):
    """(id, x, y) each; ignore: ids of those whose detection is neither true nor false."""
    state = np.array([[0, x, y, 1, 0, 0, 0] for _, x, y in rows], float).reshape(-1, S)
    ids = [row[0] for row in rows]
    return FrameTracks(
        id=np.array(ids, np.uint64),
        class_index=np.zeros(len(ids), np.int64),
        ignore=np.isin(ids, list(ignore)),
        nis=np.full(len(ids), np.nan),
        state=state,
        covariance=np.tile(np.eye(S), (len(ids), 1, 1)),
    )


# ---- scenes


POINTS = st.lists(st.tuples(st.floats(0, 4), st.floats(0, 4)), min_size=1, max_size=4)


@given(objects=POINTS, seen=POINTS, match_distance=st.floats(0.5, 3.0))
def test_objects_are_shared_out_to_as_many_tracks_as_can_be_and_then_the_nearest(
    objects, seen, match_distance
):
    def cheapest(columns):
        """Of all ways to give each of these tracks an object of its own."""
        ways = itertools.permutations(range(len(objects)), len(columns))
        costs = (
            (math.dist(objects[i], seen[j]) for i, j in zip(way, columns, strict=True))
            for way in ways
        )
        sums = (sum(c if c <= match_distance else math.inf for c in cost) for cost in costs)
        return min(sums, default=math.inf)

    truth = labels(*((0, i, x, y) for i, (x, y) in enumerate(objects)))
    frame = tracks(*((j, x, y) for j, (x, y) in enumerate(seen)), ignore=range(len(seen)))
    (found,) = scenes(truth, [frame], AXES, match_distance)
    kept = found.tracks.tolist()
    same_number = list(itertools.combinations(range(len(seen)), len(kept)))
    assert cheapest(kept) == pytest.approx(min(map(cheapest, same_number)))
    assert math.isfinite(cheapest(kept))
    one_more = itertools.combinations(range(len(seen)), len(kept) + 1)
    assert not any(math.isfinite(cheapest(columns)) for columns in one_more)


# ---- errors of matches


def test_errors_are_those_of_a_plain_loop():
    """Five frames of three objects, the tracks near them with any covariance, in any order."""
    rng = np.random.default_rng(3)
    rows = [(f, o, rng.normal(), rng.normal()) for f in range(5) for o in (7, 8, 9) if f + o != 10]
    at = {(f, o): np.array([x, y, 1.0]) for f, o, x, y in rows}
    rng.shuffle(rows)
    frames = []
    for _ in range(5):
        frame, root = tracks(*((1, 0.0, 0.0) for _ in range(4))), rng.normal(size=(4, S, S))
        frame = replace(
            frame,
            id=rng.permutation(np.array([2**63, 4, 5, 6], np.uint64)),
            state=rng.normal(size=(4, S)),
            covariance=root @ root.transpose(0, 2, 1) + np.eye(S),
        )
        frames.append(frame)
    pairs = [(4, 8, 4), (0, 7, 2**63), (1, 8, 2**63), (2, 7, 5), (2, 9, 6), (3, 9, 6)]
    of_frame, of_object, of_track = zip(*pairs, strict=True)
    told = Pairs(np.array(of_frame), np.array(of_object), np.array(of_track, np.uint64))
    truth = labels(*((int(f), int(o), x, y) for f, o, x, y in rows))
    found = track_errors(truth, frames, AXES, told)
    with_velocity = 0
    for n, (f, o, track) in enumerate(pairs):
        row = frames[f].id.tolist().index(track)
        state, covariance = frames[f].state[row, 1:], frames[f].covariance[row, 1:, 1:]
        position = state[:3] - at[f, o]
        assert found.position[n] == pytest.approx(position)
        if (f - 1, o) not in at or (f + 1, o) not in at:
            assert np.isnan(found.velocity[n]).all() and np.isnan(found.nees[n])
            continue
        with_velocity += 1
        velocity = state[3:] - (at[f + 1, o] - at[f - 1, o]) / 0.2
        assert found.velocity[n] == pytest.approx(velocity)
        error = np.concatenate([position, velocity])
        assert found.nees[n] == pytest.approx(error @ np.linalg.inv(covariance) @ error)
    assert 0 < with_velocity < len(pairs)


# ---- measures


def test_measures_of_errors_worked_out_by_hand():
    position = np.array([[3.0, 4.0], [0.0, 0.0]])
    velocity = np.array([[np.nan, np.nan], [6.0, 8.0]])
    errors = TrackErrors(position, velocity, np.array([np.nan, 8.0]))
    assert rmse(errors.position) == pytest.approx(math.sqrt(25 / 2))
    assert rmse(errors.velocity) == 10.0
    assert rmse_by_dimension(errors.position) == pytest.approx([3 / math.sqrt(2), 4 / math.sqrt(2)])
    assert rmse_by_dimension(errors.velocity) == [6.0, 8.0]
    assert state_nees_over_k(errors) == 2.0  # two positions, two velocities
    assert math.isnan(finite_mean(np.array([np.nan])))


def test_they_are_what_motmetrics_itself_says_of_all_sequences():
    import motmetrics

    rng = np.random.default_rng(0)
    accumulators, matched = [], []
    for _ in range(3):
        accumulator, frames = motmetrics.MOTAccumulator(auto_id=False), []
        for frame in range(30):
            objects = np.sort(rng.choice(6, rng.integers(0, 6), replace=False))
            tracks = np.sort(rng.choice(8, rng.integers(0, 6), replace=False)).astype(np.uint64)
            distance = rng.uniform(0, 3, (objects.size, tracks.size))
            distance[distance > 2] = np.nan
            frames.append(Scene(objects, tracks, distance))
            accumulator.update(objects, tracks, distance, frameid=frame)
        accumulators.append(accumulator)
        matched.append(match(frames))
    names = ("mota", "idf1", "num_switches", "num_false_positives", "num_misses")
    table = motmetrics.metrics.create().compute_many(
        accumulators, metrics=names, generate_overall=True
    )
    found = scores(matched)
    ours = (found.mota, found.idf1, found.id_switches, found.false_positives, found.misses)
    assert list(ours) == [table.loc["OVERALL", name] for name in names]
    assert found.id_switches > 0


def test_where_motmetrics_is_missing_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "motmetrics", None)
    with pytest.raises(NoMotmetrics, match="not installed") as caught:
        match([])
    assert str(caught.value) == HOW_TO_INSTALL
    assert "calibration-monitor[tracking]" in HOW_TO_INSTALL


def test_an_object_to_be_ignored_is_neither_missed_nor_falsely_tracked():
    there = replace(labels((0, 1, 0, 0), (0, 2, 5, 0)), ignore=np.array([False, True]))
    seen = [tracks((11, 0.1, 0), (12, 5.1, 0), (13, 9, 0))]
    (scene,) = scenes(there, seen, AXES, 1.0)
    assert (scene.objects.tolist(), scene.tracks.tolist()) == ([1], [11, 13])
