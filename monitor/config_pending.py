"""How long detections wait for their truth, and where."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from monitor.config_section import Section


class PendingConfig(Section):
    """How long detections wait for their truth."""

    max_bytes: PositiveInt = 256 * 2**20  # bytes in memory; the oldest frames are dropped first
    # s; how far the watermark stays behind.
    max_disorder_seconds: Annotated[float, Field(ge=0, le=3600)] = 2.0
    # Of frames and labels on disk, in the working directory; empty: in memory alone.
    folder: str = "calibration-monitor.pending"
    disk_bytes: PositiveInt = 2 * 2**30  # bytes on disk; the oldest partition is dropped first
    keep_hours: PositiveFloat = 24.0  # h of event time that a partition is kept, at most
    partition_minutes: Annotated[float, Field(ge=0.1, le=1440)] = 1.0  # of event time in one file
    # Of frames without truth of their own, one in so many goes to the disk, by its frame_id.
    keep_one_frame_in: PositiveInt = 1
    sync_frames: bool = False  # True: fsync for frames too, not for labels alone
    queue_frames: PositiveInt = 2048  # that wait for the disk; beyond it they stay in memory
