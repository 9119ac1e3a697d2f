"""Whether doctor knows the sidecar that it looks at."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.diagnosis.finding import Area, Finding, remark, well
from monitor.diagnosis.observation import Observation


def versions(seen: Observation) -> Iterator[Finding]:
    """By the status, else by calibration_build_info."""
    version = _version(seen)
    if not version:
        return
    if version == seen.version:
        yield well(Area.VERSIONS, f"sidecar and doctor are {version}")
        return
    yield remark(
        Area.VERSIONS,
        f"the sidecar is {version}, and this doctor {seen.version}",
        "what only the newer of the two knows is not looked at, or not told.",
        "use the doctor of the sidecar's own version, in its image or virtual environment.",
    )


def _version(seen: Observation) -> str:
    if seen.last.status is not None:
        return seen.last.status.version
    samples = seen.last.samples
    if samples is None:
        return ""
    return next((labels.get("version", "") for labels, _ in samples.rows("build_info")), "")
