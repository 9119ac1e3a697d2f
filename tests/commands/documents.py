"""The models that verbs write, as programs read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def document(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found
