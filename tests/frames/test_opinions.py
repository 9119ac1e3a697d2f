"""Which class probabilities can be used, against plain loops over values; and logits."""

import math
import tracemalloc
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.special import softmax as softmax_of

from monitor.frames.classes import MOST_VALUES, usable_opinions
from tests import laws
from tests.matching.told import padded
from tests.piped_classes import probabilities, sent
from tests.received import Sent, frame

NAN, INF = float("nan"), float("inf")
pytestmark = pytest.mark.filterwarnings("error")


def is_sound(values, classes):
    """Whether a detection's values are opinions, one after the other."""
    if len(values) % classes or len(values) > MOST_VALUES:
        return False
    opinions = [values[i : i + classes] for i in range(0, len(values), classes)]
    in_range = all(math.isfinite(p) and -1e-6 <= p <= 1 + 1e-6 for p in values)
    return in_range and all(abs(math.fsum(opinion) - 1) <= 1e-3 for opinion in opinions)


def expected(rows, classes):
    counts = Counter(len(row) // classes for row in rows if row and is_sound(row, classes))
    most = max(counts.values(), default=0)
    m = min((count for count, often in counts.items() if often == most), default=-1)
    kept = [bool(row) and is_sound(row, classes) and len(row) == m * classes for row in rows]
    found = [
        np.clip(np.reshape(row, (m, classes)), 0, 1).tolist() if use else None
        for row, use in zip(rows, kept, strict=True)
    ]
    return found, [bool(row) and not use for row, use in zip(rows, kept, strict=True)]


@st.composite
def detections(draw, classes):
    """Values of a detection: often sound, with 1 to 3 opinions, or none, or with one fault."""
    count = draw(st.sampled_from([0, 1, 1, 2, 2, 3]))
    if not count:
        return []
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from([np.float64, np.float32, np.float16]))
    row = random.dirichlet(np.ones(classes), count).astype(kind).astype(float).ravel().tolist()
    at = draw(st.integers(0, len(row) - 1))
    match draw(st.sampled_from(["", "", "", "set", "drop", "add", "shift"])):
        case "set":
            row[at] = draw(st.sampled_from([NAN, INF, -INF, 1e308, -0.1, 1.1, -1e-5, 2.0, 0.0]))
        case "drop":
            del row[at]
        case "add":
            row.insert(at, draw(st.sampled_from([0.0, 1.0])))
        case "shift":
            row[at] += draw(st.sampled_from([-5e-4, 5e-4, -2e-3, 2e-3, 9e-7, -9e-7]))
    return row


@given(
    st.integers(1, 5).flatmap(lambda c: st.tuples(st.lists(detections(c), max_size=8), st.just(c)))
)
@example(([[0.5, 0.5, 0.25, 0.75], [0.5, 0.5, 0.5, 0.75]], 2))
@example(([[0.5, 0.5], [NAN, 0.5] * 2, [0.5, 0.6] * 2], 2))
@example(([[0.25, 0.75] * count for count in (1, 2, 2)], 2))
@example(([[0.25, 0.75] * count for count in (3, 3, 1, 1, 2)], 2))
@example(([[1 + 5e-7, -5e-7]], 2))
@example(([[1.0, *[0.0] * 7] * (MOST_VALUES // 8)], 8))
@example(([[1.0, *[0.0] * 7] * (MOST_VALUES // 8 + 1)], 8))
@example(([[], []], 3))
def test_exactly_the_sound_opinions_of_the_usual_number_are_kept(made):
    rows, classes = made
    values, length = padded(rows)
    before = values.copy()
    found, invalid = usable_opinions(values, length, np.arange(len(rows)), classes)
    laws.assert_same(values, before)
    opinions, set_aside = expected(rows, classes)
    assert invalid.tolist() == set_aside
    assert (found is None) == (not any(opinions))
    for row, opinion in zip(() if found is None else found, opinions, strict=found is not None):
        assert np.isnan(row).all() if opinion is None else row.tolist() == opinion


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        *(([0.5, 0.5 + off], abs(off) < 1e-3) for off in (0.9e-3, -0.9e-3, 1.1e-3, -1.1e-3)),
        *(([1 + off, 0.0], off < 1e-6) for off in (0.9e-6, 1.1e-6)),
        *(([1.0, -off], off < 1e-6) for off in (0.9e-6, 1.1e-6)),
    ],
)
def test_the_tolerances_are_those_of_the_contract(values, kept):
    row, length = padded([values])
    assert usable_opinions(row, length, np.arange(1), 2)[1].tolist() == [not kept]


def test_one_detection_of_many_values_costs_no_more_than_what_was_sent():
    values, length = padded([[0.5, 0.5] * 1024, *([[0.25, 0.75]] * 2000), [0.5] * 2047])
    tracemalloc.start()
    found, invalid = usable_opinions(values, length, np.arange(length.size), 2)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found is not None
    assert found.shape == (2002, 1, 2)
    assert np.flatnonzero(invalid).tolist() == [0, 2001]
    assert most < values.nbytes / 20


# ---- logits in place of probabilities


def of_logits(id: int, values: int) -> Sent:
    logits = tuple(np.random.default_rng(id).normal(size=values).tolist())
    return replace(sent(id, opinions=0), class_logits=logits)


def test_logits_become_probabilities_where_a_detection_has_none():
    both = replace(of_logits(500, 3), class_probabilities=probabilities(1, 2))
    rows = [of_logits(0, 2046), *(of_logits(i, 3) for i in range(1, 400)), both, sent(3)]
    rows.append(sent(4, opinions=0))
    found = frame(rows).with_softmax(3).detections.class_probabilities
    assert found is not None
    # Logits beside probabilities of their own are not looked at.
    for row, values, length in zip(rows, *found, strict=True):
        expected = np.array(row.class_probabilities)
        if row.class_logits and not row.class_probabilities:
            expected = softmax_of(np.array(row.class_logits).reshape(-1, 3), axis=1).ravel()
        assert length == expected.size
        assert values[:length] == pytest.approx(expected, rel=1e-12)
        assert np.isnan(values[length:]).all()


@pytest.mark.parametrize("values", [2, 4, 0, MOST_VALUES + 1, 3 * MOST_VALUES])
def test_logits_that_make_no_whole_opinions_are_set_aside(values):
    rows = [of_logits(1, values), of_logits(2, values)]
    found = frame(rows).with_softmax(3).detections.class_probabilities
    if values:
        assert found is not None
        assert found[1].tolist() == [values] * 2
        assert np.isnan(found[0]).all()
