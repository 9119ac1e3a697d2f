"""Documents of drift: references and learners come back with every bit, older formats are read,
and nothing that is not sound is believed.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.drift.bets import Stage
from monitor.drift.correlation import OPEN_TRACK
from monitor.drift.evidence import DriftSettings, Unit
from monitor.drift.family import Family
from monitor.drift.reference import BINS, Origin, Reference, shipped
from monitor.drift.state import MOST_KEPT, restored_family
from monitor.drift.usual import WAITING, ReferenceLearner
from monitor.frames.marks import PLACED, ArrayForm
from monitor.statistics.observations import finished
from monitor.store.codec import Codec, InvalidDocument
from monitor.store.drift_documents import family_text, read_family, read_references, reference_text
from tests.drift.drives import correlated, feed, seeds, text_of
from tests.laws import assert_same

LEARNER = Codec(ReferenceLearner, "learner", "Learn anew.")
K, NAMES = 3, ("car", "van", "bus")
SOON = DriftSettings(
    fewest_tracks=1,
    hours_between_false_pages=1e-3,
    hours_between_false_tickets=1e-3,
    reference_tracks=4,
    reference_detections=150,
    reference_seconds=0.0,
    calm_hours=0.0,
)
OLDER = {n: Path(__file__).with_name(f"drift_{n}.json").read_bytes() for n in (1, 2)}


def grown(family: Family) -> Family:
    """A family to which all slices have come."""
    for name in NAMES:
        family.grow(name, K)
    return family


def changed(path, new, whole) -> str:
    """The document with another value at one place."""
    copy = place = json.loads(json.dumps(whole))
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = new
    return json.dumps(copy)


# ---- references


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
    if seed % 2:
        learner.take_in()
    return learner


def some_reference(seed: int, frames: int = 40) -> Reference:
    return some_learner(seed, frames).learned(Origin.LEARNED, 10)


def through_file(path: Path, text: str):
    path.write_text(text)
    return read_references(path)


def test_references_come_back_with_every_bit_whatever_their_origin(tmp_path):
    references = {
        "Car": {Stage.RAW: some_reference(1, 0), Stage.RECALIBRATED: some_reference(2, 300)},
        "Pedestrian|0-20m": {Stage.RECALIBRATED: shipped(3)},
        "Bus": {Stage.RAW: replace(some_reference(5), origin=Origin.FILE)},
    }
    found = through_file(tmp_path / "usual.json", reference_text(references))
    assert found.keys() == references.keys()
    for name, by_stage in references.items():
        assert found[name].keys() == by_stage.keys()
        for stage, reference in by_stage.items():
            assert_same(found[name][stage], reference)


@pytest.mark.parametrize(
    ("path", "new", "named"),
    [
        (("origin",), "guessed", "learned"),
        (("quantiles",), [1.0], "64 numbers"),
        (("quantiles", 3), 1e20, "never fall"),
        (("tempering",), 1.5, "raw.tempering"),
        (("levels", "within"), 0.0, "raw.levels.within"),
    ],
)
def test_what_is_no_reference_is_refused_by_the_name_of_the_field(tmp_path, path, new, named):
    whole = json.loads(reference_text({"Car": {Stage.RAW: some_reference(1)}}))
    with pytest.raises(InvalidDocument, match="learn the reference again") as error:
        through_file(tmp_path / "usual.json", changed(("slices", "Car", "raw", *path), new, whole))
    assert named in str(error.value)


# ---- learners


@given(seeds, st.integers(0, 300))
def test_a_learner_comes_back_with_every_bit_and_goes_on_as_it_would_have(seed, frames):
    learner = some_learner(seed, frames)
    back = LEARNER.read(LEARNER.write(learner))
    assert_same(back, learner)
    nees, tracks = correlated(seed + 1, learner.k, 0.7, 20, life=12)
    for one in (learner, back):
        one.add(nees.ravel(), tracks.ravel(), np.repeat(np.arange(1000, 1020), 8))
    assert_same(back.learned(Origin.LEARNED, 10), learner.learned(Origin.LEARNED, 10))


LEARNED: Any = json.loads(LEARNER.write(some_learner(1)))


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("detections", 3),
        ("along_tracks.rows", 5),
        ("along_tracks.tracks", 10**9),
        ("along_frames.waiting", [1.0] * 256),
        ("along_frames.batches", [100.0] * 27),
        ("along_frames.pairs", [0.0] * 5),
        ("seconds.tracks", [1.0] + [0.0] * 64),
        ("seconds.tracks", [0.0, 0.5] + [0.0] * 63),
        ("seconds.rows", 0),
        ("histogram.counts", ""),
        ("waiting", ArrayForm(WAITING, (None,)).write(np.zeros(1, WAITING))),
    ],
)
def test_a_learner_that_cannot_be_is_refused(path, new):
    with pytest.raises(InvalidDocument):
        LEARNER.read(changed(path.split("."), new, LEARNED))


@pytest.mark.parametrize(
    ("path", "kind", "name", "new"),
    [
        (("histogram", "counts"), PLACED, "place", BINS),
        (("histogram", "counts"), PLACED, "count", 0),
        (("along_tracks", "going_on"), OPEN_TRACK, "key", 2**64 - 1),
        (("along_tracks", "going_on"), OPEN_TRACK, "last", np.nan),
    ],
)
def test_a_table_of_a_learner_that_cannot_be_is_refused(path, kind, name, new):
    form = ArrayForm(kind, (None,))
    table = form.read(LEARNED[path[0]][path[1]])
    table[name][0] = new
    with pytest.raises(InvalidDocument, match="learner"):
        LEARNER.read(changed(path, form.write(table), LEARNED))


# ---- families
WHOLE: Any = json.loads(text_of(feed(grown(Family(SOON)), 1, 300, 8.0)))


@pytest.mark.parametrize(
    ("path", "new", "said"),
    [
        (("peak",), [0.0], "drift.peak"),
        (("latched", 0, "alarm", "event_ns"), 2**63, "drift.latched[0].alarm.event_ns"),
        (("slices",), [{}] * (MOST_KEPT + 1), "drift.slices"),
        (("slices", 0, "k"), 4, "of 'k' 4"),
        (("slices", 0, "evidence", "sums"), [], "'evidence' must be of one slice"),
        (("slices", 0, "evidence", "shares"), [1.0] * 12, "'shares' at most 1 in sum"),
        (("slices", 0, "learners"), [None, None], "a reference or a learner"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_name(path, new, said):
    with pytest.raises(InvalidDocument, match="remove it") as refused:
        read_family(changed(path, new, WHOLE))
    assert said in str(refused.value)


# ---- older formats


def test_a_document_of_the_format_before_loses_nothing_that_is_known():
    older = json.loads(OLDER[2])
    again = json.loads(b"".join(finished(family_text(read_family(OLDER[2])))))
    open = ("entry", "beyond", "waits", "order", "goes_on")
    assert again == {
        **{name: value for name, value in older.items() if name not in open},
        "format": "calibration-monitor/drift/3",
        "frames": 40,
        "latest_ns": {"1": 146679612719, "0": 952663696325},
        "slices": [
            {
                **{name: value for name, value in one.items() if name != "open"},
                "learners": [
                    learner and {**learner, "began": began}
                    for learner, began in zip(one["learners"], one["open"]["began"], strict=True)
                ],
            }
            for one in older["slices"]
        ],
    }


@pytest.mark.parametrize("number", [1, 2])
def test_a_family_drives_on_from_an_older_format_and_tracks_count_as_detections(
    number,
):
    state = read_family(OLDER[number])
    wanted = replace(SOON, hours_between_false_pages=1e9, hours_between_false_tickets=1e9)
    family, changes = restored_family(state, wanted, {}, "identity")
    assert changes == []
    feed(grown(family), 4, 50)
    assert family.clock.driven > state.driven
    assert read_family(text_of(family)).slices[0].labelled > state.slices[0].labelled
    text = OLDER[number].replace(b'"unit":"track-second"', b'"unit":"track"')
    assert text != OLDER[number]
    assert read_family(text).gathered.unit is Unit.DETECTION
