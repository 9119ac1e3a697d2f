"""A job for another process arrives to the last bit, and what has no head of it is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.detections import Limits
from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.pipeline.fits.messages import job_pieces, read_job
from monitor.promotion.fits import FitJob, fit_slices
from monitor.promotion.records import FitSettings
from monitor.recalibration.fitting import FITTINGS
from monitor.recalibration.scaling import Objective
from tests.promotion.fit_jobs import job_of, rows_of

SPACE = Space(
    (Dimension("x", "m"), Dimension("yaw", "rad", DimensionKind.ANGLE_MODULO_PI)),
    angles_in_joint=True,
)
DIMENSION = ["slices", 0, "space", "dimensions"]


def written(job: FitJob) -> bytes:
    return b"".join(job_pieces(job))


def arrays(rows):
    sent = rows.estimates
    return (
        sent.mean,
        sent.covariance,
        rows.error,
        rows.time_s,
        rows.delay_s,
        sent.diagonal,
        rows.track,
    )


def assert_same_rows(found, expected):
    assert found.space == expected.space
    for left, right in zip(arrays(found), arrays(expected), strict=True):
        assert (left is None) == (right is None)
        if right is not None:
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)


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
        assert_same_rows(found.slices[label], rows)


def test_the_space_arrives_with_its_units_and_angles():
    job = job_of("variance-scaling", {"": replace(rows_of(1, k=2), space=SPACE)})
    assert read_job(written(job)).slices[""].space == SPACE


def test_arrays_that_are_not_in_order_in_memory_arrive_too():
    rows = rows_of(1)
    backwards = replace(rows, error=rows.error[::-1], track=rows.track[::-1])
    found = read_job(written(job_of("variance-scaling", {"car": backwards})))
    assert_same_rows(found.slices["car"], backwards)


def test_arrays_go_out_from_where_they_lie():
    rows = rows_of(1)
    pieces = job_pieces(job_of("variance-scaling", {"car": rows}))
    owners = [piece.obj for piece in pieces if isinstance(piece.obj, np.ndarray)]
    for array in (rows.estimates.mean, rows.estimates.covariance, rows.error):
        assert any(owner is array or np.shares_memory(owner, array) for owner in owners)


@pytest.mark.parametrize("method", FITTINGS)
def test_every_method_fits_what_arrived_as_it_fits_what_was_sent(method):
    job = job_of(method, {"car": rows_of(1)})
    sent, arrived = fit_slices(job), fit_slices(read_job(written(job)))
    assert arrived.fitted["car"].parameters() == sent.fitted["car"].parameters()


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 9, 400, -8, -1])
def test_a_job_that_was_cut_off_is_refused(cut):
    data = written(job_of("variance-scaling", {"car": rows_of(1)}))
    with pytest.raises(ValueError, match=r"is no JSON|reshape|buffer size"):
        read_job(data[:cut])


def changed(path, value) -> bytes:
    """A job with something else at a path of its head."""
    data = written(job_of("variance-scaling", {"car": rows_of(1)}))
    length = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + length])
    place = head
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    text = json.dumps(head).encode().ljust(length + 8)
    text = text.ljust(-(-len(text) // 8) * 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (
            ["format"],
            "calibration-monitor/fit-job/2",
            "'format' is 'calibration-monitor/fit-job/2'",
        ),
        (["settings"], 3, "'head.settings' is 3"),
        (["settings", "objective"], "best", "'head.settings.objective' is 'best'"),
        (["settings", "time_constant_s"], 0, "'head.settings.time_constant_s' is 0"),
        (["settings", "prior_tracks"], -1, "'head.settings.prior_tracks' is -1"),
        (["settings", "tracks"], 0.5, "'head.settings.tracks' is 0.5"),
        (["limits"], None, "'head.limits' is None"),
        (["limits", "smallest_deviation"], -1, "'head.limits.smallest_deviation' is -1"),
        (["slices"], {}, "'head.slices' is an object"),
        (["slices", 0, "name"], None, "'head.slices[0].name' is None"),
        (["slices", 0, "timed"], "no", "'head.slices[0].timed' is 'no'"),
        (DIMENSION, [], "'head.slices[0].space.dimensions' has 0 entries"),
        ([*DIMENSION, 1, "unit"], None, "dimensions[1].unit' is None"),
        ([*DIMENSION, 1, "kind"], 9, "dimensions[1].kind' is 9"),
    ],
)
def test_a_head_that_is_none_is_refused_with_the_field_and_the_value(path, value, words):
    with pytest.raises(ValueError) as caught:
        read_job(changed(path, value))
    assert words in str(caught.value)


@given(st.binary(max_size=200))
def test_anything_else_is_refused_and_nothing_worse_happens(data):
    with pytest.raises(ValueError):
        read_job(data)
