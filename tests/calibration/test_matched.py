"""Matched rows of a frame, and of which of them a part is made."""

from dataclasses import replace

import numpy as np
import pytest

from tests import laws
from tests.calibration.matched_frames import BOX, UV, XY, matched


@pytest.mark.parametrize("space", [XY, UV, BOX])
def test_a_frame_knows_how_many_rows_it_has(space):
    assert matched(1, 7, space=space).n == 7
    assert matched(1, 0, space=space).n == 0


@pytest.mark.parametrize("tracks", [0, 5])
def test_a_part_holds_the_rows_that_were_asked_for(tracks):
    rows = matched(2, 20, tracks=tracks, stamp_ns=7, live=False, source=3)
    part = rows.take(slice(5, 12))
    assert part.n == 7
    assert (part.space, part.stamp_ns, part.live, part.source) == (XY, 7, False, 3)
    names = ["slices", "error", "covariance", "recalibrated_error", "recalibrated_covariance"]
    for name in names:
        laws.assert_same(getattr(part, name), getattr(rows, name)[5:12])
    expected = None if rows.tracks is None else rows.tracks.take(np.arange(5, 12))
    laws.assert_same(part.tracks, expected)


@pytest.mark.parametrize("changed", [False, True])
def test_a_part_of_what_was_left_unchanged_is_unchanged(changed):
    rows = matched(3, 9, changed=changed)
    assert rows.unchanged is not changed
    assert rows.take(slice(0, 4)).unchanged is not changed


def test_an_equal_copy_counts_as_a_change():
    # Only the very same objects are known to be the same without a look at them.
    rows = matched(4, 3, changed=False)
    assert not replace(rows, recalibrated_error=rows.error.copy()).unchanged
    assert not replace(rows, recalibrated_covariance=rows.covariance.copy()).unchanged
