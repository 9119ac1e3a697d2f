"""A section of a sidecar's configuration as TOML, for verbs that start one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def toml_section(name: str, values: Mapping[str, Any]) -> str:
    """The section with these keys; no value is None."""
    return "".join([f"[{name}]\n", *(f"{key} = {_toml(v)}\n" for key, v in values.items())])


def _toml(value: Any) -> str:
    """A value on one line; text, numbers, truth values and lists are written as in JSON."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_toml(key)} = {_toml(v)}' for key, v in value.items())} }}"
    return json.dumps(value, ensure_ascii=False)
