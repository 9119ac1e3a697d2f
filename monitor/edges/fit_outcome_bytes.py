"""What comes of a fit, as bytes from another process, which may have gone mad: the reader believes
nothing that it has not checked.

They are a line of JSON that says what follows, and a line for each slice: none takes long to read.
"""

from __future__ import annotations

import json

from monitor.promotion.fit_job import FitJob, FitOutcome
from monitor.recalibration.document import shown
from monitor.recalibration.methods import METHODS
from monitor.recalibration.recalibrator import Document, InvalidRecalibrator, Recalibrator
from monitor.recalibration.versioned_document import check_format, content_of, read_method

FORMAT = "calibration-monitor/fit-outcome/1"

# Recalibrators of all slices: those of Gaussian processes have some ten kB each.
MOST_BYTES = 16 * 2**20
# Characters of the reason why a slice is refused.
MOST_REASON = 1000


def outcome_bytes(outcome: FitOutcome) -> bytes:
    """Its lines. Raises ValueError where a recalibrator holds what is no finite number."""
    lines: list[Document] = [{"format": FORMAT}]
    for name, fitted in outcome.fitted.items():
        lines.append({"slice": name, "method": fitted.method, "parameters": fitted.parameters()})
    for name, reason in outcome.refused.items():
        # One line of what may be read, whatever it was that an error said.
        words = " ".join("".join(c if c.isprintable() else " " for c in reason).split())
        lines.append({"slice": name, "refused": words[:MOST_REASON]})
    return b"".join(json.dumps(line, allow_nan=False).encode("ascii") + b"\n" for line in lines)


def read_outcome(data: bytes, job: FitJob) -> FitOutcome:
    """The inverse of outcome_bytes, as the outcome of that job.

    Raises ValueError where the data are anything else: too long, of slices that were not asked
    for or without one that was, of another method, of other dimensions, or not finite.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"the outcome has {len(data)} bytes: at most {MOST_BYTES}.")
    try:
        return _read(data, job)
    except InvalidRecalibrator as error:
        raise ValueError(f"the outcome cannot be used: {error}") from None


def _read(data: bytes, job: FitJob) -> FitOutcome:
    # Never more pieces than there should be, however many ends of lines there are: what is left
    # in the last one is no JSON.
    head, *lines = data.removesuffix(b"\n").split(b"\n", len(job.slices))
    check_format(content_of(head), FORMAT)
    fitted: dict[str, Recalibrator] = {}
    refused: dict[str, str] = {}
    for line in lines:
        content = content_of(line)
        name = content.get("slice")
        if not isinstance(name, str) or name not in job.slices or name in {*fitted, *refused}:
            raise InvalidRecalibrator(
                f"'slice' is {shown(name)}: every slice of the job must be there once, and no "
                "other."
            )
        if "refused" in content:
            refused[name] = _reason(content["refused"])
        else:
            fitted[name] = _recalibrator(content, name, job)
    missing = [name for name in job.slices if name not in {*fitted, *refused}]
    if missing:
        raise InvalidRecalibrator(
            f"it lacks {len(missing)} of {len(job.slices)} slices, '{missing[0]}' for one."
        )
    return FitOutcome(fitted, refused)


def _reason(reason: object) -> str:
    if not isinstance(reason, str) or not reason.isprintable() or len(reason) > MOST_REASON:
        raise InvalidRecalibrator(
            f"'refused' is {shown(reason)}: it must be a text of at most {MOST_REASON} printable "
            "characters."
        )
    return reason


def _recalibrator(content: Document, name: str, job: FitJob) -> Recalibrator:
    fitted = read_method(content, name, METHODS)
    if fitted.method != job.settings.method:
        raise InvalidRecalibrator(
            f"'{name}.method' is '{fitted.method}', and '{job.settings.method}' was asked for."
        )
    k = job.slices[name].space.k
    if fitted.k not in (None, k):
        raise InvalidRecalibrator(f"'{name}' has {fitted.k} dimensions and its rows have {k}.")
    return fitted
