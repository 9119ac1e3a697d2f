"""Which class probabilities can be used, against plain loops over values and detections."""

import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.classes import MOST_VALUES, no_class, usable_opinions
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
def test_exactly_the_sound_opinions_of_the_usual_number_are_kept(made):
    assert_as_expected(*made)


@given(st.lists(detections(3), min_size=1, max_size=8), st.randoms())
def test_what_is_kept_does_not_depend_on_the_order_of_the_detections(rows, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    found, invalid = judged(rows, 3)
    shuffled, shuffled_invalid = judged([rows[i] for i in order], 3)
    assert shuffled_invalid.tolist() == invalid[order].tolist()
    laws.assert_same(shuffled, None if found is None else found[order])


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


def test_a_little_beyond_the_range_is_brought_into_it():
    found, _ = judged([[1 + 5e-7, -5e-7]], 2)
    assert found is not None
    assert found.tolist() == [[[1.0, 0.0]]]


def test_one_unsound_opinion_among_several_costs_all_of_its_detection():
    rows = [[0.5, 0.5, 0.25, 0.75], [0.5, 0.5, 0.5, 0.75]]
    found, invalid = judged(rows, 2)
    assert found is not None
    assert found[0].tolist() == [[0.5, 0.5], [0.25, 0.75]]
    assert np.isnan(found[1]).all()
    assert invalid.tolist() == [False, True]


@pytest.mark.parametrize(("counts", "m"), [([1, 2, 2], 2), ([3, 1], 1), ([3, 3, 1, 1, 2], 1)])
def test_a_frame_has_one_number_of_opinions_that_of_most_the_smaller_where_equal(counts, m):
    rows = [[0.25, 0.75] * count for count in counts]
    found, invalid = judged(rows, 2)
    assert found is not None
    assert found.shape == (len(counts), m, 2)
    assert invalid.tolist() == [count != m for count in counts]


def test_unsound_opinions_have_no_say_in_their_number():
    rows = [[0.5, 0.5], [NAN, 0.5] * 2, [0.5, 0.6] * 2]
    found, invalid = judged(rows, 2)
    assert found is not None
    assert found.shape == (3, 1, 2)
    assert invalid.tolist() == [False, True, True]


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


def test_without_detections_or_values_there_is_nothing():
    for values, length in (
        (np.zeros((0, 7)), np.zeros(0, int)),
        (np.zeros((2, 0)), np.zeros(2, int)),
    ):
        found, invalid = usable_opinions(values, length, np.arange(len(length)), 3)
        assert found is None
        assert invalid.tolist() == [False] * len(length)


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


def test_no_true_class_is_one_array_that_nobody_can_write():
    assert no_class(3) is no_class(3)
    assert no_class(3).tolist() == [-1, -1, -1]
    with pytest.raises(ValueError, match="read-only"):
        no_class(3)[0] = 0
