"""The watch of a sidecar: which ground truth it takes in, and that a page leads to a fit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from monitor.config import InvalidConfiguration
from monitor.drift.alarms import AlarmChange, AlarmReason, DriftReading, DriftState
from monitor.drift.charts import Severity
from monitor.drift.evidence import DriftSettings
from monitor.drift.family import family_state, restored_family
from monitor.frames.frame import MatchedRows, TrackIds
from monitor.frames.slices import TOTAL, Slice, SliceTable
from monitor.frames.space import Space, plain_space
from monitor.frames.words import SliceBy
from monitor.pipeline import drift_watch, fit_rounds
from monitor.pipeline.drift_watch import DriftEpochs, DriftWatch, NoSuchSlice
from monitor.pipeline.fit_rounds import FitRounds
from monitor.pipeline.promotions import Promotions
from monitor.pipeline.recalibrators import served_otherwise
from monitor.promotion.fits import CannotFit, FitFailed
from monitor.promotion.records import SliceFitted
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import IDENTITY, Selection
from monitor.statistics.observations import finished
from monitor.store.documents import family_text, reference_text
from tests.alarmed import RAISED, alarm
from tests.drift.drives import both, exact_reference
from tests.piped import opened, pipeline_of, reported
from tests.received import Label, Sent, frame, labels

XY, XYZ = plain_space(("x", "y"), "m"), plain_space(("x", "y", "z"), "m")
PERIOD = 10**8


def table() -> SliceTable:
    found = SliceTable(frozenset({SliceBy.CLASS}), 10)
    for name, space in (("car", XY), ("van", XY), ("box", XYZ)):
        found.slices.append(Slice(name, space))
        found.chains.append((name,))
    return found


def watch_of(**other) -> DriftWatch:
    told: list[object] = other.pop("told", [])
    return DriftWatch(other.pop("settings", DriftSettings()), table(), told.append, **other)


def rows_of(
    number: int,
    *,
    slices: Sequence[int] = (0, 0, 0, 0),
    space: Space = XY,
    scale: float = 1.0,
    stamp: bool = True,
    live: bool = True,
    source: int = 0,
    made: float | None = None,
) -> MatchedRows:
    """A frame of tracks; covariances are I. `made`: errors of the recalibrated stage times it."""
    error = scale * np.random.default_rng(number).normal(size=(len(slices), space.k))
    covariance = np.tile(np.eye(space.k), (len(slices), 1, 1))
    known = np.ones(len(slices), bool)
    return MatchedRows(
        space,
        np.array(slices, np.int64),
        error,
        covariance,
        error if made is None else made * error,
        covariance,
        number * PERIOD if stamp else None,
        live,
        TrackIds(np.arange(len(slices), dtype=np.uint64), known),
        source,
    )


def taken_in(watch: DriftWatch, *frames: MatchedRows, made_by: str = "a") -> list[int]:
    """Detections with ground truth by slice, once these frames and all before are taken in."""
    for rows in frames:
        watch.add(rows, made_by)
    finished(watch.catch_up(everything=True))
    return [one.labelled for one in watch.family.slices]


def reading_of(watch: DriftWatch) -> DriftReading:
    return finished(watch.reading(everything=True))


# ---- what counts


def test_truth_of_no_known_time_or_late_and_behind_what_was_watched_is_counted_alone():
    watch = watch_of()
    undated, old = rows_of(1, stamp=False), rows_of(0, stamp=False, live=False, slices=(1,))
    late = rows_of(1, live=False, slices=(0, 0, 1))
    frames = undated, rows_of(2, live=False, slices=(0, 1)), late, rows_of(3, slices=())
    assert taken_in(watch, *frames, rows_of(1, slices=(0, 1)), old) == [2, 2, 0]
    assert watch.missed == {0: 6, 1: 2}
    watch.changed("a", [0, 2])
    assert watch.missed == {1: 2}
    watch.family.seconds.late, watch.family.seconds.left_out = 3, 6
    assert dict(reading_of(watch).left_out) == {
        **{"late": 4, "undated": 4, "superseded": 0, "overload": 0, "failed": 0},
        **{"late_seconds": 3, "tracks": 6},
    }


def test_what_an_earlier_recalibrator_of_a_slice_made_is_superseded_also_where_it_waits():
    told: list[AlarmChange] = []
    watch = watch_of(told=told)
    watch.changed("a", [])
    assert taken_in(watch, rows_of(0, slices=(0, 0, 1))) == [2, 1, 0]
    watch.add(rows_of(1, slices=(0, 0, 1), live=False), "a")
    watch.changed("b", [0])
    assert taken_in(watch) == [0, 2, 0]
    assert watch.left_out["superseded"] == 2
    assert taken_in(watch, rows_of(2, slices=(0, 0, 1)), made_by="b") == [2, 3, 0]
    assert dict(reading_of(watch).epochs) == {"car": 1, "van": 0, "box": 0}
    assert taken_in(watch, rows_of(3)) == [2, 3, 0]
    assert reading_of(watch_of(watching=False)) == DriftReading()


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_two_at_once_take_in_what_one_that_is_dropped_half_way_had_not_begun_with(steps):
    watch = watch_of()
    for number in range(300):
        watch.add(rows_of(number), "a")
    work, *both = (watch.catch_up(everything=True) for _ in range(3))
    for _ in range(steps):
        next(work)
    work.close()
    assert [next(one) for one in both] == [finished(one) for one in both]
    assert 1200 >= watch.family.slices[0].labelled >= (944 if steps else 1200)


def test_an_epoch_begins_by_name_and_version_and_goes_on_in_the_next_run():
    def current(epochs: DriftEpochs, version: str | None) -> list[bool]:
        return [bool(one) for one in epochs.current(np.arange(3), version)]

    epochs = DriftEpochs()
    assert current(epochs, "a") == [True] * 3
    for version, slices in (("a", []), ("b", [1]), ("c", [0])):
        epochs.begin(version, slices)
    assert current(epochs, "a") == [False, False, True]
    assert current(epochs, "b") == [False, True, True]
    assert current(epochs, "c") == [True] * 3
    # Where no recalibrator could be applied, and where nobody knows the version.
    assert current(epochs, None) == [True] * 3
    assert current(epochs, "who") == [False, False, True]
    epochs.begin("a", [0, 1, 2])
    assert (current(epochs, "a"), current(epochs, "c")) == ([True] * 3, [False] * 3)
    numbers, begins = epochs.state(("car", "truck", "bus"))
    after = DriftEpochs()
    after.begin("a", [0, 1, 2])
    after.restore(numbers, begins, ("bus", "car", "truck"))
    assert (current(after, "a"), current(after, "c")) == ([True] * 3, [False] * 3)


def test_slices_that_another_recalibrator_serves_are_those_whose_own_one_differs():
    slices, twice = table(), VarianceScaling((2.0, 2.0))
    other = Selection(XY.names, Identity(), {"van": twice})
    assert served_otherwise(slices, IDENTITY, IDENTITY) == []
    assert served_otherwise(slices, IDENTITY, other) == [1]
    assert served_otherwise(slices, IDENTITY, Selection(("u", "v"), twice)) == []


def test_what_waits_beyond_measure_is_left_out_and_counted_and_it_is_behind_from_half(monkeypatch):
    monkeypatch.setattr(drift_watch, "_WAITING", 16)
    watch = watch_of()
    for second in range(3):
        assert not watch.behind
        watch.add(rows_of(10 * second), "a")
    assert watch.behind
    for second in range(3, 5):
        watch.add(rows_of(10 * second), "a")
    assert watch.left_out["overload"] == 4
    assert taken_in(watch) == [16, 0, 0]
    assert not watch.behind
    assert taken_in(watch, rows_of(60)) == [20, 0, 0]


def test_frames_of_two_spaces_are_each_taken_with_their_degrees_and_raw_where_changed():
    watch = watch_of()
    for number in range(100):
        watch.add(rows_of(2 * number), "a")
        watch.add(rows_of(2 * number + 1, slices=(2, 2), space=XYZ, source=1), "a")
    assert taken_in(watch) == [400, 0, 200]
    assert [one.k for one in watch.family.slices] == [2, 2, 3]
    reading = reading_of(watch)
    assert reading.driven == pytest.approx(19.8 / 3600, rel=0.05)
    assert all(one.evidence < 1 for one in reading.standings)
    assert watch.family.evidence.sums[0, 2:].max() == 0
    taken_in(watch, rows_of(200, made=0.5))
    assert watch.family.evidence.sums[0, 2:].max() > 0


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_detections_whose_nees_is_no_number_are_left_out_of_evidence():
    rows = rows_of(0)
    rows.error[1] = 1e200
    watch = watch_of()
    assert taken_in(watch, rows, rows_of(1)) == [7, 0, 0]
    assert np.isfinite(watch.family.evidence.sums).all()


def later(delay_s: float, fault_s: float = 12.0, seconds: int = 20) -> DriftWatch:
    """A drive through a pipeline, whose σ² become five times too small; labels come so late."""
    pipeline = pipeline_of(drift={"reference_seconds": 5.0})
    told: list[AlarmChange] = []
    pipeline.drift.announce = told.append
    stream, random = opened(pipeline), np.random.default_rng(0)
    many, late = 10 * seconds, round(10 * delay_s)
    truth = {i: random.normal(size=(8, 3)) for i in range(many)}
    for number in range(many + late):
        scale = 1.0 if number < 10 * fault_s else 5.0**0.5
        errors = scale * random.normal(size=(8, 3)) if number < many else ()
        rows = [
            Sent(i, tuple(truth[number][i] + error), (1.0,) * 3, upstream_track=i)
            for i, error in enumerate(errors)
        ]
        pipeline.process(stream, frame(rows, number, number * PERIOD))
        if (of := number - late) >= 0:
            told_of = [Label(i, tuple(one.tolist())) for i, one in enumerate(truth[of])]
            reported(pipeline, labels(told_of, of))
            finished(pipeline.drift.catch_up())
    finished(pipeline.drift.catch_up(everything=True))
    (first, *_) = told
    assert (first.why, first.alarm.slice) == (AlarmReason.RAISED, "car")
    assert first.alarm.severity is Severity.PAGE
    assert fault_s < first.alarm.event_ns / 1e9 < fault_s + 4
    assert sum(pipeline.drift.left_out.values()) == 0
    return pipeline.drift


def test_labels_that_are_all_a_minute_late_are_evidence_like_those_that_come_at_once():
    at_once, late = (family_state(later(delay).family, "") for delay in (0, 61))
    assert b"".join(finished(family_text(late))) == b"".join(finished(family_text(at_once)))


def test_a_late_label_bets_once_however_often_it_is_revised_and_also_where_it_is_the_first():
    pipeline = pipeline_of()
    stream, rows = opened(pipeline), [Sent(0, (0.0,) * 3, (1.0,) * 3)]
    for number in range(620):
        pipeline.process(stream, frame(rows, number, number * PERIOD))
    for number, revisions in enumerate(((1, 2, 3), (0, 1))):
        for revision in revisions:
            told = [Label(0, (1.0,) * 3)] if revision else []
            told_of = replace(labels(told, number, complete=True), revision=revision)
            reported(pipeline, told_of)
    assert taken_in(pipeline.drift) == [2]
    assert pipeline.counters.truth.matched == 4
    assert sum(pipeline.drift.left_out.values()) == 0


def test_labels_of_an_hour_ago_are_left_out_where_newer_ones_are_watched_and_watched_elsewhere():
    watch = watch_of()
    for number in range(0, 200, 2):
        watch.add(rows_of(number + 36_000), "a")
        watch.add(rows_of(number + 1, live=False, slices=(0, 0)), "a")
        watch.add(rows_of(number + 1, live=False, slices=(1, 1), source=1), "a")
    assert taken_in(watch) == [400, 200, 0]
    assert watch.left_out["late"] == 200
    assert {one.slice: one.state for one in reading_of(watch).standings} == {
        **{"car": DriftState.OK, "van": DriftState.OK, "box": DriftState.TOO_FEW},
        "total": DriftState.OK,
    }


def test_a_longer_disorder_that_is_allowed_orders_labels_that_would_be_late():
    def watched(disorder_s: float) -> tuple[int, int]:
        watch = watch_of(disorder_ns=round(disorder_s * 1e9))
        for second in range(0, 60, 2):
            for tenth in (*range(10, 20), *range(10)):
                watch.add(rows_of(10 * second + tenth, live=False, slices=(0,)), "a")
        watch.begin_anew()
        return taken_in(watch)[0], watch.left_out["late"]

    assert watched(0.5) == (300, 300)
    assert watched(2.0) == (590, 10)


def test_after_a_restart_labels_behind_the_evidence_are_late_and_those_after_it_are_not():
    watch = watch_of()
    taken_in(watch, *(rows_of(number) for number in range(50)))
    state = family_state(watch.family, "")
    after = watch_of()
    after.go_on(restored_family(state, after.settings, {}, "")[0])
    batch = [rows_of(number, live=False) for number in range(40, 60)]
    assert taken_in(after, *batch)[0] == taken_in(watch, *batch)[0] == 61 * 4
    assert after.left_out["late"] == watch.left_out["late"] == 9 * 4


# ---- in steps


def test_a_portion_ends_by_frames_rows_and_spaces_too(monkeypatch):
    monkeypatch.setattr(drift_watch, "_FRAMES", 3)
    monkeypatch.setattr(drift_watch, "_ROWS", 8)
    watch = watch_of()

    def taken(*rows):
        for one in rows:
            watch.add(one, "a")
        finished(watch.catch_up())
        return sum(one.labelled for one in watch.family.slices)

    one = rows_of(0, slices=(0,))
    assert taken(one, one, one) == 0
    assert taken(one) == 3
    assert taken(rows_of(1), rows_of(1)) == 8
    assert taken(rows_of(1, space=XYZ, slices=(2,), source=1)) == 12


def test_what_was_forwarded_before_an_epoch_is_not_learned_in_it():
    watch = watch_of()
    watch.changed("a", [])
    for number in range(10):
        watch.add(rows_of(number), "a")
    work = watch.catch_up(everything=True)
    next(work)
    watch.changed("b", [0])
    finished(work)
    raw, made = watch.family.slices[0].learners
    assert raw is not None
    assert made is not None
    assert (raw.detections, made.detections) == (40, 0)


# ---- alarms


def test_alarms_are_told_as_they_are_raised_and_when_they_are_over():
    told: list[AlarmChange] = []
    watch = watch_of(told=told)
    watch.changed("a", [])
    taken_in(watch, *(rows_of(n, slices=(0, 0, 1, 1), scale=4.0) for n in range(600)))
    assert {one.why for one in told} == {AlarmReason.RAISED}
    pages = {one.alarm.slice: one.alarm for one in told}
    assert pages.keys() >= {"car", "van"}
    with pytest.raises(NoSuchSlice, match=r"'bus'.*box, car, total, van"):
        watch.acknowledge(["bus"], "anna")
    assert watch.stays(pages["car"])
    assert pages["car"] in watch.acknowledge(["car", "box"], "anna")
    assert not watch.stays(pages["car"])
    assert (told[-1].why, told[-1].actor) == (AlarmReason.ACKNOWLEDGED, "anna")
    assert watch.acknowledge(["car"], "anna") == ()
    watch.changed("b", [1])
    assert (told[-1].why, told[-1].alarm.slice) == (AlarmReason.NEW_EPOCH, "van")


# ---- a page leads to a fit


def fitted(version: str) -> SliceFitted:
    return SliceFitted("car", version, "", 4, 40)


@pytest.mark.parametrize(
    ("answers", "slice", "over", "expected"),
    [
        # Once four tracks have ended since the alarm began; of all where all are meant.
        ([[fitted("a")]], "car", 100, [(("car",), 4)]),
        ([[fitted("a")]], TOTAL, 100, [((), 4)]),
        # Of class probabilities there is one fit, whatever stream they are of.
        ([[fitted("a")]], "front, class probabilities", 100, [(("class probabilities",), 4)]),
        # Where nothing comes of it, twice the tracks are waited for.
        (
            [[fitted("")], CannotFit("no"), FitFailed("no"), [fitted("a")]],
            "car",
            100,
            [(("car",), looks) for looks in (4, 8, 16, 32)],
        ),
        ([RuntimeError("a fault that nobody expects ends it")], "car", 100, [(("car",), 4)]),
        # Nothing is asked for once the alarm is over.
        ([], "car", 3, []),
    ],
)
def test_a_page_asks_for_a_fit_as_long_as_it_stays(monkeypatch, answers, slice, over, expected):
    """One more track a look; the alarm is over after so many looks."""
    looks, asked, left = 0, [], list(answers)

    def tracks(*_: object) -> int:
        nonlocal looks
        looks += 1
        return looks

    async def fit(
        _: FitRounds, slices: Sequence[str], method: str, actor: str
    ) -> Sequence[SliceFitted]:
        assert (method, actor) == ("", "drift")
        asked.append((slices, looks))
        answer: Sequence[SliceFitted] | Exception = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def run() -> None:
        pipeline = pipeline_of(drift={"refit_on_page": True}, promotion={"fit_tracks": 4})
        watch = FitRounds(Promotions(pipeline))
        pipeline.drift.announce(replace(RAISED, alarm=replace(alarm(), slice=slice)))
        await asyncio.gather(*watch._refits)

    monkeypatch.setattr(FitRounds, "asked", fit)
    monkeypatch.setattr(fit_rounds, "_REFITS_PERIOD", 0.0)
    monkeypatch.setattr(fit_rounds, "ended_since", tracks)
    monkeypatch.setattr(DriftWatch, "stays", lambda *_: looks < over)
    asyncio.run(run())
    assert asked == expected


def test_a_fault_in_the_watch_costs_that_look_and_a_page_asks_for_no_fit_by_itself(monkeypatch):
    looks = [RuntimeError("a fault"), None, asyncio.CancelledError(), None]

    def catch_up(*_: object, **__: bool):
        yield
        if wrong := looks.pop(0):
            raise wrong

    async def run() -> None:
        pipeline = pipeline_of()
        watch = FitRounds(Promotions(pipeline))
        pipeline.drift.announce(RAISED)
        assert not watch._refits
        with pytest.raises(asyncio.CancelledError):
            await watch.keep_watching()
        await watch.end_watching()
        assert (looks, pipeline.counters.internal_errors) == ([], 1)

    monkeypatch.setattr(fit_rounds, "_PERIOD", 0.0)
    monkeypatch.setattr(DriftWatch, "catch_up", catch_up)
    asyncio.run(run())


def test_a_reference_is_given_to_the_watch_or_stops_the_start_by_its_name(tmp_path):
    def given(file: Path) -> Mapping[str, object]:
        pipeline = pipeline_of(drift={"reference": str(file)})
        FitRounds(Promotions(pipeline))
        return pipeline.drift.family.usual.given

    file = tmp_path / "known.json"
    file.write_text(reference_text({"car": both(exact_reference())}))
    assert list(given(file)) == ["car"]
    with pytest.raises(InvalidConfiguration, match=r"\[drift\] reference = .*usual\.json"):
        given(tmp_path / "usual.json")
