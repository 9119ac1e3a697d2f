"""The tracks of an answer as bytes, byte for byte what protobuf itself would write."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from monitor.calibration.detections import IdArray
from monitor.calibration.space import triangle_in_square
from monitor.edges.records import Kind, build, interleave
from monitor.tracking.reported import ReportedTracks

_TRACKS = 8  # the field number of the tracks in FrameResult


def encode_tracks(tracks: ReportedTracks, detection_id: IdArray) -> bytes:
    """Track records: those with a detection in the frame first, each part in its order.

    detection_id  (N,) of all detections of the frame
    """
    m, s = tracks.state.shape
    if m == 0:
        return b""
    updated = tracks.updated
    updated_by = np.zeros(m, np.uint64)
    updated_by[updated] = detection_id[tracks.detection[updated]]
    fields: dict[int, tuple[Kind, npt.NDArray[np.generic]]] = {
        1: (Kind.FIXED64, tracks.id),
        2: (Kind.FIXED32, tracks.class_index),
        3: (Kind.FLAG, tracks.status),
        4: (Kind.FIXED32, tracks.detections),
        5: (Kind.FIXED64, updated_by),
        6: (Kind.DOUBLE, tracks.nis),
        7: (Kind.DOUBLES, tracks.state),
        8: (Kind.DOUBLES, tracks.covariance.reshape(m, s * s)[:, triangle_in_square(s)]),
    }
    present = {5: updated, 6: ~np.isnan(tracks.nis)}
    layout = np.zeros(m, np.int64)
    for number, here in present.items():
        layout[here] |= 1 << number
    place = np.empty(m, np.int64)
    place[np.argsort(~updated, kind="stable")] = np.arange(m)
    pieces = []
    for which in set(layout.tolist()):
        rows = np.flatnonzero(layout == which)
        written = {
            number: (kind, values[rows])
            for number, (kind, values) in fields.items()
            if number not in present or which >> number & 1
        }
        pieces.append((place[rows], build(_TRACKS, written, rows.size)))
    return interleave(m, pieces)
