"""The text format, held against what prometheus_client writes and reads."""

import math
from typing import Any, cast
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from monitor.service.exposition import bins, gauge
from monitor.service.help_texts import HELP
from monitor.statistics.bins import SliceBins
from tests.exported import EDGES, STAGES, drawn, slice_bins

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    [
        'a "quoted" one',
        "back\\slash",
        "\\n",
        "two\nlines",
        "100 %",
        "%s %d %%",
        "{}",
        "",
        "Straße 🚋",
    ]
)
VALUES = st.floats() | st.integers(-(2**53), 2**53)


def as_prometheus_client_writes(family) -> list[tuple[str, float]]:
    class One:
        def collect(self):
            return (family,)

    return read(generate_latest(cast(CollectorRegistry, One())).decode())


def read(text: str) -> list[tuple[str, float]]:
    """Each line with its number apart: of the many ways to write one, any will do."""
    lines = []
    for line in text.split("\n")[:-1]:
        if line.startswith("#"):
            lines.append((line, 0.0))
        else:
            before, _, number = line.rpartition(" ")
            lines.append((before, float(number)))
    return lines


def same(ours: list[tuple[str, float]], theirs: list[tuple[str, float]]) -> bool:
    return len(ours) == len(theirs) and all(
        a == b and (x == y or (math.isnan(x) and math.isnan(y)))
        for (a, x), (b, y) in zip(ours, theirs, strict=True)
    )


@st.composite
def families(draw):
    labels = draw(
        st.lists(st.sampled_from(["slice", "stage", "bin", "tau"]), max_size=4, unique=True)
    )
    row = st.tuples(st.tuples(*[TEXTS] * len(labels)), VALUES)
    return draw(TEXTS), tuple(labels), draw(st.lists(row, max_size=5))


@given(families())
def test_every_label_and_number_reads_back_as_it_was(family):
    text, labels, rows = family
    with patch.dict(HELP, thing=text):
        (found,) = text_string_to_metric_families(gauge("thing", labels, rows))
    assert [s.labels for s in found.samples] == [
        dict(zip(labels, values, strict=True)) for values, _ in rows
    ]
    expected = [float(number) for _, number in rows]
    np.testing.assert_array_equal([s.value for s in found.samples], expected)


@given(TEXTS, st.integers(0, 2**32))
def test_the_bins_of_a_slice_are_written_as_prometheus_client_writes_them(name, seed):
    random = np.random.default_rng(seed)
    k, tau = 2, EDGES.binning.tau
    stages = tuple((stage, drawn(random, 10**6, k, EDGES)) for stage in STAGES)
    entry = SliceBins(name, ("x", "y"), stages)
    expected: list[Any] = []
    for family, array, axes in (
        ("bin_detections", "n", ("x", "y", "joint")),
        ("bin_variance", "variance", ("x", "y")),
        ("bin_squared_error", "squared_error", ("x", "y")),
        ("bin_nees", "nees", ("joint",)),
        ("bin_nees_within", "within", ("joint",)),
    ):
        of_tau = array == "within"
        labels = ("slice", "stage", "dimension", "bin", *(("tau",) if of_tau else ()))
        theirs = CounterMetricFamily(f"calibration_{family}", "", labels=labels)
        for stage, counts in stages:
            values = np.asarray(getattr(counts, array), float).reshape(len(axes), EDGES.count, -1)
            for a, axis in enumerate(axes):
                for b in range(EDGES.count):
                    for t in range(values.shape[2]):
                        at = (name, stage, axis, str(b), *((str(tau[t]),) if of_tau else ()))
                        theirs.add_metric(at, values[a, b, t])
        expected += as_prometheus_client_writes(theirs)[2:]
    found = [line for line in read("".join(bins((entry,), EDGES))) if "stage=" in line[0]]
    assert same(found, expected)


def test_the_bins_of_many_slices_are_written_in_short_pieces():
    random = np.random.default_rng(1)
    k = 4
    names = [f"class {i}" for i in range(24)]
    counts = {(name, stage): drawn(random, 10, k, EDGES) for name in names for stage in STAGES}
    pieces = list(bins(slice_bins(counts, k), EDGES))
    assert max(piece.count("\n") for piece in pieces) == 2 * (k + 1) * EDGES.count
    assert len(read("".join(pieces))) > 24 * 380
