"""What comes back from another process is believed only where it is an outcome of that very job."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.pipeline.fits.messages import MOST_BYTES, MOST_REASON, outcome_bytes, read_outcome
from monitor.promotion.fits import FitOutcome, fit_slices
from monitor.recalibration.fitting import FITTINGS
from monitor.recalibration.scaling import VarianceScaling
from tests.promotion.fit_jobs import job_of, rows_of
from tests.recalibration.rows import json_values

JOB = job_of("variance-scaling", {"car": rows_of(1), "van": rows_of(2)})
SCALING = {"method": "variance-scaling", "parameters": {"scale": [1.0, 2.0, 3.0]}}
CAR = {"slice": "car", "fitted": SCALING}
VAN = {"slice": "van", "refused": "too few"}


def scaled(*scale):
    return {"slice": "car", "fitted": {**SCALING, "parameters": {"scale": list(scale)}}}


def lines(*content) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in content)


@pytest.mark.parametrize("method", FITTINGS)
def test_the_recalibrators_of_every_method_arrive_to_the_last_bit(method):
    rows = rows_of(1)
    job = job_of(method, {"car": rows, "bad": rows.take(np.arange(0))})
    outcome = fit_slices(job)
    found = read_outcome(outcome_bytes(outcome), job)
    assert found.refused == outcome.refused
    assert list(found.fitted) == list(outcome.fitted)
    made, expected = (x.fitted["car"].apply(rows.estimates) for x in (found, outcome))
    np.testing.assert_array_equal(made.covariance, expected.covariance)
    np.testing.assert_array_equal(made.mean, expected.mean)


def test_an_outcome_that_lies_as_it_should_is_read():
    found = read_outcome(lines(VAN, CAR), JOB)
    assert found == FitOutcome({"car": VarianceScaling((1.0, 2.0, 3.0))}, {"van": "too few"})


def test_a_reason_becomes_one_line_of_what_may_be_shown():
    reason = "two\nlines\x1b[31m and\x00 a bell\a" + "!" * 2 * MOST_REASON
    found = read_outcome(outcome_bytes(FitOutcome({}, {"car": reason, "van": ""})), JOB)
    assert found.refused["car"].startswith("two lines [31m and a bell !!!")
    assert len(found.refused["car"]) == MOST_REASON
    assert found.refused["van"] == ""


@pytest.mark.parametrize("wrong", [float("nan"), 0.0, 1e13])
def test_a_recalibrator_that_cannot_be_read_again_is_refused_and_the_others_arrive(wrong):
    good, bad = (VarianceScaling((1.0, value, 1.0)) for value in (2.0, wrong))
    found = read_outcome(outcome_bytes(FitOutcome({"car": bad, "van": good}, {})), JOB)
    assert found.fitted == {"van": good}
    assert "made what cannot be used: 'outcome.fitted.parameters.scale[1]'" in found.refused["car"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "has 0 slices, and 2 were asked for"),
        (b"Segmentation fault\n", "is no JSON"),
        (bytes(range(256)), "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (lines({}), "'outcome' has no 'slice'"),
        (lines([]), "'outcome' is []"),
        (lines(CAR), "has 1 slices, and 2 were asked for"),
        (lines(CAR, CAR), "every slice of the job must be there once"),
        (lines(CAR, {"slice": "bus", "refused": ""}), "and no other"),
        (lines(CAR, {"slice": [], "refused": ""}), "'outcome.slice' is []"),
        (lines(CAR, VAN, VAN), "has 3 slices, and 2 were asked for"),
        (lines(CAR, VAN, VAN, VAN), "Extra data"),
        (lines(CAR, VAN)[:-9], "is no JSON"),
        (lines(CAR, {**VAN, "refused": None}), "one of 'fitted' and 'refused'"),
        (lines(VAN, {**CAR, "refused": ""}), "one of 'fitted' and 'refused'"),
        (lines(CAR, {**VAN, "refused": "a\nb"}), r"'a\nb' holds what cannot be printed"),
        (lines(CAR, {**VAN, "refused": "a" * 1001}), "at most 1000"),
        (
            lines(VAN, {**CAR, "fitted": {**SCALING, "method": "magic"}}),
            "'outcome.fitted.method' is 'magic'",
        ),
        (
            lines(VAN, {**CAR, "fitted": {"method": "identity"}}),
            "is a identity of None dimensions: a variance-scaling of 3 was asked for",
        ),
        (lines(VAN, scaled(1.0, 2.0)), "is a variance-scaling of 2 dimensions"),
        (lines(VAN, {**CAR, "fitted": {**SCALING, "parameters": {}}}), "has no 'scale'"),
        (lines(VAN, scaled(1, 2, -3)), "scale[2]' is -3"),
        (lines(VAN, scaled(1, 2, float("nan"))), "scale[2]' is nan"),
        (lines(VAN, scaled(1, 2, float("inf"))), "scale[2]' is inf"),
        (lines(VAN, CAR).replace(b"3.0", b"1" * 5000), "is no JSON (Exceeds the limit"),
    ],
)
def test_whatever_is_no_outcome_of_the_job_is_refused_and_said(data, words):
    with pytest.raises(ValueError) as caught:
        read_outcome(data, JOB)
    assert words in str(caught.value)


def test_an_outcome_that_is_too_long_is_not_even_looked_at():
    with pytest.raises(ValueError, match=f"has {MOST_BYTES + 1} bytes: at most {MOST_BYTES}"):
        read_outcome(b"\n" * (MOST_BYTES + 1), JOB)


@given(st.lists(json_values, max_size=4), st.binary(max_size=40))
def test_nothing_but_a_refusal_comes_of_anything_else(values, rest):
    with pytest.raises(ValueError):
        read_outcome(lines(*values) + rest, JOB)
