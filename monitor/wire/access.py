"""Reads what a connection needs, as people name it: addresses, certificates, tokens."""

from __future__ import annotations

import ipaddress
import string
from pathlib import Path
from stat import S_ISREG

SHORTEST, LONGEST = 16, 4096  # characters of a token
MOST_TOKENS = 16  # in one file
_TOKEN = frozenset((string.ascii_letters + string.digits + "-._~+/=").encode())

# Bytes; deploy/sidecar.toml has 16,000, a chain of certificates some ten thousand.
LARGEST_FILE = 1 << 20


class InvalidConfiguration(ValueError):
    """A configuration file cannot be used; the message names key, value and remedy."""


def read_file(path: str | Path, name: str) -> bytes:
    """Reads a small file. Raises InvalidConfiguration, which begins with the name."""
    try:
        # First: to open a pipe without a writer would block for ever.
        if not S_ISREG(Path(path).stat().st_mode):
            raise InvalidConfiguration(f"{name} is no regular file: name one.")
        with Path(path).open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise InvalidConfiguration(
            f"{name} cannot be read ({error.strerror}). Check the path, and who may read it."
        ) from None
    if len(data) > LARGEST_FILE:
        raise InvalidConfiguration(
            f"{name} has more than {LARGEST_FILE} bytes: it is something else."
        )
    return data


def read_tokens(path: str, name: str) -> tuple[bytes, ...]:
    """Reads the tokens of a file, one a line.

    Raises InvalidConfiguration, which begins with the name and never shows a token.
    """
    tokens = tuple(line.strip() for line in read_file(path, name).splitlines() if line.strip())
    if not tokens:
        raise InvalidConfiguration(f"{name} holds no token: write one into its first line.")
    if len(tokens) > MOST_TOKENS:
        raise InvalidConfiguration(
            f"{name} has {len(tokens)} lines with tokens, at most {MOST_TOKENS}."
        )
    for number, token in enumerate(tokens, 1):
        fault = ""
        if not _TOKEN.issuperset(token):
            fault = "characters other than letters, digits and -._~+/="
        elif not SHORTEST <= len(token) <= LONGEST:
            fault = f"{len(token)} characters, not {SHORTEST} to {LONGEST}"
        if fault:
            raise InvalidConfiguration(
                f"{name}: token {number} has {fault}. `openssl rand -hex 32` makes one."
            )
    return tokens


def is_loopback(host: str) -> bool:
    """Tells if this machine alone reaches a host; a name other than localhost may be anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def split_address(address: str, key: str) -> tuple[str, int]:
    """Splits 'host:port'. Raises ValueError, which names the key."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{key} '{address}' must be host:port, such as 127.0.0.1:50051")
    return host.strip("[]"), int(port)
