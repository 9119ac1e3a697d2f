"""What truth teaches: which slices have recalibrators of their own, what is due to be fitted, and
which truth has a say.
"""

from dataclasses import replace

import numpy as np
import pytest

from monitor.frames.detections import Estimates
from monitor.frames.frame import TrackIds
from monitor.frames.space import plain_space
from monitor.pipeline.learning import LabelledTracks, job_of
from monitor.pipeline.recalibrators import Recalibrators
from monitor.promotion.fits import FitOutcome
from monitor.promotion.tracks import LabelledRows, WholeTrack
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import Selection
from monitor.statistics.observations import finished
from tests.learnt import XYZ, begin, known, promoted, promotions_of, teach, to_fit
from tests.promotion.owned_registers import scaled
from tests.promotion.simulated_tracks import tracks

UV = plain_space(("u", "v"), "px")
SECOND = 10**9


def learning_of(*slices: str, **promotion) -> LabelledTracks:
    learning: LabelledTracks = promotions_of(*slices, **promotion).learning
    return learning


def frame(number: int, seen: dict[int, int], source: int = 0) -> LabelledRows:
    """At number × 0.5 s, of tracks by their slice."""
    n = len(seen)
    random = np.random.default_rng(number)
    truth = random.normal(size=(n, 3))
    covariance = np.broadcast_to(np.eye(3), (n, 3, 3)).copy()
    sent = Estimates(truth + random.normal(size=(n, 3)), covariance, np.ones(n, bool))
    ids = TrackIds(np.array(list(seen), np.uint64), np.ones(n, bool))
    slices, stamp_ns = np.array(list(seen.values())), number * SECOND // 2
    return LabelledRows(XYZ, slices, sent, truth, stamp_ns, 0, ids, source)


# ---- tracks


def test_frames_become_whole_tracks_by_slice_and_are_kept():
    learning = learning_of("car", "bus")
    for number in range(8):
        learning.take(frame(number, {1: 0, 2: 1, 3: 0}))
    assert finished(learning.whole()) == {}
    assert learning.latest_ns is None
    for number in range(8, 14):
        learning.take(frame(number, {4: 0}))
    found = finished(learning.whole())
    assert {slice: [track.n for track in of] for slice, of in found.items()} == {0: [8, 8], 1: [8]}
    assert learning.latest_ns == 7 * SECOND // 2
    assert learning.reservoir.tracks(0) == tuple(found[0])
    assert finished(learning.whole()) == {}


