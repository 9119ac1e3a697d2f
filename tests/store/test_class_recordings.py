"""Class probabilities from files: what is read, and what is said of files that cannot be."""

import zipfile

import numpy as np
import pytest

from monitor.store.class_recordings import read_class_recording, require_labels, write_classes
from monitor.store.tables import RecordingError

PROB = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.4, 0.3, 0.3], [0.0, 0.0, 1.0]])
LABEL = np.array([0, 2, -1, 1])


@pytest.fixture
def save(tmp_path):
    def saved(**arrays):
        path = tmp_path / "classes.npz"
        np.savez(path, **arrays)
        return path

    return saved


def test_probabilities_and_labels_come_as_they_are(save):
    found = read_class_recording(save(prob=PROB.astype(np.float32), label=LABEL))
    assert found is not None and found.opinions is None
    assert found.probabilities.dtype == np.float64 and found.label.dtype == np.int64
    np.testing.assert_allclose(found.probabilities, PROB, rtol=1e-6)
    assert found.label.tolist() == LABEL.tolist()


def test_of_several_opinions_the_mean_is_judged(save):
    opinions = np.stack([PROB, PROB[::-1]], axis=1)
    found = read_class_recording(save(prob=opinions, label=LABEL), slice(1, 3))
    assert found is not None and found.opinions is not None
    np.testing.assert_array_equal(found.opinions, opinions[1:3])
    np.testing.assert_allclose(found.probabilities, ((PROB + PROB[::-1]) / 2)[1:3])
    assert found.label.tolist() == [2, -1]


def test_a_label_that_is_nan_is_no_truth(save):
    found = read_class_recording(save(prob=PROB, label=np.array([0.0, np.nan, 2.0, 1.0])))
    assert found is not None and found.label.tolist() == [0, -1, 2, 1]


def test_without_labels_no_row_has_truth_and_whoever_needs_some_can_say_so(save):
    path = save(prob=PROB)
    found = read_class_recording(path, slice(1, None))
    assert found is not None and not found.labelled
    assert found.label.tolist() == [-1, -1, -1]
    with pytest.raises(RecordingError, match=r"no array 'label'\. Save the true class of each"):
        require_labels(path, found)
    labelled = read_class_recording(save(prob=PROB, label=np.full(4, -1)))
    assert labelled is not None and labelled.labelled
    require_labels(path, labelled)


def test_files_without_probabilities_have_no_classes(save, tmp_path):
    assert read_class_recording(save(mean=np.zeros((4, 2)), label=LABEL)) is None
    assert read_class_recording(tmp_path / "not-even-there.csv.gz") is None


def test_gaussians_beside_the_probabilities_are_told(save):
    alone = read_class_recording(save(prob=PROB, label=LABEL))
    assert alone is not None and not alone.gaussians
    beside = read_class_recording(save(prob=PROB, label=LABEL, mean=np.zeros((4, 2))))
    assert beside is not None and beside.gaussians


def test_arrays_of_objects_elsewhere_in_the_file_are_left_alone(save):
    path = save(prob=PROB, label=LABEL, notes=np.array([None, {}], dtype=object))
    assert read_class_recording(path) is not None
    # So are those of names that are written again where they have one value a row.
    path = save(
        prob=PROB, label=LABEL, **{"class": np.array([None] * 4)}, frame=PROB, score=np.ones(4)
    )
    found = read_class_recording(path)
    assert found is not None and list(found.beside) == ["score"]
    assert set(found.names) == {"prob", "label", "class", "frame", "score"}


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"prob": PROB[0], "label": LABEL}, r"prob has shape \(3,\).*\[N, C\]"),
        ({"prob": PROB[:, :1], "label": LABEL}, r"prob has shape \(4, 1\).*two columns"),
        ({"prob": np.zeros((4, 0, 3)), "label": LABEL}, r"prob has shape \(4, 0, 3\)"),
        ({"prob": PROB, "label": LABEL[:3]}, r"label has shape \(3,\).*\[4\]"),
        ({"prob": PROB, "label": PROB}, r"label has shape \(4, 3\)"),
        ({"prob": PROB.astype(str), "label": LABEL}, "'prob' holds <U32, not numbers"),
        ({"prob": PROB, "label": LABEL.astype(str)}, "'label' holds <U"),
        ({"prob": PROB, "label": LABEL + 0.5}, r"label\[0\] is 0.5, not a whole number"),
        ({"prob": PROB[:0], "label": LABEL[:0]}, "none of 0 rows"),
        ({"prob": PROB.astype(object), "label": LABEL}, "cannot be read"),
    ],
)
def test_a_file_that_makes_no_sense_is_named_with_its_remedy(save, arrays, named):
    path = save(**arrays)
    with pytest.raises(RecordingError, match=named) as caught:
        read_class_recording(path)
    assert str(path) in str(caught.value)


