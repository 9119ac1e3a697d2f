"""What recalibrators hide, what waits for people, and whether anything is corrected at all."""

from __future__ import annotations

import math
from collections.abc import Iterator

from monitor.diagnosis.finding import Area, Finding, remark, well, wrong
from monitor.diagnosis.observation import Observation
from monitor.diagnosis.samples import Change, rose
from monitor.diagnosis.words import count, names, number
from monitor.promotion.standing import TrialState

# As CalibrationFaultCompensated and CalibrationFitsFail in deploy/prometheus/alert_rules.yml.
LEAST_FACTOR, MOST_FACTOR = 0.5, 2.0
FAILED_FITS = 3.0


def recalibration(seen: Observation) -> Iterator[Finding]:
    """By the metrics; versions that wait by the listing, where that may be asked for."""
    change = seen.change
    told: list[Finding] = []
    if change is not None:
        told += [*_compensated(change), *_fits(change)]
    told += [*_waiting(seen, change), *_pinned(seen, change)]
    if change is not None:
        told += _observing(change)
    if told:
        yield from told
    elif change is not None:
        yield well(Area.RECALIBRATION, _in_force(change))


def _in_force(change: Change) -> str:
    found = [
        f"{labels.get('method', '?')} ({labels.get('version', '?')})"
        for labels, value in change.last.rows("recalibrator_info")
        if value
    ]
    return f"in force: {names(sorted(found))}"


def _compensated(change: Change) -> Iterator[Finding]:
    factors = {
        (labels.get("slice", ""), labels.get("dimension", "")): value
        for labels, value in change.last.rows("recalibration_factor")
        if value > 0 and not LEAST_FACTOR <= value <= MOST_FACTOR
    }
    if not factors:
        return
    worst = sorted(factors, key=lambda key: (-abs(math.log(factors[key])), key))
    texts = [f"{dimension} of {slice} by {number(factors[slice, dimension])}" for slice, dimension
             in worst]  # fmt: skip
    yield wrong(
        Area.RECALIBRATION,
        f"a fault of the detector is being compensated: variances are multiplied, {names(texts)}",
        "recalibrated measures look healthy, the detector is not.",
        "find what changed: model or firmware, mounting, dirt on the sensor, the clock. "
        "`calibration-monitor recalibrators history` says since when. "
        "docs/runbook.md#calibrationfaultcompensated",
    )


def _fits(change: Change) -> Iterator[Finding]:
    now = change.increase("recalibrator_fits_total", outcome="failed")
    ever = change.last.value("recalibrator_fits_total", outcome="failed")
    if ever >= FAILED_FITS:
        say = wrong if rose(now) else remark
        yield say(
            Area.RECALIBRATION,
            f"{count(ever, 'fit')} of slices failed since the start",
            "what is in force stays, but no longer follows the detector.",
            "`calibration-monitor recalibrators history` says why: killed (memory?), hung "
            "([promotion] fit_timeout_seconds), or of no use (the log). "
            "docs/runbook.md#calibrationfitsfail",
        )


def _waiting(seen: Observation, change: Change | None) -> Iterator[Finding]:
    proven = [trial for trial in seen.trials if trial.state is TrialState.PROVEN]
    slices = sorted(trial.slice for trial in proven)
    version = f" ({proven[0].version})" if len(proven) == 1 else ""
    if not seen.recalibrators.given and change is not None:
        slices = sorted(
            labels.get("slice", "")
            for labels, _ in change.last.rows("trial_log10_evidence")
            if labels.get("state") == TrialState.PROVEN and labels.get("direction") == "better"
        )
    if slices:
        yield remark(
            Area.RECALIBRATION,
            f"a recalibrator of {names(slices)} is proven better and waits for approval{version}",
            "until somebody promotes it, what it would correct goes out as it is.",
            "`calibration-monitor recalibrators list`, then `recalibrators promote VERSION`, "
            "unless the fault is better repaired. docs/runbook.md#calibrationcandidatewaits",
        )


def _pinned(seen: Observation, change: Change | None) -> Iterator[Finding]:
    pinned = seen.pinned
    if pinned is None and change is not None:
        pinned = change.last.value("recalibrator_pinned") == 1
    if pinned:
        yield remark(
            Area.RECALIBRATION,
            "recalibrators are pinned",
            "nothing is promoted, adapted or rolled back by itself, whatever is proven.",
            "is that still meant? `calibration-monitor recalibrators history` says who did it, "
            "`unpin` ends it.",
        )


def _observing(change: Change) -> Iterator[Finding]:
    modes = {labels.get("mode") for labels, _ in change.last.rows("recalibrator_info")}
    if "observe" in modes:
        versions = sorted(
            labels.get("version", "") for labels, _ in change.last.rows("recalibrator_info")
        )
        yield remark(
            Area.RECALIBRATION,
            f"mode is observe: detections go out as they came, what {names(versions)} "
            f"{'makes' if len(versions) == 1 else 'make'} of them beside",
            "nothing is corrected.",
            'is that still meant? [recalibration] mode = "apply" corrects.',
        )
