"""Checks the sidecar's installation: configuration file, version, disk."""

from __future__ import annotations

import math
from collections.abc import Iterator

from monitor.commands.doctor.finding import Area, Told, about, remark, well, wrong
from monitor.commands.doctor.observation import Change, Observation, rose
from monitor.commands.doctor.words import be, count, duration, names

_RESTART = (
    "the file has other values than the sidecar runs with, and only a restart brings these in "
    "force.",
    "restart the sidecar when it suits (its state goes on from disk), "
    "or put the file back as it was.",
)

# As CalibrationCheckpointStale in deploy/prometheus/service_alert_rules.yml, seconds.
CHECKPOINT_SECONDS = 120.0

# Entries that wait for the disk: half of [pending] queue_frames.
_WAITING = 1024.0

# Counters of failures, and what was not written.
_STORES = (
    ("checkpoint_failures_total", "checkpoints"),
    ("ledger_failures_total", "frames and labels"),
)

_LOOK = (
    "the log says why: is the disk full (`df -h`), may the process write to [state] folder, or "
    "does another sidecar hold it?"
)
_ANCHOR = "docs/runbook.md#calibrationcheckpointstale"


@about(Area.CONFIGURATION)
def configuration(seen: Observation) -> Iterator[Told]:
    """Judges by the status; where it was refused, by the metric."""
    status = seen.last.status
    if status is None:
        waiting = seen.change.last.value("configuration_waiting_keys")
        if waiting > 0:
            yield remark(
                f"{count(waiting, 'setting')} of the file {be(waiting)} not in force",
                *_RESTART,
            )
        return
    path = status.configuration
    told, keys = [], status.waiting_keys
    if status.configuration_refused:
        told.append(
            wrong(
                f"the configuration file {path} was read again and cannot be used: "
                f"{status.configuration_refused}",
                "the sidecar goes on with the settings of before, and would not start anew.",
                f"repair it: `calibration-monitor serve --config {path} --check` says when it is "
                "well; then send SIGHUP (`systemctl reload calibration-monitor`).",
            )
        )
    if keys:
        told.append(remark(f"{names(keys)} of {path} {be(len(keys))} not in force", *_RESTART))
    yield from told or [well(f"{path} is in force" if path else "no file: the defaults")]


@about(Area.VERSIONS)
def versions(seen: Observation) -> Iterator[Told]:
    """Judges by the status, else by calibration_build_info."""
    status = seen.last.status
    told = seen.change.last.words("build_info", "version") if status is None else [status.version]
    version = next(iter(told), "")
    if not version:
        return
    if version == seen.version:
        yield well(f"sidecar and doctor are {version}")
        return
    yield remark(
        f"the sidecar is {version}, and this doctor {seen.version}",
        "what only the newer of the two knows is not looked at, or not told.",
        "use the doctor of the sidecar's own version, in its image or virtual environment.",
    )


@about(Area.DISK, by_metrics=True)
def disk(seen: Observation) -> Iterator[Told]:
    """Judges by the metrics alone."""
    told = [*_failures(seen.change), *_kept(seen.change, seen.up_s)]
    yield from told or [well(_good(seen.change))]


def _good(change: Change) -> str:
    age = change.last.value("checkpoint_age_seconds")
    if math.isnan(age):
        return "nothing has failed; nothing was written yet"
    return f"the last checkpoint was written {duration(age)} ago, nothing has failed"


def _failures(change: Change) -> Iterator[Told]:
    for name, what in _STORES:
        ever = change.last.value(name)
        if not rose(ever):
            continue
        again = rose(change.increase(name))
        # When the ledger was last written is not known.
        if again or (name.startswith("checkpoint") and not _recent(change)):
            yield wrong(
                f"{what} cannot be written to disk: {count(ever, 'failure')} since the start"
                f"{', and some while doctor looked' if again else ''}",
                "a restart would forget what has come since.",
                f"{_LOOK} {_ANCHOR}",
            )
        else:
            yield remark(
                f"{what} could not be written to disk {count(ever, 'time')} since the start; not "
                "while doctor looked",
                "a restart at such a moment forgets what came since the last writing.",
                _LOOK,
            )


def _recent(change: Change) -> bool:
    return change.last.value("checkpoint_age_seconds") <= CHECKPOINT_SECONDS


def _kept(change: Change, up_s: float) -> Iterator[Told]:
    """Finds what is not, or not yet, kept on disk, and what could not be read back."""
    age = change.last.value("checkpoint_age_seconds")
    failures = change.last.value("checkpoint_failures_total")
    if age > CHECKPOINT_SECONDS and not rose(failures):
        yield wrong(
            f"the last checkpoint was written {duration(age)} ago",
            "a restart would forget what has come since.",
            f"{_LOOK} Where [state] every_seconds is as long, nothing is wrong. {_ANCHOR}",
        )
    waiting = change.last.value("ledger_waiting")
    busy = change.last.value("detection_fates", fate="dropped_disk_busy")
    grew = busy > change.first.value("detection_fates", fate="dropped_disk_busy")
    if grew or waiting > _WAITING:
        yield wrong(
            f"the disk does not keep up: {count(waiting, 'frame')} or labels wait for it",
            "frames that wait stay in memory alone, and leave it before their truth comes.",
            "a faster disk for [state] folder, or fewer frames: [pending] keep_one_frame_in.",
        )
    refused = {of: n for of, n in change.last.by("files_refused_total", "of").items() if n}
    if refused:
        texts = [f"{of} {n:.0f}" for of, n in sorted(refused.items())]
        yield wrong(
            f"files of the last run could not be used: {names(texts)}",
            "the sidecar began without what they held, or with the checkpoint before.",
            "the log of the start says why. They lie aside as .corrupt (damaged), .incompatible "
            "(counted under other settings, or written by a later version) or .unreadable (the "
            "disk does not give them): bring the settings back, or move the files away. "
            "docs/ground_truth.md#what-outlives-the-process",
        )
    lost = change.last.value("ledger_lost_entries")
    if rose(lost):
        yield remark(
            f"of the frames and labels on disk, {lost:,.0f} could not be done again at the start",
            "labels for these frames will find nothing.",
            "was the machine switched off hard, or the disk full? The log says which files. "
            "docs/ground_truth.md#what-outlives-the-process",
        )
    if math.isnan(age) and failures == 0 and up_s > CHECKPOINT_SECONDS:
        yield remark(
            "no state is kept on disk",
            "a restart begins anew: statistics, drift, recalibrators.",
            "is that meant? [state] folder is empty, or `serve` was given --no-state; if another "
            "sidecar holds the folder, the log of the start says so.",
        )
