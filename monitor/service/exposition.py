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
from monitor.service.help_texts import HELP
from monitor.statistics.bins import ExportEdges, SliceBins

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Set where an image is built; it is no setting.
REVISION_VARIABLE = "CALIBRATION_MONITOR_REVISION"

# By label, the distributions that the behaviour of the sidecar depends on most.
_BUILT_ON = {"numpy": "numpy", "grpc": "grpcio", "protobuf": "protobuf"}
JOINT = "joint"
_WITHIN = "bin_nees_within"


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


def gauge(name: str, labels: tuple[str, ...], rows: Iterable[Row]) -> str:
    """Writes a family of gauges."""
    return _written(GaugeMetricFamily(f"calibration_{name}", HELP[name], labels=labels), rows)


def counter(name: str, labels: tuple[str, ...], rows: Iterable[Row]) -> str:
    """Writes a family of counters; the name is given without `_total`."""
    return _written(CounterMetricFamily(f"calibration_{name}", HELP[name], labels=labels), rows)


def _written(family: GaugeMetricFamily | CounterMetricFamily, rows: Iterable[Row]) -> str:
    for values, value in rows:
        family.add_metric(values, value)
    return _text(family)


def gauge_by(name: str, label: str, values: Iterable[tuple[str, float]]) -> str:
    """Writes a family of gauges with one label, from pairs of its value and the number."""
    return gauge(name, (label,), (((of,), value) for of, value in values))


def counter_by(name: str, label: str, counts: Iterable[tuple[str, float]]) -> str:
    """Writes a family of counters with one label, named without `_total`, as gauge_by does."""
    return counter(name, (label,), (((of,), count) for of, count in counts))


def one_gauge(name: str, value: float) -> str:
    """Writes a gauge without labels."""
    return gauge(name, (), [((), value)])


def one_counter(name: str, value: float) -> str:
    """Writes a counter without labels; the name is given without `_total`."""
    return counter(name, (), [((), value)])


def histogram(name: str, counted: Histogram) -> str:
    """Writes a histogram."""
    family = HistogramMetricFamily(f"calibration_{name}", HELP[name])
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


def head(name: str) -> str:
    """Writes the first two lines of a family of counters; its samples must follow."""
    family = f"calibration_{name}_total"
    return f"# HELP {family} {HELP[name]}\n# TYPE {family} counter\n"


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


# By family: the array of StageBins that it shows.
_ARRAYS = {
    "bin_detections": "n",
    "bin_variance": "variance",
    "bin_squared_error": "squared_error",
    "bin_nees": "nees",
    _WITHIN: "within",
}


def bins(slices: tuple[SliceBins, ...], edges: ExportEdges) -> Iterator[str]:
    """Yields all families of export bins, in pieces.

    An empty bin is written as 0, because PromQL sees no increase in the first value of a series.
    """
    tau = tuple(f"{level!r}" for level in edges.binning.tau)
    yield gauge_by("tau", "tau", ((t, float(t)) for t in tau))
    bounds = pairwise(("0", *(f"{edge:g}" for edge in edges.edges), "+Inf"))
    yield gauge(
        "bin_info",
        ("bin", "lower", "upper"),
        (((str(i), lower, upper), 1.0) for i, (lower, upper) in enumerate(bounds)),
    )
    for family, array in _ARRAYS.items():
        yield head(family)
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


def _axes(family: str, dimensions: tuple[str, ...]) -> tuple[str, ...]:
    """Names the dimensions of a family: squares have units, NEES belongs to the joint block."""
    match family:
        case "bin_detections":
            return (*dimensions, JOINT)
        case "bin_variance" | "bin_squared_error":
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
        return form(f"{family}_total", labels, rows)
    return form(f"{family}_total", (*labels, "tau"), ((*row, t) for row in rows for t in tau))
