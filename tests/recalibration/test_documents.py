"""Documents of recalibrators: there and back to the last bit, versions that name their content, and
what is refused with the field named. Whatever stands in one, it is refused or it can be served."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.slices import RangeBuckets
from monitor.recalibration.class_probabilities import from_probabilities
from monitor.recalibration.class_scaling import VectorScaling
from monitor.recalibration.fitting import FITTINGS, FitOptions
from monitor.recalibration.processes.sparse_process import Feature, FeatureKind, SparseProcess
from monitor.recalibration.recalibrator import (
    Basis,
    Clock,
    Identity,
    InvalidRecalibrator,
    described,
)
from monitor.recalibration.rejection import RejectedBy, Rejection
from monitor.recalibration.scaling import CovarianceScaling, VarianceScaling
from monitor.recalibration.selection import (
    CLASS_IDENTITY,
    CLASS_METHODS,
    FORMAT,
    IDENTITY,
    METHODS,
    MOST_SELECTED,
    AnySelection,
    ClassSelection,
    Selection,
)
from monitor.store.documents import InvalidDocument, any_selection_from_json
from tests import laws
from tests.recalibration.rows import (
    as_read,
    json_values,
    made,
    random_process,
    read_selection,
    sizes,
    wild_estimates,
)

DOUBLE, TRIPLE = VarianceScaling((2.0, 2.0)), VarianceScaling((3.0, 3.0))
FULL = CovarianceScaling(
    (0.1 + 0.2, 1 / 3), ((1.0, 0.3), (0.3, 1.0)), ((1.5, -0.25), (-0.25, 0.1)), (1, 0)
)
OF_DEVIATION = Rejection(RejectedBy.DEVIATION, 2.5, 0.4, 0.375, 0.125, 800)
OF_ENTROPY = Rejection(RejectedBy.ENTROPY, 0.8, 0.1, 0.09, 0.2, 400)
BASIS = Basis(300, 20, 90.5, 1, 2.5, Clock.SECONDS, "fallback")
RANGES = RangeBuckets((20.0, 50.0), ("x", "y"))
BY_SLICE = Selection(("x", "y"), DOUBLE, {"car": TRIPLE, "bus": FULL}, {"rows": 12, "file": "a"})
NAMES = ("car", "bus", "tram")
VECTOR = VectorScaling((0.1 + 0.2, 1 / 3, 2.0), (0.5, -0.5, 0.0))
OF_CLASSES = ClassSelection(NAMES, VECTOR, OF_ENTROPY, {"rows": 12, "file": "a"})
EARLIER = json.loads(Path(__file__).with_name("documents_1.json").read_text(encoding="utf-8"))

Path_ = tuple[str | int, ...]
ABSENT = object()


def changed(document: Any, path: Path_, value: Any) -> Any:
    """The document with something else in one place; ABSENT takes it away."""
    if not path:
        return None if value is ABSENT else value
    whole = copy.deepcopy(document)
    place = whole
    for key in path[:-1]:
        place = place[key]
    if value is ABSENT:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return whole


def as_text(document: Any) -> str:
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def bare(selection: AnySelection) -> Any:
    """Its document without a version, so that a change of it is looked at."""
    document = json.loads(selection.to_json())
    del document["version"]
    return document


# ---- whatever stands in a document

JUNK: tuple[Any, ...] = (
    ABSENT,
    *(None, True, False, 0, 1, -1, 2, 7, 2**63, 10**400, -(10**400)),
    *(0.5, -0.5, 1e-320, 1e-12, 1e12, 1e300, -1e300),
    *(float("inf"), float("-inf"), float("nan"), "", "x", "1", "\ud800", "mean", "paper"),
    *([], [[]], [[[]]], {}, [None], [0.0], [1.0, 1.0], [[1.0]], [{}], {"": []}, [True]),
)


@cache
def selection_of(name: str) -> AnySelection:
    """Of two dimensions or three classes, with all that may be in a document."""
    if name in CLASS_METHODS:
        return ClassSelection(("a", "b", "c"), made(name, 3), OF_ENTROPY, {"rows": 3})
    rows = sizes(3, n=300, k=2)
    fitted = FITTINGS[name].fit(rows, FitOptions(inducing=3), None)
    bases = {"car": Basis(9, 9, 0.1 + 0.2, 2**53 + 1, 2**63 - 1, Clock.STAMP)}
    slices, notes = {"car": Identity()}, {"rows": 3}
    return Selection(rows.space.names, fitted, slices, notes, BASIS, bases, RANGES, OF_DEVIATION)


def paths(part: Any, to: Path_ = ()) -> list[Path_]:
    """Of every leaf and every subtree."""
    if isinstance(part, dict):
        below = list(part.items())
    else:
        below = list(enumerate(part)) if isinstance(part, list) else []
    return [to, *(path for key, value in below for path in paths(value, (*to, key)))]


def assert_refused_or_usable(text: str) -> None:
    try:
        found = any_selection_from_json(text)
    except InvalidRecalibrator as refusal:
        assert str(refusal).endswith(".")
        assert len(str(refusal)) < 2000
        return
    assert any_selection_from_json(found.to_json()) == found
    if isinstance(found, ClassSelection):
        opinions = np.random.default_rng(0).dirichlet([0.3] * (len(found.classes) or 3), (5, 2))
        applied = found.apply(from_probabilities(opinions))
        assert applied.sum(axis=2) == pytest.approx(np.ones((5, 2)))
        return
    sent = wild_estimates(0, 20, len(found.dimensions) or 2)
    for one in found.recalibrators:
        laws.recalibrated_covariances_are_positive_definite(one, sent)


of_every_kind = pytest.mark.parametrize("name", [*METHODS, *CLASS_METHODS])


@of_every_kind
def test_a_document_read_back_is_the_same_to_the_last_bit(name):
    selection = selection_of(name)
    found = any_selection_from_json(selection.to_json())
    assert found == selection
    assert (found.version, found.to_json()) == (selection.version, selection.to_json())
    assert type(found) is (ClassSelection if name in CLASS_METHODS else Selection)


@of_every_kind
@given(st.data())
def test_whatever_stands_in_one_place_is_refused_or_makes_a_usable_recalibrator(name, data):
    document = bare(selection_of(name))
    path = data.draw(st.sampled_from(paths(document)))
    value = data.draw(st.sampled_from(JUNK) | json_values)
    assert_refused_or_usable(json.dumps(changed(document, path, value)))


@given(json_values.map(json.dumps) | st.text(max_size=20))
def test_whatever_is_no_document_is_refused(text):
    with pytest.raises(InvalidRecalibrator):
        any_selection_from_json(text)


@pytest.mark.parametrize(
    ("depth", "words"), [(33, "nested more than 32 levels"), (10**5, "no JSON")]
)
def test_what_is_nested_too_deeply_to_be_walked_is_refused(depth, words):
    document = as_text(bare(IDENTITY)).replace("{}", "[" * depth + "]" * depth, 1)
    with pytest.raises(InvalidRecalibrator, match=words):
        any_selection_from_json(document)


# ---- documents of an earlier release, a file of every method by its version


@pytest.mark.parametrize("version", EARLIER)
def test_a_document_of_before_is_read_and_written_byte_for_byte(version):
    text = as_text(EARLIER[version])
    found = any_selection_from_json(text)
    assert found.version == version
    assert found.to_json() == text


def test_there_is_a_document_of_before_of_every_method():
    found = [any_selection_from_json(as_text(document)) for document in EARLIER.values()]
    methods = {one.method for one in found if not isinstance(one, Selection)}
    assert methods == set(CLASS_METHODS)
    of_gaussians = (one for one in found if isinstance(one, Selection))
    assert {part.method for one in of_gaussians for part in one.recalibrators} == set(METHODS)


@pytest.mark.parametrize("notes", [None, 3, {"a": [float("inf"), "\ud800"]}])
def test_whatever_is_noted_beside_a_document_it_is_read(notes):
    for version, document in list(EARLIER.items())[:6]:
        found = any_selection_from_json(as_text({**document, "fitted_on": notes}))
        assert found.version == version
        assert any_selection_from_json(found.to_json()).to_json() == found.to_json()


# ---- versions


def test_the_version_is_the_method_and_a_hash_of_the_content():
    assert BY_SLICE.version == "covariance-scaling-a067db335f26"
    turned = replace(BY_SLICE, by_slice={"bus": FULL, "car": TRIPLE}, fitted_on={})
    assert turned.version == BY_SLICE.version
    known = replace(BY_SLICE, basis=BASIS, bases={"car": BASIS})
    assert known.version == BY_SLICE.version
    assert json.loads(known.to_json())["fallback"]["basis"] == BASIS.parameters()
    assert "basis" not in BY_SLICE.to_json()
    assert replace(OF_CLASSES, fitted_on={}).version == OF_CLASSES.version


@pytest.mark.parametrize(
    ("selection", "changes"),
    [
        (BY_SLICE, {"dimensions": ("x", "z")}),
        (BY_SLICE, {"fallback": TRIPLE}),
        (BY_SLICE, {"by_slice": {"van": TRIPLE, "bus": FULL}}),
        (BY_SLICE, {"by_slice": {"bus": FULL, "car": VarianceScaling((3.0, np.nextafter(3, 4)))}}),
        (BY_SLICE, {"rejection": OF_DEVIATION}),
        (BY_SLICE, {"ranges": RANGES}),
        (OF_CLASSES, {"classes": ("car", "tram", "bus")}),
        (OF_CLASSES, {"rejection": replace(OF_ENTROPY, threshold=0.81)}),
        (OF_CLASSES, {"recalibrator": replace(VECTOR, bias=(0.5, -0.5, 1e-300))}),
    ],
)
def test_any_change_of_what_is_done_changes_the_version(selection, changes):
    assert replace(selection, **changes).version != selection.version


@pytest.mark.parametrize(
    ("selection", "path"),
    [
        (BY_SLICE, ("fallback", "parameters", "scale", 0)),
        (OF_CLASSES, ("recalibrator", "parameters", "weight", 0)),
    ],
)
def test_a_document_that_was_changed_after_its_fit_is_refused(selection, path):
    document = changed(json.loads(selection.to_json()), path, 2.5)
    with pytest.raises(InvalidRecalibrator) as refusal:
        any_selection_from_json(json.dumps(document))
    message = str(refusal.value)
    assert message.startswith(f"'version' is '{selection.version}' but the content makes ")
    assert message.endswith("Fit again, or remove 'version'.")
    del document["version"]
    assert bare(any_selection_from_json(json.dumps(document))) == document


# ---- parts


def test_a_selection_fits_its_class_names_in_their_order_or_without_names_as_many():
    assert OF_CLASSES.fits(NAMES)
    for others in (("bus", "car", "tram"), ("car", "bus"), ()):
        assert not OF_CLASSES.fits(others)
    unnamed = replace(OF_CLASSES, classes=())
    assert unnamed.fits(NAMES)
    assert not unnamed.fits(("car", "bus"))
    assert CLASS_IDENTITY.fits(NAMES)
    assert not CLASS_IDENTITY.changes_probabilities
    assert OF_CLASSES.changes_probabilities


def test_parts_with_a_default_may_be_left_out():
    unit = [[1.0, 0.0], [0.0, 1.0]]
    parameters = {"scale": [1, 2], "correlation": unit, "whitened": unit}
    fallback = {"method": "covariance-scaling", "parameters": parameters}
    document = {"format": FORMAT, "dimensions": ["x", "y"], "fallback": fallback}
    found = read_selection(json.dumps(document))
    matrix = ((1.0, 0.0), (0.0, 1.0))
    assert found == Selection(("x", "y"), CovarianceScaling((1.0, 2.0), matrix, matrix, (0, 1)))


def test_a_document_of_more_slices_than_are_ever_served_is_refused():
    some = {f"slice {i}": Identity() for i in range(MOST_SELECTED)}
    assert len(read_selection(Selection((), Identity(), some).to_json()).by_slice) == MOST_SELECTED
    document = Selection((), Identity(), {**some, "more": Identity()}).to_json()
    with pytest.raises(InvalidRecalibrator, match=r"'document.slices' has 4097 entries"):
        read_selection(document)


def test_people_read_how_much_of_what_time_and_whose_a_fit_leans_on():
    assert str(Basis(120, 14, 31.5, 10**18, 10**18 + 3, Clock.STAMP, "Car")) == (
        "120 rows of 14 tracks, worth 32, stamp_ns 1000000000000000000 to 1000000000000000003, "
        "borrows from Car"
    )
    assert str(Basis(9, 9, 9.0, 0.5, 2.0, Clock.SECONDS)) == (
        "9 rows of 9 tracks, worth 9, t 0.5 to 2.0 s"
    )


# ---- what is refused, method by method

PROCESS = random_process(1, outputs=2)
FEATURE = Feature(FeatureKind.LOG_MEAN, 1, 0.5, 3.0, 0.1, 0.7)
GOOD: dict[str, tuple[Any, Any]] = {
    "basis": (Basis, Basis(120, 14, 31.5, 1, 2, Clock.STAMP, "Car").parameters()),
    "deviation rejection": (Rejection, OF_DEVIATION.parameters()),
    "rejection": (Rejection, OF_ENTROPY.parameters()),
    "process": (SparseProcess, PROCESS.parameters()),
    "feature": (Feature, FEATURE.parameters()),
    "covariance-scaling": (CovarianceScaling, FULL.parameters()),
    "histogram-binning": (
        METHODS["histogram-binning"],
        {"edges": [[0.5], [1.0]], "factors": [[1.0, 2.0], [3.0, 4.0]]},
    ),
    "isotonic-std": (
        METHODS["isotonic-std"],
        {"deviation": [[0.5, 1.0], [2.0]], "factor": [[1.0, 0.5], [3.0]]},
    ),
    "isotonic-quantiles": (
        METHODS["isotonic-quantiles"],
        {
            "normal": [[-1.0, 0.0, 1.0], [0.0]],
            "error": [[-3.0, 0.0, 2.0], [0.5]],
            "below": [4.0, 1.0],
            "above": [2.0, 1.0],
        },
    ),
    "classwise-isotonic": (
        CLASS_METHODS["classwise-isotonic"],
        {"knots": 2 * [{"sent": [-3.0, -1.0], "made": [-2.0, -0.5]}]},
    ),
}


def good(kind: str) -> tuple[Any, Any]:
    """The type of a part, and the content of a good one."""
    if kind not in GOOD:
        selection = selection_of(kind)
        one = selection.fallback if isinstance(selection, Selection) else selection.recalibrator
        GOOD[kind] = type(one), json.loads(json.dumps(one.parameters()))
    return GOOD[kind]


def said_of(kind: str, path: Path_, value: Any) -> str:
    type_, parameters = good(kind)
    try:
        as_read(type_, changed(parameters, path, value))
    except InvalidDocument as refusal:
        return str(refusal)
    return ""


def place(text: str) -> Path_:
    return tuple(int(key) if key.isdecimal() else key for key in text.split("."))


INF = float("inf")


@pytest.mark.parametrize(
    ("kind", "path", "lowest", "highest"),
    [
        ("deviation rejection", "threshold", 0.0, 1e12),
        ("covariance-scaling", "whitened.0.0", -1e24, 1e24),
        ("adaptive-scaling", "nees.0", 0.0, 1e30),
        ("adaptive-scaling", "prior_scale.0", 1e-3, 1e3),
        ("isotonic-quantiles", "normal.1.0", -10.0, 10.0),
        ("isotonic-quantiles", "below.0", 1e-3, 1e6),
        ("gp-normal", "processes.0.mixing.0.0", -1e3, 1e3),
        ("gp-normal", "low.0", -100.0, INF),
        ("gp-normal", "high.0", -INF, 100.0),
        ("gp-normal-multivariate", "variances.most_uncertain.1", 0.0, 50.0),
        ("gp-cauchy", "surrogate_level", 0.001, 0.9999),
        ("classwise-isotonic", "knots.0.made.0", float(np.log(1e-12)), INF),
        ("classwise-isotonic", "knots.0.sent.1", -INF, 0.0),
    ],
)
def test_a_number_beyond_its_bounds_is_refused_by_name_and_one_at_them_is_not(
    kind, path, lowest, highest
):
    *outer, last = place(path)
    name = "parameters" + "".join(
        f"[{key}]" if isinstance(key, int) else f".{key}" for key in (*outer, last)
    )
    for bound, beyond in ((lowest, -INF), (highest, INF)):
        if abs(bound) < INF:
            assert f"'{name}' is" not in said_of(kind, (*outer, last), bound)
            wrong = float(np.nextafter(bound, beyond))
            assert f"'{name}' is {wrong}" in said_of(kind, (*outer, last), wrong)
    assert f"'{name}' is nan" in said_of(kind, (*outer, last), float("nan"))


# Its smallest eigenvalue is positive by a rounding, and still it has no root.
SINGULAR = [[(1 / 3) ** 2, (1 / 3) * (1 / 9)], [(1 / 3) * (1 / 9), (1 / 9) ** 2]]
ASYMMETRIC, INDEFINITE = [[1.0, 0.5], [0.4, 1.0]], [[1.0, 2.0], [2.0, 1.0]]
NOT_ABOVE = [[1.0, 0.0], [0.5, 1.0]]
FLAT, FLAT_3 = (SparseProcess((0.0,) * outputs).parameters() for outputs in (2, 3))


@pytest.mark.parametrize(
    ("kind", "path", "value", "words"),
    [
        ("basis", "effective_rows", 120.1, "'effective_rows' is 120.1: it must be at most 'rows'"),
        ("basis", "clock", None, "'clock' is None: they must be the two ends of a period"),
        ("basis", "borrows_from", "a\n", r"'a\n' holds what cannot be printed"),
        ("rejection", "by", "luck", "'parameters.by' is 'luck'"),
        ("rejection", "threshold", 1.5, "'threshold', 'target_error' and 'error' go up to 1.5"),
        ("covariance-scaling", "correlation", [[1.0, 0.0]], "'correlation' has 1 rows of 2 entr"),
        ("covariance-scaling", "correlation", ASYMMETRIC, "'correlation' is not symmetric"),
        ("covariance-scaling", "correlation", INDEFINITE, "'correlation' is not positive def"),
        ("covariance-scaling", "order", [0, 0], "'order' is [0, 0]: it must hold 0 to 1, each onc"),
        ("adaptive-scaling", "delay_s", 60.0, "labels come 60 s late, and the time constant is 60"),
        ("adaptive-scaling", "nees", [1.0], "'nees' has 1 entries: with 'scale' it must have 2"),
        ("histogram-binning", "factors.0", [1.0], "'factors' has 2 rows of 1 or 2 entries: with"),
        ("isotonic-std", "factor.0.1", 0.49, "'factor' makes σ 0.49 after 0.5 at the knots"),
        ("isotonic-quantiles", "normal.0.2", 9e-4, "knots must be 0.001 apart"),
        ("process", "inducing", [[float(i), 0.5] for i in range(257)], "at most 256"),
        ("process", "mixing", NOT_ABOVE, "'mixing' is not diagonal"),
        ("process", "inputs", 2 * [FEATURE.parameters()], "'inputs' hold a feature twice"),
        ("feature", "low", 5.0, "low may not be above high"),
        ("feature", "low", 0.0, "'low' is 0.0: it must be positive for kind 'log-mean'"),
        ("gp-normal", "dimensions", 3, "'processes' have 2 outputs, 'dimensions' is 3"),
        ("gp-normal", "processes.0.inputs.0.dimension", 2, "'dimension' is 2 in 'inputs': it must"),
        ("gp-normal", "low", [99.0, 99.0], "they must be in order"),
        ("gp-normal-multivariate", "variances", ABSENT, "'covariances' is missing, and so is 'var"),
        ("gp-normal-multivariate", "variances.moment", SINGULAR, "'moment' is"),
        ("gp-beta", "latent.high", [100.0, 100.0], "'lines[0]' leaves the bounds of log a, log b"),
        ("auxiliary-scaling", "hidden_bias", [0.0] * 1025, "hidden_bias' has 1025 entries"),
        ("histogram-binning", "edges.0", [1.0, 1.0], "'edges' holds 1.0 after 1.0: entries must"),
        ("isotonic-std", "factor.0", [1.0], "'factor' has 2 rows of 1 entries: with 'deviation'"),
        ("isotonic-std", "deviation.0", [0.5, 0.5 + 2**-50], "so near to each other make no slope"),
        ("isotonic-quantiles", "error.0.2", 1e-6, "'error' rises by 1e-06 per unit of 'normal'"),
        ("isotonic-quantiles", "error.0", [-3.0, 0.0], "'error' has 2 rows of 1 or 2 entries"),
        ("isotonic-quantiles", "error.0.0", 1.0, "'error' holds 0.0 after 1.0: entries must rise"),
        ("isotonic-quantiles", "normal.0.0", 0.5, "'normal' holds 0.0 after 0.5: entries must"),
        ("isotonic-quantiles", "below", [4.0], "'below' has 1 entries: with 'normal' it must"),
        ("process", "inducing.0", [0.1] * 5, "'inducing' has 5 rows of 2 or 5 entries"),
        ("process", "location", [], "with 'constant' and 'inducing' it must have 2 rows of 5"),
        ("process", "scale", [], "'scale' has 0 rows of no entries: with 'location' it must"),
        ("process", "mixing", [], "'mixing' has 0 rows of no entries: with 'constant' it must"),
        ("process", "spread.0.0.0", -1.0, "its rows must end in a positive number"),
        ("gp-normal-multivariate", "order", [0], "'order' is [0]: it must hold 0 to 1, each once"),
        ("gp-normal-multivariate", "variances.weights.processes", [FLAT_3], "need [1, 2]"),
        ("gp-beta", "lines", [], "'lines' has 0 entries: with 'factor' it must have 2"),
        ("gp-beta", "latent.processes", [FLAT], "have [2] outputs: 2 dimensions need [1, 1]"),
        ("gp-beta", "latent.processes.0.inputs", [], "0 features in 'inputs' and points of 1"),
        ("gp-beta", "latent.processes.0.inputs.0.scale", 1e-9, "too small for the range 7.54"),
        ("auxiliary-scaling", "centre", [0.0], "'centre' has 1 entries: with 'weight' it must"),
        ("auxiliary-scaling", "hidden", [], "'hidden' has 0 rows of no entries: with 'hidden_b"),
        ("classwise-isotonic", "knots.0.made", [-3.0, -2.0, -1.0], "'made' has 3 entries: with"),
        ("classwise-isotonic", "knots.0.made", [-1.0], "'parameters.knots[0].made' has 1 entries"),
        ("classwise-isotonic", "knots.0.sent", [-1.0, -3.0], "'sent' must never fall"),
    ],
)
def test_content_that_makes_no_sense_is_refused_with_the_field_named(kind, path, value, words):
    assert words in said_of(kind, place(path), value)


def other(selection: AnySelection, value: Any, *path: str | int) -> Any:
    return changed(bare(selection), path, value)


IS_ENTROPY = "'rejection.by' is 'entropy': with this 'format' it must be 'deviation'"
IS_DEVIATION = "'rejection.by' is 'deviation': with this 'format' it must be 'entropy'"


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (other(BY_SLICE, f"{FORMAT[:-1]}2", "format"), f"this monitor reads '{FORMAT}'"),
        (other(OF_CLASSES, FORMAT, "format"), "'document' has no 'dimensions'"),
        (other(BY_SLICE, ABSENT, "dimensions"), "'document' has no 'dimensions'"),
        (other(BY_SLICE, "y\n", "dimensions", 1), r"'y\n' holds what cannot be printed"),
        (
            other(BY_SLICE, described(VarianceScaling((1.0,))), "slices", "car"),
            "'slices.car' has 1 dimensions but 'dimensions' names 2",
        ),
        (other(BY_SLICE, OF_ENTROPY.parameters(), "rejection"), IS_ENTROPY),
        (other(BY_SLICE, {"edges": [2.0, 1.0], "dimensions": []}, "ranges"), "'edges' are [2.0"),
        (other(BY_SLICE, {"method": "magic"}, "fallback"), "'document.fallback.method' is 'magic'"),
        (
            other(BY_SLICE, ABSENT, "fallback", "parameters"),
            "'document.fallback' has no 'parameters'",
        ),
        (other(OF_CLASSES, ABSENT, "classes"), "'document' has no 'classes'"),
        (other(OF_CLASSES, ["a", "b", "a"], "classes"), "'classes' is ['a', 'b', 'a']"),
        (other(OF_CLASSES, ["a"], "classes"), "'classes' holds one name: name at least two"),
        (other(BY_SLICE, {"\n": described(VarianceScaling((1.0,)))}, "slices"), "'slices' has na"),
        (other(OF_CLASSES, ["a", "b"], "classes"), "'recalibrator' has 3 classes but 'classes'"),
        (other(OF_CLASSES, OF_DEVIATION.parameters(), "rejection"), IS_DEVIATION),
    ],
)
def test_a_malformed_document_is_refused_with_the_field_named(document, named):
    with pytest.raises(InvalidRecalibrator) as refusal:
        any_selection_from_json(json.dumps(document))
    assert named in str(refusal.value)
    assert str(refusal.value).endswith(".")
