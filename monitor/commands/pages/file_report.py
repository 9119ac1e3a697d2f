"""Builds the parts of the report of a recorded file from what `evaluate` has measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from monitor.commands.held_out import HeldOut
from monitor.commands.pages.report_page import Said, Section, Slice
from monitor.figures.comparison import heat_map
from monitor.figures.evaluations import JOINT, factors
from monitor.figures.svg import Figure, number
from monitor.figures.tables import Table
from monitor.figures.timeline import Line, timeline
from monitor.figures.top_view import Gaussians, top_view
from monitor.frames.space import BoolArray
from monitor.frames.words import Finding
from monitor.statistics.measures import Evaluation
from monitor.statistics.verdicts import ClassVerdict, Verdict
from monitor.store.recordings import Recording

# Pieces of time, and drives, that are measured one by one.
_PIECES, _MOST_DRIVES = 40, 200

# Detections of a frame that are drawn, and frames over which their tracks are.
_MOST_DETECTIONS, _FRAMES_BEFORE = 60, 20

_KINDS = {Finding.CALIBRATED: "well", Finding.UNKNOWN: "unknown"}


def said(verdict: Verdict | ClassVerdict, matters: bool) -> Said:
    """Turns a verdict into a sentence of the report."""
    kind = _KINDS.get(verdict.finding, "page" if matters else "ticket")
    return Said(kind, verdict.sentence)


def stages_by_group(
    after: Mapping[str, Evaluation], before: Mapping[str, Evaluation], recording: Recording
) -> list[Slice]:
    """Pairs measures of groups after a recalibrator with those before; `before` may be empty."""
    found = []
    for name, evaluation in after.items():
        stages = {"raw": evaluation}
        if name in before:
            stages = {"raw": before[name], "recalibrated": evaluation}
        found.append(Slice(name or "all", recording.space, stages))
    return found


def in_pieces(
    recording: Recording, usable: BoolArray, evaluated: Callable[[BoolArray], Evaluation]
) -> Section | None:
    """Measures a drive piece of time by piece of time, or several drives one by one.

    usable     (N,) rows that are measured
    evaluated  measures rows (N,)
    """
    there = np.unique(recording.sequence_index[usable])
    if there.size > 1:
        names = [recording.sequences[i] for i in there[:_MOST_DRIVES]]
        found = [evaluated(recording.sequence_index == i) for i in there[:_MOST_DRIVES]]
        columns = [*found[0].dimensions, JOINT]
        factor = np.array([[factors(one)[column] for column in columns] for one in found])
        says = "A drive that differs from the others has a row of its own colour."
        title = "Errors over stated σ, by drive"
        return Section("By drive", figures=[heat_map(title, says, names, columns, factor)])
    if recording.time_s is None or not usable.any():
        return None
    time = recording.time_s
    begin, end = float(time[usable].min()), float(time[usable].max())
    if not end > begin:
        return None
    edges = np.linspace(begin, end, _PIECES + 1)
    piece = np.minimum(np.searchsorted(edges, time, side="right") - 1, _PIECES - 1)
    numbers = np.unique(piece[usable])
    found = [evaluated(piece == i) for i in numbers]
    middle = (edges[numbers] + edges[numbers + 1]) / 2 - begin
    return Section("Over time", figures=_over_time(middle, found))


def _over_time(time: np.ndarray, found: Sequence[Evaluation]) -> list[Figure]:
    nees = np.array([one.joint.nees_over_k for one in found])
    ence = {
        name: np.array([one.dimensions[name].ence for one in found])
        for name in list(found[0].dimensions)[:6]
    }
    x_label = "seconds since the first row"
    return [
        timeline(
            "NEES/K over time",
            f"From {number(float(np.nanmin(nees)))} to {number(float(np.nanmax(nees)))}; "
            "1 is calibrated.",
            [Line("all rows", time, nees)],
            y_label="NEES/K",
            log=True,
            ideal=1.0,
            x_label=x_label,
        ),
        timeline(
            "ENCE over time",
            "0 is calibrated; few rows in a piece of time read more.",
            [Line(name, time, values) for name, values in ence.items()],
            y_label="ENCE",
            x_label=x_label,
        ),
    ]


def fullest_frame(raw: Recording, made: Recording | None) -> Section | None:
    """Draws the frame with the most labelled detections from above, with tracks so far.

    made  the same rows, recalibrated; None if they were not
    """
    ground = [raw.space.names.index(name) for name in raw.box[:2] if name in raw.space.names]
    if raw.frame is None or len(ground) < 2:
        return None
    labelled = np.logical_and.reduce(np.isfinite(raw.truth), axis=1)
    # One number a frame: whole rows are slow to sort.
    span = int(raw.frame.max()) + 1
    places = raw.sequence_index * span + raw.frame
    found, counts = np.unique(places[labelled], return_counts=True)
    if not counts.size:
        return None
    sequence, frame = divmod(int(found[counts.argmax()]), span)
    here = np.flatnonzero(places == found[counts.argmax()])[:_MOST_DETECTIONS]
    stages = {"raw": raw} if made is None else {"raw": raw, "recalibrated": made}
    paths = []
    if raw.track is not None:
        recent = (raw.sequence_index == sequence) & (raw.frame <= frame)
        recent &= raw.frame > frame - _FRAMES_BEFORE
        for track in np.unique(raw.track[here][raw.track[here] >= 0]):
            rows = np.flatnonzero(recent & (raw.track == track))
            paths.append(raw.mean[rows[np.argsort(raw.frame[rows])]][:, ground])
    figure = top_view(
        f"Frame {frame} of {raw.sequences[sequence]} from above",
        f"{here.size} detections with their 2-σ ellipses, {counts.max()} of them with ground truth "
        "(crosses); dotted: where their tracks came from.",
        [
            Gaussians(
                name, one.mean[here][:, ground], one.covariance[here][:, ground][:, :, ground]
            )
            for name, one in stages.items()
        ],
        raw.truth[here][labelled[here]][:, ground],
        paths,
    )
    return Section("The fullest frame", figures=[figure])


def recalibrator_section(gains: Sequence[HeldOut], version: str) -> Section | None:
    """Tells what a recalibrator changes, before → after."""
    if not gains:
        return None
    rows = tuple(
        (
            one.slice,
            f"{one.rows:,}",
            *(
                f"{number(getattr(one.before, name))} → {number(getattr(one.after, name))}"
                for name in ("nees_over_k", "ence", "nll")
            ),
            one.verdict,
        )
        for one in gains
    )
    return Section(
        "Recalibrator",
        (
            f"Applied: {version}.",
            "Only tracks that the recalibrator was not fitted on prove a gain.",
        ),
        tables=[Table(("slice", "rows", "NEES/K", "ENCE", "NLL", "verdict"), rows)],
    )


def labels_section(
    whole: Evaluation, refused: Mapping[str, object], matched: Mapping[str, int] | None
) -> Section:
    """Accounts for every row, and for labels of another file."""
    rows = [
        ("rows with ground truth", f"{whole.rows:,}"),
        ("tracks", "–" if whole.tracks is None else f"{whole.tracks:,}"),
        ("rows without ground truth", f"{whole.without_truth:,}"),
        ("rows refused", f"{whole.refused:,}"),
        *((f"refused: {name}", str(value)) for name, value in refused.items() if value),
        *((f"labels: {name.replace('_', ' ')}", f"{n:,}") for name, n in (matched or {}).items()),
    ]
    return Section("Rows and labels", tables=[Table(("", "count"), tuple(rows))])
