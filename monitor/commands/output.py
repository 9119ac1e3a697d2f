"""Prints results, shows how far a work has come, and writes files, alike for all verbs."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, Task

T = TypeVar("T")


class CannotWrite(OSError):
    """An output file cannot be written."""


def plain(value: object) -> object:
    """Converts a value for JSON: dataclasses to objects, tuples to lists, numbered words to words.

    None in place of what is no finite number.
    """
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, IntEnum):
        return value.name.lower()
    return finite(value) if isinstance(value, float) else value


def tell(options: argparse.Namespace, content: object, text: str) -> None:
    """Prints the content as one JSON object if --json asks for it, else the text.

    Both go to standard error where --output - has standard output.
    """
    aside = getattr(options, "output", None) == "-"
    said = json.dumps(plain(content)) if options.json else text
    print(said, file=sys.stderr if aside else sys.stdout)


def to_standard_error(words: str) -> None:
    """Says a line on standard error."""
    print(shown(words), file=sys.stderr)


def finite(value: float) -> float | None:
    """Puts None in place of what is no finite number."""
    return value if math.isfinite(value) else None


def shown(text: str) -> str:
    """Replaces characters that would move the cursor of a terminal."""
    return "".join(character if character.isprintable() else "�" for character in text)


def table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Writes columns of equal width, under their heads."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = (
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (heads, *rows)
    )
    return "\n".join(lines)


@contextlib.contextmanager
def working(
    what: str, total: float | None = None, unit: str = "rows"
) -> Iterator[Callable[[float], None]]:
    """Shows on a terminal how far a long work has come; elsewhere it says nothing.

    total   steps of the work; None: how many is not known
    unit    of a step, in the plural
    yields  what is called with the number of further steps that are done
    """
    with _progress() as shown:
        if shown is None:
            yield lambda steps: None
            return
        task = shown.add_task(what, total=total, unit=unit)
        yield lambda steps: shown.advance(task, steps)


@contextlib.contextmanager
def reading(what: str) -> Iterator[Callable[[Path], IO[bytes]]]:
    """Yields how to open a file, so that a terminal shows how much of it has been read."""
    with _progress() as shown:
        if shown is None:
            yield lambda path: path.open("rb")
            return

        def opened(path: Path) -> IO[bytes]:
            task = shown.add_task(f"{what} {path.name}", total=path.stat().st_size, unit="B")
            return shown.wrap_file(path.open("rb"), task_id=task)

        yield opened


# A bar appears after so long: shorter work needs none.
_PATIENCE_S = 2.0


@contextlib.contextmanager
def _progress() -> Iterator[Progress | None]:
    """Yields what shows bars on the terminal of standard error; None where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    # rich takes a tenth of a second, which only people at a terminal wait for.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
    from rich.table import Column
    from rich.text import Text

    class Standing(ProgressColumn):
        """Writes how a work stands."""

        def render(self, task: Task) -> Text:
            return Text(_standing(task))

    columns = (TextColumn("{task.description}"), BarColumn(20), Standing(Column(no_wrap=True)))
    shown = Progress(*columns, console=Console(stderr=True), transient=True)
    late = threading.Timer(_PATIENCE_S, shown.start)
    late.daemon = True
    late.start()
    try:
        yield shown
    finally:
        late.cancel()
        late.join()
        if shown.live.is_started:
            shown.stop()


def _standing(task: Task) -> str:
    """Writes the share that is done, steps in a second, time so far and time left."""
    words = [str(timedelta(seconds=round(task.elapsed or 0)))]
    of_bytes = task.fields["unit"] == "B"
    if task.finished:
        return f"{words[0]}, {'turning text into numbers' if of_bytes else 'nearly done'}"
    if task.speed:
        scale, unit = (1e6, "MB") if of_bytes else (1, task.fields["unit"])
        speed = task.speed / scale
        words.append(f"{speed:,.0f} {unit}/s" if speed >= 100 else f"{speed:.2g} {unit}/s")
    if task.total is None:
        return ", ".join(words)
    left = "?" if task.time_remaining is None else timedelta(seconds=task.time_remaining)
    return ", ".join([f"{task.percentage:.0f} %", *words, f"{left} left"])


@contextlib.contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """Yields where to write; it takes the place of `path` at the end, and never stays behind.

    Raises CannotWrite.
    """
    if str(path) == "-":
        raise CannotWrite("--output -: standard output takes text alone. Name a file.")
    target = path.resolve()  # through links, so that they stay
    if target.exists() and not target.is_file():
        raise CannotWrite(
            f"{path}: cannot be written (not a regular file). Name a file, or a new one."
        )
    temporary = target.with_name(f".{os.getpid()}.{target.name}")  # the ending tells the format
    try:
        yield temporary
        temporary.replace(target)
    except OSError as error:
        raise CannotWrite(
            f"{path}: cannot be written ({error.strerror or error}). "
            "Name a file in a folder that exists and that you may write to."
        ) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_output(path: str, text: str) -> None:
    """Writes a file in UTF-8, whole or not at all; - is standard output. Raises CannotWrite."""
    if path == "-":
        print(text, end="" if text.endswith("\n") else "\n")
        return
    with output_file(Path(path)) as temporary:
        temporary.write_text(text, encoding="utf-8")


def toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Writes sections by name, each with its keys; no value is None."""
    return "".join(
        f"[{name}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in keys.items())
        for name, keys in sections.items()
    )


def _toml(value: Any) -> str:
    """Writes a value on one line; text, numbers, truth values and lists are written as in JSON."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_toml(key)} = {_toml(v)}' for key, v in value.items())} }}"
    return json.dumps(value, ensure_ascii=False)
