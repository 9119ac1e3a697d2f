"""Families of samples in the text format of Prometheus. Only importer of prometheus_client.

It knows names, labels and numbers, and nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

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
