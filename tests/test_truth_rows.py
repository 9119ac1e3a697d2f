"""The same detections teach recalibrators that the statistics count."""

import numpy as np
import pytest

from monitor.frames.detections import Estimates, FrameBatch, Limits, examine
from monitor.frames.frame import TrackIds
from monitor.frames.space import IntArray
from monitor.matching.record import LabelRecord
from monitor.pipeline.labelled_rows import RowsWithTruth, inline_rows
from tests.piped import BAD, DOUBLE, XYZ, sent
from tests.received import detections
from tests.test_pending import record_of

ROWS = np.array([0, 2, 3])
SLICES = np.array([1, 0, 1, 1])
TRACKS = TrackIds(np.array([7, 8, 9, 7], np.uint64), np.array([True, True, False, True]))


def batch_of(*rows):
    return examine(detections(rows), XYZ, 4, Limits()).batch


def labels_of(batch: FrameBatch, rows: IntArray, stamp_ns: int | None) -> LabelRecord:
    truth = batch.truth[rows]
    return record_of([], rows=rows, truth=truth, stamp_ns=stamp_ns, delay_ns=11, live=False)


def rows_of(stamp_ns: int | None = 5, *, recalibrated: bool = False) -> RowsWithTruth:
    """Three of four usable detections, the truth of which has come with them."""
    batch = batch_of(*(sent(number, truth=True) for number in range(4)))
    estimates = Estimates(batch.mean, batch.covariance, batch.diagonal)
    made = DOUBLE.apply(estimates, SLICES, [("car",), ("bus",)]) if recalibrated else estimates
    return inline_rows(batch, labels_of(batch, ROWS, stamp_ns), SLICES, made, TRACKS, 3)


@pytest.mark.parametrize("recalibrated", [False, True])
def test_what_is_learned_from_is_what_is_counted_as_it_was_sent(recalibrated):
    rows = rows_of(recalibrated=recalibrated)
    learned, counted = rows.labelled(), rows.matched()
    assert learned is not None
    assert learned.n == counted.n == 3
    assert np.array_equal(learned.slices, counted.slices)
    error = learned.space.error(learned.truth, learned.sent.mean)
    assert np.array_equal(error, counted.error)
    assert np.array_equal(learned.sent.covariance, counted.covariance)
    assert counted.unchanged is not recalibrated
    assert (learned.stamp_ns, learned.source) == (counted.stamp_ns, counted.source) == (5, 3)
    assert learned.delay_ns == 11
    assert learned.tracks is counted.tracks
    assert learned.tracks is not None
    assert learned.tracks.id.tolist() == [7, 9, 7]
    assert learned.tracks.known.tolist() == [True, False, True]


def test_rows_are_those_whose_truth_came_and_no_others():
    rows = rows_of()
    batch = batch_of(*(sent(number, truth=True) for number in range(4)))
    assert np.array_equal(rows.sent.mean, batch.mean[ROWS])
    assert np.array_equal(rows.record.truth, batch.truth[ROWS])
    assert rows.slices.tolist() == [1, 1, 1]


def test_what_the_identity_made_is_the_very_same():
    rows = rows_of()
    assert rows.made is rows.sent
    made = rows_of(recalibrated=True)
    assert np.allclose(made.made.covariance, 4 * made.sent.covariance)


def test_nothing_is_learned_from_what_is_of_no_known_time():
    assert rows_of(stamp_ns=None).labelled() is None
    assert rows_of(stamp_ns=None).matched().n == 3
    assert rows_of(stamp_ns=0).labelled() is not None


def test_nothing_is_learned_from_no_rows():
    batch = batch_of(BAD)
    none = np.zeros(0, np.int64)
    made = Estimates(batch.mean, batch.covariance, batch.diagonal)
    rows = inline_rows(batch, labels_of(batch, none, 5), none, made, None, 0)
    assert rows.tracks is None
    assert rows.labelled() is None
    assert rows.matched().n == 0
