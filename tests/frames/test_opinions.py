"""Which class probabilities can be used, against plain loops over values and detections."""

import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.frames.classes import MOST_VALUES, usable_opinions
from monitor.frames.frame import opinions_of
from tests import laws

NAN, INF = float("nan"), float("inf")


pytestmark = pytest.mark.filterwarnings("error")


def is_sound(values, classes):
    """Whether a detection's values are opinions: one value after the other."""
    if len(values) % classes or len(values) > MOST_VALUES:
        return False
    for i in range(0, len(values), classes):
        opinion = values[i : i + classes]
        if not all(math.isfinite(p) and -1e-6 <= p <= 1 + 1e-6 for p in opinion):
            return False
        if not abs(math.fsum(opinion) - 1) <= 1e-3:
            return False
    return True


def expected(rows, classes):
    """The opinions of each row, or None; and whether something came that is set aside."""
    counts = Counter(len(row) // classes for row in rows if row and is_sound(row, classes))
    if not counts:
        return [None for _ in rows], [bool(row) for row in rows]
    most = max(counts.values())
    m = min(count for count, often in counts.items() if often == most)
    kept = [bool(row) and is_sound(row, classes) and len(row) == m * classes for row in rows]
    found = [
        [[min(max(p, 0.0), 1.0) for p in row[i : i + classes]] for i in range(0, len(row), classes)]
        if use
        else None
        for row, use in zip(rows, kept, strict=True)
    ]
    return found, [bool(row) and not use for row, use in zip(rows, kept, strict=True)]


def padded(rows, width=None):
    """As the wire hands them over: NaN beyond the length, or cut where the array ends."""
    length = np.array([len(row) for row in rows], np.int64)
    values = np.full((len(rows), length.max(initial=0) if width is None else width), NAN)
    for i, row in enumerate(rows):
        kept = min(len(row), values.shape[1])
        values[i, :kept] = row[:kept]
    return values, length


def judged(rows, classes, width=None):
    """All rows of a frame."""
    values, length = padded(rows, width)
    return usable_opinions(values, length, np.arange(len(rows)), classes)


def assert_as_expected(rows, classes):
    values, length = padded(rows)
    before = values.copy()
    found, invalid = usable_opinions(values, length, np.arange(len(rows)), classes)
    laws.assert_same(values, before)
    opinions, set_aside = expected(rows, classes)
    assert invalid.tolist() == set_aside
    if not any(opinions):
        assert found is None
        return
    assert found is not None
    for row, opinion in zip(found, opinions, strict=True):
        assert np.isnan(row).all() if opinion is None else row.tolist() == opinion


def softmax(logits, kind):
    """In the precision of the detector, (M, C)."""
    logits = np.asarray(logits, dtype=kind)
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (raised / raised.sum(axis=1, keepdims=True, dtype=kind)).astype(np.float64)


@st.composite
def detections(draw, classes):
    """Values of a detection: often sound, with 1 to 3 opinions, or none, or with one fault."""
    count = draw(st.sampled_from([0, 1, 1, 2, 2, 3]))
    logit = st.floats(-12, 12)
    logits = [[draw(logit) for _ in range(classes)] for _ in range(count)]
    if not count:
        return []
    row = softmax(logits, draw(st.sampled_from([np.float64, np.float32]))).ravel().tolist()
    at = draw(st.integers(0, len(row) - 1))
    match draw(st.sampled_from(["", "", "", "set", "drop", "add", "shift", "grow"])):
        case "set":
            row[at] = draw(st.sampled_from([NAN, INF, -INF, 1e308, -0.1, 1.1, -1e-5, 2.0, 0.0]))
        case "drop":
            del row[at]
        case "add":
            row.insert(at, draw(st.sampled_from([0.0, 1.0])))
        case "shift":
            row[at] += draw(st.sampled_from([-5e-4, 5e-4, -2e-3, 2e-3, 9e-7, -9e-7]))
        case "grow":
            row = row * (MOST_VALUES // len(row) + 1)
    return row


@given(
    st.integers(1, 5).flatmap(lambda c: st.tuples(st.lists(detections(c), max_size=8), st.just(c)))
)
@example(([[0.5, 0.5, 0.25, 0.75], [0.5, 0.5, 0.5, 0.75]], 2))
@example(([[0.5, 0.5], [NAN, 0.5] * 2, [0.5, 0.6] * 2], 2))
@example(([[0.25, 0.75] * count for count in (1, 2, 2)], 2))
@example(([[0.25, 0.75] * count for count in (3, 1)], 2))
@example(([[0.25, 0.75] * count for count in (3, 3, 1, 1, 2)], 2))
@example(([[1 + 5e-7, -5e-7]], 2))
@example(([], 3))
@example(([[], []], 3))
def test_exactly_the_sound_opinions_of_the_usual_number_are_kept(made):
    assert_as_expected(*made)


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("classes", [2, 10, 80])
def test_a_softmax_of_any_precision_passes(kind, classes):
    logits = np.random.default_rng(classes).normal(size=(500, classes), scale=4)
    values = softmax(logits, kind)
    found, invalid = judged(values.tolist(), classes)
    assert not invalid.any()
    laws.assert_same(found, values[:, None])


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([0.5, 0.5 + 0.9e-3], True),
        ([0.5, 0.5 - 0.9e-3], True),
        ([0.5, 0.5 + 1.1e-3], False),
        ([0.5, 0.5 - 1.1e-3], False),
        ([1 + 0.9e-6, 0.0], True),
        ([1.0, -0.9e-6], True),
        ([1 + 1.1e-6, 0.0], False),
        ([1.0, -1.1e-6], False),
        ([2.0, -1.0], False),
        ([0.0, 0.0], False),
        ([NAN, NAN], False),
        ([INF, -INF], False),
        ([1e308, 1e308], False),
        ([1.0], False),
        ([0.5, 0.5, 0.0], False),
    ],
)
def test_the_tolerances_are_those_of_the_contract(values, kept):
    assert_as_expected([values], 2)
    assert judged([values], 2)[1].tolist() == [not kept]


