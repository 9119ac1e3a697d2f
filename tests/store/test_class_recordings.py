"""Class probabilities from files: what is read, and what is said of files that cannot be."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monitor.store.class_recordings import (
    ClassRecording,
    read_class_recording,
    require_labels,
    write_classes,
)
from monitor.store.tables import RecordingError

PROB = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.4, 0.3, 0.3], [0.0, 0.0, 1.0]])
LABEL = np.array([0, 2, -1, 1])
LOGITS = np.log(np.maximum(PROB, 1e-30)) + np.array([[3.0], [-1.0], [0.0], [7.5]])
BOTH = np.stack([PROB, PROB[::-1]], axis=1)
MEAN = (PROB + PROB[::-1]) / 2
Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def saved(**arrays: Any) -> Path:
        np.savez(tmp_path / "classes.npz", **arrays)
        return tmp_path / "classes.npz"

    return saved


def read(path: Path, rows: slice | None = None) -> ClassRecording:
    found = read_class_recording(path, rows)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"prob": PROB.astype(np.float32)}, PROB),
        ({"prob": BOTH}, MEAN),
        ({"logits": LOGITS}, PROB),
        ({"logits": np.stack([LOGITS, LOGITS[::-1]], axis=1)}, MEAN),
        # Logits win, where both are there; prob may be rounded.
        ({"prob": PROB.round(1), "logits": LOGITS}, PROB),
    ],
)
def test_probabilities_are_recorded_or_of_logits_or_opinions(save, arrays, expected):
    path = save(**arrays, label=LABEL)
    for rows in (slice(None), slice(1, 3)):
        found = read(path, rows)
        np.testing.assert_allclose(found.probabilities, expected[rows], rtol=1e-6, atol=1e-15)
        assert found.probabilities.dtype == np.float64 and found.label.dtype == np.int64
        assert found.label.tolist() == LABEL[rows].tolist()
        several = [one for one in arrays.values() if one.ndim == 3]
        assert (found.opinions is not None) == bool(several)
        if "logits" in arrays:
            np.testing.assert_array_equal(found.logits, arrays["logits"][rows])
        elif several:
            np.testing.assert_array_equal(found.opinions, BOTH[rows])


def test_logits_of_other_probabilities_are_refused_with_the_first_row(save):
    prob = PROB.copy()
    prob[1], prob[2], prob[3, 0] = PROB[2], PROB[1], np.nan
    path = save(prob=prob, logits=LOGITS, label=LABEL)
    said = r"prob\[1\] is not the softmax of logits\[1\].*up to 0.5 apart, as are 1 others"
    with pytest.raises(RecordingError, match=said):
        read(path, slice(1, None))
    assert read(path, slice(3, None))


def test_without_labels_no_row_has_truth_and_whoever_needs_some_can_say_so(save, tmp_path):
    path = save(prob=PROB)
    found = read(path, slice(1, None))
    assert not found.labelled and found.label.tolist() == [-1, -1, -1]
    rejected = np.array([True, False, True])
    assert write_classes(tmp_path / "again.npz", found, rejected) == {"prob", "rejected"}
    assert np.load(tmp_path / "again.npz")["rejected"].tolist() == rejected.tolist()
    with pytest.raises(RecordingError, match=r"no array 'label'\. Save the true class of each"):
        require_labels(path, found)
    labelled = read(save(prob=PROB, label=np.array([0.0, np.nan, -1.0, 1.0])))
    assert labelled.labelled and labelled.label.tolist() == [0, -1, -1, 1]
    require_labels(path, labelled)


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"prob": PROB[0]}, r"prob has shape \(3,\).*\[N, C\]"),
        ({"prob": PROB[:, :1]}, r"prob has shape \(4, 1\).*two columns"),
        ({"prob": PROB, "label": LABEL[:3]}, r"label has shape \(3,\).*\[4\]"),
        ({"prob": PROB.astype(str)}, "'prob' holds <U32, not numbers"),
        ({"prob": PROB.astype(object)}, "cannot be read"),
        ({"prob": PROB, "label": LABEL.astype(str)}, "'label' holds <U21, not numbers"),
        ({"prob": PROB, "logits": LOGITS[:, :2]}, r"logits has shape \(4, 2\), but prob has"),
        ({"prob": PROB, "class_names": np.array(["a", "b", "a"])}, "Save as many different names"),
    ],
)
def test_arrays_that_make_no_sense_are_named_with_a_remedy(save, arrays, named):
    path = save(**{"label": LABEL, **arrays})
    with pytest.raises(RecordingError, match=named) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_a_member_that_is_no_array_is_named_and_no_rows_are_left_by_the_rows_asked_for(save):
    path = save(prob=PROB)
    with pytest.raises(RecordingError, match=r"none of 4 rows of prob is left by .*9"):
        read(path, slice(9, None))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("prob.npy", "text")
    with pytest.raises(RecordingError, match=r"classes\.npz: .*prob is no array"):
        read(path)


@pytest.mark.parametrize("prob", [PROB, BOTH])
def test_what_is_known_of_each_row_is_read_and_written_as_it_was(save, tmp_path, prob):
    of_each_row = {
        "gt_id": np.array([5, 5, 7, -1]),
        "track": np.array([1, 2, 3, 4]),
        "seq": np.array(["n", "s", "s", "s"]),
        "t": np.arange(4) / 10,
        "stamp_ns": np.arange(4) + 2**60,
        "class": np.array(["car", "car", "bus", "car"]),
        "frame": np.arange(4) + 9,
        "score": np.array([0.5, np.nan, 1.0, 2.0]),
        "ignore": np.array([True, False, False, True]),
    }
    more = {"label": LABEL, "class_names": np.array(["a", "b", "c"])}
    found = read(save(prob=prob, **more, **of_each_row, other=LABEL), slice(1, None))
    assert found.class_names == ("a", "b", "c")
    for name, expected in (
        ("track", [5, 7, -1]),  # by gt_id
        ("sequence_index", [1, 1, 1]),
        ("time_s", [0.1, 0.2, 0.3]),
        ("stamp_ns", [2**60 + i for i in (1, 2, 3)]),
    ):
        np.testing.assert_array_equal(getattr(found, name), expected, name)
    path = tmp_path / "again.npz"
    names = write_classes(path, found)
    with np.load(path) as archive:
        arrays = dict(archive)
    assert names == arrays.keys() == {"prob", *more, *of_each_row}
    for name, values in {**of_each_row, "prob": prob, "label": LABEL}.items():
        assert arrays[name].dtype == values.dtype
        np.testing.assert_array_equal(arrays[name], values[1:])
