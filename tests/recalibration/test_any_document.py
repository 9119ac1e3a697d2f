"""Whatever a document of any method holds, it is refused, or it makes a usable recalibrator."""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.slices import RangeBuckets
from monitor.recalibration.classes.class_selection import (
    CLASS_METHODS,
    AnySelection,
    ClassSelection,
)
from monitor.recalibration.classes.probabilities import from_probabilities
from monitor.recalibration.fitting import FITTINGS, FitOptions
from monitor.recalibration.recalibrator import Basis, Clock, Identity, InvalidRecalibrator
from monitor.recalibration.rejection import RejectedBy, Rejection
from monitor.recalibration.selection import METHODS, Selection
from monitor.store.recalibrator_documents import any_selection_from_json
from tests import laws
from tests.recalibration.classes.class_sets import made
from tests.recalibration.gp_sets import sizes
from tests.recalibration.rows import json_values, wild_estimates

ABSENT = object()
JUNK: tuple[Any, ...] = (
    ABSENT,
    *(None, True, False, 0, 1, -1, 2, 7, 2**63, 10**400, -(10**400)),
    *(0.5, -0.5, 1e-320, 1e-12, 1e12, 1e300, -1e300),
    *(float("inf"), float("-inf"), float("nan"), "", "x", "1", "\ud800", "mean", "paper"),
    *([], [[]], [[[]]], {}, [None], [0.0], [1.0, 1.0], [[1.0]], [{}], {"": []}, [True]),
)
Path = tuple[str | int, ...]
of_every_kind = pytest.mark.parametrize("name", [*METHODS, *CLASS_METHODS])


@cache
def legal(name: str) -> Any:
    """A document without a version, so that a change of it is looked at."""
    document = json.loads(selection_of(name).to_json())
    del document["version"]
    return document


def selection_of(name: str) -> AnySelection:
    """Of two dimensions or three classes, with all that may be in a document."""
    if name in CLASS_METHODS:
        of_entropy = Rejection(RejectedBy.ENTROPY, 0.8, 0.1, 0.09, 0.2, 400)
        return ClassSelection(("a", "b", "c"), made(name, 3), of_entropy, {"rows": 3})
    rows = sizes(3, n=300, k=2)
    fitted = FITTINGS[name].fit(rows, FitOptions(inducing=3), None)
    return Selection(
        rows.space.names,
        fitted,
        {"car": Identity()},
        {"rows": 3},
        Basis(300, 20, 90.5, 1, 2.5, Clock.SECONDS, "fallback"),
        ranges=RangeBuckets((20.0, 50.0), ("x", "y")),
        rejection=Rejection(RejectedBy.DEVIATION, 3.0, 2.0, 1.5, 0.1, 300),
    )


def paths(part: Any, to: Path = ()) -> list[Path]:
    """Of every leaf and every subtree."""
    if isinstance(part, dict):
        below = list(part.items())
    else:
        below = list(enumerate(part)) if isinstance(part, list) else []
    return [to, *(path for key, value in below for path in paths(value, (*to, key)))]


def changed(document: Any, path: Path, value: Any) -> str:
    """The document with something else in one place; ABSENT takes it away."""
    if not path:
        return json.dumps(None if value is ABSENT else value)
    whole = copy.deepcopy(document)
    place = whole
    for key in path[:-1]:
        place = place[key]
    if value is ABSENT:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(whole)


def assert_refused_or_usable(text: str) -> None:
    try:
        found = any_selection_from_json(text)
    except InvalidRecalibrator as refusal:
        assert str(refusal).endswith(".")
        assert len(str(refusal)) < 2000
        return
    assert any_selection_from_json(found.to_json()) == found
    if isinstance(found, ClassSelection):
        sent = np.random.default_rng(0).dirichlet([0.3] * (len(found.classes) or 3), (5, 2))
        applied = found.apply(from_probabilities(sent))
        assert applied.sum(axis=2) == pytest.approx(np.ones((5, 2)))
        return
    for one in found.recalibrators:
        laws.recalibrated_covariances_are_positive_definite(
            one, wild_estimates(0, 20, len(found.dimensions) or 2)
        )


@of_every_kind
def test_a_document_is_read_as_it_was_written(name):
    found = any_selection_from_json(json.dumps(legal(name)))
    assert found == selection_of(name)
    assert type(found) is (ClassSelection if name in CLASS_METHODS else Selection)


@of_every_kind
@settings(max_examples=60)
@given(st.data())
def test_whatever_stands_in_one_place_is_refused_or_makes_a_usable_recalibrator(name, data):
    document = legal(name)
    path = data.draw(st.sampled_from(paths(document)))
    value = data.draw(st.sampled_from(JUNK) | json_values)
    assert_refused_or_usable(changed(document, path, value))


@pytest.mark.parametrize("depth", [33, 500, 900, 100_000])
def test_what_is_nested_too_deeply_to_be_walked_is_refused(depth):
    document = changed(legal("identity"), ("fitted_on", "rows"), "here")
    with pytest.raises(InvalidRecalibrator, match=r"nested more than 32 levels|is no JSON"):
        any_selection_from_json(document.replace('"here"', "[" * depth + "]" * depth))
