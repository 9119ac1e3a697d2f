"""The files that verbs write: whole, or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


class CannotWrite(OSError):
    """An output file is not to be had."""


@contextlib.contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """Where to write; it takes the place of `path` at the end, and never stays behind.

    Raises CannotWrite.
    """
    target = path.resolve()  # through links, so that they stay
    if target.exists() and not target.is_file():
        raise CannotWrite(
            f"--output {path}: cannot be written (not a regular file). Name a file, or a new one."
        )
    temporary = target.with_name(f".{os.getpid()}.{target.name}")  # the ending tells the format
    try:
        yield temporary
        temporary.replace(target)
    except OSError as error:
        raise CannotWrite(
            f"--output {path}: cannot be written ({error.strerror or error}). "
            "Name a file in a folder that exists and that you may write to."
        ) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
