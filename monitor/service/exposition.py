"""The text format of Prometheus: families of samples written from names, labels and numbers.

Export bins are the only family that this file knows by its meaning. PromQL makes windows and fleets
of them, from thousands of series of which only the numbers change: a sample costs 11 µs if
prometheus_client writes it, 0.3 µs by a form that is made once. Export bins are written one slice
at a time.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import lru_cache
from importlib.metadata import version
from itertools import accumulate, pairwise, product
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from monitor import __version__
from monitor.frames.counters import Histogram
from monitor.statistics.bins import ExportEdges, SliceBins

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Set where an image is built; it is no setting.
REVISION_VARIABLE = "CALIBRATION_MONITOR_REVISION"

# By label, the distributions that the behaviour of the sidecar depends on most.
_BUILT_ON = {"numpy": "numpy", "grpc": "grpcio", "protobuf": "protobuf"}
JOINT = "joint"
_WITHIN = "nees_within"


def build() -> Mapping[str, str]:
    """Returns the version, the revision of the source and the libraries below, by label."""
    return {
        "version": __version__,
        # Prometheus drops a label that is empty, and queries ask for it.
        "revision": os.environ.get(REVISION_VARIABLE, "")[:64] or "unknown",
        "python": platform.python_version(),
        **{label: version(name) for label, name in _BUILT_ON.items()},
    }


# The values of the labels, and the sample's value.
Row = tuple[tuple[str, ...], float]


def _text(family: Metric) -> str:
    # A registry is asked for nothing but collect().
    registry = SimpleNamespace(collect=lambda: [family])
    return generate_latest(cast("CollectorRegistry", registry)).decode()


def gauge(name: str, text: str, labels: tuple[str, ...], rows: Iterable[Row]) -> str:
    """Writes a family of gauges."""
    family = GaugeMetricFamily(f"calibration_{name}", text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return _text(family)


def counter(name: str, text: str, labels: tuple[str, ...], rows: Iterable[Row]) -> str:
    """Writes a family of counters; the name is given without `_total`."""
    family = CounterMetricFamily(f"calibration_{name}", text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return _text(family)


def gauge_by(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> str:
    """Writes a family of gauges with one label, from pairs of its value and the number."""
    return gauge(name, text, (label,), (((of,), value) for of, value in values))


def counter_by(name: str, text: str, label: str, counts: Iterable[tuple[str, float]]) -> str:
    """Writes a family of counters with one label, named without `_total`, as gauge_by does."""
    return counter(name, text, (label,), (((of,), count) for of, count in counts))


def one_gauge(name: str, text: str, value: float) -> str:
    """Writes a gauge without labels."""
    return gauge(name, text, (), [((), value)])


def one_counter(name: str, text: str, value: float) -> str:
    """Writes a counter without labels; the name is given without `_total`."""
    return counter(name, text, (), [((), value)])


def histogram(name: str, text: str, counted: Histogram) -> str:
    """Writes a histogram."""
    family = HistogramMetricFamily(f"calibration_{name}", text)
    bounds = [*(f"{bound:g}" for bound in counted.bounds), "+Inf"]
    family.add_metric((), list(zip(bounds, accumulate(counted.counts), strict=True)), counted.sum)
    return _text(family)


def outcomes(account: DataclassInstance) -> Iterator[tuple[str, float]]:
    """Yields the counts of a family with a label `outcome`: one a field of the account."""
    return ((each.name, getattr(account, each.name)) for each in fields(account))


# Metrics of this process; the collector registers nowhere and reads /proc when it is asked.
_PROCESS = ProcessCollector(registry=None)


def process() -> bytes:
    """Writes the families of every Prometheus client: memory, CPU, files, start of the process."""
    return "".join(map(_text, _PROCESS.collect())).encode()


def head(name: str, kind: str, text: str) -> str:
    """Writes the first two lines of a family; its samples must follow."""
    return f"# HELP calibration_{name} {text}\n# TYPE calibration_{name} {kind}\n"


def form(name: str, labels: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Writes the lines of samples with `%s` for each finite number, to be used as `form % numbers`.

    rows  the values of the labels
    """
    order = sorted(range(len(labels)), key=labels.__getitem__)
    pairs = ",".join(f'{labels[i]}="%s"' for i in order)
    line = f"calibration_{name}{{{pairs}}} %%s\n"
    return "".join(line % tuple(_escaped(values[i]) for i in order) for values in rows)


@lru_cache(maxsize=4096)
def _escaped(value: str) -> str:
    """Escapes a label's value for its quotes and for the form."""
    value = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value.replace("%", "%%")


# By family: the array of StageBins that it shows, and its meaning.
_FAMILIES = {
    "detections": ("n", "Detections with ground truth"),
    "variance": ("variance", "Sum of predicted variances, unit squared,"),
    "squared_error": ("squared_error", "Sum of squared errors, unit squared,"),
    "nees": ("nees", "Sum of normalised estimation errors squared"),
    _WITHIN: ("within", "Detections within the chi-square region of level tau"),
}


def bins(slices: tuple[SliceBins, ...], edges: ExportEdges | None) -> Iterator[str]:
    """Yields all families of export bins, in pieces; only their heads if there are no edges.

    An empty bin is written as 0, because PromQL sees no increase in the first value of a series.
    """
    tau = () if edges is None else tuple(f"{level!r}" for level in edges.binning.tau)
    yield gauge_by("tau", "The level itself, for queries.", "tau", ((t, float(t)) for t in tau))
    yield gauge(
        "bin_info",
        "Edges of each bin of the predicted deviation; 1.",
        ("bin", "lower", "upper"),
        ((bounds, 1.0) for bounds in _bounds(edges)),
    )
    for family, (array, text) in _FAMILIES.items():
        yield head(f"bin_{family}_total", "counter", f"{text} by bin of the predicted deviation.")
        for entry in slices:
            counted = np.array([getattr(totals, array) for _, totals in entry.stages])
            yield _form(
                family,
                entry.name,
                tuple(stage for stage, _ in entry.stages),
                _axes(family, entry.dimensions),
                entry.stages[0][1].n.shape[1],
                tau if family == _WITHIN else None,
            ) % tuple(counted.ravel().tolist())


def _bounds(edges: ExportEdges | None) -> Iterator[tuple[str, str, str]]:
    """Yields number, lower and upper edge of every bin."""
    if edges is not None:
        inner = [f"{edge:g}" for edge in edges.edges]
        for i, (lower, upper) in enumerate(pairwise(("0", *inner, "+Inf"))):
            yield str(i), lower, upper


def _axes(family: str, dimensions: tuple[str, ...]) -> tuple[str, ...]:
    """Names the dimensions of a family: squares have units, NEES belongs to the joint block."""
    match family:
        case "detections":
            return (*dimensions, JOINT)
        case "variance" | "squared_error":
            return dimensions
    return (JOINT,)


@lru_cache(maxsize=512)
def _form(
    family: str,
    name: str,
    stages: tuple[str, ...],
    axes: tuple[str, ...],
    count: int,
    tau: tuple[str, ...] | None,
) -> str:
    """Makes the form of one slice, whose labels never change; forms are remembered."""
    labels = ("slice", "stage", "dimension", "bin")
    rows = product((name,), stages, axes, map(str, range(count)))
    if tau is None:
        return form(f"bin_{family}_total", labels, rows)
    return form(f"bin_{family}_total", (*labels, "tau"), ((*row, t) for row in rows for t in tau))
