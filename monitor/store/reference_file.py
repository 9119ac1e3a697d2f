"""Reference files: `calibration-monitor reference` writes them, sidecars read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from monitor.drift.bets import Stage
from monitor.drift.reference import Reference
from monitor.drift.reference_json import NotAReference, references_from_json, references_to_json

# Above what as many slices as there may be need.
_LARGEST = 64 * 2**20  # bytes
_REMEDY = "Give a file that `calibration-monitor reference --output` wrote."


def reference_text(references: Mapping[str, Mapping[Stage, Reference]]) -> str:
    """Returns the text of the file: one line of JSON."""
    return json.dumps(references_to_json(references), allow_nan=False) + "\n"


def read_references(path: str | Path) -> dict[str, dict[Stage, Reference]]:
    """Reads references by slice name. Raises NotAReference, which names the file and the fault."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise NotAReference(
            f"cannot read the reference {path}: {error.strerror or error}. {_REMEDY}"
        ) from None
    if len(data) > _LARGEST:
        raise NotAReference(f"{path} is larger than {_LARGEST} bytes. {_REMEDY}")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise NotAReference(f"{path} is not JSON. {_REMEDY}") from None
    try:
        return references_from_json(document)
    except NotAReference as error:
        raise NotAReference(f"{path}: {error}") from None
