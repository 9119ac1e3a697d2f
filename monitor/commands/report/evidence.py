"""Writes evidence for a safety case: an in-toto statement about files, and checks it again.

The statement is of predicate type test-result. Its subjects are files beside it, each with its
SHA-256: the statistics, the active recalibrators, the configuration and the drift reference. The
predicate lists safety performance indicators as UL 4600 means them. It is not signed.

source   in-toto Attestation Framework 1.0, Statement v1; predicate Test Result v0.1
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from monitor import __version__
from monitor.commands.merge import write_state
from monitor.commands.output import plain, write_output
from monitor.commands.pages.report_page import Slice, file_hash
from monitor.commands.report.live import Seen, alarms_of, slices_of
from monitor.config import InvalidConfiguration, load
from monitor.drift.alarms import Alarm, alarm_sentence
from monitor.drift.charts import Severity
from monitor.figures.evaluations import factors
from monitor.frames.slices import TOTAL, is_total
from monitor.promotion.records import Record
from monitor.statistics.measures import mean_square_band
from monitor.store.statistics_state import StoredState

STATEMENT = "https://in-toto.io/Statement/v1"
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"

# Bounds of the indicators: a factor 2 in variance either way, and coverage at the level nearest to
# 95 % within five points.
MOST_NEES, LEAST_NEES, COVERAGE_GAP = 2.0, 0.5, 0.05

# Independent detections below which nothing is claimed.
FEWEST = 30.0

# Bytes of a statement that is read.
_LARGEST = 64 * 2**20
_OUTCOME = {"met": "passedTests", "not shown": "warnedTests", "not met": "failedTests"}


# Ends of a 95 % interval; None where it is unknown.
Interval: TypeAlias = tuple[float, float] | None


class NotAsStated(ValueError):
    """A file is not the one that the statement is about."""


@dataclass(frozen=True, slots=True)
class Indicator:
    """A safety performance indicator of one slice: what is claimed, measured, and concluded.

    n, n_eff   labelled detections, and how many independent ones they are worth; NaN: unknown
    interval   95 % of the value, from n_eff; None where unknown
    threshold  what the value must not exceed, or with `at_least` not fall below
    verdict    met: the whole interval is within; not met: none of it; else not shown
    """

    id: str
    claim: str
    metric: str
    slice: str
    window: str
    n: int
    n_eff: float
    value: float
    interval: Interval
    threshold: float
    at_least: bool
    verdict: str


def indicators(slices: Sequence[Slice], alarms: Sequence[Alarm]) -> Iterator[Indicator]:
    """Yields the indicators of what is forwarded, slice by slice, and of alarms that stay.

    A slice whose σ is assumed has none: nothing is claimed of its errors.
    """
    for one in slices:
        if one.assumed:
            continue
        joint = one.last.joint
        kurtosis = max((found.kurtosis for found in one.last.dimensions.values()), default=3.0)
        nees = joint.nees_over_k
        reach = _of_mean_square(nees, joint.n_eff * joint.k, kurtosis)
        at = int(abs(joint.tau - 0.95).argmin())
        level, share = float(joint.tau[at]), float(joint.coverage_by_tau[at])
        least = level - COVERAGE_GAP
        claims: tuple[tuple[str, str, str, float, Interval, float, bool], ...] = (
            (
                "overconfidence",
                "The forwarded variance is not too small by more than a factor 2.",
                *("nees_over_k", nees, reach, MOST_NEES, False),
            ),
            (
                "underconfidence",
                "The forwarded variance is not too large by more than a factor 2.",
                *("nees_over_k", nees, reach, LEAST_NEES, True),
            ),
            (
                "coverage",
                f"{least:.0%} of errors or more lie in the region that should hold {level:.0%}.",
                *(f"coverage at {level:g}", share, _of_share(share, joint.n_eff), least, True),
            ),
        )
        for name, claim, metric, value, interval, threshold, at_least in claims:
            yield Indicator(
                id=f"{name}/{one.name}",
                claim=claim,
                metric=metric,
                slice=one.name,
                window="all that was counted",
                n=joint.n,
                n_eff=joint.n_eff,
                value=value,
                interval=interval,
                threshold=threshold,
                at_least=at_least,
                verdict=_concluded(interval, joint.n_eff, threshold, at_least),
            )
    pages = [alarm for alarm in alarms if alarm.severity is Severity.PAGE]
    yield Indicator(
        id="alarms/page",
        claim="No page of calibration drift stays unacknowledged.",
        metric="pages that stay",
        slice=TOTAL,
        window="now",
        n=sum(one.last.rows for one in slices if not is_total(one.name)),
        n_eff=math.nan,
        value=float(len(pages)),
        interval=None,
        threshold=0.0,
        at_least=False,
        verdict="not met" if pages else "met",
    )


def _concluded(interval: Interval, n_eff: float, threshold: float, at_least: bool) -> str:
    """Concludes from the interval; too few independent detections show nothing."""
    if interval is None or not n_eff >= FEWEST:
        return "not shown"
    low, high = interval
    if low >= threshold if at_least else high <= threshold:
        return "met"
    return "not met" if (high < threshold if at_least else low > threshold) else "not shown"


def _of_mean_square(value: float, n: float, kurtosis: float) -> Interval:
    """Estimates the 95 % interval of a mean of n squares: the values that it would be usual for."""
    low, high = (float(end) for end in mean_square_band(n, kurtosis))
    return (value / high, value / low) if low > 0 and math.isfinite(value) else None


def _of_share(share: float, n: float) -> Interval:
    """Estimates the 95 % interval of a share of n independent ones (Wilson 1927)."""
    if not (math.isfinite(share) and n > 0):
        return None
    z = 1.959964
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return centre - reach, centre + reach


def statement_of(seen: Seen, subjects: Mapping[str, str]) -> object:
    """Builds the statement for JSON. `subjects` are names and SHA-256 of files beside it."""
    slices, alarms = list(slices_of(seen.statistics)), alarms_of(seen.standings)
    found = list(indicators(slices, alarms))
    tests: dict[str, list[str]] = {name: [] for name in _OUTCOME.values()}
    for one in found:
        tests[_OUTCOME[one.verdict]].append(one.id)
    result = "FAILED" if tests["failedTests"] else "WARNED" if tests["warnedTests"] else "PASSED"
    records = seen.listing.records if seen.listing else ()
    named = [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects.items()]
    statement = {
        "_type": STATEMENT,
        "subject": named,
        "predicateType": TEST_RESULT,
        "predicate": {
            "result": result,
            "configuration": [one for one in named if str(one["name"]).endswith(".toml")],
            **tests,
            "indicators": found,
            "labels": dict(seen.counts),
            "streams": seen.status.streams if seen.status else [],
            "alarms": list(map(_alarm, alarms)),
            "recalibrators": [_record(record) for record in records],
            "measuredBy": {
                "calibration-monitor": __version__,
                "sidecar": seen.status.version if seen.status else None,
                "factors": {one.name: factors(one.last) for one in slices},
            },
        },
    }
    return plain(statement)


def _alarm(alarm: Alarm) -> dict[str, Any]:
    return {
        "slice": alarm.slice,
        "severity": alarm.severity,
        "dimension": alarm.dimension,
        "quantity": alarm.quantity,
        "size": alarm.size,
        "unit": alarm.unit,
        "raised_event_ns": alarm.event_ns,
        "evidence_hours": alarm.evidence,
        "threshold_hours": alarm.threshold,
        "sentence": alarm_sentence(alarm),
    }


def _record(record: Record) -> dict[str, Any]:
    wanted = (
        *("what", "sequence", "time_ns", "slice", "version"),
        *("before", "after", "actor", "reason"),
    )
    return {name: getattr(record, name) for name in wanted}


def write_evidence(path: Path, seen: Seen) -> list[Path]:
    """Writes the files that the statement is about, then the statement; returns their paths.

    The configuration and the reference are copied where the sidecar reads them from this computer.

    raises  CannotWrite, OSError
    """
    stem = path.name.removesuffix(".jsonl").removesuffix(".intoto")
    written: list[Path] = []

    def beside(name: str) -> Path:
        written.append(path.with_name(f"{stem}.{name}"))
        return written[-1]

    write_state(beside("state"), StoredState(seen.statistics))
    for version, document in seen.active.items():
        write_output(str(beside(f"{version}.json")), document)
    for name, source in _read_here(seen):
        write_output(str(beside(name)), source.read_bytes().decode("utf-8"))
    subjects = {one.name: file_hash(one) for one in written}
    write_output(str(path), json.dumps(statement_of(seen, subjects), allow_nan=False) + "\n")
    return [*written, path]


def _read_here(seen: Seen) -> Iterator[tuple[str, Path]]:
    """Yields the configuration and its drift reference, where this computer has them."""
    if seen.status is None or not seen.status.configuration:
        return
    configuration = Path(seen.status.configuration)
    if not configuration.is_file():
        return
    yield "toml", configuration
    try:
        reference = load(str(configuration)).drift.reference
    except (InvalidConfiguration, OSError):
        return
    if reference and Path(reference).is_file():
        yield "reference.json", Path(reference)


def verify(path: Path) -> list[str]:
    """Checks every file that the statement in a file is about; returns their names.

    raises  NotAsStated, which names what has changed; OSError
    """
    names: list[str] = []
    wrong: list[str] = []
    for name, digest in _subjects(path):
        file = path.with_name(name)
        try:
            same = file_hash(file) == digest
        except FileNotFoundError:
            wrong.append(f"{name} is missing")
            continue
        except OSError as error:
            wrong.append(f"{name} cannot be read ({error.strerror})")
            continue
        names.append(name)
        if not same:
            wrong.append(f"{name} has changed")
    if wrong:
        raise NotAsStated(f"{path}: {'; '.join(wrong)}. Take the files from where it was written.")
    return names


def _subjects(path: Path) -> list[tuple[str, str]]:
    """Reads names and SHA-256. Raises NotAsStated where this is no statement of ours."""
    if path.stat().st_size > _LARGEST:
        raise NotAsStated(f"{path}: more than {_LARGEST:,} bytes are no statement of ours.")
    try:
        statement = json.loads(path.read_text("utf-8"))
        found = [(one["name"], one["digest"]["sha256"]) for one in statement["subject"]]
        sound = statement["_type"] == STATEMENT and statement["predicateType"] == TEST_RESULT
    except (ValueError, KeyError, TypeError, RecursionError):
        sound, found = False, []
    # A name is of a file beside the statement, never of one elsewhere.
    if not (sound and found and all(_is_file_name(name) for name, _ in found)):
        raise NotAsStated(
            f"{path}: no in-toto statement of type test-result. Give what --evidence wrote."
        )
    return found


def _is_file_name(name: object) -> bool:
    text = str(name)
    return Path(text).name == name and text not in ("", "..") and "\0" not in text