@pytest.mark.parametrize("classes", [1, 8, 256])
def test_as_many_values_as_allowed_pass_and_one_opinion_more_does_not(classes):
    opinion = [1.0] + [0.0] * (classes - 1)
    most = opinion * (MOST_VALUES // classes)
    found, invalid = judged([most], classes)
    assert found is not None
    assert found.shape == (1, MOST_VALUES // classes, classes)
    for width in (None, MOST_VALUES):
        found, invalid = judged([most + opinion], classes, width)
        assert found is None
        assert invalid.all()


def test_one_detection_of_many_values_costs_no_more_than_what_was_sent():
    values, length = padded([[0.5, 0.5] * 1024, *([[0.25, 0.75]] * 2000), [0.5] * 2047])
    rows = np.arange(len(length))
    tracemalloc.start()
    found, invalid = usable_opinions(values, length, rows, 2)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found is not None
    assert found.shape == (2002, 1, 2)
    assert np.flatnonzero(invalid).tolist() == [0, 2001]
    assert most < values.nbytes / 20


def test_detections_that_are_not_looked_at_have_no_say():
    values, length = padded([[0.5, 0.5] * 2, [0.25, 0.75], [0.5, 0.5] * 2, [1.0], []])
    found, invalid = usable_opinions(values, length, np.array([1, 4]), 2)
    assert found is not None
    assert found[0].tolist() == [[0.25, 0.75]]
    assert np.isnan(found[1]).all()
    assert invalid.tolist() == [False, False]


def test_opinions_of_a_frame_are_kept_for_the_rows_that_have_some_and_found_again():
    random = np.random.default_rng(1)
    values = random.dirichlet(np.ones(4), size=(12, 2))
    has = random.random(12) < 0.5
    values[~has] = np.nan
    waiting = opinions_of(values, 0)
    left = np.flatnonzero(has)
    assert waiting.rows.tolist() == left.tolist()
    assert waiting.of(np.arange(12)).tolist() == has.tolist()
    chosen = random.permutation(left)
    rows = waiting.matched(chosen, np.zeros(chosen.size, np.int64), 7)
    assert rows is not None
    laws.assert_same(rows.opinions, values[chosen])
