"""From labelled frames to whole tracks and to fits: which frames are learned from, when a track is
whole, which tracks are of one regime, what is fitted to them and which fits are tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.frames.detections import Estimates, Limits
from monitor.frames.frame import TrackIds
from monitor.frames.space import FloatArray, plain_space
from monitor.frames.words import Objective
from monitor.promotion import fits
from monitor.promotion.decisions import stepped
from monitor.promotion.fits import FrameSample, fit_slices, latest_alike, looks_healthy
from monitor.promotion.records import FitSettings, PolicySettings, TrackSettings
from monitor.promotion.register import judge
from monitor.promotion.scored import of_space
from monitor.promotion.scored import rows_of as rows_of_tracks
from monitor.promotion.tracks import LabelledRows, OpenTracks, WholeTrack
from monitor.promotion.trial import Clip, Trial
from monitor.recalibration.fitting import FITTINGS, FitOptions, Fitting
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import IDENTITY as NOTHING
from monitor.statistics.observations import finished
from tests.promotion.fit_jobs import job_of, rows_of
from tests.promotion.owned_registers import scaled
from tests.promotion.simulated_tracks import broken
from tests.promotion.simulated_tracks import tracks as simulated

SECOND = 10**9
LIMITS, IDENTITY = Limits(), Identity()
seeds = st.integers(0, 2**32 - 1)
# Whatever the stamps are, a track that is seen at 0.1 s intervals is whole after 10 s.
SETTINGS = TrackSettings(idle_ns=SECOND, longest_ns=10 * SECOND, rows_per_track=1024)


def frame(
    stamp_ns: int,
    tracks: Sequence[int | None],
    *,
    source: int = 0,
    delay_ns: int = 0,
    number: float = 0.0,
) -> LabelledRows:
    """Rows of a frame by the track of each, None for none; truth is the number of the row, from
    `number` on, the mean its negative, the variance 1 more.
    """
    value = (number + np.arange(len(tracks)))[:, None] * np.ones(2)
    known = np.array([track is not None for track in tracks])
    return LabelledRows(
        space=plain_space(("x", "y")),
        slices=np.zeros(len(tracks), np.int64),
        sent=Estimates(-value, (1 + value)[:, :, None] * np.eye(2), known),
        truth=value,
        stamp_ns=stamp_ns,
        delay_ns=delay_ns,
        tracks=TrackIds(np.array([track or 0 for track in tracks], np.uint64), known),
        source=source,
    )


def fed(opened: OpenTracks, frames: Iterable[LabelledRows]) -> list[WholeTrack]:
    for rows in frames:
        opened.add(rows)
    return of_space(finished(opened.closed()))


def seen(track: int, start_s: float, stop_s: float, *, source: int = 0) -> list[LabelledRows]:
    """A track, every 0.1 s."""
    first, last = round(start_s * 10), round(stop_s * 10)
    return [frame(i * SECOND // 10, [track], source=source) for i in range(first, last)]


def spans(tracks: Iterable[WholeTrack]) -> list[tuple[float, float]]:
    return [(track.stamp_ns[0] / SECOND, track.ended_ns / SECOND) for track in tracks]


def sampled(sample: FrameSample, stamps: Sequence[int], source: int = 0) -> list[int]:
    """Of the stamps of frames, those it takes."""
    return [stamp for stamp in stamps if sample.takes(source, stamp)]


def test_of_each_interval_and_source_the_first_frame_is_taken_with_all_labels_of_it():
    sample = FrameSample(100)
    assert sampled(sample, range(-250, 250, 10)) == [-250, -200, -100, 0, 100, 200]
    assert sampled(sample, [310, 310, 320, 310, 410, 310, 420]) == [310, 310, 310, 410, 310]
    # A part of a frame that was left out is left out after later frames too.
    assert sampled(sample, [320, 420, 0, 10]) == [0]
    assert sampled(sample, [30, 40, 110], source=1) == [30, 110]
    # What comes after a clock is set back is taken by its own intervals.
    assert sampled(sample, [1000, 1050, 700, 750, 800, 1080]) == [1000, 700, 800]


def test_a_track_has_no_more_rows_than_are_kept_and_is_held_together():
    settings = TrackSettings()
    for rate in (3, 10, 25, 60):
        stamps = [i * SECOND // rate for i in range(-20 * rate, 20 * rate)]
        some = np.array(sampled(FrameSample(settings.sample_ns), stamps))
        ends = np.searchsorted(some, some + settings.longest_ns)
        assert (ends - np.arange(some.size)).max() <= settings.rows_per_track
    short = TrackSettings(idle_ns=SECOND, rows_per_track=2)
    near = sampled(FrameSample(short.sample_ns), range(0, 30 * SECOND, SECOND // 10))
    assert np.diff(near).max() <= SECOND // 2


def test_rows_of_no_known_track_are_a_unit_a_block():
    opened = OpenTracks(SETTINGS)
    frames = [frame(i * 2 * SECOND, [None, None, 4]) for i in range(-7, 8)]
    found = fed(opened, frames)
    blocks = [track for track in found if not track.sent.diagonal[0]]
    assert spans(blocks) == [(-14.0, -12.0), (-10.0, -2.0), (0.0, 8.0)]
    assert [track.n for track in blocks] == [4, 10, 10]
    # Where nobody tracks, it is the same.
    untracked = [replace(rows.take(slice(0, 2)), tracks=None) for rows in frames]
    assert spans(fed(OpenTracks(SETTINGS), untracked)) == spans(blocks)


def test_a_track_has_its_rows_as_they_came_by_stamp_and_the_longest_delay():
    stamps = [0.3, 0.1, 0.2, 0.9, 0.5]
    opened = OpenTracks(SETTINGS)
    frames = [
        frame(round(s * SECOND), [None, 5], number=10 * i, delay_ns=100 - i)
        for i, s in enumerate(stamps)
    ]
    track, _ = fed(opened, [*frames, frame(15 * SECOND, [6])])
    order = np.argsort(stamps)
    number = 10.0 * order + 1
    assert track.stamp_ns.tolist() == [round(stamps[i] * SECOND) for i in order]
    assert np.array_equal(track.truth, number[:, None] * [1, 1])
    assert np.array_equal(track.sent.mean, -track.truth)
    assert np.array_equal(track.sent.covariance, (1 + number)[:, None, None] * np.eye(2))
    assert track.sent.diagonal.all()
    assert track.delay_ns == 100


FRAMES = st.tuples(st.integers(0, 25), st.lists(st.integers(1, 4), min_size=1, max_size=4))


@given(st.lists(FRAMES, min_size=1, max_size=60), st.integers(1, 60))
@example([(25, [1])] * 30, 1)
def test_what_is_in_a_track_is_the_same_however_the_frames_are_taken_in(gaps, cut):
    number = count()
    opened = OpenTracks(TrackSettings(idle_ns=10, longest_ns=60, rows_per_track=1024))
    expected: list[list[float]] = []
    # By track: when its unit began and its rows, when something last came of it, what is over.
    units: dict[int, tuple[int, list[float]]] = {}
    last: dict[int, int] = {}
    over: set[int] = set()
    found: list[WholeTrack] = []
    now = 0
    for place, (gap, tracks) in enumerate(gaps):
        now += gap
        start = next(number) * 10.0
        opened.add(frame(now, tracks, number=start))
        for row, track in enumerate(tracks):
            if track in units:
                began = units[track][0]
                if now - last[track] > 10 or now - began >= 60:
                    over.add(track)
                if track in over and (now - last[track] >= 60 or now - began >= 600):
                    del units[track]
            if track not in units:
                over.discard(track)
                units[track] = now, []
                expected.append(units[track][1])
            if track not in over:
                units[track][1].append(start + row)
            last[track] = now
        if place % cut == 0:
            found += of_space(finished(opened.closed()))
    found += fed(opened, [frame(now + 1000, [99])])
    assert sorted(track.truth[:, 0].tolist() for track in found) == sorted(expected)


def test_long_tracks_are_thinned_evenly():
    settings = TrackSettings(longest_ns=10 * SECOND, rows_per_track=32)
    for rows in (33, 64, 65, 100, 1000, 4097):
        stamps = np.linspace(0, 9 * SECOND, rows).astype(int)
        opened = OpenTracks(settings)
        frames = [frame(int(stamp), [1]) for stamp in stamps]
        (track,) = fed(opened, [*frames, frame(11 * SECOND, [2])])
        gaps = np.diff(track.stamp_ns) / (stamps[-1] / 31)
        assert 20 <= track.n <= 32
        assert track.stamp_ns[0] == 0
        assert gaps.max() < 2.1, rows
        assert track.ended_ns > 0.93 * stamps[-1]


def test_tracks_of_a_source_that_fell_silent_are_whole_when_others_have_gone_on():
    opened = OpenTracks(SETTINGS)
    assert fed(opened, seen(1, 0, 2, source=1)) == []
    assert (0.0, 1.9) not in spans(fed(opened, seen(2, 2, 12.9, source=2)))
    assert (0.0, 1.9) in spans(fed(opened, seen(3, 12.9, 13.1, source=2)))


def test_a_clock_that_is_set_back_ends_what_is_open_and_begins_anew():
    opened = OpenTracks(SETTINGS)
    assert fed(opened, seen(1, 7200, 7202)) == []
    found = fed(opened, seen(2, 0, 20))
    assert spans(found)[-1] == (7200.0, 7201.9)
    start, stop = spans(found)[0]
    assert start < 2
    assert stop - start == pytest.approx(9.9)


def test_stragglers_neither_end_nor_join_nor_begin_anything():
    opened = OpenTracks(SETTINGS)
    stragglers = [*seen(1, 20, 20.5), *seen(8, 50, 50.5), *seen(9, 102, 102.3)]
    assert fed(opened, [*seen(1, 100, 105), *stragglers]) == []
    assert spans(fed(opened, [*seen(1, 105, 106), *seen(2, 108, 109)])) == [(100.0, 105.9)]


def test_further_tracks_are_left_out_for_good_and_counted():
    opened = OpenTracks(TrackSettings(most_open=3))
    assert fed(opened, [frame(i * SECOND // 10, [1, 2, 3, 4, 5]) for i in range(5)]) == []
    assert opened.left_out == 2
    assert len(fed(opened, [frame(2 * SECOND, [4, 6])])) == 3
    (only,) = fed(opened, [frame(40 * SECOND, [7])])
    assert only.n == 1
    assert opened.left_out == 2


def test_frames_that_come_too_fast_do_not_wait_and_are_counted():
    opened = OpenTracks(SETTINGS, most_waiting=5)
    assert fed(opened, [frame(i, [1, 2]) for i in range(10)]) == []
    assert opened.left_out == 8
    assert [track.n for track in fed(opened, [frame(9 * SECOND, [3])])] == [2, 2]


def said(some: Sequence[WholeTrack], candidate: VarianceScaling, clip: Clip) -> float:
    """What they say in a trial, together."""
    return Trial("car", candidate, 1, clip).taken(some, IDENTITY, LIMITS).bets.total


@given(seeds, st.integers(1, 32), st.sampled_from([0.7, 1.1, 1.5, 3.0]))
def test_to_break_a_track_changes_nothing_of_what_it_says(seed, length, factor):
    (track,) = simulated(seed, 1, length=length)
    candidate = VarianceScaling((factor**0.5,) * 3)
    # More than any row of these says: nothing is clipped.
    clip = Clip(1e3, 1e3, 1e3, rows=32.0)
    pieces = broken(np.random.default_rng(seed), track, 32)
    assert said(pieces, candidate, clip) == pytest.approx(said([track], candidate, clip), abs=1e-9)


def changed(seed: int, factor: float, *spans: tuple[int, int], length: int = 20) -> int:
    """Of 400 tracks with t5 errors, where those between so many ago have another variance."""
    scale: FloatArray = np.ones((400, 1))
    for before, until in spans:
        scale[400 - before : 400 - until] = factor
    found = simulated(seed, 400, 3, length, scale=np.repeat(scale, 3, axis=1), degrees=5)
    return latest_alike(found, 10)


@pytest.mark.parametrize("length", [1, 20])
def test_tracks_of_one_regime_are_all_kept(length):
    kept = np.array([changed(seed, 1.0, length=length) for seed in range(60)])
    assert np.mean(kept == 400) >= 0.93


@pytest.mark.parametrize(
    ("factor", "spans", "least", "most", "median"),
    [
        (5.0, [(20, 0)], 10, 30, 20),
        (0.2, [(20, 0)], 10, 30, 20),
        (2.25, [(40, 0)], 10, 80, 40),
        (1 / 2.25, [(40, 0)], 10, 80, 40),
        # A fault that came and went, and one within the fewest.
        (5.0, [(90, 30)], 10, 40, 30),
        (5.0, [(9, 0)], 10, 12, 10),
    ],
)
def test_what_was_before_a_change_is_not_kept(factor, spans, least, most, median):
    kept = np.array([changed(seed, factor, *spans) for seed in range(20)])
    assert kept.min() >= least
    assert np.mean(kept <= most) >= 0.95
    assert np.median(kept) == pytest.approx(median, abs=2)


POLICY = PolicySettings()
SENT = rows_of_tracks(simulated(0, 1))
# As of a clock that counts from 1970: as a float it would be known to 256 ns.


@pytest.mark.parametrize("method", ["variance-scaling", "covariance-scaling"])
@pytest.mark.parametrize("per_track", [1, 40])
def test_few_tracks_are_drawn_towards_nothing_wrong_and_towards_one_factor(method, per_track):
    rows = rows_of(4, tracks=3, per_track=per_track, factor=2.0, alike=True)
    # Of one object all errors are the same: its rows are worth one, however many they are.
    alone = fit_slices(job_of(method, {"car": rows}, prior_tracks=1e-9)).fitted["car"]
    drawn = fit_slices(job_of(method, {"car": rows}, prior_tracks=3.0)).fitted["car"]
    alone_log, drawn_log = (np.log(one.parameters()["scale"]) for one in (alone, drawn))
    # 3 tracks against 3, and then against 20.
    own = 3 / 23
    np.testing.assert_allclose(
        drawn_log.mean(), (own + (1 - own) / 2) * alone_log.mean(), rtol=0.05
    )
    free = np.log(FITTINGS[method].fit(rows, FitOptions(), None).parameters()["scale"])
    np.testing.assert_allclose(drawn_log - drawn_log.mean(), own * (free - free.mean()), atol=0.01)


def test_a_slice_whose_rows_determine_nothing_is_refused_in_the_words_of_the_method():
    perfect = rows_of(1)
    perfect.error[:, 1] = 0.0
    outcome = fit_slices(job_of("variance-scaling", {"car": perfect, "van": rows_of(2)}))
    assert list(outcome.fitted) == ["van"]
    assert outcome.refused["car"].startswith("dimension 'd1' has no error in ")


@pytest.mark.parametrize("error", [MemoryError("no room"), np.linalg.LinAlgError("no room")])
def test_a_method_that_fails_on_one_slice_refuses_that_slice_alone(monkeypatch, error):
    unlucky = rows_of(1)

    def fails(rows, prior):
        if rows is unlucky:
            raise error
        return FITTINGS["variance-scaling"].fit(rows, FitOptions(), prior)

    fitting = Fitting(fails, borrows=True)
    monkeypatch.setattr(fits, "FITTINGS", {"variance-scaling": fitting})
    outcome = fit_slices(job_of("variance-scaling", {"car": unlucky, "van": rows_of(2)}))
    assert list(outcome.fitted) == ["van"]
    said = f"variance-scaling failed: {type(error).__name__}: no room"
    assert outcome.refused == {"car": said}


@pytest.mark.parametrize(
    ("factor", "settings", "healthy"),
    [
        (1.1, FitSettings("variance-scaling"), True),
        (2.0, FitSettings("variance-scaling"), False),
        (0.5, FitSettings("variance-scaling"), False),
        # Of methods whose factors are not the mean nothing is sure.
        (1.0, FitSettings("gp-normal"), False),
        (1.0, FitSettings("variance-scaling", Objective.QUANTILE), False),
    ],
)
def test_health_is_told_by_the_mean_square_of_every_dimension(factor, settings, healthy):
    assert looks_healthy(rows_of(1, tracks=100, factor=factor), settings, POLICY) == healthy


@pytest.mark.parametrize(
    ("factors", "champion", "candidate", "words"),
    [
        ((3.0, 1.2, 0.9), None, (3.0, 1.2, 0.9), "factors on the variance: x 3, y 1.2, z 0.9"),
        # A healthy detector is left alone, and a single factor beyond the band is reason enough.
        ((1.99, 0.51, 1.5), None, None, "lies within 0.5 … 2: x 1.99, y 0.51, z 1.5; nothing to"),
        ((2.01, 1.0, 1.0), None, (2.01, 1.0, 1.0), "factors on the variance: x 2.01"),
        ((1.0, 1.0, 0.49), None, (1.0, 1.0, 0.49), "z 0.49"),
        # One that is healthy again goes home, whatever serves it now.
        ((1.1, 0.9, 1.3), (4.0, 4.0, 4.0), (), "x 1.1, y 0.9, z 1.3; back to what is sent"),
        # A step that changes next to nothing is none.
        ((3.2, 3.0, 2.8), (3.0, 3.0, 3.0), None, "none changes by more than 1.1"),
        ((3.4, 3.0, 3.0), (3.0, 3.0, 3.0), (3.4, 3.0, 3.0), "factors on the variance"),
    ],
)
def test_a_fault_is_corrected_and_a_healthy_detector_is_left_alone(
    factors, champion, candidate, words
):
    serving = scaled(*champion) if champion else IDENTITY
    judgement = judge(scaled(*factors), serving, SENT, POLICY)
    expected = scaled(*candidate) if candidate else IDENTITY
    assert judgement.candidate == (None if candidate is None else expected)
    assert words in judgement.reason
    assert [factor.typical for factor in judgement.factors] == pytest.approx(factors)


TWICE, THRICE = VarianceScaling((2.0, 2.0)), VarianceScaling((3.0, 3.0))
XY = ("x", "y")


def test_a_step_gives_one_slice_a_recalibrator_and_leaves_the_others_theirs():
    first = stepped(NOTHING, XY, ("car",), TWICE)
    assert (first.dimensions, first.of(("car",)), first.of(("van",))) == (XY, TWICE, Identity())
    second = stepped(first, XY, ("van",), THRICE)
    assert (second.of(("car",)), second.of(("van",))) == (TWICE, THRICE)

    # The way back leads to the very version that was left.
    assert stepped(second, XY, ("van",), Identity()).version == first.version
    assert stepped(first, XY, ("car",), Identity()) == NOTHING
