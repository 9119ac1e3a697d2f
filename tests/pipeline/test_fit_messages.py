"""Jobs and outcomes of fits between two processes: they arrive to the last bit, and whatever is
none of that very job is refused with the field and the value."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.detections import Limits
from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.frames.words import Objective
from monitor.pipeline.fit_process import (
    MOST_BYTES,
    MOST_REASON,
    job_pieces,
    outcome_bytes,
    read_job,
    read_outcome,
)
from monitor.promotion.fits import FitJob, FitOutcome, fit_rows, fit_slices
from monitor.promotion.records import FitSettings
from monitor.recalibration.class_scaling import VectorScaling
from monitor.recalibration.scaling import VarianceScaling
from tests import laws
from tests.promotion.fit_jobs import job_of, rows_of
from tests.promotion.simulated_tracks import class_tracks
from tests.recalibration.rows import json_values

# ---- jobs

SPACE = Space(
    (Dimension("x", "m"), Dimension("yaw", "rad", DimensionKind.ANGLE_MODULO_PI)),
    angles_in_joint=True,
)


def written(job: FitJob) -> bytes:
    return b"".join(job_pieces(job))


@given(
    seed=st.integers(0, 2**32 - 1),
    k=st.integers(1, 4),
    counts=st.lists(st.integers(0, 9), max_size=4),
    timed=st.booleans(),
    delayed=st.booleans(),
    names=st.data(),
    objective=st.none() | st.sampled_from(Objective),
    constant=st.none() | st.floats(1e-300, 1e300),
    prior=st.floats(1e-300, 1e300),
    limits=st.builds(
        Limits, *(st.floats(0, exclude_min=True, allow_infinity=False) for _ in range(3))
    ),
)
def test_what_arrives_is_what_was_sent(
    seed, k, counts, timed, delayed, names, objective, constant, prior, limits
):
    labels = names.draw(
        st.lists(st.text(), min_size=len(counts), max_size=len(counts), unique=True)
    )
    random = np.random.default_rng(seed)
    slices = {}
    for label, n in zip(labels, counts, strict=True):
        rows = rows_of(int(random.integers(2**32)), tracks=10, per_track=1, k=k)
        rows = replace(
            rows.take(np.arange(n)),
            track=random.integers(-1, 2**63 - 1, n, endpoint=True),
            time_s=random.normal(size=n) if timed else None,
            delay_s=random.random(n) if delayed else None,
        )
        rows.estimates.diagonal[:] = random.random(n) < 0.5
        slices[label] = rows
    job = FitJob(FitSettings("isotonic-std", objective, constant, prior, 7), slices, limits)
    found = read_job(written(job))
    assert found.settings == job.settings
    assert found.limits == limits
    assert list(found.slices) == list(slices)
    for label, rows in slices.items():
        laws.assert_same(found.slices[label], rows)


def test_a_space_with_angles_and_arrays_that_are_not_in_order_in_memory_arrive_too():
    rows = rows_of(1, k=2)
    backwards = replace(rows, space=SPACE, error=rows.error[::-1], track=rows.track[::-1])
    found = read_job(written(job_of("variance-scaling", {"car": backwards})))
    laws.assert_same(found.slices["car"], backwards)


def test_a_job_of_class_probabilities_and_its_outcome_arrive_beside_one_of_estimates():
    classes = fit_rows(class_tracks(7, 30, 2.0, opinions=2))
    job = FitJob(FitSettings(), {"car": rows_of(1), "class probabilities": classes})
    again = read_job(written(job))
    for label, rows in job.slices.items():
        laws.assert_same(again.slices[label], rows)
    outcome = fit_slices(again)
    assert read_outcome(outcome_bytes(outcome), job) == outcome
    other = {**outcome.fitted, "class probabilities": VectorScaling((1.0,) * 5, (0.0,) * 5)}
    with pytest.raises(ValueError, match="a vector-scaling of 5 classes: a temperature of 5"):
        read_outcome(outcome_bytes(FitOutcome(other, {})), job)


# ---- outcomes

JOB = job_of("variance-scaling", {"car": rows_of(1), "van": rows_of(2)})

SCALING = {"method": "variance-scaling", "parameters": {"scale": [1.0, 2.0, 3.0]}}

CAR = {"slice": "car", "fitted": SCALING}

VAN = {"slice": "van", "refused": "too few"}


def scaled(*scale):
    return {"slice": "car", "fitted": {**SCALING, "parameters": {"scale": list(scale)}}}


def lines(*content) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in content)


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
        (b"[" * 100_000, "is no JSON"),
        (lines({}), "'outcome' has no 'slice'"),
        (lines(CAR, CAR), "every slice of the job must be there once"),
        (lines(CAR, {"slice": "bus", "refused": ""}), "and no other"),
        (lines(CAR, VAN, VAN, VAN), "Extra data"),
        (lines(CAR, {**VAN, "refused": None}), "one of 'fitted' and 'refused'"),
        (lines(CAR, {**VAN, "refused": "a\nb"}), r"'a\nb' holds what cannot be printed"),
        (lines(CAR, {**VAN, "refused": "a" * 1001}), "at most 1000"),
        (
            lines(VAN, {**CAR, "fitted": {"method": "identity"}}),
            "is a identity of None dimensions: a variance-scaling of 3 was asked for",
        ),
        (lines(VAN, scaled(1.0, 2.0)), "is a variance-scaling of 2 dimensions"),
        (lines(VAN, scaled(1, 2, -3)), "scale[2]' is -3"),
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
