"""The choice by slice, its document, and what is refused with the field named."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.calibration.space import Dimension, Space, plain_space
from monitor.recalibration.covariance_scaling import CovarianceScaling, FullInput
from monitor.recalibration.identity import Identity
from monitor.recalibration.recalibrator import Estimates, InvalidRecalibrator, Recalibrator
from monitor.recalibration.scale import Objective
from monitor.recalibration.selection import FORMAT, IDENTITY, Selection, from_json
from monitor.recalibration.variance_scaling import VarianceScaling
from tests import laws

XY = plain_space(("x", "y"), "m")
DOUBLE, TRIPLE = VarianceScaling((2.0, 2.0)), VarianceScaling((3.0, 3.0))
FULL = CovarianceScaling(
    (0.1 + 0.2, 1 / 3), ((1.0, 0.3), (0.3, 1.0)), ((1.5, -0.25), (-0.25, 0.1)), (1, 0)
)
BY_SLICE = Selection(("x", "y"), DOUBLE, {"car": TRIPLE, "bus": FULL}, {"rows": 12, "file": "a"})


def estimates(n, seed=0, diagonal=False) -> Estimates:
    random = np.random.default_rng(seed)
    root = random.normal(size=(n, 2, 2)) + 2 * np.eye(2)
    covariance = root @ root.transpose(0, 2, 1)
    return Estimates(random.normal(size=(n, 2)), covariance, np.full(n, diagonal))


# ---- the choice


def test_each_detection_is_recalibrated_by_the_one_of_its_slice_or_the_fallback():
    before = estimates(6)
    slices = np.array([0, 1, 2, 0, 2, 1])
    made = BY_SLICE.apply(before, slices, ("truck", "car", "bus"))
    models: tuple[Recalibrator, ...] = (DOUBLE, TRIPLE, FULL)
    for i, model in enumerate(models):
        here = slices == i
        alone = model.apply(
            Estimates(before.mean[here], before.covariance[here], before.diagonal[here])
        )
        assert np.array_equal(made.covariance[here], alone.covariance)
        assert np.array_equal(made.mean[here], alone.mean)
        assert np.array_equal(made.diagonal[here], alone.diagonal)


@pytest.mark.parametrize("names", [("truck",), ("car",), ("truck", "car", "bus", "tram")])
def test_slices_that_no_detection_is_in_change_nothing(names):
    before = estimates(4)
    made = BY_SLICE.apply(before, np.zeros(4, np.int64), names)
    laws.assert_same(made, BY_SLICE.of(names[0]).apply(before))


def test_without_slices_the_fallback_serves_all():
    before = estimates(4)
    found = Selection(("x", "y"), TRIPLE).apply(before, np.zeros(4, np.int64), ("car",))
    laws.assert_same(found, TRIPLE.apply(before))


def test_the_identity_gives_back_the_very_same_estimates():
    before = estimates(4)
    assert IDENTITY.apply(before, np.zeros(4, np.int64), ("car",)) is before


def test_the_fallback_acts_only_on_rows_that_no_slice_claims():
    seen: list[int] = []

    class Watched(Identity):
        def apply(self, estimates: Estimates) -> Estimates:
            seen.append(estimates.mean.shape[0])
            return estimates

    selection = Selection(("x", "y"), Watched(), {"car": TRIPLE, "bus": DOUBLE})
    names = ("car", "truck", "bus")
    selection.apply(estimates(6), np.array([0, 1, 2, 0, 1, 1]), names)
    assert seen == [3]
    selection.apply(estimates(3), np.array([0, 2, 2]), names)
    assert seen == [3]


def test_rows_that_the_identity_serves_keep_their_bits():
    before = estimates(5)
    before.covariance[1, 0, 1] = np.nextafter(before.covariance[1, 1, 0], 9)
    before.mean[1, 0] = -0.0
    claims: tuple[dict[str, Recalibrator], ...] = (
        {"car": Identity(), "bus": DOUBLE},
        {"bus": DOUBLE},
    )
    for by_slice in claims:
        made = Selection(("x", "y"), Identity(), by_slice).apply(
            before, np.array([1, 0, 1, 0, 0]), ("car", "bus")
        )
        kept = np.array([1, 3, 4])
        assert made.mean[kept].tobytes() == before.mean[kept].tobytes()
        assert made.covariance[kept].tobytes() == before.covariance[kept].tobytes()
        assert (made.covariance[[0, 2]] == 4.0 * before.covariance[[0, 2]]).all()


@pytest.mark.parametrize("slices", [[0, 0, 0], [0, 1, 1], [1, 1, 1], []])
def test_where_only_the_identity_acts_the_very_same_estimates_come_back(slices):
    before = estimates(len(slices))
    selection = Selection(("x", "y"), Identity(), {"car": Identity(), "bus": DOUBLE})
    assert selection.apply(before, np.array(slices, np.int64), ("car", "tram", "bus")) is before


def test_a_slice_whose_recalibrator_gives_back_fewer_is_a_failure_and_not_repeated_to_all():
    class First(Identity):
        def apply(self, estimates: Estimates) -> Estimates:
            return Estimates(estimates.mean[:1], estimates.covariance[:1], estimates.diagonal[:1])

    selection = Selection(("x", "y"), DOUBLE, {"car": First()})
    with pytest.raises(ValueError, match="gives back as many estimates as it gets"):
        selection.apply(estimates(4), np.array([0, 0, 1, 0]), ("car", "bus"))


def test_a_selection_keeps_covariances_definite_if_all_of_its_recalibrators_do():
    class Unsure(Identity):
        keeps_definite = False

    assert BY_SLICE.keeps_definite
    assert IDENTITY.keeps_definite
    assert not Selection(("x", "y"), Unsure(), {"car": DOUBLE}).keeps_definite
    assert not Selection(("x", "y"), DOUBLE, {"car": DOUBLE, "bus": Unsure()}).keeps_definite


def test_a_selection_changes_estimates_if_any_of_its_recalibrators_does():
    assert not IDENTITY.changes_estimates
    assert not Selection(("x", "y"), Identity(), {"car": Identity()}).changes_estimates
    assert Selection(("x", "y"), DOUBLE, {"car": Identity()}).changes_estimates
    assert Selection(("x", "y"), Identity(), {"car": DOUBLE}).changes_estimates


def test_a_selection_leaves_its_argument_alone():
    before, same = estimates(5), estimates(5)
    for fallback in (DOUBLE, Identity()):
        Selection(("x", "y"), fallback, {"car": TRIPLE}).apply(
            before, np.array([0, 1, 0, 1, 0]), ("car", "bus")
        )
        laws.assert_same(before, same)


def test_no_estimates_become_no_estimates():
    made = BY_SLICE.apply(estimates(0), np.zeros(0, np.int64), ())
    assert made.covariance.shape == (0, 2, 2)


def test_a_selection_fits_spaces_of_its_dimension_names_and_the_identity_fits_all():
    assert BY_SLICE.fits(XY)
    assert BY_SLICE.fits(Space((Dimension("x", "px"), Dimension("y", "px"))))
    assert not BY_SLICE.fits(plain_space(("y", "x")))
    assert not BY_SLICE.fits(plain_space(("x", "y", "z")))
    assert IDENTITY.fits(XY)
    assert IDENTITY.fits(plain_space(("u",)))


def test_a_selection_is_called_after_the_method_of_its_slices():
    assert Selection(("x", "y"), Identity(), {"car": DOUBLE}).method == "variance-scaling"
    assert Selection(("x", "y"), FULL).method == "covariance-scaling"
    assert IDENTITY.version.startswith("identity-")


# ---- the document

positive = st.floats(1e-300, 1e300, allow_subnormal=False)


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
    return Selection(names, model(), {name: model() for name in slices}, {"rows": 3})


@settings(deadline=None, max_examples=60)
@given(selections())
def test_a_document_read_back_is_the_same_to_the_last_bit(selection):
    again = from_json(selection.to_json())
    assert again == selection
    assert again.version == selection.version
    assert again.to_json() == selection.to_json()
    assert from_json(selection.to_json().encode()) == selection


def test_the_identity_read_back_is_the_identity():
    assert from_json(IDENTITY.to_json()) == IDENTITY


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
    assert from_json(noted.to_json()).fitted_on == {"rows": 7}


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
        from_json(json.dumps(document))
    message = str(refusal.value)
    assert message.startswith(f"'version' is '{BY_SLICE.version}' but the content makes ")
    assert message.endswith("Fit again, or remove 'version'.")
    del document["version"]
    assert from_json(json.dumps(document)).fallback == VarianceScaling((2.5, 2.0))


HUGE = 10**400
EYE = [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ("", "not a JSON document"),
        ("{", "not a JSON document"),
        (b"\xff\xfe", "not a JSON document"),
        ("[" * 100_000, "not a JSON document"),
        ("[]", "'format' is 'list'"),
        ("null", "'format' is 'NoneType'"),
        ("{}", "'format' is None"),
        (changed(format="calibration-monitor/recalibrator/2"), f"expected '{FORMAT}'"),
        (changed(dimensions=None), "'dimensions' is None"),
        (changed(dimensions="xy"), "'dimensions' is 'xy'"),
        (changed(dimensions=["x", 2]), "'dimensions' is ['x', 2]"),
        (changed(dimensions=["x"]), "'fallback' has 2 dimensions but 'dimensions' names 1"),
        (changed(dimensions=["x", "y\n"]), r"'dimensions' has the name 'y\n'"),
        (changed(slices={"a\tb": {}}), r"'slices' has the name 'a\tb'"),
        (changed(slices=[]), "'slices' is []"),
        (changed(slices={"car": 5}), "'slices.car.method' is 5"),
        (changed(slices={"car": {}}), "'slices.car.method' is None"),
        (changed(fallback=None), "'fallback.method' is None"),
        (changed(fallback=[]), "'fallback.method' is []"),
        (changed(fallback={"method": "magic"}), "'fallback.method' is 'magic'"),
        (changed(fallback={"method": ["identity"]}), "'fallback.method' is ['identity']"),
        (changed(fallback={"method": {}}), "'fallback.method' is {}"),
        (
            changed(fallback={"method": "identity", "parameters": 3}),
            "'fallback.parameters' must be an object",
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
        (with_parameters(scale=[1.0] * 3), "'correlation' must be 3 lists of 3"),
        (with_parameters(correlation=None), "'correlation' must be 2 lists of 2"),
        (with_parameters(correlation=[[1.0, 0.0]]), "'correlation' must be 2 lists of 2"),
        (with_parameters(correlation=[[1.0], [0.0]]), "'correlation' must be 2 lists of 2"),
        (with_parameters(correlation=[1.0, 1.0]), "'correlation' must be 2 lists of 2"),
        (
            with_parameters(correlation=[[1.0, None], [0.0, 1.0]]),
            "'correlation' must be 2 lists of 2 finite numbers",
        ),
        (with_parameters(correlation=[[1.0, 0.5], [0.4, 1.0]]), "'correlation' is not symmetric"),
        (
            with_parameters(correlation=[[1.0, 1.5], [1.5, 1.0]]),
            "'correlation' is not positive definite",
        ),
        (
            with_parameters(whitened=[[1.0, float("inf")], [float("inf"), 1.0]]),
            "'whitened' must be 2 lists of 2 finite",
        ),
        (with_parameters(whitened=[[1.0, HUGE], [HUGE, 1.0]]), "'whitened' must be 2 lists"),
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
        from_json(document)
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
    found = from_json(changed(fallback=fallback, slices=None, fitted_on=None, version=None))
    assert found.fallback == CovarianceScaling(
        (1.0, 2.0), ((1.0, 0.0), (0.0, 1.0)), ((1.0, 0.0), (0.0, 1.0)), (0, 1)
    )
    assert found.by_slice == {}


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda part: (
        st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=5), part, max_size=3)
    ),
    max_leaves=8,
)
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
        selection = from_json(document)
    except InvalidRecalibrator:
        return
    assert from_json(selection.to_json()) == selection
