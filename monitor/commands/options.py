"""Conventions that all verbs share for reading option values, printing results, writing files."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from monitor.frames.space import FloatArray


def plain(value: object) -> object:
    """Dataclasses as objects, tuples as lists, numbered words as words.

    None in place of what is no finite number.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if isinstance(value, IntEnum):
        return value.name.lower()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def shown(text: str) -> str:
    """Without what would move the cursor of a terminal."""
    return "".join(character if character.isprintable() else "�" for character in text)


def table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Columns of equal width, under their heads."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = (
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (heads, *rows)
    )
    return "\n".join(lines)


def confidence_levels(text: str) -> FloatArray:
    """(T,) ascending, in (0, 1). Raises ArgumentTypeError."""
    try:
        levels = np.unique([float(part) for part in text.split(",")])
    except ValueError:
        levels = np.zeros(1)
    if not ((levels > 0) & (levels < 1)).all():
        raise argparse.ArgumentTypeError(
            f"'{text}': expected levels between 0 and 1, such as 0.5,0.9,0.95"
        )
    return levels


def above_zero(text: str) -> float:
    """A finite number above 0. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}': expected a number above 0, such as 30")
    return value


def seconds(text: str) -> float:
    """Finite seconds from 0 on, such as 3 or 3s. Raises ArgumentTypeError."""
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}': expected seconds, such as 30s")
    return value


def seconds_above_zero(text: str) -> float:
    """Finite seconds above 0. Raises ArgumentTypeError."""
    value = seconds(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"'{text}': expected seconds above 0, such as 60s")
    return value


def number_of(what: str, most: int) -> Callable[[str], int]:
    """Reads a whole number of something, from 1 to `most`; it raises ArgumentTypeError."""

    def read(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(
                f"'{text}': expected a number of {what}, from 1 to {most}"
            )
        return int(text)

    return read


def toml_section(name: str, values: Mapping[str, Any]) -> str:
    """The section with these keys; no value is None."""
    return "".join([f"[{name}]\n", *(f"{key} = {_toml(v)}\n" for key, v in values.items())])


def _toml(value: Any) -> str:
    """A value on one line; text, numbers, truth values and lists are written as in JSON."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_toml(key)} = {_toml(v)}' for key, v in value.items())} }}"
    return json.dumps(value, ensure_ascii=False)
