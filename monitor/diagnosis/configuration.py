"""Whether the configuration file is what the sidecar runs with."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.diagnosis.finding import Area, Finding, remark, well, wrong
from monitor.diagnosis.observation import Observation
from monitor.diagnosis.words import be, count, names


def configuration(seen: Observation) -> Iterator[Finding]:
    """By the status; where it was refused, by the metric."""
    status = seen.last.status
    samples = seen.last.samples
    if status is None:
        waiting = 0.0 if samples is None else samples.value("configuration_waiting_keys")
        if waiting > 0:
            yield remark(
                Area.CONFIGURATION,
                f"{count(waiting, 'setting')} of the file {be(waiting)} not in force",
                *_RESTART,
            )
        return
    path = status.configuration
    told, keys = [], status.waiting_keys
    if status.configuration_refused:
        told.append(
            wrong(
                Area.CONFIGURATION,
                f"the configuration file {path} was read again and cannot be used: "
                f"{status.configuration_refused}",
                "the sidecar goes on with the settings of before, and would not start anew.",
                f"repair it: `calibration-monitor serve --config {path} --check` says when it is "
                "well; then send SIGHUP (`systemctl reload calibration-monitor`).",
            )
        )
    if keys:
        told.append(
            remark(
                Area.CONFIGURATION,
                f"{names(keys)} of {path} {be(len(keys))} not in force",
                *_RESTART,
            )
        )
    yield from told or [
        well(Area.CONFIGURATION, f"{path} is in force" if path else "no file: the defaults")
    ]


_RESTART = (
    "the file has other values than the sidecar runs with, and only a restart brings these in "
    "force.",
    "restart the sidecar when it suits (statistics, evidence and recalibrators go on from disk), "
    "or put the file back as it was.",
)
