"""Checks that ground truth comes, finds its detections, suffices for the measures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from monitor.commands.doctor.finding import Area, Told, about, remark, well, wrong
from monitor.commands.doctor.observation import SECOND_NS, Change, Observation, rose
from monitor.commands.doctor.words import count, duration, names, number, share, shares, size

# As in deploy/prometheus/service_alert_rules.yml: CalibrationMatchRatioLow and
# CalibrationLabelledShareLow. Half an hour of CalibrationNoLabels is Observation.truth_within_s.
MATCH_RATIO = 0.5
LABELLED_SHARE = 0.01
COUNTED = ("matched", "unusable", "orphan", "too_late", "refused")

# Fewer labels than these say little of how labels match, fewer detections of how many have any.
_FEWEST_LABELS, _FEWEST_DETECTIONS = 10.0, 10_000.0

# Of docs/ground_truth.md: from here on the measures are of the gate as much as of the detector.
_NEAR_GATE, _FEWEST_GATED = 0.05, 200.0

# Of what the store may hold.
_NEARLY_FULL = 0.9
_STILL = "measures stand still, and drift cannot be found, however bad it is."
_NO_LABELS = "docs/runbook.md#calibrationnolabels"

_CAUSES = {
    "orphan": "orphan: they name streams, frames or detections that are not known here: other "
    "names of streams, ids that are numbered anew, another detector, or frames of before a restart",
    "too_late": "too_late: their frames had left the store by then: label sooner, or raise "
    "[pending] max_bytes, disk_bytes and keep_hours",
    "refused": "refused: the answer to each label names the field and the value",
    "unusable": "unusable: their detections have no estimate that can be compared, such as a "
    "missing covariance",
}


@about(Area.LABELS, by_metrics=True)
def labels(seen: Observation) -> Iterator[Told]:
    """Needs the metrics; how long truth has been missing is known by the status."""
    change = seen.change
    ever = change.last.by("ground_truth_total", "outcome")
    told = [*_missing(seen, change, ever), *_unmatched(seen, change, ever), *_store(seen, change)]
    if matched := ever.get("matched", 0.0):
        told += _few(seen, change, matched)
    yield from told or [well(_good(seen, change, ever))]


def _good(seen: Observation, change: Change, ever: Mapping[str, float]) -> str:
    counted = sum(ever.get(name, 0.0) for name in COUNTED)
    if not counted and _detections(change):
        return "no truth has come since the start"
    if not counted:
        return "no truth, and no frames that could have any"
    detections, matched = _detections(change), ever.get("matched", 0.0)
    text = f"{share(matched, counted)} of the labels match"
    if detections:
        text += f", {share(matched, detections)} of the detections have one"
    last = _silence_s(seen)
    return f"{text}, the last came {duration(last)} ago" if math.isfinite(last) else text


def _silence_s(seen: Observation) -> float:
    """Since the last label that matched; infinite where none has, NaN where it is not known."""
    status = seen.last.status
    if status is None:
        return math.nan
    came = [each.matched_received_ns for each in status.streams if each.matched_received_ns]
    return (status.now_ns - max(came)) / SECOND_NS if came else math.inf


def _detections(change: Change) -> float:
    """Since the start, without those that are refused."""
    found = change.last.by("detections_total", "outcome")
    return sum(value for outcome, value in found.items() if outcome != "refused")


def _missing(seen: Observation, change: Change, ever: Mapping[str, float]) -> Iterator[Told]:
    """Frames come, and no truth that matches."""
    silence = _silence_s(seen)
    if not seen.frames_come or math.isnan(silence) or silence < seen.truth_within_s:
        return
    never = math.isinf(silence)
    if never and seen.up_s < seen.truth_within_s:
        if not any(ever.values()):
            yield remark(
                f"frames come, but no truth has come yet, since the start {duration(seen.up_s)} "
                "ago",
                f"as long as there is none, {_STILL}",
                "nothing, if it comes later: of a labeller, or with the next drive. Send it "
                "inline (Detection.ground_truth) or by ReportGroundTruth. docs/ground_truth.md",
            )
        return
    since = f"since the start {duration(seen.up_s)} ago" if never else f"for {duration(silence)}"
    other = {name: n for name, n in change.increases("ground_truth_total", "outcome").items() if n}
    if any(other.get(name) for name in COUNTED):
        return  # labels come, and match nothing: _unmatched says which
    outcomes = {name: n for name, n in ever.items() if n and name != "matched"}
    earlier = f" (other labels, ever: {shares(outcomes, sum(outcomes.values()))})"
    yield wrong(
        f"frames come, but no truth comes: none has matched a detection {since}"
        f"{earlier if outcomes else ''}",
        _STILL,
        "start or repair the labeller: does it run, and does it report to this sidecar? Where "
        "truth comes in batches, say within which time it is due: --truth-within. "
        f"{_NO_LABELS}",
    )


def _unmatched(seen: Observation, change: Change, ever: Mapping[str, float]) -> Iterator[Told]:
    """Labels come, and most of them find no detection."""
    now = change.increases("ground_truth_total", "outcome")
    came = sum(now.get(name, 0.0) for name in COUNTED)
    # Where truth is overdue, the few that come now say why: the share since the start is of better
    # days.
    recent = came >= _FEWEST_LABELS or (came > 0 and _silence_s(seen) >= seen.truth_within_s)
    counts = {name: (now if recent else ever).get(name, 0.0) for name in COUNTED}
    total = sum(counts.values())
    matched = counts.pop("matched")
    if not (total > 0 and matched / total < MATCH_RATIO):  # nor where it is no number
        return
    if matched and total < _FEWEST_LABELS:
        return
    when = f"in {duration(change.seconds)}" if recent else "since the start"
    what = (
        f"labels come, but only {share(matched, total)} of them match a detection"
        if matched
        else "labels come, but none of them matches a detection"
    )
    worst = max(counts, key=lambda name: counts[name])
    status = seen.last.status
    known = names([each.stream for each in status.streams]) if status is not None else ""
    yield wrong(
        f"{what} ({count(total, 'label')} {when}: {shares(counts, total)})",
        "measures are of the few that match, which may be easy ones." if matched else _STILL,
        f"{_CAUSES[worst]}. {f'Streams here are {known}. ' if known else ''}"
        "docs/runbook.md#calibrationmatchratiolow",
    )


def _few(seen: Observation, change: Change, matched: float) -> Iterator[Told]:
    """Finds where labels that match are rare, or lie too near the gate."""
    detections, by_slice = _detections(change), change.last.by("labelled_ratio", "slice")
    poor = sorted(slice for slice, ratio in by_slice.items() if ratio < LABELLED_SHARE)
    enough = detections >= _FEWEST_DETECTIONS
    if enough and matched / detections < LABELLED_SHARE:
        yield wrong(
            f"{share(matched, detections)} of the detections have truth "
            f"({number(matched)} of {number(detections)} since the start)",
            "everything holds, but drift is found as much later as truth is rarer.",
            "label more frames, or whole tracks rather than scattered frames. "
            "docs/runbook.md#calibrationlabelledsharelow",
        )
    elif enough and poor:
        yield remark(
            f"hardly any detection of {names(poor)} has truth: less than "
            f"{share(LABELLED_SHARE, 1)}",
            "drift of these slices is found late, or never.",
            "is that class or sensor labelled at all? docs/runbook.md#calibrationlabelledsharelow",
        )
    bare = [each.stream for each in seen.fresh if not each.matched]
    if bare and len(bare) < len(seen.fresh):
        yield remark(
            f"no truth has matched a detection of {names(bare)}, while other streams have some",
            "that sensor is not measured, and its drift is not seen where slices go by stream.",
            "is it labelled, and under this name?",
        )
    near, gated = change.last.value("near_gate_ratio"), change.last.value("gated_matches")
    if near > _NEAR_GATE and gated >= _FEWEST_GATED:
        yield remark(
            f"{share(near, 1)} of the matches lie near the gate of [matching]",
            "the gate cuts large errors off: variances look smaller than they are.",
            "widen [matching] gate; if the share stays, these are wrong matches of neighbours: "
            "make it tighter. docs/ground_truth.md#what-the-gate-hides",
        )


def _store(seen: Observation, change: Change) -> Iterator[Told]:
    """Where frames wait for their truth. That those without any leave it again is no fault."""
    late = change.increase("ground_truth_total", outcome="too_late")
    dropped = change.increase("dropped_detections_total")
    if rose(late) and rose(dropped):
        yield wrong(
            f"in {duration(change.seconds)} {count(late, 'label')} came too late: their detections "
            f"had left the store, and {number(dropped)} more have left it since",
            "what they tell is lost, and it is always the latest labels that are.",
            "label sooner, or raise [pending] max_bytes, disk_bytes or keep_hours; "
            "detection_fates says why they left. docs/ground_truth.md",
        )
    fates = change.last.by("detection_fates", "fate")
    nameless, all_of_them = fates.get("dropped_no_frame_id", 0.0), sum(fates.values())
    if nameless > MATCH_RATIO * all_of_them:
        yield remark(
            f"{share(nameless, all_of_them)} of the detections came in frames without a frame_id",
            "no label can name them: only truth that comes with them counts.",
            "set Frame.frame_id, unique in its stream.",
        )
    for name, most, key in (
        ("pending_bytes", seen.limits.pending_bytes, "max_bytes"),
        ("ledger_bytes", seen.limits.disk_bytes, "disk_bytes"),
    ):
        held = change.last.value(name)
        # In memory, frames only make way for others where they are on disk as well.
        if held >= _NEARLY_FULL * most and not (key == "max_bytes" and seen.limits.on_disk):
            yield remark(
                f"the store of frames that wait for truth is nearly full: {size(held)} of "
                f"{size(most)}",
                "the oldest frames leave it first; labels that come for them later find nothing.",
                f"label sooner, or raise [pending] {key}. docs/ground_truth.md#how-large",
            )
