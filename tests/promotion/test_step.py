"""A step changes one slice; who goes home comes home."""

from monitor.frames.slices import RangeBuckets
from monitor.promotion.records import stepped
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import IDENTITY, Selection

TWICE, THRICE = VarianceScaling((2.0, 2.0)), VarianceScaling((3.0, 3.0))
XY = ("x", "y")


def test_a_step_gives_one_slice_a_recalibrator_and_leaves_the_others_theirs():
    first = stepped(IDENTITY, XY, ("car",), TWICE)
    assert (first.dimensions, first.of(("car",)), first.of(("van",))) == (XY, TWICE, Identity())
    second = stepped(first, XY, ("van",), THRICE)
    assert (second.of(("car",)), second.of(("van",))) == (TWICE, THRICE)


def test_the_way_back_leads_to_the_very_version_that_was_left():
    first = stepped(IDENTITY, XY, ("car",), TWICE)
    second = stepped(first, XY, ("van",), THRICE)
    assert stepped(second, XY, ("van",), Identity()).version == first.version
    assert stepped(first, XY, ("car",), Identity()) == IDENTITY


def test_home_is_the_identity_even_where_a_wider_slice_or_the_fallback_has_a_recalibrator():
    wide = Selection(XY, TWICE)
    home = stepped(wide, XY, ("car",), Identity())
    assert (home.of(("car",)), home.of(("van",))) == (Identity(), TWICE)
    by_class = Selection(XY, Identity(), {"car": TWICE})
    near = stepped(by_class, XY, ("car/<20", "car"), Identity())
    assert (near.of(("car/<20", "car")), near.of(("car/>=20", "car"))) == (Identity(), TWICE)


def test_slices_by_range_bring_the_buckets_they_are_named_after():
    ranges = RangeBuckets((20.0,), XY)
    assert stepped(IDENTITY, XY, ("car/<20", "car"), TWICE, ranges).ranges == ranges
    assert stepped(IDENTITY, XY, ("car",), TWICE).ranges is None
