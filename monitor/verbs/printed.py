"""What verbs print: tables, words of others that leave the terminal alone, values for --json."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from enum import IntEnum


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
