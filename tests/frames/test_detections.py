"""What is refused and why, in words; and that the neighbours of a bad row never notice."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.detections import PASSED_THROUGH, Examined, FrameBatch, Limits, Reason, examine
from monitor.frames.reasons import Notice, describe
from monitor.frames.space import plain_space
from tests import laws
from tests.received import FORMS, FULL, TRIANGLE, VARIANCES, Sent, detections, in_form

XYZ = plain_space(("x", "y", "z"), "m")


CLASSES = ("car", "truck")


LIMITS = Limits(largest_mean=1e6, smallest_deviation=1e-3, largest_deviation=1e3)


NAN, INF = float("nan"), float("inf")


pytestmark = pytest.mark.filterwarnings("error")


def good(seed, form, id=None, k=3) -> Sent:
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


def with_covariance(form: str, entries: dict[tuple[int, int], float]):
    """A change of a row: its covariance is the identity but for some entries."""
    matrix = np.eye(3)
    for (i, j), value in entries.items():
        matrix[i, j] = value
        if form != FULL:
            matrix[j, i] = value
    return lambda row: replace(row, covariance=in_form(matrix, form))


def both(i, j, value):
    return {(i, j): value, (j, i): value}


def given_as(**changes: Any):
    return lambda row: replace(row, **changes)


# ---- every reason: a change of a good row, the field that is named, words of value and remedy

NO_CLASS = Reason.UNKNOWN_CLASS, "class_index"
LENGTH, VALUE = (Reason.MEAN_LENGTH, "mean"), (Reason.MEAN_VALUE, "mean")
ABSENT, MISSHAPEN = (
    (reason, "covariance") for reason in (Reason.MISSING_COVARIANCE, Reason.COVARIANCE_LENGTH)
)
SHAPES = "send 3 (variances), 6 (lower triangle) or 9 (full) values"
WITHIN = "every value must be finite and within ±1e+06 ([limits] largest_mean)"
NOT_FINITE = Reason.COVARIANCE_NOT_FINITE, "covariance", "every value must be finite"
INDEFINITE = (
    Reason.COVARIANCE_NOT_POSITIVE_DEFINITE,
    "covariance",
    "not positive definite; check units",
)
SCALE = (
    Reason.COVARIANCE_SCALE,
    "covariance",
    "must lie within [0.001, 1000] ([limits] smallest_deviation",
)
ASYMMETRIC = (
    Reason.COVARIANCE_ASYMMETRIC,
    "covariance",
    "row-major and symmetric, or send the triangle",
)
ALWAYS = {
    "missing id": (given_as(id=None), Reason.MISSING_ID, "id", "number the"),
    "unknown class": (given_as(class_index=7), *NO_CLASS, "7: the header names 2 classes"),
    "first unknown": (given_as(class_index=2), *NO_CLASS, "2: the header names 2 classes"),
    "absent class": (given_as(class_index=None), *NO_CLASS, "absent: the header names"),
    "no mean": (given_as(mean=()), *LENGTH, "0 values: the header has 3 dimensions"),
    "short mean": (given_as(mean=(1.0, 2.0)), *LENGTH, "2 values: the header has 3 dimensions"),
    "long mean": (given_as(mean=(0.0,) * 4), *LENGTH, "4 values"),
    "NaN mean": (given_as(mean=(0.0, NAN, 0.0)), *VALUE, "[0, nan, 0]: every value must be finite"),
    "infinite mean": (given_as(mean=(0.0, 0.0, -INF)), *VALUE, "[0, 0, -inf]: every value must"),
    "far mean": (given_as(mean=(1.1e6, 0.0, 0.0)), *VALUE, f"[1.1e+06, 0, 0]: {WITHIN}"),
    "no covariance": (given_as(covariance=()), *ABSENT, f"absent or all zero: {SHAPES}"),
    "zeros": (
        lambda row: replace(row, covariance=(0.0,) * len(row.covariance)),
        *(*ABSENT, "absent or all zero"),
    ),
    "one value short": (
        lambda row: replace(row, covariance=row.covariance[:-1]),
        *MISSHAPEN,
        f"values: {SHAPES}",
    ),
    "one value long": (
        lambda row: replace(row, covariance=(*row.covariance, 1.0)),
        *MISSHAPEN,
        "values: send 3",
    ),
    "zeros of a wrong length": (given_as(covariance=(0.0,) * 5), *MISSHAPEN, "5 values: send 3"),
    "covariance of NaN": (
        lambda row: replace(row, covariance=(NAN,) * len(row.covariance)),
        *(*NOT_FINITE[:2], "nan"),
    ),
}
IN_EVERY_FORM = {
    "NaN variance": ({(1, 1): NAN}, NOT_FINITE),
    "infinite variance": ({(2, 2): INF}, NOT_FINITE),
    "minus infinite variance": ({(0, 0): -INF}, NOT_FINITE),
    "negative variance": ({(1, 1): -1.0}, INDEFINITE),
    "zero variance": ({(0, 0): 0.0}, INDEFINITE),
    "tiny variance": ({(2, 2): 1e-7}, SCALE),
    "huge variance": ({(0, 0): 1.1e6}, SCALE),
}
WITH_CORRELATION = {
    "NaN beside the diagonal": (both(1, 0, NAN), NOT_FINITE),
    "infinite beside the diagonal": (both(2, 1, INF), NOT_FINITE),
    "indefinite": (both(1, 0, 1.5), INDEFINITE),
    "singular": (both(2, 0, 1.0), INDEFINITE),
    "singular but for rounding": (both(2, 0, 1.0 - 1e-14), INDEFINITE),
    "zero variance with a covariance": ({(1, 1): 0.0} | both(1, 0, 0.1), INDEFINITE),
}
FULL_ALONE = {
    "asymmetric": ({(1, 0): 0.5, (0, 1): 0.25}, ASYMMETRIC),
    "asymmetric by more than rounding": ({(1, 0): 0.5, (0, 1): 0.5 + 2e-6}, ASYMMETRIC),
    "one triangle only": ({(2, 0): 0.5}, ASYMMETRIC),
    "NaN in one triangle": ({(1, 0): NAN}, NOT_FINITE),
    "infinite in one triangle": ({(1, 0): INF}, NOT_FINITE),
    "infinite with both signs": ({(1, 0): INF, (0, 1): -INF}, NOT_FINITE),
}
VALUES = {
    VARIANCES: IN_EVERY_FORM,
    TRIANGLE: IN_EVERY_FORM | WITH_CORRELATION,
    FULL: IN_EVERY_FORM | WITH_CORRELATION | FULL_ALONE,
}
CASES: dict[str, dict[str, Any]] = {
    form: ALWAYS | {name: (with_covariance(form, e), *why) for name, (e, why) in found.items()}
    for form, found in VALUES.items()
}


EVERY_CASE = [
    pytest.param(form, *case, id=f"{form}: {name}")
    for form, cases in CASES.items()
    for name, case in cases.items()
]


@pytest.mark.parametrize(("form", "change", "reason", "field", "said"), EVERY_CASE)
def test_a_bad_row_is_refused_in_words_alone_in_its_frame_and_among_others(
    form, change, reason, field, said
):
    before, bad, after = (good(seed, form) for seed in (1, 2, 3))
    bad = change(bad)
    found, without = look(before, bad, after), look(before, after)
    assert found.reason.tolist() == [Reason.NONE, reason, Reason.NONE]
    assert found.batch.rows.tolist() == [0, 2]
    laws.assert_same(replace(found.batch, rows=without.batch.rows), without.batch)
    (notice,) = words(before, bad, after)
    assert (notice.reason, notice.field) == (reason, field)
    assert (notice.count, notice.first_index) == (1, 1)
    assert said in notice.message
    assert len(notice.message) < 250
    assert notice.message.endswith((".", "order", "unit", "triangle"))
    alone = same_as_one_by_one(bad)
    assert alone.reason.tolist() == [reason]
    assert not alone.clean
    assert alone.batch.rows.size == alone.batch.mean.size == alone.batch.covariance.size == 0


def test_every_reason_that_a_row_can_have_is_in_the_table():
    shown = {reason for cases in CASES.values() for _, reason, _, _ in cases.values()}
    of_a_row = {
        reason
        for reason in Reason
        if reason is Reason.MISSING_COVARIANCE
        or Reason.UNKNOWN_CLASS <= reason <= Reason.DUPLICATE_ID
    }
    assert shown | {Reason.DUPLICATE_ID} == of_a_row


def same_as_one_by_one(*rows: Sent, space=XYZ) -> Examined:
    """What is found in a frame of one layout, which is looked at as a whole first."""
    sent = detections(rows)
    assert sent.uniform
    whole = examine(sent, space, len(CLASSES), LIMITS)
    single = examine(replace(sent, uniform=False), space, len(CLASSES), LIMITS)
    laws.assert_same(replace(whole, clean=single.clean), single)
    assert not (whole.clean and (whole.reason != Reason.NONE).any())
    return whole


# ---- ids and the order of the checks


def test_every_occurrence_of_an_id_but_the_first_is_refused_whatever_else_is_wrong_with_the_row():
    largest = 2**64 - 1
    rows = [good(i, FULL, id) for i, id in enumerate([largest, 7, largest, largest, 2**63])]
    rows[3] = replace(rows[3], class_index=9, mean=())
    assert look(*rows).reason.tolist() == [1, 1, Reason.DUPLICATE_ID, Reason.DUPLICATE_ID, 1]
    assert look(*rows).batch.id.tolist() == [largest, 7, 2**63]
    (notice,) = words(*rows)
    assert (notice.field, notice.count, notice.first_index) == ("id", 2, 2)
    assert notice.message == f"{largest} occurs before in this frame: make ids unique."


def test_an_id_that_was_not_sent_is_no_occurrence_of_zero_nor_of_another():
    missing, zero = replace(good(0, FULL), id=None), good(1, FULL, 0)
    expected = [Reason.MISSING_ID, Reason.NONE, Reason.MISSING_ID]
    assert look(missing, zero, missing).reason.tolist() == expected


ORDER = ["missing id", "unknown class", "short mean", "NaN mean", "one value short"]


@pytest.mark.parametrize("form", FORMS)
def test_of_several_reasons_the_first_in_the_order_of_the_checks_is_given(form):
    changes = [CASES[form][name] for name in ORDER]
    for first in range(len(changes)):
        row = good(2, form)
        # The later ones first, so that of two changes of one field the earlier reason stays.
        for change, *_ in reversed(changes[first:]):
            row = change(row)
        assert look(good(1, form), row).reason[1] == changes[first][1]


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({(0, 0): NAN, (1, 0): 5.0}, Reason.COVARIANCE_NOT_FINITE),
        ({(1, 0): 5.0, (1, 1): -1.0}, Reason.COVARIANCE_ASYMMETRIC),
        ({(1, 1): -1.0, (0, 0): 1e9}, Reason.COVARIANCE_NOT_POSITIVE_DEFINITE),
        ({(0, 0): 1e9}, Reason.COVARIANCE_SCALE),
    ],
)
def test_a_covariance_is_checked_for_numbers_symmetry_definiteness_and_then_size(entries, reason):
    assert look(with_covariance(FULL, entries)(good(2, FULL))).reason.tolist() == [reason]


def test_one_notice_for_each_reason_counts_its_rows():
    rows = [good(seed, FULL) for seed in range(6)]
    for i in (1, 4):
        rows[i] = replace(rows[i], class_index=5)
    rows[3] = replace(rows[3], mean=())
    found = {notice.reason: (notice.count, notice.first_index) for notice in words(*rows)}
    assert found == {Reason.UNKNOWN_CLASS: (2, 1), Reason.MEAN_LENGTH: (1, 3)}


# ---- inline truth


@pytest.mark.parametrize(
    "truth",
    [(1.0,), (1.0, 2.0, 3.0, 4.0), (NAN, 0.0, 0.0), (0.0, INF, 0.0), (0.0, 0.0, -1.1e6)],
)
def test_bad_inline_truth_costs_the_label_and_not_the_detection(truth):
    rows = [replace(good(1, FULL), truth=(1.0, 2.0, 3.0)), replace(good(2, FULL), truth=truth)]
    found = look(*rows, good(4, FULL))
    assert (found.reason == Reason.NONE).all()
    assert found.truth_invalid.tolist() == [False, True, False]
    assert np.isnan(found.batch.truth[1:]).all()
    assert found.batch.truth[0].tolist() == [1.0, 2.0, 3.0]
    (notice,) = words(*rows, good(4, FULL))
    assert (notice.reason, notice.field) == (Reason.GROUND_TRUTH_INVALID, "ground_truth")
    assert (notice.count, notice.first_index) == (1, 1)
    assert f"{len(truth)} values" in notice.message
    assert "send 3 values (x, y, z), finite and within" in notice.message


def test_truth_of_a_refused_row_may_be_bad_as_well():
    found = words(replace(good(1, FULL), truth=(NAN,), class_index=None))
    assert {notice.reason for notice in found} == {
        Reason.UNKNOWN_CLASS,
        Reason.GROUND_TRUTH_INVALID,
    }


# ---- what came about classes


def opinions(seed, count=1) -> tuple[float, ...]:
    """Sound ones on the two classes; eighths, so that nothing is rounded."""
    eighths = np.random.default_rng(seed).integers(0, 9, count) / 8
    return tuple(np.stack([eighths, 1 - eighths], axis=1).ravel().tolist())


def classified(seed, form=FULL) -> Sent:
    """A good detection with an opinion on its class and the truth of it."""
    return replace(good(seed, form), class_probabilities=opinions(seed), true_class=seed % 2)


BAD_OPINIONS = {
    "one value": ((1.0,), "1 values: send 2 values, one for each class of the header"),
    "three values": ((0.5, 0.5, 0.0), "3 values: send 2"),
    "NaN": ((NAN, 0.5), "value 0 is nan: send 2"),
    "infinite": ((0.5, -INF), "value 1 is -inf"),
    "negative": ((-0.25, 1.25), "value 0 is -0.25"),
    "logits": ((0.5, 4.0), "value 1 is 4"),
    "a sum that is not 1": ((0.5, 0.25), "values 0 to 1 add up to 0.75"),
    "a later sum that is not 1": ((0.5, 0.5, 0.5, 0.75), "values 2 to 3 add up to 1.25"),
    "another number": ((0.5, 0.5, 0.25, 0.75), "4 values, unlike most detections of the frame"),
    "too many": ((0.5, 0.5) * 1025, "2050 values: send 2 values"),
}


@pytest.mark.parametrize(("values", "said"), BAD_OPINIONS.values(), ids=BAD_OPINIONS.keys())
def test_bad_class_probabilities_are_set_aside_with_words_and_the_gaussian_is_not(values, said):
    rows = [classified(1), classified(2), classified(3)]
    bad = [rows[0], replace(rows[1], class_probabilities=values), rows[2]]
    found, sound = look(*bad), look(*rows)
    assert (found.reason == Reason.NONE).all()
    assert found.probabilities_invalid.tolist() == [False, True, False]
    assert not found.true_class_invalid.any()
    assert not found.clean
    assert found.batch.probabilities is not None
    assert sound.batch.probabilities is not None
    assert np.isnan(found.batch.probabilities[1]).all()
    laws.assert_same(found.batch.probabilities[::2], sound.batch.probabilities[::2])
    laws.assert_same(
        replace(found.batch, probabilities=None), replace(sound.batch, probabilities=None)
    )
    (notice,) = words(*bad)
    reason = Reason.CLASS_PROBABILITIES_INVALID
    assert (notice.reason, notice.field) == (reason, "class_probabilities")
    assert (notice.count, notice.first_index) == (1, 1)
    assert notice.message.startswith(said)
    assert len(notice.message) < 250


@pytest.mark.parametrize("index", [2, 3, 2**32 - 1])
def test_a_true_class_beyond_the_header_is_set_aside_and_the_rest_is_not(index):
    rows = [classified(1), replace(classified(2), true_class=index), classified(3)]
    found = look(*rows)
    assert (found.reason == Reason.NONE).all()
    assert found.true_class_invalid.tolist() == [False, True, False]
    assert not found.probabilities_invalid.any()
    assert found.batch.true_class.tolist() == [1, -1, 1]
    assert found.batch.probabilities is not None
    assert np.isfinite(found.batch.probabilities).all()
    (notice,) = words(*rows)
    reason = Reason.CLASS_PROBABILITIES_INVALID
    assert (notice.reason, notice.field) == (reason, "ground_truth_class")
    assert (notice.count, notice.first_index) == (1, 1)
    assert notice.message == f"{index}: the header names 2 classes, from 0."


def test_one_notice_counts_all_detections_with_something_wrong_about_classes():
    rows = [
        classified(1),
        replace(classified(2), true_class=5),
        replace(classified(3), class_probabilities=(NAN, 1.0)),
        replace(classified(4), class_probabilities=(2.0, -1.0), true_class=5),
    ]
    (notice,) = words(*rows)
    assert (notice.field, notice.count, notice.first_index) == ("ground_truth_class", 3, 1)


@pytest.mark.parametrize("change", [{"mean": ()}, {"covariance": ()}, {"class_index": 9}])
def test_what_came_about_the_class_of_a_refused_detection_is_not_judged(change):
    row = replace(classified(2), class_probabilities=(NAN,) * 4, true_class=9, **change)
    found = look(classified(1), row)
    assert not found.probabilities_invalid.any()
    assert not found.true_class_invalid.any()
    assert found.batch.probabilities is not None
    assert found.batch.probabilities.tolist() == [[list(opinions(1))]]
    assert found.batch.true_class.tolist() == [1]


def test_where_no_opinion_of_a_frame_is_usable_or_none_came_the_batch_has_none():
    rows = [replace(classified(seed), class_probabilities=(1.0,)) for seed in range(3)]
    found = look(*rows)
    assert found.batch.probabilities is None
    assert found.batch.rows.size == 3
    assert found.probabilities_invalid.all()
    bare = look(good(1, FULL), good(2, FULL))
    assert bare.batch.probabilities is None
    assert bare.batch.true_class.tolist() == [-1, -1]
    assert not bare.probabilities_invalid.any()


# ---- the batch


@given(st.data())
def test_exactly_the_corrupted_rows_are_refused_and_the_batch_holds_exactly_the_others(data):
    forms = data.draw(st.lists(st.sampled_from(FORMS), min_size=1, max_size=12))
    rows = [good(i, form) for i, form in enumerate(forms)]
    clean, expected = list(rows), []
    for i, form in enumerate(forms):
        name = data.draw(st.sampled_from(["fine", "fine", "repeated", *CASES[form]]))
        reason = Reason.NONE
        if name == "repeated" and i > 0:
            first = data.draw(st.integers(0, i - 1))
            if rows[first].id is not None:
                rows[i], reason = replace(rows[i], id=rows[first].id), Reason.DUPLICATE_ID
        elif name in CASES[form]:
            change, reason, *_ = CASES[form][name]
            rows[i] = change(rows[i])
        expected.append(reason)
    found = look(*rows)
    assert found.reason.tolist() == expected
    kept = [i for i, reason in enumerate(expected) if reason is Reason.NONE]
    assert found.batch.rows.tolist() == kept
    alone = [look(clean[i]).batch for i in kept]
    for field in fields(FrameBatch):
        if field.name not in ("space", "rows", "probabilities") and kept:
            together = getattr(found.batch, field.name)
            laws.assert_same(together, np.concatenate([getattr(one, field.name) for one in alone]))


@given(
    st.sampled_from(FORMS),
    st.sampled_from([1, 2, 3, 4]),
    st.booleans(),
    st.sampled_from([0, 0, 1, 2, 3]),
    st.data(),
)
def test_a_frame_of_one_layout_is_the_same_looked_at_as_a_whole(form, k, labelled, opined, data):
    space = plain_space(tuple("abcd"[:k]))
    ids = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=6))
    odd = st.sampled_from([NAN, INF, -INF, 0.0, -1.0, 1.0, 1e-7, 1e-9, 1e9, 1e308])
    rows = []
    for seed, id in enumerate(ids):
        row = replace(good(seed, form, id, k), truth=(0.5,) * k if labelled else ())
        if opined:
            row = replace(row, class_probabilities=opinions(seed, opined), true_class=seed % 3)
        odd_fields = [(), (), ("mean",), ("covariance",), ("truth",), ("class_probabilities",)]
        for name in data.draw(st.sampled_from(odd_fields)):
            values = list(getattr(row, name))
            if values:
                place = data.draw(st.integers(0, len(values) - 1))
                values[place] = data.draw(odd)
                changed: dict[str, Any] = {name: tuple(values)}
                row = replace(row, **changed)
        if data.draw(st.integers(0, 9)) == 0:
            row = replace(row, class_index=5)
        rows.append(row)
    same_as_one_by_one(*rows, space=space)


def test_a_sound_frame_of_one_layout_with_ascending_ids_is_clean():
    for form in FORMS:
        plain = [replace(good(i, form), truth=()) for i in range(4)]
        assert same_as_one_by_one(*plain).clean
        assert same_as_one_by_one(*(replace(classified(i, form), truth=()) for i in range(4))).clean


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_a_batch_holds_what_was_sent_whatever_its_form(k):
    space = plain_space(tuple("abcd"[:k]))
    rows = [good(seed, FORMS[seed % 3], k=k) for seed in range(7)]
    batch = look(*rows, space=space).batch
    assert batch.space is space
    assert batch.id.tolist() == [row.id for row in rows]
    assert batch.class_index.tolist() == [row.class_index for row in rows]
    assert batch.mean.tolist() == [list(row.mean) for row in rows]
    for i, row in enumerate(rows):
        assert in_form(batch.covariance[i], FORMS[i % 3]) == row.covariance
        assert np.array_equal(batch.covariance[i], batch.covariance[i].T)
        assert np.isfinite(batch.truth[i]).all() == bool(row.truth)
    if k > 1:
        assert batch.diagonal.tolist() == [FORMS[seed % 3] == VARIANCES for seed in range(7)]


def test_rounding_between_the_triangles_is_averaged_away():
    row = good(1, FULL)
    sent = np.eye(3)
    sent[1, 0], sent[0, 1] = 0.5, 0.5 + 5e-7
    found = look(replace(row, covariance=in_form(sent, FULL)), good(2, FULL))
    assert found.reason.tolist() == [Reason.NONE, Reason.NONE]
    assert found.batch.covariance[0, 1, 0] == found.batch.covariance[0, 0, 1]
    assert found.batch.covariance[0, 0, 1] == pytest.approx(0.5 + 2.5e-7, abs=1e-16)
    laws.assert_same(found.batch.covariance[1:], look(good(2, FULL)).batch.covariance)


def test_for_one_dimension_the_three_forms_are_one():
    x = plain_space(("x",))
    rows = [Sent(1, (0.5,), (4.0,)), Sent(2, (0.5,), ()), Sent(3, (0.5,), (0.0,))]
    rows += [Sent(4, (0.5,), (-1.0,)), Sent(5, (0.5,), (NAN,)), Sent(6, (0.5,), (1.0, 1.0))]
    found = look(*rows, space=x)
    assert found.reason.tolist() == [
        Reason.NONE,
        Reason.MISSING_COVARIANCE,
        Reason.MISSING_COVARIANCE,
        Reason.COVARIANCE_NOT_POSITIVE_DEFINITE,
        Reason.COVARIANCE_NOT_FINITE,
        Reason.COVARIANCE_LENGTH,
    ]
    assert found.batch.covariance.tolist() == [[[4.0]]]


def test_a_frame_without_detections_is_an_empty_batch():
    found = look()
    assert found.reason.shape == found.truth_invalid.shape == (0,)
    assert found.batch.mean.shape == (0, 3)
    assert found.batch.covariance.shape == (0, 3, 3)
    assert found.batch.truth.shape == (0, 3)
    assert words() == ()


@pytest.mark.parametrize("edge", [1e-3, 1e3])
def test_the_limits_themselves_are_plausible(edge):
    row = replace(good(1, VARIANCES), covariance=(edge**2,) * 3, mean=(1e6, -1e6, 0.0))
    assert look(row).reason.tolist() == [Reason.NONE]


def test_an_examination_writes_into_nothing_that_was_received():
    rows = [good(1, FULL), replace(good(2, FULL), covariance=(1.0, 0.5 + 1e-7, *[0.5] * 7))]
    sent, same = detections(rows), detections(rows)
    examine(sent, XYZ, 2, LIMITS)
    laws.assert_same(sent, same)


def test_passed_through_and_refused_are_told_apart():
    assert Reason.NONE not in PASSED_THROUGH
    assert Reason.MISSING_COVARIANCE in PASSED_THROUGH
    assert Reason.UNKNOWN_CLASS not in PASSED_THROUGH
    assert Reason.COVARIANCE_SCALE.label == "covariance_scale"
