"""The tracks that come back with the frames of a sequence, kept until the end of the replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from monitor.edges.answered import AnsweredTracks, decode_answer
from monitor.tracking.quality import FrameTracks
from monitor.tracking.reported import TrackStatus
from monitor.verbs.playback import PlayedFrame, Sequence


@dataclass(slots=True)
class TrackRecord:
    """The tracks of one sequence.

    dimensions  of their states, as the sidecar names them; empty where it does not track
    frames      of each frame that was answered, from frame 0 on
    """

    sequence: Sequence
    dimensions: tuple[str, ...] = ()
    frames: list[FrameTracks] = field(default_factory=list)

    def add(self, played: PlayedFrame, answer: bytes) -> None:
        """Keep the tracks of the next frame that stand for an object in it."""
        if self.dimensions:
            tracks = decode_answer(answer, self.sequence.header.space.k).tracks
            self.frames.append(_confirmed(tracks, played, len(self.dimensions)))


# By stream.
Records = Mapping[str, TrackRecord]


def new_records(played: list[Sequence]) -> Records:
    """Empty ones for sequences that will be played."""
    return {sequence.header.stream: TrackRecord(sequence) for sequence in played}


def _confirmed(tracks: AnsweredTracks, played: PlayedFrame, s: int) -> FrameTracks:
    rows = np.flatnonzero((tracks.status == TrackStatus.CONFIRMED) & tracks.has_detection)
    # Ids of detections are their positions in the frame.
    detection = tracks.detection_id[rows].astype(np.int64)
    return FrameTracks(
        id=tracks.id[rows],
        class_index=tracks.class_index[rows],
        ignore=played.ignore[detection],
        nis=tracks.nis[rows],
        # Where there is no track at all, the state has no dimensions either.
        state=tracks.state[rows].reshape(rows.size, s),
        covariance=tracks.covariance[rows].reshape(rows.size, s, s),
    )
