"""Class recalibrators in a pipeline without edges: what becomes of a detector that is too sure, not
sure enough, or well again; what is learned from, and in how much memory; and what people ask for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from monitor.frames.detections import Limits
from monitor.frames.frame import Header
from monitor.frames.slices import CLASS_PROBABILITIES, TOTAL
from monitor.pipeline.fit_rounds import FitRounds, ended_since
from monitor.pipeline.learning import CLASS_CHAIN, CLASS_SLICE, job_of
from monitor.pipeline.promotions import SCHEDULE, Promotions
from monitor.pipeline.restart import register_of, restore_register
from monitor.promotion.fits import CannotFit, NoTracksYet, fit_slices
from monitor.promotion.records import Happened, SliceFitted, TrialState
from monitor.promotion.tracks import ClassKind, ClassTrack, LabelledClasses, row_layout
from monitor.recalibration.class_scaling import Temperature
from monitor.recalibration.selection import CLASS_IDENTITY, IDENTITY, ClassSelection
from monitor.statistics.observations import finished
from monitor.store.documents import REGISTER_CODEC
from tests.alarmed import alarm
from tests.learnt import XYZ, happened, promotions_of, teach
from tests.piped import SECOND
from tests.piped_classes import HEADER, XY, opened, probabilities, recalibrating, sent
from tests.promotion.simulated_tracks import class_tracks
from tests.received import frame

LIMITS = Limits()
NAMED = {"recalibrator": "", "class_recalibrator": ""}
NAME = CLASS_CHAIN[0]


def of_classes(**promotion) -> Promotions:
    promotions = promotions_of(**promotion)
    promotions.learning.learn_classes(class_tracks(0, 1)[0].kind)
    return promotions


def drive(promotions: Promotions, some: Sequence[ClassTrack], every: int = 25) -> None:
    """Tracks, with a fit of what is due after so many."""
    for start in range(0, len(some), every):
        teach(promotions, some[start : start + every])
        if due := promotions.learning.due():
            settings = promotions.learning.settings
            job, entries = job_of(due, settings.fits, LIMITS, settings.policy)
            outcome = fit_slices(job)
            finished(promotions.begin(entries, outcome, SCHEDULE))


@pytest.mark.parametrize("seed", range(5))
def test_who_is_too_sure_is_softened_and_left_alone_when_well_again(seed):
    promotions = of_classes(mode="automatic")
    drive(promotions, class_tracks(seed, 150, 2.0))
    promoted = next(one for one in promotions.records(9) if one.what is Happened.PROMOTED)
    assert {record.slice for record in promotions.records(9)} == {NAME}
    assert promoted.factors[0].dimension == "temperature"
    active = promotions.recalibrators.class_selection
    assert active.classes == tuple("abcde")
    assert isinstance(active.recalibrator, Temperature)
    assert 1.4 < active.recalibrator.temperature < 2.4
    # Its evidence is of tracks after those it was fitted on.
    assert promoted.evidence is not None and promoted.evidence.tracks <= 100
    drive(promotions, class_tracks(seed + 100, 500, begin_ns=10**13))
    assert Happened.ROLLED_BACK in happened(promotions)
    assert promotions.recalibrators.class_selection == CLASS_IDENTITY
    assert promotions.recalibrators.selection == IDENTITY


def test_a_calibrated_detector_is_left_alone_and_one_not_sure_enough_waits_for_approval():
    healthy, unsure = of_classes(mode="automatic"), of_classes(mode="automatic")
    drive(healthy, class_tracks(1, 600))
    assert Happened.PROMOTED not in happened(healthy)
    drive(unsure, class_tracks(1, 300, 0.5))
    assert happened(unsure)[:2] == [Happened.BEGAN, Happened.PROVEN]
    assert unsure.recalibrators.class_selection == CLASS_IDENTITY
    (standing,) = unsure.trials()
    assert (standing.slice, standing.state) == (NAME, TrialState.PROVEN)
    assert "surer of its classes" in unsure.records(9)[1].reason
    record = unsure.promote(standing.version, "anna")
    assert record.after == standing.version == unsure.recalibrators.class_selection.version
    back = unsure.rollback(ClassSelection, "", "anna")
    assert back.slice == CLASS_PROBABILITIES
    assert (back.before, back.after) == (standing.version, CLASS_IDENTITY.version)


def test_tracks_since_an_alarm_of_class_probabilities_are_those_of_classes():
    promotions = of_classes()
    teach(promotions, class_tracks(1, 6))
    ended = [
        ended_since(promotions.learning, replace(alarm(slice), since_ns=0))
        for slice in (NAME, f"front, {NAME}", TOTAL, "car")
    ]
    assert ended == [6, 6, 0, 0]


def test_a_restart_goes_on_with_the_trial():
    promotions = of_classes(mode="automatic")
    drive(promotions, class_tracks(4, 25, 2.0))
    teach(promotions, class_tracks(5, 8, 2.0, begin_ns=10**12))
    (standing,) = promotions.trials()
    assert standing.state is TrialState.RUNNING and standing.evidence.tracks == 8
    state = REGISTER_CODEC.read(REGISTER_CODEC.write(register_of(promotions, NAMED)))
    again, known = promotions_of(mode="automatic"), promotions.recalibrators.known
    restore_register(again, NAMED, state, dict(known), promotions.records(9))
    assert again.trials() == promotions.trials()
    assert again.learning.class_kind == promotions.learning.class_kind
    more = class_tracks(6, 60, 2.0, begin_ns=10**13)
    teach(promotions, more)
    teach(again, more)
    assert again.records(1)[0].what is Happened.PROMOTED
    assert again.records(1)[0].after == promotions.records(1)[0].after


def test_probabilities_as_sent_and_their_labels_become_tracks_of_the_first_classes():
    pipeline = recalibrating(ClassSelection((), Temperature(3.0)))
    stream, others = (opened(pipeline, one) for one in (HEADER, Header("other", XY, ("a", "b"))))
    for number in range(3):
        stamp_ns = (1 + number) * SECOND // 2
        # One of the track has no label, and other classes come too late to be learned from.
        rows = [sent(1 + number, number, opinions=2), sent(101 + number, opinions=2)]
        rows = [replace(row, upstream_track=7) for row in rows]
        pipeline.process(stream, frame(rows, number, stamp_ns))
        other = replace(sent(1, 1, classes=2), upstream_track=7)
        pipeline.process(others, frame([other], number, stamp_ns))
    pipeline.process(stream, frame([sent(1, 1, opinions=2)], 9, 20 * SECOND))
    (track,) = finished(pipeline.learning.whole())[CLASS_SLICE]
    assert isinstance(track, ClassTrack)
    assert track.kind == pipeline.learning.class_kind == ClassKind(HEADER.classes, 2)
    expected = [np.reshape(probabilities(1 + number, 2), (2, 3)) for number in range(3)]
    np.testing.assert_allclose(track.probabilities, expected, rtol=1e-12)
    assert track.label.tolist() == [0, 1, 2]
    assert track.stamp_ns.tolist() == [SECOND // 2, SECOND, 3 * SECOND // 2]


def test_people_fit_classes_in_a_process_of_its_own_and_each_kind_by_its_own_methods():
    promotions = of_classes()
    promotions.pipeline.slices.index(XYZ, "lidar", "car")
    teach(promotions, class_tracks(8, 30, 2.0))

    async def asked(slices: Sequence[str], method: str) -> tuple[SliceFitted, ...]:
        return await FitRounds(promotions).asked(slices, method, "anna")

    for slices, method in (([NAME], "variance-scaling"), (["car"], "temperature")):
        with pytest.raises(CannotFit, match=f"method '{method}' is of "):
            asyncio.run(asked(slices, method))
    with pytest.raises(NoTracksYet):
        asyncio.run(asked([], "variance-scaling"))
    (fitted,) = asyncio.run(asked([], "temperature"))
    assert (fitted.slice, fitted.tracks) == (NAME, 30)
    assert fitted.version == promotions.trials()[0].version
    assert fitted.factors[0].typical > 1.4


def labelled(kind: ClassKind, stamp_ns: int, n: int = 1) -> LabelledClasses:
    """Rows of no track, of one frame."""
    shape = n, kind.opinions, len(kind.names)
    return LabelledClasses(
        kind=kind,
        slices=np.full(n, CLASS_SLICE),
        probabilities=np.full(shape, 1 / len(kind.names)),
        label=np.zeros(n, np.int64),
        stamp_ns=stamp_ns,
        delay_ns=0,
        tracks=None,
        source=1,
    )


def test_what_was_left_out_of_classes_stays_counted_when_others_are_learned_from():
    learning = promotions_of().learning
    first, other = ClassKind(("a", "b"), 1), ClassKind(("a", "b", "c"), 1)
    learning.take(labelled(first, 1))
    learning.take(labelled(first, 1, n=2**18))
    assert learning.left_out == 1
    learning.learn_classes(None)
    assert learning.left_out == 1
    learning.take(labelled(other, 2))
    assert (learning.class_kind, learning.left_out) == (other, 1)


@pytest.mark.parametrize("rows_per_track", [2, 32, 1024])
@pytest.mark.parametrize(("classes", "opinions"), [(2, 1), (80, 25), (256, 64), (4096, 25)])
def test_rows_of_classes_have_64_mb_in_open_and_in_kept_tracks_however_large_they_are(
    classes, opinions, rows_per_track
):
    many = {"rows_per_track": rows_per_track, "kept_tracks": 100_000, "open_tracks": 100_000}
    learning = promotions_of(fit_tracks=30, **many).learning
    learning.learn_classes(kind := ClassKind(tuple(map(str, range(classes))), opinions))
    (_, units) = learning._units
    settings, row = units.open.settings, row_layout(kind).itemsize
    assert settings.most_open * 2 * settings.rows_per_track * row <= 2**26
    assert settings.most_tracks * settings.rows_per_track * row <= 2**26
    assert units.open.most_waiting * row <= 2**26
    # Tracks enough for a fit, and a track has two rows at least.
    assert settings.most_tracks > 30 and settings.rows_per_track >= 2


def test_rows_of_too_many_bytes_are_left_out_and_counted_and_others_are_learned_from():
    learning = promotions_of().learning
    learning.take(labelled(ClassKind(tuple(map(str, range(4096))), 64), 1))
    assert (learning.class_kind, learning.left_out) == (None, 1)
    learning.take(labelled(kind := ClassKind(("a", "b"), 1), 2))
    assert (learning.class_kind, learning.left_out) == (kind, 1)


def test_with_class_identity_nothing_is_fitted_to_class_probabilities_unless_a_method_is_named():
    promotions = of_classes(mode="automatic", class_method="class-identity")
    teach(promotions, class_tracks(8, 30, 2.0))
    assert promotions.learning.due() == []
    assert not promotions.learning.is_due() and not promotions.learning.may_be_due()
    rounds = FitRounds(promotions)
    with pytest.raises(CannotFit, match="class_method is class-identity: name a method"):
        asyncio.run(rounds.asked([NAME], "", "anna"))
    with pytest.raises(NoTracksYet):
        asyncio.run(rounds.asked([], "", "anna"))
    (fitted,) = asyncio.run(rounds.asked([NAME], "temperature", "anna"))
    assert fitted.version == promotions.trials()[0].version
