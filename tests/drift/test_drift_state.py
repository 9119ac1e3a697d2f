"""A family that goes on where another one ended, through its document: every bit of what is known
comes back, what was open is lost without being taken for news, nothing unsound is believed.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.drift.alarms import AlarmReason
from monitor.drift.charts import CHARTS, DETECTORS, Detector, Origin, Stage
from monitor.drift.evidence import HOUR, OF_TRACKS, DriftSettings, Unit
from monitor.drift.family import MOST_KEPT, Family, family_state, restored_family
from monitor.drift.level_sums import SecondLevels
from monitor.drift.reference import Reference, calibrated_level, shipped
from monitor.drift.usual import WAITING, ReferenceLearner, SliceState
from monitor.frames.marks import ArrayForm
from monitor.frames.slices import TOTAL
from monitor.frames.space import FloatArray
from monitor.statistics.observations import finished
from monitor.store.documents import (
    Codec,
    InvalidDocument,
    family_text,
    read_family,
    read_references,
    reference_text,
)
from tests.drift import drives
from tests.drift.drives import (
    DIMENSIONS,
    Frame,
    K,
    correlated,
    fed,
    feed,
    seeds,
    text_of,
    watched,
)
from tests.laws import assert_same, costly

LEARNER = Codec(ReferenceLearner, "learner", "Learn anew.")
NAMES = ("car", "van", "bus")
SHORT = DriftSettings(
    fewest_tracks=1,
    reference_seconds=0.0,
    hours_between_false_pages=1e-3,
    hours_between_false_tickets=1e-3,
    reference_tracks=4,
    reference_detections=150,
    shortest_reference=3,
    calm_hours=0.0,
)
LONG = replace(SHORT, hours_between_false_pages=1e9, hours_between_false_tickets=1e9)
FORWARDED = np.array([chart.stage is Stage.RECALIBRATED for chart in CHARTS])


def family_of(seed: int, wanted: DriftSettings = SHORT, frames: int = 100, factor: float = 1.0):
    """Of three slices that have seen some frames; NEES are too large by a factor."""
    return feed(drives.family_of(wanted, NAMES), seed, frames, factor)


def revived(state, wanted: DriftSettings, names=NAMES, **other):
    """A family that goes on, all of whose slices have come; and the changes of its alarms."""
    arguments = {"given": {}, "selection": "identity", **other}
    restored, changes = restored_family(state, wanted, **arguments)
    for name in names:
        restored.grow(name, DIMENSIONS[:K])
    return restored, changes


def gone_on(family: Family, wanted: DriftSettings | None = None, **other):
    return revived(read_family(text_of(family)), wanted or family.settings, **other)


def kept_of(family: Family):
    """All that is kept; bets and seconds of tracks without weight may have gathered anything."""
    evidence = family.evidence
    return (
        [(one.name, one.epoch, one.labelled, one.fed) for one in family.slices],
        *(family.peak, evidence),
        *(family.alarms.latched, family.alarms.counts, family.clock.driven),
        *(tuple(map(one.reference, Stage)) for one in family.slices),
        learners_of(family),
    )


def learners_of(family: Family):
    return [learners_of_slice(one) for one in family.slices]


def learners_of_slice(state: SliceState):
    return [None if one is None else LEARNER.write(one) for one in state.learners]


@costly
@given(
    st.integers(0, 2**32 - 1), st.sampled_from([0, 10, 100, 300]), st.sampled_from([0.1, 1.0, 6.0])
)
def test_every_bit_of_what_is_kept_comes_back(seed, frames, factor):
    family = family_of(seed, frames=frames, factor=factor)
    restored, changes = gone_on(family)
    assert changes == []
    assert_same(kept_of(restored), kept_of(family))
    assert text_of(restored) == text_of(family)


# Neither does anything become usual, nor evidence an alarm.
PATIENT = replace(
    LONG,
    reference_detections=10**6,
    hours_between_false_pages=1e150,
    hours_between_false_tickets=1e150,
)


def constant(level: float, tracks: range, seconds: range, *, source: int = 0) -> list[Frame]:
    """Tracks whose errors are always as large, ten frames a second; 0 is the level of calibrated
    ones.
    """
    e = float(np.exp(calibrated_level(K) + level))
    return [
        (source, second * 10**9 + at * 10**8, False, [(1 + track, 0, e, e) for track in tracks])
        for second in seconds
        for at in range(10)
    ]


def of_seconds(family: Family) -> FloatArray:
    """Evidence of seconds of tracks of the first slice, in hours, by bet."""
    return family.evidence.sums[0, :, OF_TRACKS].copy()


def test_a_level_that_was_bet_on_is_no_news_after_a_restart():
    frames = constant(2.5, range(5), range(16))
    family = drives.family_of(PATIENT, NAMES)
    fed(family, frames[:100], 1)
    before = of_seconds(family)[0]
    rising = before > 100
    assert np.count_nonzero(rising) > 10
    restored, _ = gone_on(family)
    fed(restored, frames[100:], 1)
    # What had no evidence is given the hours that were driven.
    hours = restored.clock.driven / HOUR
    assert (of_seconds(restored)[0] < 2 * np.maximum(before, hours)).all()
    # The same tracks teach nothing twice. Where nothing of the last run is known it is news.
    for was, now in zip(family.slices[0].learners, restored.slices[0].learners, strict=True):
        assert was is not None and now is not None
        assert now.seconds.tracks.sum() == was.seconds.tracks.sum() == 5
        assert now.detections > was.detections
    nothing = replace(read_family(text_of(family)), latest_ns={})
    unaware, _ = revived(nothing, PATIENT)
    fed(unaware, frames[100:], 1)
    assert (of_seconds(unaware)[0] > 100 * before)[rising].all()


def test_only_tracks_that_the_last_run_may_have_seen_are_older():
    """Who came later is not, nor who comes again after more than the idle time, nor who comes of a
    source that begins anew, or is new.
    """
    family = drives.family_of(LONG, NAMES)
    fed(family, constant(0.0, range(3), range(100, 104)))
    restored, _ = gone_on(family)

    def older(frames: list[Frame]) -> list[bool]:
        seconds, _ = restored.seconds.take(K, watched(frames))
        return list(seconds["older"])

    assert older(constant(0.0, range(3), range(104, 107))) == [True] * 6
    assert older(constant(0.0, range(7, 8), range(107, 109))) == [True] * 3 + [False]
    assert older(constant(0.0, range(3), range(112, 114))) == [False] * 4
    assert older(constant(0.0, range(10, 12), range(104, 106), source=1)) == [False] * 2
    assert older(constant(0.0, range(3), range(50, 52))) == [False] * 6


@pytest.mark.parametrize(
    "change",
    [
        {"page_tolerance": 2.0},
        {"ticket_tolerance": 1.1},
        {"class_tolerance": 1.1},
        {"unit": Unit.DETECTION},
    ],
)
def test_under_other_tolerances_or_units_evidence_begins_anew_and_the_rest_stays(change):
    family = family_of(3, factor=8.0, frames=300)
    restored, changes = gone_on(family, replace(SHORT, **change))
    assert changes == []
    evidence = restored.evidence
    for gone in (evidence.sums, evidence.run, evidence.peak, restored.peak):
        assert not gone.any()
    if restored.settings.unit is Unit.DETECTION:
        of_tracks = [DETECTORS.index(one) for one in (Detector.TRACK, Detector.SHIPPED)]
        assert not restored.evidence.shares[..., of_tracks].any()
    ours, theirs = kept_of(restored), kept_of(family)
    assert_same(ours[0], theirs[0])
    assert_same(ours[3:], theirs[3:])


def test_under_another_recalibrator_each_slice_has_the_epoch_that_a_swap_would_begin():
    family = family_of(4, factor=8.0, frames=250)
    forwarded = [
        key
        for key, one in family.alarms.latched.items()
        if one.alarm.stage is Stage.RECALIBRATED and key[0] != TOTAL
    ]
    assert forwarded
    restored, changes = gone_on(family, selection="variance-scaling-1")
    expected = family.new_epoch(range(3))
    assert [one.why for one in changes] == [AlarmReason.NEW_EPOCH] * len(forwarded)
    assert sorted(map(str, changes)) == sorted(map(str, expected))
    assert_same(kept_of(restored), kept_of(family))
    # What was being learned of the other one is forgotten.
    restored, _ = gone_on(family_of(4, LONG, frames=30), selection="variance-scaling-1")
    raw, forwarded = restored.slices[0].learners
    assert raw is not None and raw.detections > 0
    assert forwarded is not None and forwarded.detections == 0


def test_slices_come_in_any_order_and_those_that_never_come_survive_two_restarts():
    family = family_of(5, LONG, frames=200, factor=2.0)
    restored, _ = gone_on(family, names=("bus",))
    assert_same(
        family_state(restored, "identity").slices[0].evidence,
        family_state(family, "identity").slices[2].evidence,
    )
    again, _ = gone_on(restored, names=("van", "car", "bus"))
    for slice, name in enumerate(again.names):
        was = NAMES.index(name)
        assert again.slices[slice].labelled == family.slices[was].labelled > 0
        assert_same(again.evidence.peak[slice], family.evidence.peak[was])


def file_reference(seed: int) -> Reference:
    learner = ReferenceLearner(K)
    nees = np.random.default_rng(seed).chisquare(K, 500)
    frame = np.arange(500)
    learner.add(nees, np.zeros(500, np.uint64), frame, frame * 10**8)
    return learner.learned(Origin.FILE, 10)


def test_a_reference_from_a_file_wins_and_evidence_against_another_one_begins_anew():
    family = family_of(8, LONG, frames=200, factor=3.0)
    one, other = ({"car": {Stage.RECALIBRATED: file_reference(i)}} for i in range(2))
    first, _ = gone_on(family, given=one)
    assert_same(first.slices[0].reference(Stage.RECALIBRATED), one["car"][Stage.RECALIBRATED])
    assert not first.evidence.sums[0, FORWARDED].any()
    assert first.evidence.sums[0, ~FORWARDED].any()
    feed(first, 9, 100, 3.0)
    assert first.evidence.sums[0, FORWARDED].any()
    same, _ = gone_on(first, given=one)
    assert_same(same.evidence.take(np.arange(1)).peak, first.evidence.take(np.arange(1)).peak)
    assert same.evidence.sums[0, FORWARDED].any()
    for known in (other, {}):
        changed, _ = gone_on(first, given=known)
        assert not changed.evidence.sums[0, FORWARDED].any()
        learning = changed.slices[0].learners[Stage.RECALIBRATED] is not None
        assert learning == (known == {})


OLDER = Path(__file__).with_name("drift_2.json").read_bytes()


def changed(path, new, whole) -> str:
    """The document with another value at one place."""
    copy = place = json.loads(json.dumps(whole))
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = new
    return json.dumps(copy)


def teach(learner: ReferenceLearner, seed: int, begin: int, frames: int) -> None:
    """Frames of eight tracks each, ten a second; a tenth of their rows are of no known track."""
    nees, tracks = correlated(seed, learner.k, 0.7, frames, life=12)
    tracks[np.random.default_rng(seed).random(tracks.shape) < 0.1] = 0
    frame = np.repeat(np.arange(begin, begin + frames), 8)
    learner.add(nees.ravel(), tracks.ravel(), frame, frame * 10**8)


def some_learner(seed: int, frames: int = 40) -> ReferenceLearner:
    random = np.random.default_rng(seed)
    k = int(random.integers(1, 8))
    learner = ReferenceLearner(k)
    if not frames:
        return learner
    teach(learner, seed, 0, frames)
    for before in range(4):
        level, mean = random.standard_normal((2, 20, learner.seconds.channels))
        learner.seconds.add(
            SecondLevels(
                level=level,
                spread=random.random(level.shape),
                count=random.integers(1, 12, 20),
                before=np.full(20, before),
                rows=np.full(20, 6 * before),
                rows2=np.full(20, 40 * before),
                mean=mean * (before > 0),
                outside=random.integers(0, 2, 20),
                trial=random.random(20) < 0.8,
            )
        )
    if seed % 2:
        learner.take_in()
    return learner


def some_reference(seed: int, frames: int = 40) -> Reference:
    return some_learner(seed, frames).learned(Origin.LEARNED, 10)


def test_references_come_back_with_every_bit_whatever_their_origin(tmp_path):
    references = {
        "Car": {Stage.RAW: some_reference(1, 0), Stage.RECALIBRATED: some_reference(2, 300)},
        "Pedestrian|0-20m": {Stage.RECALIBRATED: shipped(3)},
        "Bus": {Stage.RAW: replace(some_reference(5), origin=Origin.FILE)},
    }
    path = tmp_path / "usual.json"
    path.write_text(reference_text(references))
    found = read_references(path)
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
        (("spacings", 5), 0.05, "never fall"),
        (("temperings", 0), 1.5, "raw.temperings"),
        (("levels", "within", 2), 0.0, "raw.levels.within"),
        (("levels", "spread"), [1.0], "'levels.spread' must have"),
    ],
)
def test_what_is_no_reference_is_refused_by_the_name_of_the_field(tmp_path, path, new, named):
    whole = json.loads(reference_text({"Car": {Stage.RAW: some_reference(1)}}))
    file = tmp_path / "usual.json"
    file.write_text(changed(("slices", "Car", "raw", *path), new, whole))
    with pytest.raises(InvalidDocument, match="learn the reference again") as error:
        read_references(file)
    assert named in str(error.value)


@given(seeds, st.integers(0, 300))
def test_a_learner_comes_back_with_every_bit_and_goes_on_as_it_would_have(seed, frames):
    learner = some_learner(seed, frames)
    back = LEARNER.read(LEARNER.write(learner))
    assert_same(back, learner)
    for one in (learner, back):
        teach(one, seed + 1, 1000, 20)
    assert_same(back.learned(Origin.LEARNED, 10), learner.learned(Origin.LEARNED, 10))


LEARNED: Any = json.loads(LEARNER.write(some_learner(1)))


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("detections", 3),
        ("along_tracks", []),
        ("along_tracks.1.tracks", 10**9),
        ("along_frames.waiting", [1.0] * 256),
        ("along_frames.batches", [100.0] * 27),
        ("along_frames.pairs", [0.0] * 5),
        ("seconds.tracks", [1.0] + [0.0] * 64),
        ("seconds.tracks", [0.0, 0.5] + [0.0] * 63),
        ("seconds.rows", 0),
        ("seconds.onsets", 10**6),
        ("seconds.channels", 3),
        ("waiting", ArrayForm(WAITING, (None,)).write(np.zeros(1, WAITING))),
    ],
)
def test_a_learner_that_cannot_be_is_refused(path, new):
    with pytest.raises(InvalidDocument):
        LEARNER.read(
            changed([int(one) if one.isdigit() else one for one in path.split(".")], new, LEARNED)
        )


WHOLE: Any = json.loads(text_of(family_of(1, SHORT, 300, 8.0)))


@pytest.mark.parametrize(
    ("path", "new", "said"),
    [
        (("peak",), [0.0], "drift.peak"),
        (("latched", 0, "alarm", "event_ns"), 2**63, "drift.latched[0].alarm.event_ns"),
        (("slices",), [{}] * (MOST_KEPT + 1), "drift.slices"),
        (("slices", 0, "k"), 4, "of 'k' 4"),
        (("slices", 0, "evidence", "sums"), [], "'evidence' must be of one slice"),
        (("slices", 0, "evidence", "shares"), [1.0] * 36, "'shares' at most 1 in sum"),
        (("slices", 0, "learners"), [None, None], "a reference or a learner"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_name(path, new, said):
    with pytest.raises(InvalidDocument, match="remove it") as refused:
        read_family(changed(path, new, WHOLE))
    assert said in str(refused.value)


def rewritten(text: str | bytes) -> dict[str, Any]:
    """The content of a document, as this version writes it."""
    found: dict[str, Any] = json.loads(b"".join(finished(family_text(read_family(text)))))
    return found


def of_scale(alarm: dict[str, Any]) -> dict[str, Any]:
    size = alarm["scale"]["estimate"]
    return {"dimension": "", "quantity": "scale", "size": size, "unit": ""}


def test_a_document_of_an_earlier_format_keeps_alarms_counts_hours_and_epochs():
    older = json.loads(OLDER)
    older["slices"][1] |= {"epoch": 3, "known": True}
    older["gathered"] |= {"bias_tolerance": 1.0, "class_tolerance": 2.0}
    kept = ("gathered", "driven", "peak", "counts", "numbers", "begins")
    for name in ("calibration-monitor/drift/2", "calibration-monitor/drift/3"):
        again = rewritten(json.dumps({**older, "format": name}))
        assert {name: again[name] for name in kept} == {name: older[name] for name in kept}
        assert again["latched"] == [
            {**one, "alarm": {**one["alarm"], **of_scale(one["alarm"])}} for one in older["latched"]
        ]
        of_slices = ("name", "k", "epoch", "labelled", "fed", "known")
        assert [[one[name] for name in of_slices] for one in again["slices"]] == [
            [one[name] for name in of_slices] for one in older["slices"]
        ]
        peaks = [one["evidence"]["peak"] for one in older["slices"]]
        assert [one["evidence"]["peak"] for one in again["slices"]] == peaks


def test_evidence_and_references_of_an_earlier_format_begin_anew():
    state = read_family(OLDER)
    assert (state.frames, state.latest_ns) == (0, {})
    for one in state.slices:
        begun = SliceState.begun(one.name, one.k)
        assert_same(replace(one.evidence, peak=begun.evidence.peak), begun.evidence)
        assert one.references == [None, None]
        assert_same(learners_of_slice(one), learners_of_slice(begun))


def test_an_alarm_of_an_earlier_format_becomes_calm_when_it_would_have():
    state, settings = read_family(OLDER), replace(LONG, calm_hours=0.5 / 3600)
    family, _ = revived(state, settings)
    assert len(family.alarms.latched) == 2
    changes = fed(family, drives.drive(1.0, slices=(0, 1, 2)))
    assert {one.why for one in changes} == {AlarmReason.CALM}
    assert not family.alarms.latched


def test_a_family_drives_on_from_the_format_before_and_counts_detections():
    state = read_family(OLDER)
    family, changes = revived(state, LONG)
    assert changes == []
    feed(family, 4, 50)
    assert family.clock.driven > state.driven
    assert read_family(text_of(family)).slices[0].labelled > state.slices[0].labelled
    text = OLDER.replace(b'"unit":"track-second"', b'"unit":"track"')
    assert text != OLDER
    assert read_family(text).gathered.unit is Unit.DETECTION


def test_an_older_document_is_read_or_refused_whatever_stands_in_any_place():
    older, refused = json.loads(OLDER), 0
    paths: list[tuple[Any, ...]] = [()]
    for path in paths:
        inner = reduce(getitem, path, older)
        for key in inner if isinstance(inner, dict) else range(min(len(inner), 1)):
            for new in (None, "x", [None, {"a": 0}]):
                try:
                    read_family(changed((*path, key), new, older))
                except InvalidDocument as error:
                    assert "this monitor" in str(error)
                    refused += 1
            if isinstance(inner[key], dict | list) and len(path) < 3:
                paths.append((*path, key))
    assert refused > len(paths)
