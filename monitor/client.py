"""What a detector process needs to have its detections monitored and recalibrated, in one place.

See docs/degradation.md for what it gets when the sidecar is slow, hangs or is not there.
"""

from __future__ import annotations

from monitor.calibration.space import Dimension, DimensionKind, Space
from monitor.edges.answered import Answered, AnsweredTracks
from monitor.edges.credentials import Access
from monitor.edges.detector_client import MonitorClient
from monitor.edges.detector_frames import Processed, Why
from monitor.edges.detector_stream import ClientCounters
from monitor.edges.requests import OutgoingFrame
from monitor.frames import Header

__all__ = [
    "Access",
    "Answered",
    "AnsweredTracks",
    "ClientCounters",
    "Dimension",
    "DimensionKind",
    "Header",
    "MonitorClient",
    "OutgoingFrame",
    "Processed",
    "Space",
    "Why",
]
