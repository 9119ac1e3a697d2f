"""Whether tracks are known: of a tracker elsewhere, of the own one, or of the detector."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.calibration.drift.alarm import Counted
from monitor.diagnosis.finding import Area, Finding, remark, well, wrong
from monitor.diagnosis.observation import Observation
from monitor.diagnosis.samples import Change, rose
from monitor.diagnosis.words import count, duration, names, share, shares

# Of frames, that a tracker must not answer in time, or cannot track, before it is told.
_LATE, _UNTRACKED = 0.05, 0.05
_UNTRACKABLE = ("too_late", "repeated", "unstamped", "unmoved")


def tracker(seen: Observation) -> Iterator[Finding]:
    """By the status where it tells, else by the metrics."""
    change = seen.change
    away = list(_away(seen, change))
    told = [*away]
    if change is not None:
        told += [*(() if away else _late(change)), *_untracked(change), *_unknown(change)]
    yield from told or _well(seen, change)


def _well(seen: Observation, change: Change | None) -> Iterator[Finding]:
    status = seen.last.status
    if status is not None and status.tracker is not None:
        yield well(Area.TRACKER, f"the tracker at {status.tracker.address} is there")
    elif change is not None and any(change.last.by("tracker_frames_total", "order").values()):
        yield well(Area.TRACKER, "frames are tracked here")
    elif change is not None:
        yield well(Area.TRACKER, "none is asked for")


def _away(seen: Observation, change: Change | None) -> Iterator[Finding]:
    status = seen.last.status
    elsewhere = None if status is None else status.tracker
    down = change is not None and change.last.value("tracker_up") == 0
    if elsewhere is None and not down:
        return
    if elsewhere is not None and elsewhere.up:
        return
    where = "the tracker elsewhere" if elsewhere is None else f"the tracker at {elsewhere.address}"
    trouble = "" if elsewhere is None else elsewhere.trouble
    failed = 0.0 if change is None else change.increase("tracker_forwarded_total", outcome="failed")
    lost = ""
    if change is not None and rose(failed):
        lost = f"; {count(failed, 'frame')} did not reach it in {duration(change.seconds)}"
    yield wrong(
        Area.TRACKER,
        f"{where} {trouble or 'is away'}{lost}",
        "detections go on to the detector recalibrated, but without tracks (with those of the own "
        'tracker where [tracker] fallback = "embedded").',
        "does it run, and listen there? The sidecar goes on trying, and takes it up again by "
        "itself. Where the address is wrong: [tracker] address. docs/forwarding.md",
    )


def _late(change: Change) -> Iterator[Finding]:
    ended = change.increases("tracker_forwarded_total", "outcome")
    total = sum(ended.values())
    bad = {outcome: n for outcome, n in ended.items() if outcome != "answered" and n}
    if total and sum(bad.values()) > _LATE * total:
        yield wrong(
            Area.TRACKER,
            f"the tracker elsewhere is there, but {share(sum(bad.values()), total)} of the frames "
            f"come back without its tracks ({shares(bad, total)})",
            "frames wait for it as long as [tracker] timeout_seconds says, and go on without.",
            "late: is it slow, or timeout_seconds short? dropped, expired: it reads too slowly; "
            "failed: its answers cannot be used, the log says why. docs/forwarding.md",
        )


def _untracked(change: Change) -> Iterator[Finding]:
    orders = change.last.by("tracker_frames_total", "order")
    total = sum(orders.values())
    bad = {order: orders[order] for order in _UNTRACKABLE if orders.get(order)}
    if total and sum(bad.values()) > _UNTRACKED * total:
        yield wrong(
            Area.TRACKER,
            f"{share(sum(bad.values()), total)} of the frames cannot be tracked "
            f"({shares(bad, total)})",
            "their detections are in no track; what counts tracks learns nothing of them.",
            "unstamped: set stamp_ns; repeated, too_late: send frames in the order of their "
            "stamps, each once; unmoved: send ego_pose or ego_twist with every frame.",
        )


def _unknown(change: Change) -> Iterator[Finding]:
    slices = sorted(
        labels.get("slice", "")
        for labels, _ in change.last.rows("drift_reference_tracks")
        if labels.get("unit") == Counted.FRAME
    )
    if slices:
        yield remark(
            Area.TRACKER,
            f"no tracks are known of {names(slices)}",
            "errors of one object are alike: without its track, a frame is one observation for "
            "drift, and ten seconds of a stream are one vote for recalibrators. Both take long.",
            "send Detection.upstream_track_id, or the labeller's object_id, or turn the tracker "
            'on: [tracker] kind = "embedded". docs/promotion.md#tracks-are-the-unit',
        )
