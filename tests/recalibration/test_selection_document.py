"""The document of a selection: there and back, its version, and what is refused by name."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.slices import RangeBuckets
from monitor.recalibration.documents import InvalidRecalibrator
from monitor.recalibration.recalibrator import Basis, Clock, Identity, Period
from monitor.recalibration.rejection import RejectedBy, Rejection
from monitor.recalibration.scaling import CovarianceScaling, FullInput, Objective, VarianceScaling
from monitor.recalibration.selection import FORMAT, IDENTITY, Selection, content_of, from_content
from tests.recalibration.rows import json_values

DOUBLE, TRIPLE = VarianceScaling((2.0, 2.0)), VarianceScaling((3.0, 3.0))
FULL = CovarianceScaling(
    (0.1 + 0.2, 1 / 3), ((1.0, 0.3), (0.3, 1.0)), ((1.5, -0.25), (-0.25, 0.1)), (1, 0)
)
REJECTION = Rejection(RejectedBy.DEVIATION, 2.5, 0.4, 0.375, 0.125, 800)
BASIS = Basis(300, 31, 120.5, Period(0.0, 12.5, Clock.SECONDS))
THIN = Basis(7, 2, 3.25, None, "fallback")
BY_SLICE = Selection(("x", "y"), DOUBLE, {"car": TRIPLE, "bus": FULL}, {"rows": 12, "file": "a"})


positive = st.floats(1e-12, 1e12)


@st.composite
def selections(draw):
    k = draw(st.integers(1, 3))
    names = tuple("xyz"[:k])

    def model():
        scale = tuple(draw(st.lists(positive, min_size=k, max_size=k)))
        objective = draw(st.sampled_from(list(Objective)))
        kind = draw(st.sampled_from([Identity, VarianceScaling, CovarianceScaling]))
        if kind is Identity:
            return Identity()
        if kind is VarianceScaling:
            return VarianceScaling(scale, objective)
        c = draw(st.floats(-0.3, 0.3))
        matrix = tuple(tuple(1.0 if i == j else c for j in range(k)) for i in range(k))
        order = tuple(draw(st.permutations(range(k))))
        full_input = draw(st.sampled_from(list(FullInput)))
        return CovarianceScaling(scale, matrix, matrix, order, full_input, objective)

    printable = st.text(max_size=8).filter(str.isprintable)
    slices = draw(st.lists(printable, max_size=3, unique=True))
    edges = draw(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=3, unique=True))
    return Selection(
        names,
        model(),
        {name: model() for name in slices},
        {"rows": 3},
        draw(st.sampled_from([None, BASIS])),
        dict.fromkeys(slices[:1], THIN),
        draw(st.sampled_from([None, RangeBuckets(tuple(sorted(edges)), ("x", "y"))])),
        draw(st.sampled_from([None, REJECTION])),
    )


@settings(deadline=None, max_examples=60)
@given(selections())
def test_a_document_read_back_is_the_same_to_the_last_bit(selection):
    again = from_content(content_of(selection.to_json()))
    assert again == selection
    assert again.version == selection.version
    assert again.to_json() == selection.to_json()
    assert from_content(content_of(selection.to_json().encode())) == selection


def test_the_identity_read_back_is_the_identity():
    assert from_content(content_of(IDENTITY.to_json())) == IDENTITY


def test_the_version_is_the_method_and_a_hash_of_the_content():
    assert BY_SLICE.version == "covariance-scaling-a067db335f26"
    other_order = Selection(("x", "y"), DOUBLE, {"bus": FULL, "car": TRIPLE})
    assert other_order.version == BY_SLICE.version


@pytest.mark.parametrize(
    "other",
    [
        Selection(("x", "z"), DOUBLE, {"car": TRIPLE}),
        Selection(("x", "y"), TRIPLE, {"car": TRIPLE}),
        Selection(("x", "y"), DOUBLE, {"bus": TRIPLE}),
        Selection(("x", "y"), DOUBLE, {"car": VarianceScaling((3.0, np.nextafter(3.0, 4)))}),
        Selection(("x", "y"), DOUBLE, {"car": VarianceScaling((3.0, 3.0), Objective.QUANTILE)}),
        Selection(("x", "y"), DOUBLE),
    ],
)
def test_any_change_of_the_content_changes_the_version(other):
    assert other.version != Selection(("x", "y"), DOUBLE, {"car": TRIPLE}).version


def test_what_people_note_beside_it_does_not_change_the_version():
    noted = Selection(("x", "y"), DOUBLE, {}, {"rows": 7})
    assert noted.version == Selection(("x", "y"), DOUBLE).version
    assert from_content(content_of(noted.to_json())).fitted_on == {"rows": 7}


def test_what_it_rests_on_is_in_the_document_and_does_not_change_the_version():
    plain = Selection(("x", "y"), DOUBLE, {"car": TRIPLE})
    known = replace(plain, basis=BASIS, bases={"car": THIN})
    assert known.version == plain.version
    document = json.loads(known.to_json())
    assert document["fallback"]["basis"] == BASIS.parameters()
    assert document["slices"]["car"]["basis"] == THIN.parameters()
    assert from_content(content_of(known.to_json())).bases == {"car": THIN}


def test_a_document_of_before_there_was_a_basis_is_read_as_it_was():
    document = json.loads(BY_SLICE.to_json())
    assert "basis" not in document["fallback"]
    assert "ranges" not in document and "rejection" not in document
    read = from_content(content_of(BY_SLICE.to_json()))
    assert read.basis is None and read.bases == {}
    assert read.ranges is None and read.rejection is None


@pytest.mark.parametrize(
    "added", [{"rejection": REJECTION}, {"ranges": RangeBuckets((20.0,), ("x",))}]
)
def test_what_changes_what_is_done_is_part_of_the_version_where_it_is_there(added):
    plain = Selection(("x", "y"), DOUBLE, {"car": TRIPLE})
    assert replace(plain, **added).version != plain.version


def changed(**content) -> str:
    """A valid document with parts replaced; None takes a part away."""
    document = {**json.loads(BY_SLICE.to_json()), "version": "", **content}
    return json.dumps({name: value for name, value in document.items() if value is not None})


def with_parameters(**parameters) -> str:
    """A covariance scaling as fallback, with parameters replaced."""
    model = {"method": "covariance-scaling", "parameters": {**FULL.parameters(), **parameters}}
    return changed(fallback=model, slices={})


def test_a_document_that_was_changed_after_its_fit_is_refused():
    document = json.loads(BY_SLICE.to_json())
    document["fallback"]["parameters"]["scale"][0] = 2.5
    with pytest.raises(InvalidRecalibrator) as refusal:
        from_content(content_of(json.dumps(document)))
    message = str(refusal.value)
    assert message.startswith(f"'version' is '{BY_SLICE.version}' but the content makes ")
    assert message.endswith("Fit again, or remove 'version'.")
    del document["version"]
    assert from_content(content_of(json.dumps(document))).fallback == VarianceScaling((2.5, 2.0))


HUGE = 10**400
EYE = [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ("", "not a JSON document"),
        ("{", "not a JSON document"),
        (b"\xff\xfe", "not a JSON document"),
        ("[" * 100_000, "not a JSON document"),
        ("[]", "the document is []: it must be an object"),
        ("null", "the document is None: it must be an object"),
        ("{}", "'format' is None"),
        (changed(format="calibration-monitor/recalibrator/2"), f"expected '{FORMAT}'"),
        (changed(dimensions=None), "'dimensions' is None"),
        (changed(dimensions="xy"), "'dimensions' is 'xy'"),
        (changed(dimensions=["x", 2]), "'dimensions' is ['x', 2]"),
        (changed(dimensions=["x"]), "'fallback' has 2 dimensions but 'dimensions' names 1"),
        (
            changed(dimensions=["x", "y\n"]),
            r"'dimensions' is ['x', 'y\n']",
        ),
        (changed(slices={"a\tb": {}}), r"'slices' has the name 'a\tb'"),
        (changed(slices=[]), "'slices' is []"),
        (changed(rejection=[]), "'rejection' is []: it must be an object"),
        (changed(rejection={}), "in 'rejection': 'by' is None"),
        (
            changed(rejection=REJECTION.parameters() | {"threshold": -1.0}),
            "in 'rejection': 'threshold'",
        ),
        (
            changed(rejection=REJECTION.parameters() | {"by": "entropy", "threshold": 0.5}),
            "'rejection.by' is 'entropy': with this 'format' it must be 'deviation'",
        ),
        (changed(ranges=[]), "'ranges' is []: it must be an object"),
        (changed(ranges={"edges": [], "dimensions": []}), "in 'ranges': 'edges' is []"),
        (changed(ranges={"edges": [2.0, 1.0], "dimensions": []}), "'edges' holds 1.0 after 2.0"),
        (changed(ranges={"edges": [0.0], "dimensions": []}), "'edges' holds 0.0"),
        (changed(ranges={"edges": [True], "dimensions": []}), "'edges' holds True"),
        (changed(ranges={"edges": [HUGE], "dimensions": []}), "'edges' holds 1000"),
        (changed(ranges={"edges": [2.0], "dimensions": "x"}), "in 'ranges': 'dimensions' is 'x'"),
        (
            changed(fallback={"method": "identity", "basis": 3}),
            "in 'fallback.basis': 'basis' is 3: it must be an object",
        ),
        (
            changed(slices={"car": {"method": "identity", "basis": {"rows": 0}}}),
            "in 'slices.car.basis': 'rows' is 0",
        ),
        (changed(slices={"car": 5}), "'slices.car' is 5: it must be an object"),
        (changed(slices={"car": {}}), "'slices.car.method' is None"),
        (changed(fallback=None), "'fallback' is None: it must be an object"),
        (changed(fallback=[]), "'fallback' is []: it must be an object"),
        (changed(fallback={"method": "magic"}), "'fallback.method' is 'magic'"),
        (changed(fallback={"method": ["identity"]}), "'fallback.method' is ['identity']"),
        (changed(fallback={"method": {}}), "'fallback.method' is an object"),
        (
            changed(fallback={"method": "identity", "parameters": 3}),
            "in 'fallback': 'parameters' is 3: it must be an object",
        ),
        (changed(fallback={"method": "variance-scaling"}), "in 'fallback': 'scale' is None"),
        (with_parameters(scale=[]), "in 'fallback': 'scale' is []"),
        (with_parameters(scale=2.0), "'scale' is 2.0"),
        (with_parameters(scale=[1.0, 0.0]), "'scale' holds 0.0"),
        (with_parameters(scale=[1.0, -1.0]), "'scale' holds -1.0"),
        (with_parameters(scale=[1.0, float("nan")]), "'scale' holds nan"),
        (with_parameters(scale=[1.0, float("inf")]), "'scale' holds inf"),
        (with_parameters(scale=[1.0, True]), "'scale' holds True"),
        (with_parameters(scale=[1.0, "2"]), "'scale' holds '2'"),
        (with_parameters(scale=[1.0, HUGE]), "'scale' holds 1000"),
        (
            with_parameters(scale=[1.0] * 3),
            "'correlation' has 2 rows of [2] numbers",
        ),
        (with_parameters(correlation=None), "'correlation' is None: it must be a list"),
        (with_parameters(correlation=[[1.0, 0.0]]), "'correlation' has 1 rows of [2]"),
        (with_parameters(correlation=[[1.0], [0.0]]), "'correlation' has 2 rows of [1]"),
        (with_parameters(correlation=[1.0, 1.0]), "'correlation' holds 1.0: every entry"),
        (
            with_parameters(correlation=[[1.0, None], [0.0, 1.0]]),
            "'correlation' holds None: every entry must be a number",
        ),
        (with_parameters(correlation=[[1.0, 0.5], [0.4, 1.0]]), "'correlation' is not symmetric"),
        (
            with_parameters(correlation=[[1.0, 1.5], [1.5, 1.0]]),
            "'correlation' is not positive definite",
        ),
        (
            with_parameters(whitened=[[1.0, float("inf")], [float("inf"), 1.0]]),
            "'whitened' holds inf",
        ),
        (with_parameters(whitened=[[1.0, HUGE], [HUGE, 1.0]]), "'whitened' holds 1000"),
        (with_parameters(whitened=[[0.0, 0.0], [0.0, 1.0]]), "'whitened' is not positive definite"),
        (with_parameters(order=[0, 0]), "'order' is [0, 0]: it must hold 0 to 1, each once"),
        (with_parameters(order=[0]), "'order' is [0]"),
        (with_parameters(order=[1.0, 0.0]), "'order' is [1.0, 0.0]"),
        (with_parameters(order=[False, True]), "'order' is [False, True]"),
        (with_parameters(order=3), "'order' is 3"),
        (with_parameters(order=["a", 1]), "'order' is ['a', 1]"),
        (with_parameters(order=None), "'order' is None"),
        (
            with_parameters(objective="median"),
            "'objective' is 'median': it must be one of mean, winsorised-mean, quantile",
        ),
        (with_parameters(objective=[]), "'objective' is []"),
        (
            with_parameters(full_input="turn"),
            "'full_input' is 'turn': it must be one of scale, whiten",
        ),
        (
            changed(
                slices={"car": {"method": "variance-scaling", "parameters": {"scale": [0.0, 1.0]}}}
            ),
            "in 'slices.car': 'scale' holds 0.0",
        ),
        (
            changed(
                fallback={
                    "method": "variance-scaling",
                    "parameters": {"scale": [1.0, 1.0], "objective": "mode"},
                }
            ),
            "in 'fallback': 'objective' is 'mode'",
        ),
        (changed(version="variance-scaling-0"), "'version' is 'variance-scaling-0'"),
        (changed(version=7), "'version' is 7"),
    ],
)
def test_a_malformed_document_is_refused_with_the_field_named(document, named):
    with pytest.raises(InvalidRecalibrator) as refusal:
        from_content(content_of(document))
    assert named in str(refusal.value)
    assert str(refusal.value).endswith(".")


def test_parts_with_a_default_may_be_left_out():
    fallback = {
        "method": "covariance-scaling",
        "parameters": {
            "scale": [1, 2],
            "correlation": EYE,
            "whitened": EYE,
        },
    }
    found = from_content(
        content_of(changed(fallback=fallback, slices=None, fitted_on=None, version=None))
    )
    assert found.fallback == CovarianceScaling(
        (1.0, 2.0), ((1.0, 0.0), (0.0, 1.0)), ((1.0, 0.0), (0.0, 1.0)), (0, 1)
    )
    assert found.by_slice == {}


parts = st.sampled_from(["dimensions", "slices", "fallback", "fitted_on", "version"])
names = st.sampled_from(list(FULL.parameters()))


@settings(deadline=None, max_examples=200)
@given(
    st.one_of(
        st.builds(lambda name, value: changed(**{name: value}), parts, json_values),
        st.builds(lambda name, value: with_parameters(**{name: value}), names, json_values),
        st.builds(json.dumps, json_values),
        st.text(max_size=20),
    )
)
def test_whatever_is_sent_is_read_or_refused(document):
    try:
        selection = from_content(content_of(document))
    except InvalidRecalibrator:
        return
    assert from_content(content_of(selection.to_json())) == selection
