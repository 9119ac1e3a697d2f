"""A sidecar's status, and how far stamps are from the clock."""

from types import SimpleNamespace
from typing import cast

from monitor import __version__
from monitor.config import Reloads
from monitor.frames.frame import Header
from monitor.frames.status import Status, StreamStatus, TrackerStatus
from monitor.pipeline.external_tracker import ExternalTracker
from monitor.pipeline.streams import Seen
from monitor.service.admin import status
from monitor.service.http import stamp_lag
from monitor.wire.values import value_of
from tests.piped import CLASSES, SECOND, XYZ, opened, pipeline_of


def test_a_sidecar_tells_all_that_it_knows_of_itself():
    stream = opened(pipeline_of())
    stream.seen.frame(5, 40, 1_000)
    stream.seen.frame(2, None, 1_300)
    stream.seen.labels(0, 1_500)  # none matched: these are no labels
    assert (stream.seen.matched, stream.seen.matched_ns) == (0, None)
    stream.seen.labels(2, 2_000)
    stream.seen.labels(3, 2_100)
    away = SimpleNamespace(config=SimpleNamespace(address="[::1]:9"), up=False, trouble="gone")
    reloads = Reloads("/etc/monitor.toml", waiting=("log.format",), refused="no TOML")
    told = status([stream], cast(ExternalTracker, away), reloads, 7, 10_500, 500)
    assert value_of(Status, told) == Status(
        version=__version__,
        started_ns=7,
        now_ns=10_500,
        streams=(StreamStatus("lidar", 2, 7, 40, 11_000, 11_300, 5, 12_100),),
        tracker=TrackerStatus("[::1]:9", up=False, trouble="gone"),
        configuration="/etc/monitor.toml",
        waiting_keys=("log.format",),
        configuration_refused="no TOML",
    )


# The wall clock, and the one that never moves back, at one moment.
WALL, MONOTONIC = 1_760_000_000 * SECOND, 500 * SECOND


def lag(*came: tuple[int | None, int] | None) -> dict[str, float]:
    """Returns the lag of streams of which each had one frame, or none: its stamp, its arrival."""
    pipeline, streams = pipeline_of(), []
    for number, one in enumerate(came):
        stream = opened(pipeline, Header(str(number), XYZ, CLASSES))
        stream.seen = Seen()
        if one is not None:
            stream.seen.frame(3, *one)
        streams.append(stream)
    return stamp_lag(streams, WALL, MONOTONIC)


def test_the_lag_is_that_of_arrival_not_that_of_now_and_of_streams_the_least_and_the_most():
    # It came 5 s ago, when the wall clock read WALL - 5 s, and was captured 0.25 s before.
    late = (WALL - 5 * SECOND - SECOND // 4, MONOTONIC - 5 * SECOND)
    assert lag(late) == {"least": 0.25, "most": 0.25}
    ahead = (WALL + 3600 * SECOND, MONOTONIC)
    assert lag(late, ahead) == {"least": -3600.0, "most": 0.25}


def test_streams_without_stamps_and_silent_ones_say_nothing_of_clocks():
    silent = (0, MONOTONIC - 60 * SECOND)
    assert lag(silent, (None, MONOTONIC), None) == {}
    assert lag((0, MONOTONIC - 60 * SECOND + 1)) != {}