def test_rows_that_are_not_there_are_named(save):
    with pytest.raises(RecordingError, match="none of 4 rows of prob is left by rows 9:"):
        read_class_recording(save(prob=PROB, label=LABEL), slice(9, None))


def test_a_file_that_is_no_archive_cannot_be_read(tmp_path):
    path = tmp_path / "classes.npz"
    for content in (b"", b"PK\x03\x04 not really"):
        path.write_bytes(content)
        with pytest.raises(RecordingError, match="cannot be read"):
            read_class_recording(path)
    with pytest.raises(RecordingError, match="cannot be read"):
        read_class_recording(tmp_path / "absent.npz")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("prob.npy", b"damaged")
    with pytest.raises(RecordingError, match="cannot be read"):
        read_class_recording(path)


# ---- logits, names, tracks and times

LOGITS = np.log(np.maximum(PROB, 1e-30)) + np.array([[3.0], [-1.0], [0.0], [7.5]])


def test_logits_come_as_they_are_beside_the_probabilities_they_made(save):
    rounded = PROB.round(1)
    for logits in (LOGITS, LOGITS[:, None]):
        found = read_class_recording(save(prob=rounded, logits=logits, label=LABEL))
        assert found is not None and found.logits is not None
        np.testing.assert_array_equal(found.logits, logits)
        np.testing.assert_allclose(found.probabilities, PROB, atol=1e-15)


def test_logits_of_other_probabilities_are_refused_with_the_first_row(save):
    prob = PROB.copy()
    prob[1], prob[2], prob[3, 0] = PROB[2], PROB[1], np.nan
    path = save(prob=prob, logits=LOGITS, label=LABEL)
    with pytest.raises(
        RecordingError, match=r"prob\[1\] is not the softmax of logits\[1\]"
    ) as caught:
        read_class_recording(path, slice(1, None))
    assert "up to 0.5 apart, as are 1 others" in str(caught.value)
    assert read_class_recording(path, slice(3, None)) is not None


def test_logits_alone_are_probabilities_by_their_softmax(save):
    found = read_class_recording(save(logits=LOGITS, label=LABEL), slice(1, None))
    assert found is not None and found.opinions is None and not found.gaussians
    np.testing.assert_allclose(found.probabilities, PROB[1:], atol=1e-15)
    several = read_class_recording(
        save(logits=np.stack([LOGITS, LOGITS[::-1]], axis=1), label=LABEL)
    )
    assert several is not None and several.opinions is not None
    np.testing.assert_allclose(several.probabilities, (PROB + PROB[::-1]) / 2, atol=1e-15)


def test_logits_that_are_not_finite_make_no_probabilities(save):
    logits = LOGITS.copy()
    logits[0, 1], logits[2, 2] = np.inf, np.nan
    found = read_class_recording(save(logits=logits, label=LABEL))
    assert found is not None
    assert np.isnan(found.probabilities).any(axis=1).tolist() == [True, False, True, False]


