"""Columns and arrays that are read when asked for: any rows are those of the file."""

from __future__ import annotations

import contextlib
import zipfile

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from monitor.store import stored_arrays
from monitor.store.stored_arrays import (
    ArchiveArray,
    archive_array,
    parquet_columns,
    rows_of,
    values_and_places,
)

N = 1000
COLUMNS = {
    "plain": np.arange(N) * 0.5,
    "gaps": pa.array([None if i % 7 == 0 else i for i in range(N)]),
    "flag": pa.array([None if i % 5 == 0 else i % 2 == 0 for i in range(N)]),
    "text": pa.array([None if i % 11 == 0 else f"class {i % 3}" for i in range(N)]),
}
asked = st.lists(st.tuples(st.integers(0, N - 1), st.integers(1, 200)), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def columns(tmp_path_factory):
    """The columns, in groups of 300 rows and decoded 64 at a time."""
    path = tmp_path_factory.mktemp("stored") / "table.parquet"
    parquet.write_table(pa.table(COLUMNS), path, row_group_size=300)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_arrays, "PORTION", 64)
        yield parquet_columns(path, contextlib.nullcontext)


@pytest.fixture(scope="module", params=[np.savez, np.savez_compressed])
def blocks(request, tmp_path_factory):
    """An array of an archive, and the whole of it."""
    path = tmp_path_factory.mktemp("stored") / "archive.npz"
    values = np.random.default_rng(0).normal(size=(N, 2, 3))
    request.param(path, blocks=values, turned=np.asfortranarray(values[:, 0]))
    with pytest.MonkeyPatch.context() as patch, zipfile.ZipFile(path) as zipped:
        patch.setattr(stored_arrays, "_SMALL", 0)
        with np.load(path) as archive:
            found = archive_array(archive, zipped, path, "blocks", contextlib.nullcontext)
            turned = archive_array(archive, zipped, path, "turned", contextlib.nullcontext)
    assert isinstance(found, ArchiveArray)
    np.testing.assert_array_equal(turned, values[:, 0])
    return found, values


@settings(max_examples=30)
@given(st.sampled_from(sorted(COLUMNS)), asked)
def test_rows_of_a_column_are_those_of_the_whole(columns, name, asked):
    whole = columns[name].whole()
    assert whole.size == N
    for first, count in asked:
        rows = np.arange(first, min(first + count, N))
        np.testing.assert_array_equal(rows_of(columns[name], rows).astype(whole.dtype), whole[rows])


@settings(max_examples=30)
@given(asked)
def test_rows_of_an_array_are_those_of_the_whole(blocks, asked):
    found, values = blocks
    for first, count in asked:
        rows = np.arange(first, min(first + count, N))
        np.testing.assert_array_equal(rows_of(found, rows), values[rows])
    np.testing.assert_array_equal(rows_of(found, np.array([3, 5, 900])), values[[3, 5, 900]])
    np.testing.assert_array_equal(found.whole(), values)


@given(st.lists(st.sampled_from(["", "a", "b", "car", "ß"]) | st.text(max_size=2)))
def test_texts_are_coded_as_unique_does(values):
    for array in (np.array(values, np.str_), np.array([len(one) for one in values], np.int64)):
        found, place = values_and_places(array)
        assert found.tolist() == sorted(set(array.tolist()))
        np.testing.assert_array_equal(found[place], array)


def test_a_column_is_coded_without_a_text_a_row(columns):
    for name in COLUMNS:
        found, place = columns[name].coded()
        np.testing.assert_array_equal(found[place], columns[name].whole())
        assert (np.diff(np.unique(found, return_inverse=True)[1]) == 1).all()
