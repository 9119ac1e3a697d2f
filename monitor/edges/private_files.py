"""Small files that others must not read, or must not replace: certificates, keys and tokens.

What is in them is never part of a message.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from monitor.config import InvalidConfiguration

log = logging.getLogger(__name__)

# Bytes; a chain of certificates has some ten thousand.
LARGEST = 2**20


def read_private(path: str, key: str) -> bytes:
    """The contents. Raises InvalidConfiguration, which names the key of [security]."""
    try:
        # A pipe that nobody writes to would keep us for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InvalidConfiguration(
                    f"[security] {key} = '{path}' is no regular file: name one."
                )
            # fdopen leaves the descriptor of a folder open, so it comes after that.
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(LARGEST + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InvalidConfiguration(
            f"[security] {key} = '{path}' cannot be read ({error.strerror}). Check the path, and "
            "that the user of the sidecar may read it."
        ) from None
    if len(data) > LARGEST:
        raise InvalidConfiguration(
            f"[security] {key} = '{path}' has more than {LARGEST} bytes: it is something else."
        )
    return data


def warn_of_readers(path: str, key: str) -> None:
    """Say so where others than the owner may read a secret, or change it."""
    mode = stat.S_IMODE(Path(path).stat().st_mode)
    if mode & 0o077:
        log.warning(
            "[security] %s = '%s' has mode %04o: others than its owner can read it. chmod 600 it.",
            *(key, path, mode),
        )
