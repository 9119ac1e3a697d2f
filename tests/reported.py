"""Tracks as a tracker reports them, for hypothesis, and the messages they are; no tests."""

import numpy as np
from hypothesis import strategies as st

from monitor.frames.frame import ReportedTracks, TrackStatus
from monitor.v1 import frame_pb2
from tests.as_protobuf import on_wire
from tests.written import doubles

CLASSES = st.sampled_from([0, 0, 1, 2**32 - 1])


@st.composite
def reported_tracks(draw, rows):
    """Tracks of which some have a detection among these rows of the frame."""
    m, s = draw(st.integers(0, 6)), draw(st.integers(1, 6))
    ids = st.integers(1, 2**64 - 1) | st.integers(1, 20)
    free = draw(st.permutations(list(rows)))
    taken = draw(st.lists(st.booleans(), min_size=m, max_size=m))
    detection = [free.pop() if here and free else -1 for here in taken]
    square = draw(st.lists(doubles(s * s), min_size=m, max_size=m))
    return ReportedTracks(
        id=np.array(draw(st.lists(ids, min_size=m, max_size=m, unique=True)), np.uint64),
        class_index=np.array([draw(CLASSES) for _ in range(m)], np.int64),
        status=np.array([draw(st.sampled_from(TrackStatus)) for _ in range(m)], np.uint8),
        detections=np.array([draw(st.integers(1, 2**32 - 1)) for _ in range(m)], np.int64),
        detection=np.array(detection, np.int64),
        nis=np.array([np.nan if row < 0 else draw(doubles(1))[0] for row in detection], float),
        state=np.array(draw(st.lists(doubles(s), min_size=m, max_size=m))).reshape(m, s),
        covariance=np.array(square).reshape(m, s, s),
    )


def track_messages(tracks, detection_ids):
    """One field of one track after another; detection_ids of all detections of the frame."""
    found = []
    for j in sorted(range(tracks.id.size), key=lambda j: bool(tracks.detection[j] < 0)):
        row, s = int(tracks.detection[j]), tracks.state.shape[1]
        track = frame_pb2.Track(
            id=int(tracks.id[j]),
            class_index=int(tracks.class_index[j]),
            status=on_wire(tracks.status[j]),
            detections=int(tracks.detections[j]),
            state=tracks.state[j],
            covariance=[tracks.covariance[j, a, b] for a in range(s) for b in range(a + 1)],
        )
        if row >= 0:
            track.detection_id = int(detection_ids[row])
        if not np.isnan(tracks.nis[j]):
            track.nis = tracks.nis[j]
        found.append(track)
    return found
