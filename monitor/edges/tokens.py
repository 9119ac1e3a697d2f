"""Bearer tokens: what a file of them holds, and what a call that shows one may do.

Of the tokens of the sidecar only SHA-256 digests are kept, so that none can get into a message.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import string
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from monitor.config import InvalidConfiguration
from monitor.config_security import SecurityConfig
from monitor.edges.private_files import read_private, warn_of_readers

log = logging.getLogger(__name__)

SHORTEST, LONGEST = 16, 4096  # characters of a token
MOST_TOKENS = 16  # in one file
_TOKEN = frozenset((string.ascii_letters + string.digits + "-._~+/=").encode())
_SCHEME = "bearer "


class Right(StrEnum):
    """What a call needs. Who has the right of administration has the others."""

    DATA = "data"
    TRUTH = "truth"
    ADMIN = "admin"


class NotAuthenticated(PermissionError):
    """A call shows no token that is known."""


class NotPermitted(PermissionError):
    """The token of a call is known, and is for something else."""


def read_tokens(data: bytes, path: str) -> tuple[bytes, ...]:
    """Of the lines of a file; empty ones are none. Raises ValueError, which never shows one."""
    tokens = tuple(line.strip() for line in data.splitlines() if line.strip())
    if not tokens:
        raise ValueError(f"'{path}' holds no token: write one into its first line.")
    if len(tokens) > MOST_TOKENS:
        raise ValueError(f"'{path}' has {len(tokens)} lines with tokens, at most {MOST_TOKENS}.")
    for number, token in enumerate(tokens, 1):
        if not _TOKEN.issuperset(token):
            raise ValueError(
                f"'{path}': token {number} has characters other than letters, digits and "
                "-._~+/=. `openssl rand -hex 32` makes one."
            )
        if not SHORTEST <= len(token) <= LONGEST:
            raise ValueError(
                f"'{path}': token {number} has {len(token)} characters, not {SHORTEST} to "
                f"{LONGEST}. `openssl rand -hex 32` makes one."
            )
    return tokens


Digests = dict[Right, tuple[bytes, ...]]


@dataclass(slots=True)
class Tokens:
    """Those in force, as of the last look at the files at which they could be used."""

    settings: SecurityConfig
    _digests: Digests = field(init=False)
    _complaints: dict[Right, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises InvalidConfiguration."""
        self._digests = {right: self._read(right) for right in Right if self._path(right)}
        for right in self._digests:
            warn_of_readers(self._path(right), _key(right))
        if self._digests and Right.ADMIN not in self._digests:
            log.warning(
                "[security] admin_token_file is empty: whoever can connect may promote "
                "recalibrators, though other rights need a token. Name one."
            )

    def check(self, right: Right, authorization: Iterable[str | bytes]) -> None:
        """Raises NotAuthenticated, NotPermitted.

        authorization  the values of the headers of this name
        """
        if right not in self._digests:
            return
        digest = _digest_of(tuple(authorization))
        # All of them are compared, however early one fits: time says nothing of which.
        held = [
            known
            for known, digests in self._digests.items()
            if sum(hmac.compare_digest(digest, one) for one in digests)
        ]
        if not held:
            raise NotAuthenticated("authorization: the bearer token is not known here.")
        if right not in held and Right.ADMIN not in held:
            raise NotPermitted(
                f"authorization: this call needs the right '{right}', and the bearer token is for "
                f"'{', '.join(held)}'."
            )

    def look_again(self) -> None:
        """Take over what the files hold now. What cannot be used is said once, and left alone."""
        for right, before in list(self._digests.items()):
            try:
                found = self._read(right)
            except InvalidConfiguration as error:
                if self._complaints.get(right) != str(error):
                    log.warning("%s Until then the tokens of before are in force.", error)
                self._complaints[right] = str(error)
                continue
            self._complaints.pop(right, None)
            if found != before:
                self._digests[right] = found
                log.info("security: %s has changed and is in force", _key(right))

    def _path(self, right: Right) -> str:
        return self.settings.token_files.get(_key(right), "")

    def _read(self, right: Right) -> tuple[bytes, ...]:
        path, key = self._path(right), _key(right)
        try:
            tokens = read_tokens(read_private(path, key), path)
        except InvalidConfiguration:
            raise
        except ValueError as error:
            raise InvalidConfiguration(f"[security] {key} = {error}") from None
        return tuple(hashlib.sha256(token).digest() for token in tokens)


def _key(right: Right) -> str:
    return f"{right}_token_file"


def _digest_of(headers: tuple[str | bytes, ...]) -> bytes:
    """Raises NotAuthenticated."""
    value = headers[0] if len(headers) == 1 else ""
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if text[: len(_SCHEME)].lower() != _SCHEME:
        raise NotAuthenticated(
            "authorization: this call needs a bearer token, and shows "
            f"{'none' if not headers else 'something else'}."
        )
    return hashlib.sha256(text[len(_SCHEME) :].strip().encode()).digest()