def test_the_latest_truth_never_goes_back():
    learning = learning_of("car")
    for number in [*range(100, 114), *range(8), *range(20, 34)]:
        # Of two streams, one of which is behind.
        source = int(number < 100)
        learning.take(frame(number, {number // 10: 0}, source))
        finished(learning.whole())
    assert learning.latest_ns == 109 * SECOND // 2
    assert min(track.ended_ns for track in learning.reservoir.tracks(0)) < 50 * SECOND


def test_deciding_takes_what_it_is_given():
    learning = learning_of("car", "bus")
    given = {0: tracks(0, 3), 1: tracks(1, 3, slice=1)}
    assert finished(learning.decide(given)) == []
    assert given == {}


# ---- slices


def test_a_slice_with_a_name_of_its_own_can_have_a_recalibrator():
    assert learning_of("car", "bus").chains() == {"car": ("car",), "bus": ("bus",)}


def test_what_overflows_cannot_have_one():
    promotions = promotions_of()
    slices = promotions.learning.slices
    slices.limit = 1
    assert slices.index(XYZ, "lidar", "car") == 0
    over = slices.index(XYZ, "lidar", "bus")
    assert slices.slices[over].overflow
    assert promotions.learning.chain(over) is None
    assert list(promotions.learning.chains()) == ["car"]
    teach(promotions, tracks(0, 20, slice=over))
    assert promotions.learning.due() == []


def test_of_two_spaces_with_one_name_the_first_has_it():
    promotions = promotions_of("car")
    second = promotions.learning.slices.index(UV, "camera", "car")
    assert second == 1
    assert promotions.learning.chain(0) == ("car",)
    assert promotions.learning.chain(1) is None


def test_a_slice_of_other_dimensions_than_what_is_in_force_cannot_have_one():
    promotions = promotions_of("car")
    promotions.learning.slices.index(UV, "camera", "sign")
    assert set(promotions.learning.chains()) == {"car", "sign"}
    (version,) = known(promotions, Selection(("u", "v"), VarianceScaling((2.0, 2.0))))
    promotions.promote(version, "anna")
    assert promotions.learning.chains() == {"sign": ("sign",)}
    assert promotions.learning.spaces() == {("sign",): UV}


def test_the_champion_of_a_slice_is_that_of_its_finest_name():
    learning = learning_of("car")
    selection = Selection(XYZ.names, scaled(2.0), {"car": scaled(3.0)})
    served = LabelledTracks(
        learning.settings, learning.limits, learning.slices, Recalibrators(selection)
    )
    assert served.champion(("lidar/car", "car")) == scaled(3.0)
    assert served.champion(("bus",)) == scaled(2.0)


# ---- fits


def test_a_slice_is_due_when_it_has_enough_new_tracks():
    promotions = promotions_of("car", "bus")
    learning = promotions.learning
    teach(promotions, [*tracks(0, 9), *tracks(1, 10, slice=1)])
    (due,) = learning.due()
    assert due.chain == ("bus",)
    assert len(due.tracks) == 10
    assert due.until == {0: due.tracks[-1].ended_ns}
    assert learning.due() == []
    teach(promotions, [*tracks(2, 1), *tracks(3, 9, slice=1)])
    (due,) = learning.due()
    assert (due.chain, len(due.tracks)) == (("car",), 10)


def test_nothing_is_due_where_it_would_lead_to_nothing():
    manual = promotions_of("car", mode="manual")
    teach(manual, tracks(0, 50))
    assert manual.learning.due() == []
    promotions = promotions_of("car")
    begin(promotions, scaled(4.0))
    teach(promotions, tracks(0, 20, scale=1.8))
    assert promotions.learning.due() == []
    promotions.pin(pinned=True, actor="anna")
    assert promotions.learning.due() == []


def test_what_is_asked_for_needs_no_new_tracks_and_no_leave():
    promotions = promotions_of("car", "bus", "tram", mode="manual")
    learning = promotions.learning
    teach(promotions, [*tracks(0, 3), *tracks(1, 4, slice=1)])
    for _ in range(2):
        assert [entry.chain[0] for entry in learning.asked(())] == ["car", "bus"]
    assert [entry.chain[0] for entry in learning.asked(["bus", "tram"])] == ["bus"]
    assert learning.asked(["tram"]) == []


def test_the_time_until_which_a_fit_knows_truth_is_told_apart_by_source():
    promotions = promotions_of("car")
    ours = [replace(track, source=1) for track in tracks(0, 5)]
    theirs = [replace(track, source=2) for track in tracks(1, 5, begin_ns=10**12)]
    teach(promotions, [*ours, *theirs])
    (asked,) = promotions.learning.asked(())
    assert asked.until == {1: ours[-1].ended_ns, 2: theirs[-1].ended_ns}


def test_what_is_forgotten_is_not_fitted_on():
    promotions = promotions_of("car", "bus")
    some = tracks(0, 10)
    teach(promotions, [*some, *tracks(1, 10, slice=1)])
    promotions.learning.forget(("car",), 3)
    car, bus = promotions.learning.asked(())
    assert list(car.tracks) == some[7:]
    assert len(bus.tracks) == 10
    promotions.learning.forget(("car",), 0)
    assert [entry.chain[0] for entry in promotions.learning.asked(())] == ["bus"]


def test_a_job_has_the_newest_tracks_that_are_alike_of_every_slice():
    promotions = promotions_of("car", "bus")
    scale = np.repeat([1.0, 16.0], 100)[:, None] * np.ones(3)
    teach(promotions, [*tracks(0, 200, scale=scale), *tracks(1, 40, slice=1)])
    settings, limits = promotions.learning.settings.fits, promotions.learning.limits
    job, entries = job_of(promotions.learning.asked(()), settings, limits)
    assert job.settings is settings
    assert list(job.slices) == ["car", "bus"]
    assert [len(entry.tracks) for entry in entries] == [pytest.approx(100, abs=5), 40]
    for entry in entries:
        rows = job.slices[entry.chain[0]]
        assert rows.error.shape[0] == sum(track.n for track in entry.tracks)
        assert len(np.unique(rows.track)) == len(entry.tracks)


# ---- what has a say


def outcome_of(**by_slice: float) -> FitOutcome:
    return FitOutcome({name: scaled(factor) for name, factor in by_slice.items()}, {})


def say(promotions) -> dict[str, int]:
    return {one.slice: one.evidence.tracks for one in promotions.trials()}


def of_source(some: list[WholeTrack], source: int) -> list[WholeTrack]:
    return [replace(track, source=source) for track in some]


def test_tracks_that_the_fit_knew_have_no_say_in_its_trial():
    promotions = promotions_of("car")
    some = tracks(0, 30, scale=1.8)
    entry = replace(to_fit(promotions), until={0: some[9].ended_ns})
    finished(promotions.begin([entry], outcome_of(car=4.0), "schedule"))
    teach(promotions, some)
    assert say(promotions) == {"car": 20}


def test_of_a_track_that_the_fit_knew_in_part_the_rest_has_a_say():
    promotions = promotions_of("car")
    (track,) = tracks(0, 1)
    entry = replace(to_fit(promotions), until={0: int(track.stamp_ns[30])})
    finished(promotions.begin([entry], outcome_of(car=4.0), "schedule"))
    before = track.since(int(track.stamp_ns[30]))
    teach(promotions, [track])
    other = promotions_of("car")
    begin(other, scaled(4.0))
    assert before is not None
    teach(other, [before])
    assert say(promotions) == {"car": 1}
    assert promotions.trials()[0].evidence == other.trials()[0].evidence


def test_a_source_that_is_behind_the_others_is_not_taken_for_known():
    promotions = promotions_of("car")
    ahead = of_source(tracks(0, 10, begin_ns=10**13), 1)
    teach(promotions, ahead)
    (entry,) = promotions.learning.asked(())
    finished(promotions.begin([entry], outcome_of(car=4.0), "schedule"))
    teach(promotions, of_source(tracks(1, 12, scale=1.8), 2))
    assert say(promotions) == {"car": 12}


def test_what_was_before_a_promotion_does_not_count_for_the_guard():
    promotions = promotions_of("car")
    some = tracks(0, 60)
    teach(promotions, some[:20])
    promoted(promotions, 4.0)
    teach(promotions, some[:20])
    assert say(promotions) == {}
    teach(promotions, some[20:40])
    assert say(promotions)["car"] == 20
