"""A recording as the frames its detectors sent: one stream a sequence, no frame left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from monitor.calibration.matched import TrackIds
from monitor.calibration.space import BoolArray, FloatArray, IntArray
from monitor.edges.files import NO_TRACK, Recording
from monitor.edges.requests import OutgoingFrame
from monitor.frames import Header

# Rows in a frame where the file does not say which rows belong together.
ROWS_WITHOUT_FRAMES = 200
# Seconds between frames where the file has no times.
PERIOD = 0.1


@dataclass(frozen=True, slots=True)
class PlayedFrame:
    """A frame with its truth.

    labelled  positions of the detections with truth; truth (m, K)
    objects   (m,) whose truth it is, as the file numbers them; None where it does not
    ignore    (N,) which detections are neither true nor false
    """

    frame: OutgoingFrame
    time_s: float
    labelled: IntArray
    truth: FloatArray
    objects: TrackIds | None
    ignore: BoolArray


@dataclass(frozen=True, slots=True)
class Sequence:
    """One sequence of a recording: the rows of each frame, from frame 0 to its last."""

    name: str
    recording: Recording
    header: Header
    rows: IntArray
    frame_of_row: IntArray
    times: FloatArray

    @property
    def frames(self) -> int:
        """Number of frames, empty ones included."""
        return int(self.times.size)

    def play(self) -> Iterator[PlayedFrame]:
        """The frames in order."""
        recording, rows = self.recording, self.rows
        class_index, mean = recording.class_index[rows], recording.mean[rows]
        covariance, truth = recording.covariance[rows], recording.truth[rows]
        if recording.diagonal:
            covariance = np.diagonal(covariance, axis1=1, axis2=2)
        score = None if recording.score is None else recording.score[rows]
        ignore = np.zeros(rows.size, bool) if recording.ignore is None else recording.ignore[rows]
        objects = None if recording.track is None else _objects(recording.track[rows])
        has_truth = np.isfinite(truth[:, 0])
        ends = np.searchsorted(self.frame_of_row, np.arange(self.frames), side="right").tolist()
        begin = 0
        for number, (end, time_s) in enumerate(zip(ends, self.times.tolist(), strict=True)):
            here = slice(begin, end)
            labelled = np.flatnonzero(has_truth[here])
            frame = OutgoingFrame(
                frame_id=number,
                stamp_ns=round(time_s * 1e9),
                id=np.arange(end - begin, dtype=np.uint64),
                class_index=class_index[here],
                mean=mean[here],
                covariance=covariance[here],
                score=None if score is None else score[here],
            )
            rows_labelled = begin + labelled
            yield PlayedFrame(
                frame,
                time_s,
                labelled,
                truth[rows_labelled],
                None if objects is None else objects.take(rows_labelled),
                ignore[here],
            )
            begin = end


def _objects(track: IntArray) -> TrackIds:
    """Different ids for different tracks, negative ones too."""
    return TrackIds(track.astype(np.uint64), track != NO_TRACK)


def sequences(recording: Recording, prefix: str) -> list[Sequence]:
    """The sequences of a recording; their streams are named after them, behind the prefix.

    Raises ValueError where the frame numbers cannot be played.
    """
    found = []
    for i, name in enumerate(recording.sequences):
        rows = np.flatnonzero(recording.sequence_index == i)
        if recording.frame is None:
            number = np.arange(rows.size) // ROWS_WITHOUT_FRAMES
            last = int(number[-1])
        else:
            number = recording.frame[rows]
            last = recording.last_frame[name]
        if number.min() < 0 or last > 10_000_000:
            raise ValueError(
                f"sequence {name} has frame numbers from {number.min()} to {last}: "
                "they must lie between 0 and 10000000. Renumber the frames."
            )
        order = np.argsort(number, kind="stable")
        header = Header(f"{prefix}{name}", recording.space, recording.classes)
        time = None if recording.time_s is None else recording.time_s[rows[order]]
        times = _times(number[order], time, last)
        found.append(Sequence(name, recording, header, rows[order], number[order], times))
    return found


def _times(number: IntArray, time: FloatArray | None, last: int) -> FloatArray:
    """Seconds of every frame from 0 to last; frames without rows lie evenly between the others."""
    frames = np.arange(last + 1)
    if time is None:
        return np.asarray(frames * PERIOD, dtype=np.float64)
    seen, first = np.unique(number, return_index=True)
    at = time[first]
    steps = np.diff(at) / np.diff(seen) if seen.size > 1 else np.array([PERIOD])
    period = float(np.median(steps))
    inside: FloatArray = np.interp(frames, seen, at).astype(np.float64)
    before, after = frames < seen[0], frames > seen[-1]
    inside[before] = at[0] + (frames[before] - seen[0]) * period
    inside[after] = at[-1] + (frames[after] - seen[-1]) * period
    return inside
