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
CAR = {"slice": "car", "method": "variance-scaling", "parameters": {"scale": [1.0, 2.0, 3.0]}}
VAN = {"slice": "van", "refused": "too few"}
HEAD = {"format": "calibration-monitor/fit-outcome/1"}


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
    found = read_outcome(lines(HEAD, VAN, CAR), JOB)
    assert found == FitOutcome({"car": VarianceScaling((1.0, 2.0, 3.0))}, {"van": "too few"})


def test_a_reason_becomes_one_line_of_what_may_be_shown():
    reason = "two\nlines\x1b[31m and\x00 a bell\a" + "!" * 2 * MOST_REASON
    found = read_outcome(outcome_bytes(FitOutcome({}, {"car": reason, "van": ""})), JOB)
    assert found.refused["car"].startswith("two lines [31m and a bell !!!")
    assert len(found.refused["car"]) == MOST_REASON
    assert found.refused["van"] == ""


def test_a_recalibrator_that_holds_no_number_is_not_written():
    fitted = {"car": VarianceScaling((1.0, float("nan"), 1.0))}
    with pytest.raises(ValueError):
        outcome_bytes(FitOutcome(fitted, {}))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a JSON document"),
        (b"Segmentation fault\n", "not a JSON document"),
        (bytes(range(256)), "not a JSON document"),
        (b"[" * 100_000, "not a JSON document"),
        (lines({}), "'format' is None"),
        (lines([]), "the document is []"),
        (lines(CAR, VAN), "'format' is None"),
        (lines(HEAD), "it lacks 2 of 2 slices, 'car' for one"),
        (lines(HEAD, CAR), "it lacks 1 of 2 slices, 'van' for one"),
        (lines(HEAD, CAR, CAR), "'slice' is 'car': every slice of the job must be there once"),
        (lines(HEAD, CAR, {"slice": "bus", "refused": ""}), "'slice' is 'bus'"),
        (lines(HEAD, CAR, {"slice": [], "refused": ""}), "'slice' is []"),
        (lines(HEAD, CAR, VAN, VAN), "Extra data"),
        (lines(HEAD, CAR, VAN)[:-9], "not a JSON document"),
        (lines(HEAD, CAR, {**VAN, "refused": None}), "'refused' is None: it must be a text"),
        (lines(HEAD, CAR, {**VAN, "refused": "a\nb"}), "of at most 1000 printable characters"),
        (lines(HEAD, CAR, {**VAN, "refused": "a" * 1001}), "of at most 1000 printable"),
        (lines(HEAD, VAN, {**CAR, "method": "magic"}), "'car.method' is 'magic'"),
        (
            lines(HEAD, VAN, {**CAR, "method": "identity"}),
            "'car.method' is 'identity', and 'variance-scaling' was asked for",
        ),
        (
            lines(HEAD, VAN, {**CAR, "parameters": {"scale": [1.0, 2.0]}}),
            "'car' has 2 dimensions and its rows have 3",
        ),
        (lines(HEAD, VAN, {**CAR, "parameters": {}}), "in 'car': 'scale' is None"),
        (lines(HEAD, VAN, {**CAR, "parameters": {"scale": [1, 2, -3]}}), "'scale' holds -3"),
        (
            lines(HEAD, VAN, {**CAR, "parameters": {"scale": [1, 2, float("nan")]}}),
            "'scale' holds nan",
        ),
        (
            lines(HEAD, VAN, {**CAR, "parameters": {"scale": [1, 2, float("inf")]}}),
            "'scale' holds inf",
        ),
        (
            lines(HEAD, VAN, CAR).replace(b"3.0", b"1" * 5000),
            "not a JSON document: Exceeds the limit",
        ),
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
        read_outcome(lines(HEAD, *values) + rest, JOB)
