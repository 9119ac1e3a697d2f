"""Records, trials, fits and summaries over the wire and back: nothing is lost."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.promotion.records import (
    Evidence,
    Factor,
    Happened,
    KnownRecalibrator,
    Record,
    SliceFitted,
    TrialStanding,
    TrialState,
)
from monitor.statistics.observations import finished
from monitor.v1 import recalibration_record_pb2 as record_pb
from monitor.v1 import recalibrator_admin_pb2 as admin_pb
from monitor.wire.fields import UnknownWord, message_of, value_of
from monitor.wire.messages import (
    Kind,
    Listing,
    Summary,
    listing,
    summary,
)
from tests.administered import TRIALS
from tests.administered import record as some_record
from tests.piped import BY_SLICE, DOUBLE
from tests.piped_classes import WARM

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
COUNT = st.integers(0, 2**63)
# NaN is no equal of itself; it has a test of its own.
NUMBER = st.floats(allow_nan=False)
EVIDENCES = st.builds(Evidence, COUNT, NUMBER, NUMBER, NUMBER, NUMBER)
FACTORS = st.lists(st.builds(Factor, TEXT, NUMBER, NUMBER, NUMBER), max_size=3).map(tuple)
RECORDS = st.builds(
    Record,
    sequence=st.integers(1, 2**63),
    time_ns=st.integers(0, 4 * 10**18),
    what=st.sampled_from(Happened),
    slice=TEXT,
    version=TEXT,
    before=TEXT,
    after=TEXT,
    actor=TEXT,
    reason=TEXT,
    event_ns=st.none() | st.integers(-(2**63), 2**63 - 1),
    evidence=st.none() | EVIDENCES,
    factors=FACTORS,
)
STANDINGS = st.builds(TrialStanding, TEXT, TEXT, st.sampled_from(TrialState), EVIDENCES, FACTORS)


def sent(message):
    """As it arrives."""
    return type(message).FromString(message.SerializeToString())


def written(record: Record) -> record_pb.RecalibrationRecord:
    """The message of a record."""
    return message_of(record_pb.RecalibrationRecord, record)


@given(RECORDS)
def test_a_record_comes_back_as_it_was(one):
    assert value_of(Record, sent(written(one))) == one


@given(st.lists(STANDINGS, max_size=4), st.lists(RECORDS, max_size=4), st.booleans())
def test_a_listing_comes_back_as_it_was(trials, records, pinned):
    message = finished(listing((), trials, records, "automatic", pinned=pinned))
    found = value_of(Listing, sent(message))
    assert (found.trials, found.records) == (tuple(trials), tuple(records))
    assert (found.pinned, found.promotion, found.recalibrators) == (pinned, "automatic", ())


@given(st.builds(SliceFitted, TEXT, TEXT, TEXT, COUNT, COUNT, FACTORS))
def test_what_came_of_a_fit_comes_back_as_it_was(fitted):
    assert value_of(SliceFitted, sent(message_of(admin_pb.SliceFit, fitted))) == fitted


def test_evidence_that_is_no_number_arrives_as_such():
    nothing = Evidence(0, math.nan, -math.inf, math.inf, math.nan)
    found = value_of(
        Record,
        sent(written(some_record(Happened.BEGAN, evidence=nothing))),
    ).evidence
    assert found is not None
    assert math.isnan(found.gain)
    assert (found.log10_better, found.log10_worse) == (-math.inf, math.inf)


def test_a_summary_tells_the_kind_and_what_it_was_fitted_on():
    estimates = value_of(Summary, sent(summary(KnownRecalibrator(BY_SLICE, promoted=True))))
    assert (estimates.version, estimates.kind) == (BY_SLICE.version, Kind.ESTIMATES)
    assert (estimates.dimensions, estimates.slices) == (("x", "y", "z"), ("truck",))
    assert estimates.in_force
    classes = value_of(Summary, sent(summary(KnownRecalibrator(WARM, promoted=False))))
    assert classes.kind is Kind.CLASS_PROBABILITIES
    assert classes.class_names == WARM.classes
    assert not classes.in_force


def test_a_listing_is_made_in_steps_of_one_entry():
    known = [KnownRecalibrator(DOUBLE, promoted=True)] * 3
    steps = listing(known, TRIALS, [some_record(Happened.BEGAN)] * 4, "manual", pinned=False)
    assert sum(1 for _ in steps) == 3 + len(TRIALS) + 4


def test_every_word_of_the_contract_is_known_and_the_other_way_round():
    for what in Happened:
        written_what = written(some_record(what)).what
        assert record_pb.Happened.Name(written_what) == f"HAPPENED_{what.name}"
    assert len(record_pb.Happened.keys()) == len(Happened) + 1
    assert len(admin_pb.TrialState.keys()) == len(TrialState) + 1
    assert len(admin_pb.RecalibratorKind.keys()) == len(Kind) + 1


def test_a_word_of_a_newer_contract_is_refused_by_field_number_and_remedy():
    newer = written(some_record(Happened.BEGAN)).SerializeToString() + b"\x18\x63"
    with pytest.raises(UnknownWord, match=r"'what' 99, which is unknown here: use the program"):
        value_of(Record, record_pb.RecalibrationRecord.FromString(newer))
    with pytest.raises(UnknownWord, match="'kind' 0"):
        value_of(Summary, admin_pb.RecalibratorSummary())
