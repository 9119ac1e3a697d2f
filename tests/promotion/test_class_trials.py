"""Class recalibrators on trial: how rows are scored, what no truth takes, what chance proves, and
what becomes of a detector that is too sure, not sure enough, or well again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from monitor.frames.detections import Limits
from monitor.frames.frame import Header
from monitor.pipeline.fit_process import job_pieces, outcome_bytes, read_job, read_outcome
from monitor.pipeline.fit_rounds import FitRounds
from monitor.pipeline.learning import CLASS_CHAIN, CLASS_SLICE, job_of
from monitor.pipeline.promotions import SCHEDULE, Promotions
from monitor.pipeline.restart import register_of, restore_register
from monitor.promotion.fits import CannotFit, FitOutcome, NoTracksYet, fit_slices
from monitor.promotion.records import Happened, PolicySettings, SliceFitted, TrialState
from monitor.promotion.register import judge
from monitor.promotion.scored import ClassTrackRows, most_lost, rows_of
from monitor.promotion.tracks import ClassKind, ClassTrack
from monitor.promotion.trial import LEFT, STAKES, Clip, clip_of
from monitor.recalibration.class_probabilities import (
    ClassIdentity,
    ClassRecalibrator,
    from_probabilities,
)
from monitor.recalibration.class_scaling import Temperature, VectorScaling
from monitor.recalibration.selection import CLASS_IDENTITY, IDENTITY, ClassSelection
from monitor.statistics.observations import finished
from monitor.store.documents import REGISTER_CODEC
from tests.learnt import XYZ, promotions_of, teach
from tests.piped import SECOND
from tests.piped_classes import HEADER, XY, opened, probabilities, recalibrating, sent
from tests.promotion.simulated_tracks import class_tracks
from tests.received import frame

LIMITS, HOME = Limits(), ClassIdentity()
NAMED = {"recalibrator": "", "class_recalibrator": ""}
NAME = CLASS_CHAIN[0]


def clip_between(candidate: ClassRecalibrator, champion: ClassRecalibrator) -> Clip:
    return clip_of(candidate, champion, rows_of(class_tracks(0, 5)), 1.0)


# ---- scores and their bounds


def test_differences_are_means_over_each_track_of_the_log_of_the_true_class():
    def score(track: ClassTrack, temperature: float) -> float:
        found = []
        for opinions, label in zip(track.probabilities, track.label, strict=True):
            powers = [[p ** (1 / temperature) for p in opinion] for opinion in opinions.tolist()]
            found.append(np.mean([opinion[label] / sum(opinion) for opinion in powers]))
        return float(np.mean(np.log(found)))

    some = class_tracks(1, 4, 1.7, opinions=3, wrong=0.1)
    rows = rows_of(some)
    found, unsound = rows.differences(Temperature(2.5), Temperature(0.8), LIMITS)
    expected = [score(track, 2.5) - score(track, 0.8) for track in some]
    assert not unsound
    np.testing.assert_allclose(found, expected, rtol=1e-9)


simplex = st.integers(2, 6).flatmap(
    lambda classes: arrays(np.float64, (1, 3, classes), elements=st.floats(1e-12, 1))
)


@given(simplex, st.floats(1, 50), st.floats(0.1, 10))
def test_no_truth_takes_more_of_a_softening_step_than_its_bound(raw, t, champion):
    p = raw / raw.sum(axis=2, keepdims=True)
    classes = p.shape[2]
    bound = most_lost(t, classes)
    assert bound <= (1 - 1 / t) * math.log(classes) + 1e-9
    kind = ClassKind(tuple("abcdef"[:classes]), 3)
    for label in range(classes):
        rows = ClassTrackRows(kind, from_probabilities(p), np.array([label]), np.zeros(1, np.int64))
        (lost,), _ = rows.differences(Temperature(champion), Temperature(t * champion), LIMITS)
        assert lost <= bound + 1e-9


@given(st.integers(2, 50), st.floats(1.01, 20))
def test_the_bound_is_reached_where_the_other_classes_are_equal(classes, t):
    true = np.linspace(1e-6, 1 - 1e-6, 20_001)
    other = (1 - true) / (classes - 1)
    tempered = true ** (1 / t) / (true ** (1 / t) + (classes - 1) * other ** (1 / t))
    assert np.log(true / tempered).max() == pytest.approx(most_lost(t, classes), rel=1e-5)


def test_a_step_is_bounded_by_its_temperatures_and_without_them_by_nothing():
    most = math.log(5)
    softer, sharper = clip_between(Temperature(3.0), Temperature(1.5)), most_lost(2.0, 5)
    assert (softer.loss, softer.gain, softer.most) == (sharper, most, most)
    back = clip_between(Temperature(1.0), Temperature(2.0))
    assert (back.loss, back.gain) == (most, sharper)
    vector = clip_between(VectorScaling((1.0,) * 5, (0.0,) * 5), HOME)
    assert (vector.loss, vector.gain) == (most, most)
    assert all(clip.insured(0) for clip in (softer, back, vector))


@given(
    st.integers(2, 6).flatmap(
        lambda classes: arrays(np.float64, (2, 2, classes), elements=st.floats(1e-9, 1))
    ),
    st.floats(0.01, 1),
)
def test_beside_a_calibrated_champion_no_stake_gains_whatever_the_candidate(raw, share):
    """Of a row, and of two rows that have the same true class always: the most alike there are."""
    p, q = raw / raw.sum(axis=2, keepdims=True)
    clip, shares = Clip(1.6, 1.6, 1.6, tails=False), np.full(p.shape[1], share)
    one = np.log(q / p)
    said = clip.said(one[0], shares)
    assert np.all(p[0] @ clip.multiples(said, shares, clip.loss) <= 1 + 1e-12)
    # Rows with other probabilities, of which each is right by itself.
    calibrated = np.repeat(p[:1], 2, axis=0)
    both = np.log(q / calibrated).mean(axis=0)
    found = calibrated[0] @ clip.multiples(clip.said(both, shares), shares, clip.loss)
    assert np.all(found <= 1 + 1e-12)
    assert max(STAKES) <= 1 - LEFT


class Spoilt(ClassRecalibrator):
    """Doubles the temperature, and makes no probabilities of row 3."""

    method = "spoilt"

    def apply(self, log_probabilities):
        made = Temperature(2.0).apply(log_probabilities)
        made[3, :, 1] = np.nan
        return made


def test_a_candidate_that_spoils_a_row_is_not_sound_and_of_a_champion_that_row_counts_as_sent():
    rows = rows_of(class_tracks(2, 3))
    found, unsound = rows.differences(Spoilt(), HOME, LIMITS)
    assert unsound == f"made what are no probabilities, of 1 of {rows.n} detections"
    assert found.tolist() == [0.0] * 3
    found, unsound = rows.differences(HOME, Spoilt(), LIMITS)
    sent, label = np.exp(rows.log_probabilities), (np.arange(rows.n), rows.label)
    served = Temperature(2.0).apply(rows.log_probabilities).mean(axis=1)
    served[3] = sent.mean(axis=1)[3]
    gain = np.log(sent.mean(axis=1)[label] / served[label])
    np.testing.assert_allclose(found, rows.means(gain), rtol=1e-9)
    assert unsound == "" and np.all(found != 0)


@pytest.mark.parametrize(
    ("fitted", "champion", "candidate", "shrinks", "words"),
    [
        (2.0, 1.0, 2.0, False, "fitted: temperature 2"),
        (0.5, 1.0, 0.5, True, "fitted: temperature 0.5"),
        (1.24, 1.0, None, False, "lies within 0.8 … 1.25: temperature 1.24; nothing to correct"),
        (0.9, 2.0, 1.0, True, "temperature 0.9; back to what is sent"),
        (2.1, 2.0, None, False, "none changes by more than 1.1"),
        (1.5, 2.0, 1.5, True, "temperature 1.5"),
    ],
)
def test_what_is_tried_of_a_temperature(fitted, champion, candidate, shrinks, words):
    rows = rows_of(class_tracks(3, 2))
    serving = HOME if champion == 1.0 else Temperature(champion)
    found = judge(Temperature(fitted), serving, rows, PolicySettings())
    expected = None if candidate is None else HOME if candidate == 1.0 else Temperature(candidate)
    assert (found.candidate, found.shrinks) == (expected, shrinks)
    assert words in found.reason
    assert [factor.typical for factor in found.factors] == [fitted]


# ---- a sidecar


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


def happened(promotions: Promotions) -> list[Happened]:
    return [record.what for record in promotions.records(1000)]


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
    assert (back.before, back.after) == (standing.version, CLASS_IDENTITY.version)


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


def test_a_job_and_its_outcome_go_to_and_fro_beside_one_of_estimates():
    promotions = of_classes()
    teach(promotions, class_tracks(7, 30, 2.0, opinions=1))
    settings = promotions.learning.settings.fits
    job, (entry,) = job_of(promotions.learning.asked([NAME]), settings, LIMITS)
    assert entry.chain == CLASS_CHAIN
    again = read_job(b"".join(job_pieces(job)))
    ours, theirs = job.slices[NAME], again.slices[NAME]
    for name in ("log_probabilities", "label", "track"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    outcome = fit_slices(again)
    assert read_outcome(outcome_bytes(outcome), job) == outcome
    other = FitOutcome({NAME: VectorScaling((1.0,) * 5, (0.0,) * 5)}, {})
    with pytest.raises(ValueError, match="a vector-scaling of 5 classes: a temperature of 5"):
        read_outcome(outcome_bytes(other), job)
