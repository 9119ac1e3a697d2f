"""Minutes of driving sent to a real sidecar, and what it says of drift meanwhile. No tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from monitor.v1 import drift_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from tests.promoted import Traffic, Watcher
from tests.served import PATIENCE, Sidecar

PAGE, TICKET = drift_pb2.DRIFT_SEVERITY_PAGE, drift_pb2.DRIFT_SEVERITY_TICKET
RAISED, NEW_EPOCH = drift_pb2.DRIFT_CHANGE_RAISED, drift_pb2.DRIFT_CHANGE_NEW_EPOCH
ALARM = drift_pb2.DRIFT_STATE_ALARM
QUIET = (drift_pb2.DRIFT_STATE_OK, drift_pb2.DRIFT_STATE_TOO_FEW)
TOO_SMALL = 1 / 5  # variances that are sent, over those that are true

FRAMES_A_SECOND = 10


def settings(drift: str = "", more: str = "") -> str:
    """A sidecar with the default budget; drift: further lines of [drift]."""
    return f"""
[metrics]
refresh_seconds = 0.2
[drift]
reference_seconds = 5.0
{drift}
[promotion]
mode = 'manual'
{more}
"""


@dataclass(slots=True)
class Drive(Traffic):
    """Traffic that is told in seconds of driving."""

    objects: int = 8

    @property
    def seconds(self) -> float:
        """Event time of the next frame."""
        return self.frames / FRAMES_A_SECOND

    def send(self, seconds: float = 1.0) -> None:
        """So much driving: each frame is answered whole and in order."""
        Traffic.send(self, round(seconds * FRAMES_A_SECOND))


def standing(sidecar: Sidecar, slice: str = "car", severity: int = PAGE) -> drift_pb2.DriftStanding:
    """As GetCalibration has it; all truth that came before is in it."""
    told: Iterable[drift_pb2.DriftStanding] = sidecar.calibration(slice).drift
    (found,) = (one for one in told if (one.slice, one.severity) == (slice, severity))
    return found


def drive_until_alarm(
    drive: Drive, seconds: float, slice: str = "car", severity: int = PAGE
) -> drift_pb2.DriftAlarm:
    """Traffic until there is one, which must be within so many seconds of driving."""
    end = drive.seconds + seconds
    while drive.seconds < end:
        drive.send(1.0)
        found = standing(drive.sidecar, slice, severity)
        if found.HasField("alarm"):
            assert found.state == ALARM
            return found.alarm
    raise AssertionError(f"no alarm within {seconds} s: {found}")


def acknowledge(sidecar: Sidecar, *slices: str) -> list[drift_pb2.DriftAlarm]:
    """End alarms; those that there were."""
    request = pb.AcknowledgeDriftRequest(slices=slices, actor="test")
    return list(sidecar.monitor.AcknowledgeDrift(request, timeout=PATIENCE).acknowledged)


def drift_events(watcher: Watcher, *changes: int) -> list[drift_pb2.DriftEvent]:
    """What was told of alarms, in order."""
    told = [one.event.drift for one in watcher.events if one.event.WhichOneof("event") == "drift"]
    return [one for one in told if not changes or one.change in changes]
