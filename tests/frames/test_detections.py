"""What is refused and why, in words; and that the neighbours of a bad row never notice."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.detections import Examined, Limits, Reason, examine
from monitor.frames.reasons import Notice, describe
from monitor.frames.space import plain_space
from tests import laws
from tests.received import FORMS, FULL, TRIANGLE, VARIANCES, Sent, detections, in_form

XYZ = plain_space(("x", "y", "z"), "m")
CLASSES = ("car", "truck")
LIMITS = Limits(largest_mean=1e6, smallest_deviation=1e-3, largest_deviation=1e3)
NAN, INF = float("nan"), float("inf")
pytestmark = pytest.mark.filterwarnings("error")


def good(seed, form=FULL, id=None, k=3) -> Sent:
    random = np.random.default_rng(seed)
    root = random.normal(size=(k, k)) + 2 * np.eye(k)
    covariance = root @ root.T
    if form == VARIANCES:
        covariance = np.diag(np.diagonal(covariance))
    return Sent(
        id=1000 + seed if id is None else id,
        mean=tuple(random.normal(size=k).tolist()),
        covariance=in_form(covariance, form),
        class_index=int(random.integers(2)),
        truth=tuple(random.normal(size=k).tolist()) if seed % 2 else (),
    )


def look(*rows: Sent, space=XYZ) -> Examined:
    return examine(detections(rows), space, len(CLASSES), LIMITS)


def words(*rows: Sent) -> tuple[Notice, ...]:
    return describe(look(*rows), detections(rows), XYZ, CLASSES, LIMITS)


def same_as_one_by_one(*rows: Sent, space=XYZ) -> Examined:
    """What is found in a frame of one layout, which is looked at as a whole first."""
    sent = detections(rows)
    assert sent.uniform
    whole = examine(sent, space, len(CLASSES), LIMITS)
    single = examine(replace(sent, uniform=False), space, len(CLASSES), LIMITS)
    laws.assert_same(replace(whole, clean=single.clean), single)
    assert not (whole.clean and (whole.reason != Reason.NONE).any())
    return whole


# ---- every reason: a change of a good row, and words of value and remedy

SHAPES = "send 3 (variances), 6 (lower triangle) or 9 (full) values"
FINITE = "every value must be finite"
# A value for a field of the row, or what makes one of its covariance.
Case = tuple[str, Any, Reason, str]
FIELDS: list[Case] = [
    ("id", None, Reason.MISSING_ID, "number the"),
    ("class_index", 2, Reason.UNKNOWN_CLASS, "2: the header names 2 classes"),
    ("class_index", None, Reason.UNKNOWN_CLASS, "absent: the header names"),
    ("mean", (), Reason.MEAN_LENGTH, "0 values: the header has 3 dimensions"),
    *(("mean", (1.0,) * n, Reason.MEAN_LENGTH, f"{n} values: the header has") for n in (2, 4)),
    ("mean", (0.0, NAN, -INF), Reason.MEAN_VALUE, f"[0, nan, -inf]: {FINITE}"),
    ("mean", (1.1e6, 0.0, 0.0), Reason.MEAN_VALUE, f"[1.1e+06, 0, 0]: {FINITE} and within ±1e+06"),
    ("covariance", (), Reason.MISSING_COVARIANCE, f"absent or all zero: {SHAPES}"),
    ("covariance", lambda c: (0.0,) * len(c), Reason.MISSING_COVARIANCE, "absent or all zero"),
    ("covariance", lambda c: c[:-1], Reason.COVARIANCE_LENGTH, f"values: {SHAPES}"),
    ("covariance", lambda c: (*c, 1.0), Reason.COVARIANCE_LENGTH, "values: send 3"),
    ("covariance", lambda c: (NAN,) * len(c), Reason.COVARIANCE_NOT_FINITE, "nan"),
]
SAID = {
    Reason.COVARIANCE_NOT_FINITE: FINITE,
    Reason.COVARIANCE_ASYMMETRIC: "row-major and symmetric, or send the triangle",
    Reason.COVARIANCE_NOT_POSITIVE_DEFINITE: "not positive definite; check units",
    Reason.COVARIANCE_SCALE: "must lie within [0.001, 1000] ([limits] smallest_deviation",
}
# Entries of the identity that are set instead, and in which forms they can be sent.
ENTRIES: list[tuple[tuple[str, ...], Reason, list[dict[tuple[int, int], float]]]] = [
    (FORMS, Reason.COVARIANCE_NOT_FINITE, [{(1, 1): NAN}, {(2, 2): INF}]),
    (FORMS, Reason.COVARIANCE_NOT_POSITIVE_DEFINITE, [{(1, 1): -1.0}, {(0, 0): 0.0}]),
    (FORMS, Reason.COVARIANCE_SCALE, [{(2, 2): 1e-7}, {(0, 0): 1.1e6}]),
    ((TRIANGLE, FULL), Reason.COVARIANCE_NOT_FINITE, [{(2, 1): INF, (1, 2): INF}]),
    (
        (TRIANGLE, FULL),
        Reason.COVARIANCE_NOT_POSITIVE_DEFINITE,
        [{(2, 0): c, (0, 2): c} for c in (1.5, 1.0, 1.0 - 1e-14)]
        + [{(1, 1): 0.0, (1, 0): 0.1, (0, 1): 0.1}],
    ),
    ((FULL,), Reason.COVARIANCE_ASYMMETRIC, [{(1, 0): 0.5, (0, 1): 0.5 + 2e-6}, {(2, 0): 0.5}]),
    ((FULL,), Reason.COVARIANCE_NOT_FINITE, [{(1, 0): NAN}, {(1, 0): INF, (0, 1): -INF}]),
]


def covariance_of(form: str, entries: dict[tuple[int, int], float]) -> tuple[float, ...]:
    matrix = np.eye(3)
    for (i, j), value in entries.items():
        matrix[i, j] = value
    return in_form(matrix, form)


CASES: dict[str, list[Case]] = {
    form: FIELDS
    + [
        ("covariance", covariance_of(form, entries), reason, SAID[reason])
        for forms, reason, several in ENTRIES
        if form in forms
        for entries in several
    ]
    for form in FORMS
}


@pytest.mark.parametrize(("form", "case"), [(form, case) for form in FORMS for case in CASES[form]])
def test_a_bad_row_is_refused_in_words_alone_in_its_frame_and_among_others(form, case):
    field, value, reason, said = case
    before, bad, after = (good(seed, form) for seed in (1, 2, 3))
    change: dict[str, Any] = {field: value(getattr(bad, field)) if callable(value) else value}
    bad = replace(bad, **change)
    found, without = look(before, bad, after), look(before, after)
    assert found.reason.tolist() == [Reason.NONE, reason, Reason.NONE]
    assert found.batch.rows.tolist() == [0, 2]
    laws.assert_same(replace(found.batch, rows=without.batch.rows), without.batch)
    (notice,) = words(before, bad, after)
    assert (notice.reason, notice.field) == (reason, field)
    assert (notice.count, notice.first_index) == (1, 1)
    assert said in notice.message and len(notice.message) < 250
    assert notice.message.endswith((".", "order", "unit", "triangle"))
    alone = same_as_one_by_one(bad)
    assert (alone.reason.tolist(), alone.clean) == ([reason], False)
    assert alone.batch.rows.size == alone.batch.sent.mean.size == 0
    assert alone.batch.sent.covariance.size == 0


def test_every_occurrence_of_an_id_but_the_first_is_refused_whatever_else_is_wrong():
    largest = 2**64 - 1
    rows = [good(i, FULL, id) for i, id in enumerate([largest, 0, largest, largest, 2**63])]
    rows[3] = replace(rows[3], class_index=9, mean=())
    # An id that was not sent is no occurrence of 0.
    rows += [replace(good(7), id=None)] * 2
    twice, missing = Reason.DUPLICATE_ID, Reason.MISSING_ID
    assert look(*rows).reason.tolist() == [1, 1, twice, twice, 1, missing, missing]
    assert look(*rows).batch.id.tolist() == [largest, 0, 2**63]
    missing_one, notice = words(*rows)
    assert (missing_one.count, missing_one.first_index) == (2, 5)
    assert (notice.field, notice.count, notice.first_index) == ("id", 2, 2)
    assert notice.message == f"{largest} occurs before in this frame: make ids unique."


def test_of_several_reasons_the_first_in_the_order_of_the_checks_is_given():
    row, found = good(2), []
    wrong = [{(0, 0): 1e9}, {(0, 0): 1e9, (1, 1): -1.0}, {(1, 0): 5.0, (1, 1): -1.0}]
    changes: list[dict[str, Any]] = [{"covariance": covariance_of(FULL, one)} for one in wrong]
    changes += [{"covariance": (NAN, *[5.0] * 8)}, {"covariance": (1.0,) * 8}, {"mean": (NAN,) * 3}]
    changes += [{"mean": ()}, {"class_index": 9}, {"id": 1001}, {"id": None}]
    for change in changes:
        row = replace(row, **change)
        found.append(Reason(int(look(good(1), row).reason[1])))
    names = "COVARIANCE_SCALE COVARIANCE_NOT_POSITIVE_DEFINITE COVARIANCE_ASYMMETRIC"
    names += " COVARIANCE_NOT_FINITE COVARIANCE_LENGTH MEAN_VALUE MEAN_LENGTH UNKNOWN_CLASS"
    assert found == [Reason[name] for name in [*names.split(), "DUPLICATE_ID", "MISSING_ID"]]


# ---- what came along: truth, class probabilities and true classes

SEND = "send 3 values (x, y, z), finite and within"
PROBABILITIES = "class_probabilities"
BESIDE: list[tuple[str, Any, str]] = [
    *(("truth", truth, SEND) for truth in ((1.0,), (NAN, 0.0, 0.0), (0.0, 0.0, -1.1e6))),
    ("true_class", 2, "2: the header names 2 classes, from 0."),
    (PROBABILITIES, (1.0,), "1 values: send 2 values, one for each class of the header"),
    (PROBABILITIES, (0.5, -INF), "value 1 is -inf: send 2"),
    (PROBABILITIES, (-0.25, 1.25), "value 0 is -0.25"),
    (PROBABILITIES, (0.5, 4.0), "value 1 is 4"),
    (PROBABILITIES, (0.5, 0.25), "values 0 to 1 add up to 0.75"),
    (PROBABILITIES, (0.5, 0.5, 0.5, 0.75), "values 2 to 3 add up to 1.25"),
    (PROBABILITIES, (0.5, 0.5, 0.25, 0.75), "4 values, unlike most detections of the frame"),
    (PROBABILITIES, (0.5, 0.5) * 1025, "2050 values: send 2 values"),
]


def labelled(seed, opinions=1) -> Sent:
    eighths = np.random.default_rng(seed).integers(0, 9, opinions) / 8
    values = np.stack([eighths, 1 - eighths], axis=1).ravel().tolist()
    row = replace(good(seed), class_probabilities=tuple(values), true_class=seed % 2)
    return replace(row, truth=(1.0, 2.0, 3.0))


@pytest.mark.parametrize(("name", "value", "said"), BESIDE)
def test_what_came_along_and_is_bad_is_set_aside_with_words_and_the_gaussian_is_not(
    name, value, said
):
    rows = [labelled(1), labelled(2), labelled(3)]
    change: dict[str, Any] = {name: value}
    bad = [rows[0], replace(rows[1], **change), rows[2]]
    found, sound = look(*bad), look(*rows)
    assert (found.reason == Reason.NONE).all() and not found.clean
    field, column, invalid, nothing = {
        "truth": ("ground_truth", "truth", "truth_invalid", NAN),
        "true_class": ("ground_truth_class", "true_class", "true_class_invalid", -1),
        PROBABILITIES: (PROBABILITIES, "probabilities", "probabilities_invalid", NAN),
    }[name]
    for flag in ("truth_invalid", "true_class_invalid", "probabilities_invalid"):
        assert getattr(found, flag).tolist() == [False, flag == invalid, False]
    expected = getattr(sound.batch, column).copy()
    expected[1] = nothing
    changes: dict[str, Any] = {column: expected}
    laws.assert_same(found.batch, replace(sound.batch, **changes))
    (notice,) = words(*bad)
    reason = Reason.GROUND_TRUTH_INVALID if name == "truth" else Reason.CLASS_PROBABILITIES_INVALID
    assert (notice.reason, notice.field) == (reason, field)
    assert (notice.count, notice.first_index) == (1, 1)
    assert said in notice.message and len(notice.message) < 250


# ---- the batch


@given(st.sampled_from(FORMS), st.integers(1, 4), st.integers(0, 3), st.data())
def test_a_frame_of_one_layout_is_the_same_looked_at_as_a_whole(form, k, opinions, data):
    ids = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=6))
    rows = []
    for seed, id in enumerate(ids):
        row = replace(good(seed, form, id, k), truth=())
        if opinions:
            along = labelled(seed, opinions=opinions)
            row = replace(row, truth=(0.5,) * k, class_probabilities=along.class_probabilities)
            row = replace(row, true_class=seed % 3)
        name = data.draw(st.sampled_from(["", "", "mean", "covariance", "truth", PROBABILITIES]))
        values = list(getattr(row, name)) if name else []
        if values:
            odd = st.sampled_from([NAN, INF, -INF, 0.0, -1.0, 1.0, 1e-7, 1e-9, 1e9, 1e308])
            values[data.draw(st.integers(0, len(values) - 1))] = data.draw(odd)
            change: dict[str, Any] = {name: tuple(values)}
            row = replace(row, **change)
        rows.append(replace(row, class_index=5) if data.draw(st.integers(0, 9)) == 0 else row)
    same_as_one_by_one(*rows, space=plain_space(tuple("abcd"[:k])))


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_a_batch_holds_what_was_sent_whatever_its_form(k):
    space = plain_space(tuple("abcd"[:k]))
    rows = [good(seed, FORMS[seed % 3], k=k) for seed in range(7)]
    batch = look(*rows, space=space).batch
    sent = [[getattr(row, name) for row in rows] for name in ("id", "class_index")]
    assert [batch.id.tolist(), batch.class_index.tolist()] == sent
    assert batch.sent.mean.tolist() == [list(row.mean) for row in rows]
    for i, row in enumerate(rows):
        assert in_form(batch.sent.covariance[i], FORMS[i % 3]) == row.covariance
        assert np.array_equal(batch.sent.covariance[i], batch.sent.covariance[i].T)
        assert np.isfinite(batch.truth[i]).all() == bool(row.truth)
    if k > 1:
        assert batch.sent.diagonal.tolist() == [FORMS[seed % 3] == VARIANCES for seed in range(7)]
    for form in FORMS:
        plain = [replace(good(i, form, k=k), truth=()) for i in range(4)]
        assert same_as_one_by_one(*plain, space=space).clean


def test_rounding_between_the_triangles_is_averaged_away_and_nothing_received_is_changed():
    entries = {(1, 0): 0.5, (0, 1): 0.5 + 5e-7}
    rows = [replace(good(1), covariance=covariance_of(FULL, entries)), good(2)]
    sent = detections(rows)
    found = examine(sent, XYZ, 2, LIMITS)
    assert found.reason.tolist() == [Reason.NONE, Reason.NONE]
    assert found.batch.sent.covariance[0, 1, 0] == found.batch.sent.covariance[0, 0, 1]
    assert found.batch.sent.covariance[0, 0, 1] == pytest.approx(0.5 + 2.5e-7, abs=1e-16)
    laws.assert_same(found.batch.sent.covariance[1:], look(good(2)).batch.sent.covariance)
    laws.assert_same(sent, detections(rows))


def test_a_frame_without_detections_is_an_empty_batch_and_the_limits_themselves_are_plausible():
    found = look()
    assert found.reason.shape == found.truth_invalid.shape == (0,)
    assert (found.batch.sent.mean.shape, found.batch.sent.covariance.shape) == ((0, 3), (0, 3, 3))
    assert words() == ()
    for edge in (1e-3, 1e3):
        row = replace(good(1, VARIANCES), covariance=(edge**2,) * 3, mean=(1e6, -1e6, 0.0))
        assert look(row).reason.tolist() == [Reason.NONE]


def test_values_that_are_not_aligned_are_examined_as_they_are():
    received = detections([good(1, TRIANGLE), good(3, TRIANGLE)])
    shifted = np.frombuffer(b"0" + received.mean.tobytes(), np.uint8)[1:].view(np.float64)
    mean = shifted.reshape(received.mean.shape)
    assert not mean.flags.aligned
    found = examine(replace(received, mean=mean), XYZ, len(CLASSES), LIMITS)
    assert found.clean
    laws.assert_same(found.batch.pivot, look(good(1, TRIANGLE), good(3, TRIANGLE)).batch.pivot)
