"""The document of a selection: there and back, its version, and what is refused by name."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.slices import RangeBuckets
from monitor.recalibration.recalibrator import Basis, Clock, Identity, InvalidRecalibrator
from monitor.recalibration.rejection import RejectedBy, Rejection
from monitor.recalibration.scaling import CovarianceScaling, FullInput, Objective, VarianceScaling
from monitor.recalibration.selection import FORMAT, IDENTITY, Selection
from tests.recalibration.rows import json_values, read_selection

DOUBLE, TRIPLE = VarianceScaling((2.0, 2.0)), VarianceScaling((3.0, 3.0))
FULL = CovarianceScaling(
    (0.1 + 0.2, 1 / 3), ((1.0, 0.3), (0.3, 1.0)), ((1.5, -0.25), (-0.25, 0.1)), (1, 0)
)
REJECTION = Rejection(RejectedBy.DEVIATION, 2.5, 0.4, 0.375, 0.125, 800)
BASIS = Basis(300, 31, 120.5, 0.0, 12.5, Clock.SECONDS)
THIN = Basis(7, 2, 3.25, borrows_from="fallback")
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


@settings(max_examples=60)
@given(selections())
def test_a_document_read_back_is_the_same_to_the_last_bit(selection):
    again = read_selection(selection.to_json())
    assert again == selection
    assert again.version == selection.version
    assert again.to_json() == selection.to_json()
    assert read_selection(selection.to_json().encode()) == selection


def test_the_identity_read_back_is_the_identity():
    assert read_selection(IDENTITY.to_json()) == IDENTITY


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
    assert read_selection(noted.to_json()).fitted_on == {"rows": 7}


def test_what_it_rests_on_is_in_the_document_and_does_not_change_the_version():
    plain = Selection(("x", "y"), DOUBLE, {"car": TRIPLE})
    known = replace(plain, basis=BASIS, bases={"car": THIN})
    assert known.version == plain.version
    document = json.loads(known.to_json())
    assert document["fallback"]["basis"] == BASIS.parameters()
    assert document["slices"]["car"]["basis"] == THIN.parameters()
    assert read_selection(known.to_json()).bases == {"car": THIN}


def test_a_document_of_before_there_was_a_basis_is_read_as_it_was():
    document = json.loads(BY_SLICE.to_json())
    assert "basis" not in document["fallback"]
    assert "ranges" not in document and "rejection" not in document
    read = read_selection(BY_SLICE.to_json())
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
        read_selection(json.dumps(document))
    message = str(refusal.value)
    assert message.startswith(f"'version' is '{BY_SLICE.version}' but the content makes ")
    assert message.endswith("Fit again, or remove 'version'.")
    del document["version"]
    assert read_selection(json.dumps(document)).fallback == VarianceScaling((2.5, 2.0))


HUGE = 10**400
EYE = [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ("", "'document' is no JSON ("),
        ("{", "'document' is no JSON ("),
        (b"\xff\xfe", "'document' is no JSON ("),
        ("[" * 100_000, "'document' is no JSON ("),
        ("[]", "'document' is []"),
        ("null", "'document' is None"),
        ("{}", "'format' is None"),
        (
            changed(format="calibration-monitor/recalibrator/2"),
            f"this monitor reads '{FORMAT}'",
        ),
        (changed(dimensions=None), "'document' has no 'dimensions'"),
        (changed(dimensions="xy"), "'document.dimensions' is 'xy'"),
        (changed(dimensions=["x", 2]), "'document.dimensions[1]' is 2"),
        (changed(dimensions=["x"]), "'fallback' has 2 dimensions but 'dimensions' names 1"),
        (
            changed(dimensions=["x", "y\n"]),
            r"'document.dimensions[1]': 'y\n' holds what cannot be printed",
        ),
        (changed(slices={"a\tb": {}}), r"'document.slices.a\tb.method' is None"),
        (changed(slices=[]), "'document.slices' is []"),
        (changed(rejection=[]), "'document.rejection' is []"),
        (changed(rejection={}), "'document.rejection' has no 'by'"),
        (
            changed(rejection=REJECTION.parameters() | {"threshold": -1.0}),
            "'document.rejection.threshold' is -1.0",
        ),
        (
            changed(rejection=REJECTION.parameters() | {"by": "entropy", "threshold": 0.5}),
            "'rejection.by' is 'entropy': with this 'format' it must be 'deviation'",
        ),
        (changed(ranges=[]), "'document.ranges' is []"),
        (changed(ranges={"edges": [], "dimensions": []}), "'document.ranges.edges' has 0 entries"),
        (changed(ranges={"edges": [2.0, 1.0], "dimensions": []}), "'edges' are [2.0, 1.0]"),
        (changed(ranges={"edges": [0.0], "dimensions": []}), "'document.ranges.edges[0]' is 0.0"),
        (changed(ranges={"edges": [True], "dimensions": []}), "'document.ranges.edges[0]' is True"),
        (
            changed(ranges={"edges": [HUGE], "dimensions": []}),
            "'document.ranges.edges[0]' is 1000000000000000000000000000000000000000",
        ),
        (
            changed(ranges={"edges": [2.0], "dimensions": "x"}),
            "'document.ranges.dimensions' is 'x'",
        ),
        (
            changed(fallback={"method": "identity", "basis": 3}),
            "'document.fallback.basis' is 3",
        ),
        (
            changed(slices={"car": {"method": "identity", "basis": {"rows": 0}}}),
            "'document.slices.car.basis.rows' is 0",
        ),
        (changed(slices={"car": 5}), "'document.slices.car' is 5"),
        (changed(slices={"car": {}}), "'document.slices.car.method' is None"),
        (changed(fallback=None), "'document' has no 'fallback'"),
        (changed(fallback=[]), "'document.fallback' is []"),
        (changed(fallback={"method": "magic"}), "'document.fallback.method' is 'magic'"),
        (changed(fallback={"method": ["identity"]}), "'document.fallback.method' is ['identity']"),
        (changed(fallback={"method": {}}), "'document.fallback.method' is an object"),
        (
            changed(fallback={"method": "identity", "parameters": 3}),
            "'document.fallback.parameters' is 3",
        ),
        (
            changed(fallback={"method": "variance-scaling"}),
            "'document.fallback' has no 'parameters'",
        ),
        (with_parameters(scale=[]), "'document.fallback.parameters.scale' has 0 entries"),
        (with_parameters(scale=2.0), "'document.fallback.parameters.scale' is 2.0"),
        (with_parameters(scale=[1.0, 0.0]), "'document.fallback.parameters.scale[1]' is 0.0"),
        (with_parameters(scale=[1.0, -1.0]), "'document.fallback.parameters.scale[1]' is -1.0"),
        (
            with_parameters(scale=[1.0, float("nan")]),
            "'document.fallback.parameters.scale[1]' is nan",
        ),
        (
            with_parameters(scale=[1.0, float("inf")]),
            "'document.fallback.parameters.scale[1]' is inf",
        ),
        (with_parameters(scale=[1.0, True]), "'document.fallback.parameters.scale[1]' is True"),
        (with_parameters(scale=[1.0, "2"]), "'document.fallback.parameters.scale[1]' is '2'"),
        (
            with_parameters(scale=[1.0, HUGE]),
            "'document.fallback.parameters.scale[1]' is 100000000000000000000000000",
        ),
        (
            with_parameters(scale=[1.0] * 3),
            "'document.fallback.parameters': 'correlation' has 2 rows of 2 entries:",
        ),
        (with_parameters(correlation=None), "'document.fallback.parameters.correlation' is None"),
        (
            with_parameters(correlation=[[1.0, 0.0]]),
            "'document.fallback.parameters': 'correlation' has 1 rows of 2 entries:",
        ),
        (
            with_parameters(correlation=[[1.0], [0.0]]),
            "'document.fallback.parameters': 'correlation' has 2 rows of 1 entries:",
        ),
        (
            with_parameters(correlation=[1.0, 1.0]),
            "'document.fallback.parameters.correlation[0]' is 1.0",
        ),
        (
            with_parameters(correlation=[[1.0, None], [0.0, 1.0]]),
            "'document.fallback.parameters.correlation[0][1]' is None",
        ),
        (with_parameters(correlation=[[1.0, 0.5], [0.4, 1.0]]), "'correlation' is not symmetric"),
        (
            with_parameters(correlation=[[1.0, 1.5], [1.5, 1.0]]),
            "'correlation' is not positive definite",
        ),
        (
            with_parameters(whitened=[[1.0, float("inf")], [float("inf"), 1.0]]),
            "'document.fallback.parameters.whitened[0][1]' is inf",
        ),
        (
            with_parameters(whitened=[[1.0, HUGE], [HUGE, 1.0]]),
            "'document.fallback.parameters.whitened[0][1]' is 100000000000000000000",
        ),
        (with_parameters(whitened=[[0.0, 0.0], [0.0, 1.0]]), "'whitened' is not positive definite"),
        (with_parameters(order=[0, 0]), "'order' is [0, 0]: it must hold 0 to 1, each once"),
        (with_parameters(order=[0]), "'order' is [0]"),
        (with_parameters(order=[1.0, 0.0]), "'document.fallback.parameters.order[0]' is 1.0"),
        (with_parameters(order=[False, True]), "'document.fallback.parameters.order[0]' is False"),
        (with_parameters(order=3), "'document.fallback.parameters.order' is 3"),
        (with_parameters(order=["a", 1]), "'document.fallback.parameters.order[0]' is 'a'"),
        (with_parameters(order=None), "'document.fallback.parameters.order' is None"),
        (
            with_parameters(objective="median"),
            "'document.fallback.parameters.objective' is 'median'",
        ),
        (with_parameters(objective=[]), "'document.fallback.parameters.objective' is []"),
        (
            with_parameters(full_input="turn"),
            "'document.fallback.parameters.full_input' is 'turn'",
        ),
        (
            changed(
                slices={"car": {"method": "variance-scaling", "parameters": {"scale": [0.0, 1.0]}}}
            ),
            "'document.slices.car.parameters.scale[0]' is 0.0",
        ),
        (
            changed(
                fallback={
                    "method": "variance-scaling",
                    "parameters": {"scale": [1.0, 1.0], "objective": "mode"},
                }
            ),
            "'document.fallback.parameters.objective' is 'mode'",
        ),
        (changed(version="variance-scaling-0"), "'version' is 'variance-scaling-0'"),
        (changed(version=7), "'version' is 7"),
    ],
)
def test_a_malformed_document_is_refused_with_the_field_named(document, named):
    with pytest.raises(InvalidRecalibrator) as refusal:
        read_selection(document)
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
    found = read_selection(changed(fallback=fallback, slices=None, fitted_on=None, version=None))
    assert found.fallback == CovarianceScaling(
        (1.0, 2.0), ((1.0, 0.0), (0.0, 1.0)), ((1.0, 0.0), (0.0, 1.0)), (0, 1)
    )
    assert found.by_slice == {}


parts = st.sampled_from(["dimensions", "slices", "fallback", "fitted_on", "version"])
names = st.sampled_from(list(FULL.parameters()))


@settings(max_examples=200)
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
        selection = read_selection(document)
    except InvalidRecalibrator:
        return
    assert read_selection(selection.to_json()) == selection
