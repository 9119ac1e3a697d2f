"""The same detections teach recalibrators that the statistics count."""

import numpy as np
import pytest

from monitor.frames.detections import Limits, examine
from monitor.frames.frame import SliceKey, StoredFrame, TrackIds, stored_estimates
from monitor.matching.objects import INLINE, LabelRecord
from monitor.pipeline.pending import PendingFrame
from monitor.pipeline.truth import rows_with_truth, tracks_told
from tests.piped import DOUBLE, HEADER, XYZ, sent
from tests.received import detections

ROWS = np.array([0, 2, 3])
SLICES = np.array([1, 0, 1, 1])
KEYS = SliceKey("car"), SliceKey("bus")
TRACKS = TrackIds(np.array([7, 8, 9, 7], np.uint64), np.array([True, True, False, True]))
BATCH = examine(detections([sent(i, truth=True) for i in range(4)]), XYZ, 4, Limits()).batch


def rows_of(*, recalibrated: bool = False, rows=ROWS, stamp: int | None = 5):
    """Three of four usable detections, the truth of which has come with them."""
    record = LabelRecord(
        revision=INLINE, rows=rows, truth=BATCH.truth[rows], stamp_ns=stamp, delay_ns=11, live=False
    )
    made = sent = BATCH.sent
    if recalibrated:
        made = DOUBLE.apply(sent, SLICES, [("car",), ("bus",)])
    stored = StoredFrame(
        *(HEADER, 1, 5, 4, BATCH.id, BATCH.class_index, KEYS, SLICES.astype(np.uint16)),
        *(stored_estimates(sent), stored_estimates(made) if recalibrated else None, None),
        *(BATCH.id[:0], TRACKS, 3),
    )
    (found,) = rows_with_truth(PendingFrame(stored, SLICES), record)
    return found


@pytest.mark.parametrize("recalibrated", [False, True])
def test_what_is_learned_from_is_what_is_counted_as_it_was_sent(recalibrated):
    counted, learned = rows_of(recalibrated=recalibrated)
    assert learned is not None
    assert learned.n == counted.n == 3
    assert learned.slices.tolist() == counted.slices.tolist() == [1, 1, 1]
    assert np.array_equal(learned.sent.mean, BATCH.sent.mean[ROWS])
    assert np.array_equal(learned.truth, BATCH.truth[ROWS])
    assert np.array_equal(counted.error, BATCH.truth[ROWS] - BATCH.sent.mean[ROWS])
    assert np.array_equal(learned.sent.covariance, counted.covariance)
    assert counted.unchanged is not recalibrated
    factor = 4.0 if recalibrated else 1.0
    assert np.allclose(counted.recalibrated_covariance, factor * counted.covariance)
    origin = counted.origin
    assert origin is not None
    assert (origin.stream, origin.frame_id, origin.stamp_ns) == (HEADER.stream, 1, 5)
    assert np.array_equal(origin.row, ROWS)
    assert np.array_equal(origin.mean, BATCH.sent.mean[ROWS])
    assert (learned.stamp_ns, learned.source) == (counted.stamp_ns, counted.source) == (5, 3)
    assert (learned.delay_ns, counted.live) == (11, False)
    assert learned.tracks is counted.tracks
    assert learned.tracks is not None
    assert learned.tracks.id.tolist() == [7, 9, 7]
    assert learned.tracks.known.tolist() == [True, False, True]


def test_nothing_is_learned_from_what_is_of_no_known_time():
    timeless, none = rows_of(stamp=None), rows_of(rows=np.zeros(0, np.int64), stamp=None)
    assert (timeless[1], timeless[0].n) == (None, 3)
    assert rows_of(stamp=0)[1] is not None
    assert (none[1], none[0].n) == (None, 0)


def test_the_labellers_objects_stand_before_tracks_and_never_meet_them():
    objects = TrackIds(TRACKS.id, np.array([True, False, False, True]))
    told = tracks_told(TRACKS, objects)
    assert told is not None
    assert told.known.tolist() == [True, True, False, True]
    assert (told.id == TRACKS.id).tolist() == [False, True, True, False]
    assert told.id[0] == told.id[3]
    assert tracks_told(TRACKS, None) is TRACKS
    alone = tracks_told(None, objects)
    assert alone is not None
    assert alone.known.tolist() == objects.known.tolist()
