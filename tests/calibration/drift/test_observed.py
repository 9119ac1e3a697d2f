"""Which seconds of tracks are over after which frame of a chunk."""

from __future__ import annotations

from monitor.drift.evidence import DriftSettings
from monitor.drift.observed import seconds_over
from monitor.drift.track_seconds import TrackSeconds
from tests.calibration.drift.watched_rows import Frame, watched

PERIOD_NS = 100_000_000


def second_of(begin: int, source: int = 0, frames: int = 10) -> list[Frame]:
    rows = [(source + 1, 0, 3.0, 3.0)]
    return [(source, begin * 10 * PERIOD_NS + at * PERIOD_NS, False, rows) for at in range(frames)]


def over_after(frames: list[Frame]) -> list[tuple[int, int, int]]:
    """Frame, source and second."""
    rows = watched(frames)
    blocks = TrackSeconds(DriftSettings()).take(rows)
    columns = blocks.frame.tolist(), blocks.source.tolist(), blocks.second.tolist()
    of_each = list(zip(*columns, strict=True))
    groups = [{of_each[block] for block in group.tolist()} for group in seconds_over(blocks)]
    return [alike for (alike,) in groups]


def test_a_second_is_over_with_the_first_frame_of_a_later_one():
    frames = second_of(7) + second_of(8) + second_of(20, frames=1)
    assert over_after(frames) == [(10, 0, 7), (20, 0, 8)]


def test_a_second_is_over_by_the_time_of_its_own_source():
    turns = zip(second_of(7, 0), second_of(7000, 1), strict=True)
    frames = [frame for pair in turns for frame in pair]
    frames += second_of(7001, 1, 1) + second_of(8, 0, 1)
    assert over_after(frames) == [(20, 1, 7000), (21, 0, 7)]


def test_seconds_that_are_not_over_are_not_taken():
    assert over_after(second_of(7)) == []
