"""Families of the sidecar as a program: its build, configuration, log and clock."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.edges.exposition import counter, gauge
from monitor.operation import OperationReading


def operation(reading: OperationReading) -> Iterator[str]:
    """One text a family."""
    yield gauge(
        "build_info",
        "Which build this is; always 1.",
        tuple(reading.build),
        [(tuple(reading.build.values()), 1.0)] if reading.build else [],
    )
    yield counter(
        "configuration_reloads",
        "Configurations that were read again (SIGHUP), by outcome.",
        ("outcome",),
        (((str(outcome),), float(count)) for outcome, count in reading.reloads.items()),
    )
    yield gauge(
        "configuration_waiting_keys",
        "Keys of the configuration, as last read again, that only a restart brings in force.",
        (),
        [((), float(reading.waiting))],
    )
    lag = reading.lag
    yield gauge(
        "stamp_lag_seconds",
        "Wall clock at arrival minus capture stamp of the streams of the last minute.",
        ("of",),
        [] if lag is None else [(("least",), lag.least), (("most",), lag.most)],
    )
    yield counter(
        "log_lines",
        "Lines of the log, by level.",
        ("level",),
        (((level,), float(count)) for level, count in reading.lines.items()),
    )
    yield counter(
        "log_lines_left_out",
        "Lines that were left out of the log, being too many of their kind.",
        (),
        [((), float(reading.left_out))],
    )
