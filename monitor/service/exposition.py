"""Which build of the sidecar this is. Only importer of importlib.metadata.

Families of samples in the text format of Prometheus. Only importer of prometheus_client.

It knows names, labels and numbers, and nothing of what they mean.

The counters of the export bins as text: what PromQL makes windows and fleets of.

Each family is written one slice at a time, since there are thousands of series.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from itertools import pairwise, product
from typing import cast

import numpy as np
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from monitor import __version__
from monitor.statistics.bins import ExportEdges, SliceBins

# Set where an image is built; it is no setting.
REVISION_VARIABLE = "CALIBRATION_MONITOR_REVISION"


# By label, the distributions whose behaviour ours depends on most.
_BUILT_ON = {"numpy": "numpy", "grpc": "grpcio", "protobuf": "protobuf"}


def build() -> Mapping[str, str]:
    """By label: the version, the revision of the source where it is known, and what it runs on."""
    return {
        "version": __version__,
        # Prometheus drops a label that is empty, and queries ask for it.
        "revision": os.environ.get(REVISION_VARIABLE, "")[:64] or "unknown",
        "python": platform.python_version(),
        **{label: version(name) for label, name in _BUILT_ON.items()},
    }


# The values of the labels, and that of the sample.
Row = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class _One(Collector):
    family: Metric

    def collect(self) -> Iterable[Metric]:
        return (self.family,)


def _text(family: Metric) -> str:
    # A registry is asked for nothing but collect().
    return generate_latest(cast("CollectorRegistry", _One(family))).decode()


def gauge(name: str, text: str, labels: tuple[str, ...], rows: Iterable[Row]) -> str:
    """A family of gauges."""
    family = GaugeMetricFamily(f"calibration_{name}", text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return _text(family)


def counter(name: str, text: str, labels: tuple[str, ...], rows: Iterable[Row]) -> str:
    """A family of counters; the name is given without `_total`."""
    family = CounterMetricFamily(f"calibration_{name}", text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return _text(family)


def histogram(name: str, text: str, buckets: Iterable[tuple[str, float]], total: float) -> str:
    """One histogram; upper bounds with the counts up to them, ascending, and the sum of values."""
    family = HistogramMetricFamily(f"calibration_{name}", text)
    family.add_metric((), list(buckets), total)
    return _text(family)


# Of this process; it registers nowhere, and reads /proc when it is asked.
_PROCESS = ProcessCollector(registry=None)


def process() -> bytes:
    """The families that every Prometheus client has of its process: memory, CPU, files, start."""
    return "".join(map(_text, _PROCESS.collect())).encode()


# The bins are thousands of samples of which only the numbers change. Written by the library
# they cost 11 us each, by a form that is made once 0.3.


def head(name: str, kind: str, text: str) -> str:
    """The two lines a family begins with; its samples must follow."""
    return f"# HELP calibration_{name} {text}\n# TYPE calibration_{name} {kind}\n"


def form(name: str, labels: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """The lines of samples with `%s` in place of each finite number, for `form % numbers`.

    rows  the values of the labels
    """
    order = sorted(range(len(labels)), key=labels.__getitem__)
    pairs = ",".join(f'{labels[i]}="%s"' for i in order)
    line = f"calibration_{name}{{{pairs}}} %%s\n"
    return "".join(line % tuple(_escaped(values[i]) for i in order) for values in rows)


@lru_cache(maxsize=4096)
def _escaped(value: str) -> str:
    """Inside quotes, and inside a form."""
    value = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value.replace("%", "%%")


JOINT = "joint"


_WITHIN = "nees_within"


# Each family with the array of StageBins it shows, and its meaning.
_FAMILIES = {
    "detections": ("n", "Detections with ground truth"),
    "variance": ("variance", "Sum of predicted variances, unit squared,"),
    "squared_error": ("squared_error", "Sum of squared errors, unit squared,"),
    "nees": ("nees", "Sum of normalised estimation errors squared"),
    _WITHIN: ("within", "Detections within the chi-square region of level tau"),
}


def bins(slices: tuple[SliceBins, ...], edges: ExportEdges | None) -> Iterator[str]:
    """All families of bins, in pieces; nothing but their heads without edges.

    A bin is written at 0 while it is empty: what a series shows when it is first seen
    counts as no increase.
    """
    tau = () if edges is None else tuple(f"{level!r}" for level in edges.binning.tau)
    yield gauge("tau", "The level itself, for queries.", ("tau",), (((t,), float(t)) for t in tau))
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
    """Number, lower and upper edge of every bin."""
    if edges is not None:
        inner = [f"{edge:g}" for edge in edges.edges]
        for i, (lower, upper) in enumerate(pairwise(("0", *inner, "+Inf"))):
            yield str(i), lower, upper


def _axes(family: str, dimensions: tuple[str, ...]) -> tuple[str, ...]:
    """Squares of a unit are those of single dimensions, NEES that of the joint block."""
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
    """The lines of a slice; its labels never change, only the numbers do."""
    labels = ("slice", "stage", "dimension", "bin")
    rows = product((name,), stages, axes, map(str, range(count)))
    if tau is None:
        return form(f"bin_{family}_total", labels, rows)
    return form(f"bin_{family}_total", (*labels, "tau"), ((*row, t) for row in rows for t in tau))
