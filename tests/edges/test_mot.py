"""Matching from frame to frame: small scenes whose scores can be counted by hand."""

import math
import subprocess
import sys

import numpy as np
import pytest

from monitor.store.labels import HOW_TO_INSTALL, NoMotmetrics, match, scores
from monitor.tracking.quality import Scene

LARGE = 2**63  # ids of tracks may have 64 bits


def scene(objects, tracks, near=None):
    """A frame; near: the pairs (object, track) that may match, with their distance."""
    distance = np.full((len(objects), len(tracks)), np.nan)
    for (label, track), value in (near or {}).items():
        distance[objects.index(label), tracks.index(track)] = value
    return Scene(np.array(objects, np.int64), np.array(tracks, np.uint64), distance)


def listed(matched):
    pairs = matched.pairs
    return list(zip(pairs.frame.tolist(), pairs.object.tolist(), pairs.track.tolist(), strict=True))


def test_a_track_that_follows_its_object_scores_one():
    matched = match([scene([5], [9], {(5, 9): 0.1})] * 4)
    found = scores([matched])
    assert (found.mota, found.idf1) == (1.0, 1.0)
    assert (found.id_switches, found.false_positives, found.misses) == (0, 0, 0)
    assert listed(matched) == [(frame, 5, 9) for frame in range(4)]


def test_a_switch_is_counted_and_is_a_match_as_well():
    there, other = {(5, 1): 0.1}, {(5, 2): 0.1}
    frames = [scene([5], [1], there)] * 3 + [scene([5], [2], other)]
    matched = match(frames)
    found = scores([matched])
    assert found.id_switches == 1
    assert found.mota == pytest.approx(1 - 1 / 4)
    assert found.idf1 == pytest.approx(2 * 3 / (4 + 4))  # 3 of 4 labels are track 1's
    assert listed(matched) == [(0, 5, 1), (1, 5, 1), (2, 5, 1), (3, 5, 2)]


def test_misses_and_false_tracks_are_counted():
    frames = [
        scene([5, 6], [1], {(5, 1): 0.1}),
        scene([5], [1, 2], {(5, 1): 0.1}),
        scene([5], []),
        scene([], [2]),
        scene([], []),
    ]
    found = scores([match(frames)])
    assert (found.misses, found.false_positives, found.id_switches) == (2, 2, 0)
    assert found.mota == pytest.approx(1 - 4 / 4)


def test_a_pair_stays_together_though_another_is_nearer():
    frames = [
        scene([5], [1], {(5, 1): 0.1}),
        scene([5], [1, 2], {(5, 1): 1.5, (5, 2): 0.1}),
    ]
    matched = match(frames)
    assert listed(matched)[1] == (1, 5, 1)
    assert scores([matched]).id_switches == 0


def test_what_is_too_far_off_is_never_matched():
    found = scores([match([scene([5], [1])])])
    assert (found.misses, found.false_positives) == (1, 1)
    assert found.mota == -1.0


def test_ids_of_64_bits_stay_apart():
    near = {(2**62, LARGE): 0.1, (2**62 + 1, LARGE + 1): 0.1}
    frames = [scene([2**62, 2**62 + 1], [LARGE, LARGE + 1], near)] * 2
    matched = match(frames)
    assert scores([matched]).id_switches == 0
    assert set(listed(matched)) == {
        (frame, 2**62 + i, LARGE + i) for frame in range(2) for i in range(2)
    }


def test_sequences_are_scored_as_one_though_they_use_the_same_ids():
    first = match([scene([5], [1], {(5, 1): 0.1})] * 8)
    second = match([scene([5], [2])] * 2)
    found = scores([first, second])
    assert (found.misses, found.false_positives, found.id_switches) == (2, 2, 0)
    assert found.mota == pytest.approx(1 - 4 / 10)
    assert found.idf1 == pytest.approx(2 * 8 / (10 + 10))


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
    names = {
        "mota": "mota",
        "idf1": "idf1",
        "num_switches": "id_switches",
        "num_false_positives": "false_positives",
        "num_misses": "misses",
    }
    table = motmetrics.metrics.create().compute_many(
        accumulators, metrics=list(names), generate_overall=True
    )
    found = scores(matched)
    for theirs, ours in names.items():
        assert getattr(found, ours) == table.loc["OVERALL", theirs]
    assert found.id_switches > 0


def test_without_labels_nothing_is_divided():
    found = scores([match([scene([], []), scene([], [])])])
    assert math.isnan(found.mota)
    assert math.isnan(found.idf1)


def test_where_motmetrics_is_missing_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "motmetrics", None)
    with pytest.raises(NoMotmetrics, match="not installed") as caught:
        match([scene([], [])])
    assert str(caught.value) == HOW_TO_INSTALL
    assert "calibration-monitor[tracking]" in HOW_TO_INSTALL


def test_neither_the_sidecar_nor_replay_imports_pandas_before_it_is_needed():
    code = (
        "import sys, monitor.sidecar, monitor.commands.serve, monitor.commands.replay\n"
        "print(sorted({'motmetrics', 'pandas'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"
