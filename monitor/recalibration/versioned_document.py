"""What the documents of estimates and of class probabilities have in common: JSON of a stated
format that names methods with their parameters, and a version that is a hash of the content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import TypeVar

from monitor.recalibration.document import check_depth, part, shown
from monitor.recalibration.recalibrator import Document, InvalidRecalibrator
from monitor.recalibration.rejection import RejectedBy, Rejection

Made = TypeVar("Made")


def version_of(method: str, content: Document) -> str:
    """The method and the first 12 digits of the content's SHA-256."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"{method}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def text_of(content: Document, fitted_on: Document, version: str) -> str:
    """The document; floats keep every bit."""
    whole = {**content, "fitted_on": fitted_on, "version": version}
    return json.dumps(whole, indent=1, sort_keys=True) + "\n"


def content_of(text: str | bytes) -> Document:
    """The JSON object of a text. Raises InvalidRecalibrator where it is none."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRecalibrator(f"not a JSON document: {error}.") from None
    if not isinstance(content, dict):
        raise InvalidRecalibrator(
            f"the document is {shown(content)}: it must be an object that "
            "`calibration-monitor fit --output` wrote."
        )
    check_depth(content)
    return content


def check_format(content: Document, expected: str) -> None:
    """Raises InvalidRecalibrator for the documents of anything else."""
    if content.get("format") != expected:
        raise InvalidRecalibrator(
            f"'format' is {shown(content.get('format'))}, expected {expected!r}: give a file that "
            "`calibration-monitor fit --output` wrote, of this version and for this purpose."
        )


def check_version(content: Document, version: str) -> None:
    """Raises InvalidRecalibrator where a document claims to be of another content."""
    claimed = content.get("version", "")
    if claimed not in ("", version):
        raise InvalidRecalibrator(
            f"'version' is {shown(claimed)} but the content makes {version!r}: "
            "the document was changed after it was fitted. Fit again, or remove 'version'."
        )


def fitted_on(content: Document) -> Document:
    """Notes for people; whatever else is there is none."""
    notes = content.get("fitted_on")
    return notes if isinstance(notes, dict) else {}


def read_method(
    content: Document, where: str, methods: Mapping[str, Callable[[Document], Made]]
) -> Made:
    """{"method": …, "parameters": {…}} as one of the methods. Raises InvalidRecalibrator."""
    found = content.get("method")
    if not isinstance(found, str) or found not in methods:
        raise InvalidRecalibrator(
            f"'{where}.method' is {shown(found)}: it must be one of {', '.join(methods)}."
        )
    try:
        return methods[found](part({"parameters": {}, **content}, "parameters"))
    except InvalidRecalibrator as error:
        raise InvalidRecalibrator(f"in '{where}': {error}") from None


def read_rejection(content: Document, by: RejectedBy) -> Rejection | None:
    """None where there is none. Raises InvalidRecalibrator for a score of another kind."""
    if content.get("rejection") is None:
        return None
    try:
        rejection = Rejection.from_parameters(part(content, "rejection"))
    except InvalidRecalibrator as error:
        raise InvalidRecalibrator(f"in 'rejection': {error}") from None
    if rejection.by is not by:
        raise InvalidRecalibrator(
            f"'rejection.by' is '{rejection.by}': with this 'format' it must be '{by}'."
        )
    return rejection
