"""Draws the status page from a view, as HTML.

Every text that comes from outside is escaped, every number that GetCalibration tells too carries
what it is in `data-of`: slice/window/stage/dimension/measure.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import asdict
from html import escape
from urllib.parse import quote

import numpy as np

from monitor import __version__
from monitor.drift.alarms import FEWEST_HOURS, Alarm, error_of, hours, how_wrong, moment
from monitor.drift.charts import Direction, Severity, Stage
from monitor.figures.evaluations import JOINT, assumption
from monitor.figures.svg import number
from monitor.figures.tables import fact, html_table
from monitor.figures.timeline import Line, sparkline
from monitor.frames.detections import ACTED_ON, PASSED_THROUGH, Reason
from monitor.frames.frame import TrackStatus
from monitor.frames.slices import is_bare
from monitor.frames.space import FloatArray
from monitor.frames.status import StreamStatus
from monitor.promotion.records import TrialState
from monitor.service.history import (
    AT,
    HOUR,
    NEES_RAW,
    NEES_RECALIBRATED,
    SWAPPED,
)
from monitor.service.view import (
    EPOCH,
    SOON,
    View,
    before,
    called,
    counted,
    enough,
    factor_of,
    findings,
    lasting,
    left_out_of,
    mending,
    odds,
    percent,
    proof,
    sigma,
    span,
    state_of,
    trouble,
    unusual,
)
from monitor.statistics.measures import Evaluation
from monitor.statistics.reading import RAW, RECALIBRATED
from monitor.statistics.verdicts import CLOSE, MATTERS

# What is drawn, step by step.
Steps = Generator[None, None, str]

# Points of a sparkline, and records that are listed.
_SPARKS, _RECORDS = 120, 10
_WORDS = {"swap": "changed", "": "note"}


# ---- pieces


def is_known(view: View, slice: str) -> bool:
    known = slice in view.readings or slice in view.predicted
    return known or any(one.name == slice for one in view.snapshot.classes)


def _linked(view: View, slice: str, text: str = "") -> str:
    words = escape(text or slice)
    address = f"/slice/{quote(slice, safe='')}"
    return f'<a href="{address}">{words}</a>' if is_known(view, slice) else words


def badge(kind: str, text: str = "") -> str:
    return f'<span class="word {kind}">{escape(text or _WORDS.get(kind, kind))}</span>'


def _remedy(anchor: str) -> str:
    where = anchor if "#" in anchor else f"docs/runbook.md#{anchor}"
    return f"<span class=dim>What to do: <code>{where}</code></span>" * bool(anchor)


def _two(text: str, below: str) -> str:
    return f'{text}<br><span class="dim small">{below}</span>'


def hours_of(value: float) -> str:
    """Writes hours of evidence; far from any alarm its size says nothing."""
    return hours(value) if value >= FEWEST_HOURS else "none"


# ---- the status page


def overview(view: View) -> Steps:
    """Draws the content of the status page, one slice a step."""
    said = findings(view)
    cards = [alarm_card(view, one) for one in view.alarms]
    cards += [
        f'<div class="card {one.kind}"><p>{badge(one.kind)} {escape(one.sentence)} '
        f"{escape(one.more)} {_remedy(one.anchor)}</p></div>"
        for one in said[1:]
        if one.kind not in tuple(Severity)
    ]
    first = "" if said[0].kind in tuple(Severity) else _remedy(said[0].anchor)
    parts = [
        f'<p class="dim small">calibration monitor {__version__} · runs for '
        f"{span(max(view.at - view.started, 0))} · gRPC {escape(view.grpc)} · "
        f'{moment(view.wall_ns)} UTC · <a href="/metrics">metrics</a>{_shown(view)}</p>'
        f'<h1 class="verdict {said[0].kind}">{escape(said[0].sentence)}</h1>'
        f"<p>{escape(said[0].more)} {first}</p>"
        f'<section aria-label="alarms">{"".join(cards)}</section>'
    ]
    yield
    if view.readings:
        names, rows = sorted(view.readings, key=lambda name: trouble(view, name)), []
        for name in names:
            rows.append(_row(view, name))
            yield
        parts.append(_slices(view, names, rows))
    parts.append('<div class="halves">')
    halves = [_recalibrators, _labels, _predicted, _streams, _classes, _tracks, _frames]
    if any(one.anchor == "calibrationnolabels" for one in said):
        halves[:2] = _labels, _recalibrators
    for half in halves:
        parts.append(f"<section>{found}</section>" if (found := half(view)) else "")
        yield
    parts.append(f"</div>{_READ}")
    return "".join(parts)


def _shown(view: View) -> str:
    shown = view.snapshot.shown
    if shown is None:
        return ""
    what = f"{shown.state.holds.counted}, " if shown.state.holds else ""
    at = "" if view.event_ns is None else f", as of {moment(view.event_ns)} UTC of event time"
    return f" · read only: {what}{escape(shown.path.name)}{at}"


_READ = """<details><summary>How to read this page</summary><ul>
<li>Raw: as the detector sends it; recalibrated: as it is forwarded. Without a recalibrator, and
until labels come of what one has made, they are the same, and their lines cover each other.</li>
<li>“No covariance”: the detector sends none, and [tracker] missing_deviation is assumed until one
that was learned from labels is promoted. What is raw there tells of the assumption; bias and RMSE,
on the page of the slice, tell of the detector.</li>
<li>NEES/K: squared error over the stated variance. 1 is calibrated; at 4 σ is twice too small.</li>
<li>ENCE: how far σ is from the errors, as a share of σ, in the worst dimension; compare it with its
noise, which a calibrated detector would read. QCE: how far coverage is from what is stated.</li>
<li>Worth: so many independent rows tell as much, since errors of one object are alike.</li>
<li>Evidence of 1,800 h: healthy driving gives as much once in 1,800 h at most. An alarm comes where
it reaches its threshold, the hours that are allowed between two false ones; then it begins anew. Of
page and ticket the one that is nearer is shown, at “total” that of all slices together.</li></ul>
</details>"""


_FACTOR, _UNKNOWN = "σ is {factor} times {way}", "σ is wrong"


def alarm_card(view: View, alarm: Alarm) -> str:
    """Says what is wrong with which slice by how much, since when, and on what evidence."""
    severity, at = str(alarm.severity), (alarm.slice, "drift", str(alarm.severity), "alarm")
    error = fact(error_of(alarm, _FACTOR, unknown=_UNKNOWN), *at, "error")
    raw = alarm.stage is Stage.RAW
    remedy = "" if raw or alarm.direction is Direction.UNDER else mending(view, alarm.slice)
    stage = "as the detector sends it" if raw else "as it is forwarded"
    tracks = f" of {fact(f'{alarm.tracks:,}', *at, 'tracks')} tracks" if alarm.tracks else ""
    return (
        f'<article class="card {severity}"><p>{badge(severity)} '
        f"<b>{_linked(view, alarm.slice, called(alarm.slice))}</b>, {stage}, is "
        f"{how_wrong(alarm)}: <b>{error}</b>.</p>"
        f"<p>Raised {span(view.event_ago(alarm.event_ns))} ago, began about "
        f"{span(view.event_ago(alarm.since_ns))} ago ({escape(moment(alarm.since_ns))}). "
        f"{fact(f'{alarm.detections:,}', *at, 'detections')} labelled detections{tracks} say so. "
        f"Healthy driving gives such evidence once in "
        f"{fact(hours(alarm.evidence), *at, 'evidence_hours')} at most; threshold "
        f"{fact(hours(alarm.threshold), *at, 'threshold_hours')}, by the {alarm.detector} test.</p>"
        f"<p>{remedy}{_remedy(f'calibrationdrift{severity}')}</p></article>"
    )


def _slices(view: View, names: list[str], rows: list[list[str]]) -> str:
    head = (
        *("slice", "labelled rows", f"NEES/K, last {span(max(view.at - line_start(view), 1))}"),
        *("NEES/K raw", "recalibrated", "ENCE, worst", "QCE", "evidence"),
    )
    of, length = f"the last {view.of}", lasting(view.window)
    old = sum(view.shown(name)[0] == EPOCH for name in names)
    note = f"{old} of {len(names)} had no labels in {of} and are shown since epoch. " * bool(old)
    note += f"{view.of} of data so far: {length} are not full. " * (view.of != length)
    read = f"Read {span(max(view.at - view.read_at, 0))} ago, every 10 s. "
    return (
        f"<h2>Slices, {of if old < len(names) else 'since epoch'}</h2>"
        f'<p class="dim small">{note}{read}The gravest first; σ is right within '
        f"a factor of {number(CLOSE)}, an error matters from {number(MATTERS)} on. Lines: "
        '<span class="key-a">raw</span>, <span class="key-b">recalibrated (dashed)</span>, up to '
        "now; marks: alarm (full or dashed), promotion (dotted), rollback (fine). "
        '<span class="narrow">More is on the page of each slice.</span></p>'
        f"{html_table('slices', head, rows, {'less': range(3, 7)})}"
    )


def line_start(view: View) -> float:
    """Finds when the lines of all slices begin: an hour ago, or with the first frame."""
    first = min((one[0, AT] for one in last_hour(view).values()), default=view.at)
    return max(min(first, view.at if view.began is None else view.began), view.at - HOUR)


def last_hour(view: View) -> dict[str, FloatArray]:
    points = {name: one[one[:, AT] >= view.at - HOUR] for name, one in view.points.items()}
    return {name: one for name, one in points.items() if one.size}


def _row(view: View, name: str) -> list[str]:
    window, reading = view.shown(name)
    raw, made = reading.raw, reading.recalibrated
    _, kind, word = state_of(view, name)
    of_raw, at = (name, window, RAW, JOINT), (name, window, RECALIBRATED)
    words = "too few labels to say"
    if enough(made):
        words = fact(sigma(factor_of(made)), *at, JOINT, "sigma")
    if (assumed := reading.assumed) and raw.rows:
        words = escape(assumption(reading.space, raw))
    alarms = [one for one in view.alarms if one.slice == name]
    if alarms:
        words = f"{_raised(view, alarms[0])}; {words} over {view.of}"
    first = f'{_linked(view, name)}<br><span class="small">{badge(kind, word)}: {words}</span>'
    of_raw_joint = fact(number(raw.joint.nees_over_k), *of_raw, "nees_over_k")
    return [
        _two(first, note) if (note := _note(view, name, window)) else first,
        _two(
            fact(f"{raw.rows:,}", *of_raw, "n"),
            f"worth {fact(number(made.joint.n_eff), *at, JOINT, 'n_eff')}",
        ),
        _spark(view, name),
        _two(of_raw_joint, "of what is assumed") if reading.space.assumed else of_raw_joint,
        *(["–"] * 3 if assumed else _forwarded(made, *at)),
        _evidence(view, name),
    ]


def _forwarded(made: Evaluation, *at: str) -> list[str]:
    """Writes what says whether σ is right as it is forwarded."""
    worst, ence = max(made.dimensions.items(), key=lambda one: np.nan_to_num(one[1].ence, nan=-1))
    return [
        fact(number(made.joint.nees_over_k), *at, JOINT, "nees_over_k"),
        _two(
            f"{fact(number(ence.ence), *at, worst, 'ence')} ({escape(worst)})",
            f"noise {fact(number(ence.ence_noise_floor), *at, worst, 'ence_noise_floor')}",
        ),
        fact(number(made.joint.qce), *at, JOINT, "qce"),
    ]


def _raised(view: View, alarm: Alarm) -> str:
    """Says what was wrong, and by how much, when an alarm was raised."""
    error = error_of(alarm, "σ {factor} times {way}", unknown="σ wrong", interval=False)
    at = (alarm.slice, "drift", str(alarm.severity), "alarm", "size")
    raw = "raw " * (alarm.stage is Stage.RAW)
    return f"{raw}{fact(error, *at)} when raised {span(view.event_ago(alarm.event_ns))} ago"


def _note(view: View, name: str, window: str) -> str:
    """Says what rows a reading holds, where that may surprise."""
    if window == EPOCH:
        return "since epoch"
    if view.swap_of(name, view.window_s) is None:
        return ""
    reading = view.shown(name)[1]
    none = reading.recalibrated is reading.raw
    return f"{'all' if none else 'partly'} from before the change{': raw = recalibrated' * none}"


def _evidence(view: View, name: str) -> str:
    """Shows the evidence that is nearest to its threshold."""
    known = [one for at, one in view.standings.items() if at[0] == name]
    if not known:
        return "–"
    one = max(known, key=lambda standing: standing.evidence / standing.threshold)
    at = (name, "drift", str(one.severity), "standing")
    now = fact(hours_of(one.evidence), *at, "evidence_hours")
    threshold = fact(hours(one.threshold), *at, "threshold_hours")
    alarms = [one for one in view.alarms if one.slice == name]
    if alarms:
        at = (name, "drift", str(alarms[0].severity), "alarm")
        raised = fact(hours(alarms[0].evidence), *at, "evidence_hours")
        return _two(f"{raised} raised it", f"since then {now}")
    return _two(now, f"{one.severity} at {threshold}") if one.evidence >= FEWEST_HOURS else now


def _spark(view: View, name: str) -> str:
    points = last_hour(view)
    if name not in points:
        return "–"
    mine = points[name]
    mine = mine[np.unique(np.linspace(0, mine.shape[0] - 1, _SPARKS).astype(int))]
    made, raw = (Line("", mine[:, AT], mine[:, at]) for at in (NEES_RECALIBRATED, NEES_RAW))
    says = f"NEES/K of {name} over time, now {number(float(made.values[-1]))}"
    marks = [one.mark for one in view.moments if one.slice in ("", name)]
    return sparkline(says, made, marks, beside=raw, reach=(line_start(view), view.at))


def _recalibrators(view: View) -> str:
    active = "<p>Active: " + ", ".join(
        f"<b>{escape(one.method)}</b> <code>{escape(one.version)}</code>" for one in view.active
    )
    how = "forwarded" if view.mode == "apply" else "observed: raw estimates are forwarded"
    pinned = "; <b>pinned</b>: nothing happens by itself" * view.pinned
    changed = [
        f"<li>{_linked(view, name)}: variance × "
        + ", ".join(f"{number(one.typical)} ({escape(one.dimension)})" for one in factors)
        + "</li>"
        for name, factors in view.snapshot.factors.items()
        if any(not 1 / CLOSE <= one.typical <= CLOSE for one in factors)
    ]
    rows = [
        (
            _two(
                f"{_linked(view, one.slice)}: {_TRIALS[one.state]}",
                f"<code>{escape(one.version)}</code>",
            ),
            _two(
                proof(one.evidence),
                f"{_ENDS[one.state]} at {odds(one.evidence.log10_threshold)}",
            ),
        )
        for one in view.trials
    ]
    trials = html_table("trials", ("compared with what is active", "odds that it is better"), rows)
    happened = "".join(
        f"<li>{span(view.ago(one.time_ns))} ago: {escape(str(one.what).replace('_', ' '))}, "
        f"{escape(called(one.slice))}: {escape(one.reason)} ({escape(one.actor)})</li>"
        for one in view.records[: -_RECORDS - 1 : -1]
    )
    last = f"<details><summary>What happened last</summary><ul>{happened}</ul></details>"
    return (
        f"<h2>Recalibrators</h2>{active}, {how}. Promotion: {view.promotion}{pinned}.</p>"
        + f"<ul>{''.join(changed)}</ul>" * bool(changed)
        + (trials if rows else "<p class=dim>Nothing is on trial.</p>")
        + last * bool(happened)
    )


_TRIALS = {
    TrialState.RUNNING: "candidate",
    TrialState.PROVEN: "candidate, proven",
    TrialState.GUARD: "active before",
}
_ENDS = {TrialState.RUNNING: "proven", TrialState.PROVEN: "proven", TrialState.GUARD: "comes back"}


def _labels(view: View) -> str:
    counters, ago = view.snapshot.counters, view.labelled_ago
    last = "the last one at an unknown time" if math.isnan(ago) else f"the last {span(ago)} ago"
    fates = asdict(counters.truth)
    came, matched = sum(fates.values()), fates.pop("matched")
    told = "".join(f", {n:,} {name.replace('_', ' ')}" for name, n in fates.items() if n)
    gone = {"were claimed by no label": counters.unmatched, "left without one": counters.dropped}
    return (
        f"<h2>Labels</h2><p>{counted(came, 'label')} came, with frames and later: "
        f"{fact(f'{matched:,}', *_SUM, 'matched')} matched{f' ({last})' * bool(matched)}{told}.</p>"
        f"<p>{fact(f'{view.pending:,}', *_SUM, 'pending')} detections wait for theirs"
        + "".join(f", {n:,} {what}" for what, n in gone.items() if n)
        + ".</p>"
        + (f"<p>{escape(text)}</p>" if (text := left_out_of(view)) else "")
    )


# Counts of the process are of no slice.
_SUM = ("", "counts", "", "")


def _streams(view: View) -> str:
    rows = [
        (
            escape(one.stream),
            _aged(one.frames, view.ago(one.received_ns)),
            _aged(one.matched, view.ago(one.matched_received_ns)),
            number(view.rates.get(one.stream, math.nan)),
            _lag(one),
        )
        for one in view.streams
    ]
    head = ("stream", "frames", "labels matched", "frames a second", "lag")
    return f"<h2>Streams</h2>{html_table('streams', head, rows, {'less': (3, 4)})}" if rows else ""


def _aged(count: int, ago: float) -> str:
    """Writes a count, and how long ago the last was where it is not lately."""
    return _two(f"{count:,}", f"last {span(ago)} ago") if ago > SOON else f"{count:,}"


def _lag(one: StreamStatus) -> str:
    """Says how long the last frame was on its way, by two clocks."""
    if one.stamp_ns is None or one.stamped_received_ns is None:
        return "no stamps"
    seconds = (one.stamped_received_ns - one.stamp_ns) / 1e9
    if abs(seconds) < 10:
        return f"{seconds * 1e3:,.0f} ms"
    return f"{seconds:,.0f} s" if abs(seconds) < 86400 else "another clock"


def _classes(view: View) -> str:
    measures = {"ece": "ECE", "accuracy": "right", "overconfidence": "confidence where wrong"}
    measures["entropy"] = "entropy"
    if any(one.raw.opinions for one in view.snapshot.classes):
        measures |= {"aleatoric": "aleatoric", "epistemic": "epistemic"}
    rows = []
    for one in view.snapshot.classes:
        for stage, found in one.shown.items():
            at = one.name, "classes", stage, ""
            cells = [fact(number(getattr(found, name)), *at, name) for name in measures]
            rows.append((_linked(view, one.name), stage, *cells, fact(f"{found.n:,}", *at, "n")))
    table = html_table("classes", ("slice", "stage", *measures.values(), "rows"), rows)
    return f"<h2>Class probabilities</h2>{table}" if rows else ""


def _predicted(view: View) -> str:
    rows = []
    for name, one in view.predicted.items():
        entropy, deviation = certainty(view, name)
        cells = fact(f"{one.n:,}", *_at(view, name), "n"), *entropy, *deviation
        rows.append((_linked(view, name), *cells))
    head = ("slice", "detections", "entropy, mean", "above", "σ_G, median", "above")
    note = (
        f'<p class="dim small">As sent, labelled or not, in the last {lasting(view.shortest)}. '
        f"Above: the share that is less certain than 95 % were before, in {before(view)}, at the "
        "same distance; 5 % if nothing has changed.</p>"
    )
    table = html_table("all detections", head, rows)
    return f"<h2>All detections</h2>{note}{table}" if rows else ""


def certainty(view: View, name: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Writes mean entropy and median σ_G, each with the share that is less certain than before."""
    one, at = view.predicted[name], _at(view, name)
    classes, places = unusual(view, name)

    def told(of: str, value: str, look: bool) -> tuple[str, str]:
        share = fact(percent(getattr(one, f"{of}_above_before")), *at, f"{of}_above_before")
        mark = f"{badge('warning', 'worth a look')} " * look
        return fact(number(getattr(one, f"{of}_{value}")), *at, f"{of}_{value}"), mark + share

    entropy = told("entropy", "mean", classes) if one.classified else ("–", "–")
    # What is assumed for all is no word of the detector's.
    return entropy, ("–", "–") if is_bare(name) else told("deviation", "q50", places)