def test_names_tracks_and_times_are_read_where_they_are(save):
    bare = read_class_recording(save(prob=PROB, label=LABEL))
    assert bare is not None and bare.class_names == ()
    assert bare.track is None and bare.time_s is None and bare.stamp_ns is None
    found = read_class_recording(
        save(
            prob=PROB,
            label=LABEL,
            class_names=np.array(["a", "b", "c"]),
            track=np.array([5, 5, 7, -1]),
            seq=np.array(["n", "s", "s", "s"]),
            t=np.arange(4) / 10,
            stamp_ns=np.arange(4) + 2**60,
        ),
        slice(1, None),
    )
    assert found is not None and found.sequence_index is not None
    assert found.class_names == ("a", "b", "c")
    assert found.track is not None and found.track.tolist() == [5, 7, -1]
    assert found.sequence_index.tolist() == [1, 1, 1]
    assert found.time_s is not None and found.time_s.tolist() == [0.1, 0.2, 0.3]
    assert found.stamp_ns is not None and found.stamp_ns.tolist() == [2**60 + i for i in (1, 2, 3)]


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"logits": LOGITS[0], "label": LABEL}, r"logits has shape \(3,\).*\[N, C\]"),
        ({"logits": LOGITS.astype(str), "label": LABEL}, "'logits' holds <U32, not numbers"),
        (
            {"prob": PROB, "logits": LOGITS[:, :2], "label": LABEL},
            r"logits has shape \(4, 2\), but prob has \(4, 3\).*for the same rows, opinions",
        ),
        (
            {"prob": np.stack([PROB] * 7, axis=1), "logits": LOGITS, "label": LABEL},
            r"logits has shape \(4, 3\), but prob has \(4, 7, 3\)",
        ),
        (
            {"prob": PROB, "logits": LOGITS[:2], "label": LABEL},
            r"logits has shape \(2, 3\), but prob has \(4, 3\)",
        ),
        ({"prob": PROB, "label": LABEL, "track": LABEL[:2]}, r"track has shape \(2,\).*\[4\]"),
        ({"prob": PROB, "label": LABEL, "t": PROB}, r"t has shape \(4, 3\)"),
        (
            {"prob": PROB, "label": LABEL, "class_names": np.array(["a", "b"])},
            r"class_names is \['a', 'b'\], but there are 3 classes",
        ),
        (
            {"prob": PROB, "label": LABEL, "class_names": np.array(["a", "b", "a"])},
            "Save as many different names",
        ),
        ({"logits": LOGITS[:0], "label": LABEL[:0]}, "none of 0 rows of logits"),
    ],
)
def test_arrays_that_do_not_go_together_are_named(save, arrays, named):
    with pytest.raises(RecordingError, match=named):
        read_class_recording(save(**arrays))


@pytest.mark.parametrize("opinions", [False, True])
def test_what_is_written_is_read_again(save, tmp_path, opinions):
    prob = np.stack([PROB, PROB[::-1]], axis=1) if opinions else PROB
    names = np.array(["a", "b", "c"])
    found = read_class_recording(save(prob=prob, label=LABEL, class_names=names))
    assert found is not None
    path = tmp_path / "again.npz"
    write_classes(path, found)
    again = read_class_recording(path)
    assert again is not None and again.class_names == found.class_names
    np.testing.assert_array_equal(again.probabilities, found.probabilities)
    np.testing.assert_array_equal(again.label, found.label)
    assert (again.opinions is None) == (not opinions)


def test_what_is_known_of_each_row_is_written_as_it_was(save, tmp_path):
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
    found = read_class_recording(save(prob=PROB, **of_each_row, other=LABEL), slice(1, None))
    assert found is not None
    path = tmp_path / "again.npz"
    names = write_classes(path, found)
    with np.load(path) as archive:
        arrays = dict(archive)
    assert names == arrays.keys() == {"prob", *of_each_row}
    for name, values in of_each_row.items():
        assert arrays[name].dtype == values.dtype
        np.testing.assert_array_equal(arrays[name], values[1:])
