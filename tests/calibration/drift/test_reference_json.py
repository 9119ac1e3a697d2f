"""References and learners as JSON: every bit comes back, and nothing else is believed."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.drift.bets import Stage
from monitor.drift.reference import Origin, Reference, shipped
from monitor.drift.reference_json import (
    NotAReference,
    reference_from_json,
    reference_to_json,
    references_from_json,
    references_to_json,
)
from monitor.drift.state_json import learner_from_json, learner_to_json
from monitor.drift.usual import ReferenceLearner
from tests.calibration.drift.correlated import correlated
from tests.laws import assert_same

quick = settings(deadline=None, max_examples=40)
seeds = st.integers(0, 2**32 - 1)


def some_learner(seed: int, frames: int = 40) -> ReferenceLearner:
    random = np.random.default_rng(seed)
    k = int(random.integers(1, 8))
    learner = ReferenceLearner(k)
    if not frames:
        return learner
    nees, tracks = correlated(seed, k, 0.7, frames, life=12)
    tracks[random.random(tracks.shape) < 0.1] = 0
    learner.add(nees.ravel(), tracks.ravel(), np.repeat(np.arange(frames), 8))
    for before in range(4):
        level, mean = random.standard_normal((2, 20))
        learner.seconds.add(level, np.full(20, 9), np.full(20, before), mean * (before > 0))
    learner.take_in()
    return learner


def some_reference(seed: int, frames: int = 40) -> Reference:
    return some_learner(seed, frames).learned(Origin.LEARNED, 10)


def through_text(value):
    return json.loads(json.dumps(value, allow_nan=False))


def changed(value, path, new):
    """A copy of a JSON value where one member is another."""
    copy = through_text(value)
    inner = copy
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = new
    return copy


@quick
@given(seeds, st.integers(0, 300))
def test_a_reference_comes_back_with_every_bit(seed, frames):
    reference = some_reference(seed, frames)
    assert_same(reference_from_json(through_text(reference_to_json(reference))), reference)


@quick
@given(seeds, st.integers(0, 300))
def test_a_learner_comes_back_with_every_bit_and_goes_on_as_it_would_have(seed, frames):
    learner = some_learner(seed, frames)
    back = learner_from_json(through_text(learner_to_json(learner)))
    assert_same(back, learner)
    nees, tracks = correlated(seed + 1, learner.k, 0.7, 20, life=12)
    for one in (learner, back):
        one.add(nees.ravel(), tracks.ravel(), np.repeat(np.arange(1000, 1020), 8))
    assert_same(back.learned(Origin.LEARNED, 10), learner.learned(Origin.LEARNED, 10))


def test_the_document_of_all_slices_comes_back():
    references = {
        "Car": {Stage.RAW: some_reference(1), Stage.RECALIBRATED: some_reference(2)},
        "Pedestrian|0-20m": {Stage.RECALIBRATED: shipped(3)},
    }
    found = references_from_json(through_text(references_to_json(references)))
    assert found.keys() == references.keys()
    for name, by_stage in references.items():
        assert found[name].keys() == by_stage.keys()
        for stage, reference in by_stage.items():
            assert_same(found[name][stage], reference)


@pytest.mark.parametrize(
    ("path", "new", "named"),
    [
        (["k"], 0, "reference.k"),
        (["k"], True, "reference.k"),
        (["k"], 10**6, "reference.k"),
        (["origin"], "guessed", "learned, file, shipped"),
        (["quantiles"], [1.0], "list of 64"),
        (["quantiles", 3], float("nan"), "quantiles[3]"),
        (["quantiles", 3], 0.0, "quantiles[3]"),
        (["quantiles", 3], 1e20, "quantiles[4]"),
        (["quantiles"], "x" * 64, "reference.quantiles"),
        (["detections"], -1, "reference.detections"),
        (["detections"], 1.5, "reference.detections"),
        (["tempering"], 1.5, "reference.tempering"),
        (["frame_tempering"], "half", "'half'"),
        (["nees_ratio"], float("inf"), "reference.nees_ratio"),
        (["levels", "within"], 0.0, "reference.levels.within"),
        (["levels", "between"], -1.0, "reference.levels.between"),
        (["levels", "mean"], None, "reference.levels.mean"),
        (["levels"], {}, "'mean'"),
        (["levels"], [], "reference.levels"),
        (["more"], 1, "'more'"),
    ],
)
def test_what_is_no_reference_is_refused_by_the_name_of_the_field(path, new, named):
    value = changed(reference_to_json(some_reference(1)), path, new)
    with pytest.raises(NotAReference) as error:
        reference_from_json(value)
    assert named in str(error.value)
    assert "learn the reference again" in str(error.value).lower()


@pytest.mark.parametrize(
    ("path", "new", "named"),
    [
        (["kind"], "trial", "'kind' is 'trial'"),
        (["version"], 2, "'version' is 2"),
        (["slices"], [], "slices"),
        (["slices", ""], {}, "1 to 256 characters"),
        (["slices", "Car"], {"best": {}}, "raw or recalibrated"),
        (["slices", "Car"], {"raw": {}}, "slices.Car.raw"),
        (["slices"], {str(i): {} for i in range(1000)}, "at most"),
    ],
)
def test_what_is_no_document_of_references_is_refused(path, new, named):
    whole = references_to_json({"Car": {Stage.RAW: shipped(3)}})
    with pytest.raises(NotAReference) as error:
        references_from_json(changed(whole, path, new))
    assert named in str(error.value)


@pytest.mark.parametrize("value", [None, 3, "x", [], {}])
def test_what_is_no_document_at_all_is_refused(value):
    with pytest.raises(NotAReference):
        references_from_json(value)
    with pytest.raises(NotAReference):
        reference_from_json(value)
    with pytest.raises(NotAReference):
        learner_from_json(value)


@pytest.mark.parametrize(
    ("path", "new"),
    [
        (["bins", 0], -1),
        (["bins", 0], 10**9),
        (["bins", 0], 10_000),
        (["counts", 0], 0),
        (["counts"], []),
        (["detections"], 3),
        (["total"], float("nan")),
        (["tracks", "rows"], 5),
        (["tracks", "tracks"], 10**9),
        (["tracks", "totals", 3], 1e9),
        (["tracks", "products", 0], float("inf")),
        (["tracks", "ids"], list(range(1, 5000))),
        (["tracks", "ids", 0], 2**64),
        (["tracks", "ids", 0], 0),
        (["tracks", "parts"], []),
        (["tracks", "seen", 0], -1),
        (["frames", "waiting"], [1.0] * 256),
        (["frames", "waiting"], []),
        (["frames", "last"], None),
        (["frames", "batches", 0], 100.0),
        (["frames", "pairs", 0], 0.0),
        (["seconds", "tracks", 0], 1.0),
        (["seconds", "tracks", 2], 0.5),
        (["seconds", "blocks"], 0),
        (["seconds", "within"], -1.0),
        (["seconds", "rows"], 0),
    ],
)
def test_a_learner_that_cannot_be_is_refused(path, new):
    value = changed(learner_to_json(some_learner(1)), path, new)
    with pytest.raises(NotAReference):
        learner_from_json(value)


numbers = st.floats(-1e24, 1e24)


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(["totals", "products", "parts", "waiting", "pairs", "means", "squares"]),
    st.data(),
)
def test_whatever_numbers_a_believed_learner_has_a_reference_of_it_makes_sense(name, data):
    value = through_text(learner_to_json(some_learner(1)))
    groups = [group for group in ("tracks", "frames", "seconds") if name in value[group]]
    numbered = value[groups[0]][name]
    for _ in range(3):
        numbered[data.draw(st.integers(0, len(numbered) - 1))] = data.draw(numbers)
    try:
        learner = learner_from_json(through_text(value))
    except NotAReference:
        return
    with np.errstate(all="raise", under="ignore"):
        reference = learner.learned(Origin.LEARNED, 10)
    for found in (reference.tempering, reference.frame_tempering):
        assert 0.02 <= found <= 1
    assert reference.levels is not None
    for found in (reference.levels.mean, reference.levels.between, reference.levels.within):
        assert np.isfinite(found)


def test_a_reference_of_a_learner_is_read_again_whatever_its_origin():
    for origin in Origin:
        reference = replace(some_reference(5), origin=origin)
        assert_same(reference_from_json(reference_to_json(reference)), reference)