def _at(view: View, name: str) -> tuple[str, str, str, str]:
    return name, view.shortest, "predicted", ""


def _tracks(view: View) -> str:
    tracks = view.tracks
    rows = [
        (
            _linked(view, name),
            *(f"{tracks.counts[status - 1, i]:,}" for status in TrackStatus),
            number(float(tracks.nis_ratio[i])),
        )
        for i, name in enumerate(tracks.names)
    ]
    head = ("slice", *(status.name.lower() for status in TrackStatus), "NIS/J")
    return (
        f"<h2>Tracks</h2>{_NIS}{html_table('tracks', head, rows, {'less': (1, 3)})}" if rows else ""
    )


_NIS = """<p class="dim small">NIS/J: squared innovation over what the filter expects. Healthy is
below 1, since errors go on from frame to frame: 0.6 where two in a row correlate by 0.65, 0.9 where
they do not. Watch its change; far above 1 is overconfident.</p>"""


def _frames(view: View) -> str:
    """Says what became of detections and messages, with the reasons."""
    counters = view.snapshot.counters
    swapped = any(one.mark.word in SWAPPED for one in view.moments)
    unchanged = not swapped and all(one.method == "identity" for one in view.active)
    made = "by the active recalibrator" + " (unchanged: the identity)" * unchanged
    words = {"recalibrated": made, "passed_through": "passed through", "refused": "refused"}
    if counters.estimated:
        words |= {"estimated": "given a covariance, since they came without one"}
    sums = [f"{fact(f'{getattr(counters, of):,}', *_SUM, of)} {it}" for of, it in words.items()]
    why = [
        f"<li>{what} {n:,}: {reason.label.replace('_', ' ')}</li>"
        for reason in Reason
        if reason not in ACTED_ON
        for what, n in (
            ("passed through", int(counters.by_reason[reason]) * (reason in PASSED_THROUGH)),
            ("refused", int(counters.by_reason[reason]) * (reason not in PASSED_THROUGH)),
            ("messages refused", counters.frames_refused[reason]),
        )
        if n
    ]
    faults = counters.internal_errors
    frames = fact(f"{counters.frames:,}", *_SUM, "frames")
    detections = fact(f"{counters.detections:,}", *_SUM, "detections")
    return (
        f"<h2>Frames</h2><p>{frames} frames with {detections} detections: {', '.join(sums)}.</p>"
        + f"<ul>{''.join(why)}</ul>" * bool(why)
        + f"<p><b>{counted(faults, 'fault')} inside: see the log.</b></p>" * bool(faults)
    )
