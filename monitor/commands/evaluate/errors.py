"""Writes the errors of detections without a covariance, for people, programs and the report.

What is measured of them is in `statistics.residuals`; which rows they are, in `evaluate` itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from monitor.commands.evaluation_tables import short, shortened
from monitor.commands.output import table
from monitor.commands.pages.report_page import Section
from monitor.commands.soundness import Usable
from monitor.figures.tables import Table
from monitor.frames.space import BoolArray, IntArray
from monitor.statistics.residuals import GroupErrors, errors_of
from monitor.store.recordings import Recording

_HEADS = ("", "rows", "tracks", "RMSE", "95 %", "bias", "95 %", ">2", ">3", "99 %", "κ")

_LEGEND = """\
RMSE     root of the mean squared error, in the unit of the dimension; 95 %: its interval, by tracks
bias     mean of truth − detection, signed, with its interval
>2, >3   shares of errors beyond 2 and 3 RMSE; of Gaussian errors 4.6 % and 0.27 %
99 %     quantile of the size of errors, over the RMSE; of Gaussian errors 2.58; κ: kurtosis, 3"""


@dataclass(frozen=True, slots=True)
class WithoutCovariance:
    """Errors of the rows without a covariance.

    rows    with ground truth, and usable
    others  rows with ground truth that have a covariance
    usable  which rows could be measured, and why others could not
    groups  that are told in words; finer ones stand in the table alone
    """

    rows: int
    others: int
    usable: Usable
    groups: tuple[GroupErrors, ...]
    finer: tuple[GroupErrors, ...]

    @property
    def every(self) -> tuple[GroupErrors, ...]:
        """Lists all groups, those that are told in words first, none of them twice."""
        told = {one.group for one in self.groups}
        return (*self.groups, *(one for one in self.finer if one.group not in told))

    @property
    def said(self) -> tuple[str, ...]:
        """Says what is measured, and the errors by group and dimension."""
        if self.others:
            head = f"{self.rows:,} of {self.rows + self.others:,} rows have no covariance"
        else:
            head = "The file has no covariances"
        return f"{head}: their errors are measured.", *(
            words for one in self.groups for words in one.sentences
        )

    def as_json(self) -> dict[str, object]:
        """Builds the object for JSON."""
        return {"rows": self.rows, "groups": [one.as_json() for one in self.every]}


def measured_errors(
    recording: Recording,
    rows: BoolArray,
    usable: Usable,
    tracks: IntArray | None,
    groups: Mapping[str, BoolArray],
    finer: Mapping[str, BoolArray],
) -> WithoutCovariance:
    """Measures the errors of some rows (N,), by group and by finer group.

    tracks  (N,) number of the track of each row, −1 without; None where none is known
    """
    error = recording.space.error(recording.truth, recording.mean)
    assumed = np.sqrt(recording.covariance[rows.argmax()].diagonal())
    units = [dimension.unit for dimension in recording.space.dimensions]

    def found(parts: Mapping[str, BoolArray]) -> Iterator[GroupErrors]:
        for name, part in parts.items():
            some = np.flatnonzero(part & rows)
            of_rows = None if tracks is None else tracks[some]
            names = recording.space.names
            yield errors_of(names, units, error[some], assumed, of_rows, name)

    n = int(np.count_nonzero(rows))
    others = int(np.count_nonzero(usable.rows)) - n
    return WithoutCovariance(n, others, usable, tuple(found(groups)), tuple(found(finer)))


def errors_table(errors: WithoutCovariance, fit: str, *, full: bool) -> str:
    """Writes the errors for people, and which command fills in what is missing.

    fit   words of the fit that does
    full  say all groups in words, and their matrices of correlations
    """
    head, *sentences = errors.said
    lines = [head, *shortened(sentences, full=full), f"Do: calibration-monitor fit {fit}"]
    lines.append(
        "    It estimates the covariances that are missing, and judges them on held-out tracks."
    )
    usable = errors.usable
    counts = f"{errors.rows:,} rows without a covariance and with ground truth"
    lines += ["", f"{counts}; {usable.told()}"]
    rows = [row for one in errors.every for row in _rows(one)]
    lines += ["", table(_HEADS, rows), *_correlations(errors.every)]
    if full:
        lines += [_matrix(one) for one in errors.every if len(one.dimensions) > 1]
    return "\n".join([*lines, "", _LEGEND])


def _rows(found: GroupErrors) -> Iterator[tuple[str, ...]]:
    for one in found.dimensions:
        lower, upper = (f"{end:.3g}" for end in one.rmse_interval)
        low, high = (f"{end:+.2g}" for end in one.bias_interval)
        yield (
            f"{found.group} {one.dimension}".strip(),
            f"{found.rows:,}",
            "–" if found.tracks is None else f"{found.tracks:,}",
            short(one.rmse),
            f"{lower} to {upper}" if one.known else "–",
            f"{one.bias:+.3g}",
            f"{low} to {high}" if one.known else "–",
            *(f"{share:.1%}" for share in one.beyond),
            short(round(one.quantile, 2)),
            short(round(one.kurtosis, 1)),
        )


def _correlations(groups: tuple[GroupErrors, ...]) -> Iterator[str]:
    told = [(one.group or "all", one.correlated) for one in groups if len(one.dimensions) > 1]
    found = [f"{name}: {words}" for name, words in told if words]
    if told:
        yield ""
        yield "Correlations of errors (95 %, by tracks): " + ("" if found else "none is sure")
        yield from found


def _matrix(found: GroupErrors) -> str:
    names = tuple(one.dimension for one in found.dimensions)
    rows = [
        (name, *(f"{value:+.2f}" for value in row))
        for name, row in zip(names, found.correlation.tolist(), strict=True)
    ]
    return f"\n{found.group or 'all'}, correlations\n{table(('', *names), rows)}"


def errors_section(errors: WithoutCovariance | None) -> Section | None:
    """Writes the errors as a part of the report; None without any."""
    if errors is None:
        return None
    rows = tuple(row for one in errors.every for row in _rows(one))
    told = [line for line in _correlations(errors.every) if line]
    words = f"{errors.rows:,} rows with ground truth have no covariance."
    return Section("Errors without a covariance", (words, *told), tables=[Table(_HEADS, rows)])
