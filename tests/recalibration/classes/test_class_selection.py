"""The class recalibrator that is promoted: its document, its version, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.recalibration.classes.class_scaling import Temperature, VectorScaling
from monitor.recalibration.classes.class_selection import CLASS_IDENTITY, ClassSelection
from monitor.recalibration.classes.probabilities import ClassIdentity
from monitor.recalibration.recalibrator import InvalidRecalibrator
from monitor.recalibration.rejection import RejectedBy, Rejection
from tests.laws import assert_same
from tests.recalibration.classes.class_sets import METHODS, made, overconfident
from tests.recalibration.rows import json_values, read_class_selection

REJECTION = Rejection(RejectedBy.ENTROPY, 0.6, 0.05, 0.045, 0.2, 5000)
NAMES = ("car", "bus", "tram")
VECTOR = VectorScaling((0.1 + 0.2, 1 / 3, 2.0), (0.5, -0.5, 0.0))
SELECTION = ClassSelection(NAMES, VECTOR, REJECTION, {"rows": 12, "file": "a"})


def test_it_applies_its_recalibrator():
    sent = overconfident(1, 20, 3).log_probabilities
    assert_same(SELECTION.apply(sent), VECTOR.apply(sent))
    assert SELECTION.method == "vector-scaling"


def test_it_fits_the_class_names_it_has_in_their_order():
    assert SELECTION.fits(NAMES)
    assert not SELECTION.fits(("bus", "car", "tram"))
    assert not SELECTION.fits(("car", "bus"))
    assert not SELECTION.fits(())


def test_without_names_it_fits_any_of_as_many_as_it_was_fitted_on():
    anonymous = ClassSelection((), VECTOR)
    assert anonymous.fits(NAMES)
    assert not anonymous.fits(("car", "bus"))
    assert ClassSelection((), Temperature(2.0)).fits(("car", "bus"))


def test_the_identity_fits_all_and_changes_nothing():
    assert CLASS_IDENTITY.fits(NAMES)
    assert not CLASS_IDENTITY.changes_probabilities
    assert SELECTION.changes_probabilities
    assert read_class_selection(CLASS_IDENTITY.to_json()) == CLASS_IDENTITY


# ---- the document


@settings(max_examples=60)
@given(
    st.sampled_from(METHODS),
    st.integers(0, 5),
    st.booleans(),
    st.sampled_from([None, REJECTION]),
)
def test_a_document_read_back_is_the_same_to_the_last_bit(method, seed, named, rejection):
    selection = ClassSelection(NAMES if named else (), made(method, 3, seed), rejection, {"a": 1})
    again = read_class_selection(selection.to_json())
    assert again == selection
    assert again.version == selection.version
    assert again.to_json() == selection.to_json()
    assert read_class_selection(selection.to_json().encode()) == selection


def test_the_version_is_the_method_and_a_hash_of_the_content():
    assert SELECTION.version == "vector-scaling-e429b388024a"
    assert replace(SELECTION, fitted_on={"rows": 7}).version == SELECTION.version


@pytest.mark.parametrize(
    "other",
    [
        replace(SELECTION, classes=("car", "tram", "bus")),
        replace(SELECTION, classes=()),
        replace(SELECTION, rejection=None),
        replace(SELECTION, rejection=replace(REJECTION, threshold=0.61)),
        replace(SELECTION, recalibrator=Temperature(2.0)),
        replace(
            SELECTION,
            recalibrator=replace(VECTOR, bias=(float(np.nextafter(0.5, 1)), -0.5, 0.0)),
        ),
    ],
)
def test_any_change_of_the_content_changes_the_version(other):
    assert other.version != SELECTION.version


def test_a_document_that_was_changed_after_its_fit_is_refused():
    document = json.loads(SELECTION.to_json())
    document["recalibrator"]["parameters"]["weight"][0] = 2.5
    with pytest.raises(InvalidRecalibrator) as refusal:
        read_class_selection(json.dumps(document))
    message = str(refusal.value)
    assert message.startswith(f"'version' is '{SELECTION.version}' but the content makes ")
    assert message.endswith("Fit again, or remove 'version'.")
    del document["version"]
    found = read_class_selection(json.dumps(document)).recalibrator
    assert found == replace(VECTOR, weight=(2.5, 1 / 3, 2.0))


def changed(**content) -> str:
    """A valid document with parts replaced; None takes a part away."""
    document = {**json.loads(SELECTION.to_json()), "version": "", **content}
    return json.dumps({name: value for name, value in document.items() if value is not None})


def with_model(method, parameters) -> str:
    return changed(recalibrator={"method": method, "parameters": parameters})


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ("", "'document' is no JSON ("),
        (b"\xff\xfe", "'document' is no JSON ("),
        ("[" * 100_000, "'document' is no JSON ("),
        ("[]", "'document' is []"),
        ("null", "'document' is None"),
        ("{}", "'format' is None"),
        (changed(format="calibration-monitor/recalibrator/1"), "'document' has no 'dimensions'"),
        (changed(classes=None), "'document' has no 'classes'"),
        (changed(classes="abc"), "'document.classes' is 'abc'"),
        (changed(classes=["a", 2, "c"]), "'document.classes[1]' is 2"),
        (changed(classes=["a", "b", "a"]), "'classes' is ['a', 'b', 'a']"),
        (
            changed(classes=["a"]),
            "'document': 'classes' holds one name: name at least two, or none for a",
        ),
        (
            changed(classes=["a", "b\n", "c"]),
            r"'document.classes[1]': 'b\n' holds what cannot be printed",
        ),
        (changed(classes=["a", "b"]), "'recalibrator' has 3 classes but 'classes' names 2"),
        (changed(recalibrator=None), "'document' has no 'recalibrator'"),
        (changed(recalibrator=[]), "'document.recalibrator' is []"),
        (changed(recalibrator={}), "'document.recalibrator.method' is None"),
        (with_model("magic", {}), "'document.recalibrator.method' is 'magic'"),
        (with_model(["temperature"], {}), "'document.recalibrator.method' is ['temperature']"),
        (
            with_model("variance-scaling", {}),
            "'document.recalibrator.method' is 'variance-scaling'",
        ),
        (
            with_model("temperature", 3),
            "'document.recalibrator.parameters' is 3",
        ),
        (with_model("temperature", {}), "'document.recalibrator.parameters' has no 'temperature'"),
        (
            with_model("temperature", {"temperature": 0}),
            "'document.recalibrator.parameters.temperature' is 0",
        ),
        (changed(rejection=[]), "'document.rejection' is []"),
        (changed(rejection={}), "'document.rejection' has no 'by'"),
        (
            changed(rejection={**REJECTION.parameters(), "by": "deviation"}),
            "'rejection.by' is 'deviation': with this 'format' it must be 'entropy'",
        ),
        (changed(version="temperature-0"), "'version' is 'temperature-0'"),
        (changed(version=7), "'version' is 7"),
    ],
)
def test_a_malformed_document_is_refused_with_the_field_named(document, named):
    with pytest.raises(InvalidRecalibrator) as refusal:
        read_class_selection(document)
    assert named in str(refusal.value)
    assert str(refusal.value).endswith(".")


def test_parts_with_a_default_may_be_left_out():
    bare = changed(rejection=None, fitted_on=None, version=None)
    assert read_class_selection(bare) == ClassSelection(NAMES, VECTOR)
    identity = changed(recalibrator={"method": "class-identity"}, classes=[])
    assert read_class_selection(identity).recalibrator == ClassIdentity()


parts = st.sampled_from(["classes", "recalibrator", "rejection", "fitted_on", "version"])
fields = st.sampled_from(sorted(REJECTION.parameters()))


@settings(max_examples=200)
@given(
    st.one_of(
        st.builds(lambda name, value: changed(**{name: value}), parts, json_values),
        st.builds(
            lambda name, value: changed(rejection={**REJECTION.parameters(), name: value}),
            fields,
            json_values,
        ),
        st.builds(json.dumps, json_values),
        st.text(max_size=20),
    )
)
def test_whatever_is_sent_is_read_or_refused(document):
    try:
        selection = read_class_selection(document)
    except InvalidRecalibrator:
        return
    assert read_class_selection(selection.to_json()) == selection
