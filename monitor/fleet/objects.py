"""Objects below a prefix: in a folder of this machine, or in a store of S3, Google Cloud or Azure.

A folder needs nothing but Python. Everything else is obstore's, the extra `fleet`; it takes its
credentials from the environment as the tools of each provider do.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from monitor.store.files import sync_path, temporary_beside

# s for one request; and of tries again, until the caller learns that it has failed.
REQUEST_SECONDS, RETRY_SECONDS = 60.0, 20.0
SCHEMES = ("file", "s3", "gs", "az")


class UnusableStore(ValueError):
    """No objects can be read or written there: the address is wrong, or the extra is missing."""


class StoreFailed(OSError):
    """A request failed; it may work later."""


class Objects(Protocol):
    """Objects below one prefix, by their name below it; every method may block.

    All raise StoreFailed.
    """

    def names(self) -> Iterator[str]:
        """Lists all objects, in any order."""
        ...

    def get(self, name: str) -> bytes:
        """Returns an object."""
        ...

    def head(self, name: str, most: int) -> bytes:
        """Returns the first bytes of an object, at most so many."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Writes an object, whole or not at all; False where there is one of that name already."""
        ...


def objects_at(address: str) -> Objects:
    """Opens a prefix: a folder, or file://, s3://, gs:// or az://. Raises UnusableStore."""
    scheme, host, path, query, _ = urlsplit(address)
    if not scheme:
        return Folder(Path(address))
    if scheme not in SCHEMES or query:
        raise UnusableStore(
            f"'{address}' is no folder and begins with none of "
            f"{', '.join(f'{one}://' for one in SCHEMES)}."
        )
    if scheme == "file":
        if host or not path.startswith("/"):
            raise UnusableStore(f"'{address}': write file:///absolute/path.")
        return Folder(Path(unquote(path)))
    if not host:
        raise UnusableStore(f"'{address}' names no bucket: write {scheme}://bucket/prefix.")
    try:
        return Bucket.at(address)
    except ImportError:
        raise UnusableStore(
            f"'{address}' needs the extra `fleet`: pip install 'calibration-monitor[fleet]'."
        ) from None


@dataclass(frozen=True, slots=True)
class Folder:
    """Objects that are files below a folder."""

    folder: Path

    def names(self) -> Iterator[str]:
        """Lists all files, sorted, but those that are being written."""
        try:
            for path in sorted(self.folder.rglob("*")):
                if path.is_file() and path.suffix != ".tmp":
                    yield path.relative_to(self.folder).as_posix()
        except OSError as error:
            raise StoreFailed(f"{self.folder}: {error.strerror}") from error

    def get(self, name: str) -> bytes:
        """Reads a file. Raises StoreFailed."""
        try:
            return (self.folder / name).read_bytes()
        except OSError as error:
            raise StoreFailed(f"{self.folder / name}: {error.strerror}") from error

    def head(self, name: str, most: int) -> bytes:
        """Reads the first bytes of a file. Raises StoreFailed."""
        try:
            with (self.folder / name).open("rb") as file:
                return file.read(most)
        except OSError as error:
            raise StoreFailed(f"{self.folder / name}: {error.strerror}") from error

    def create(self, name: str, data: bytes) -> bool:
        """Writes a file and syncs it. Raises StoreFailed."""
        path = self.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary_beside(path) as temporary:
                temporary.write_bytes(data)
                sync_path(temporary, os.O_NOFOLLOW)
                try:
                    # Unlike a rename, a link leaves alone what is there.
                    path.hardlink_to(temporary)
                except FileExistsError:
                    return False
            sync_path(path.parent)
        except OSError as error:
            raise StoreFailed(f"{path}: {error.strerror}") from error
        return True


@dataclass(frozen=True, slots=True)
class Bucket:
    """Objects in a store of obstore."""

    address: str
    _store: Any

    @classmethod
    def at(cls, address: str) -> Bucket:
        """Opens a bucket. Raises ImportError, UnusableStore."""
        from obstore.exceptions import BaseError  # the extra `fleet`
        from obstore.store import from_url

        plain = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")
        try:
            store = from_url(
                address,
                client_options={"timeout": timedelta(seconds=REQUEST_SECONDS), "allow_http": plain},
                retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
            )
        except (BaseError, ValueError, TypeError) as error:
            raise UnusableStore(f"'{address}' cannot be used: {error}") from None
        return cls(address, store)

    def names(self) -> Iterator[str]:
        """Lists all objects. Raises StoreFailed."""
        import obstore

        with _failing(self.address):
            for page in obstore.list(self._store):
                yield from (str(found["path"]) for found in page)

    def get(self, name: str) -> bytes:
        """Fetches an object. Raises StoreFailed."""
        import obstore

        with _failing(f"{self.address}/{name}"):
            return bytes(obstore.get(self._store, name).bytes())

    def head(self, name: str, most: int) -> bytes:
        """Fetches the first bytes of an object. Raises StoreFailed."""
        import obstore

        with _failing(f"{self.address}/{name}"):
            return bytes(obstore.get_range(self._store, name, start=0, length=most))

    def create(self, name: str, data: bytes) -> bool:
        """Sends an object. Raises StoreFailed."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with _failing(f"{self.address}/{name}"):
            try:
                obstore.put(self._store, name, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
        return True


@contextlib.contextmanager
def _failing(what: str) -> Iterator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError) as error:
        # The first line says it; what follows is a dump of structures.
        raise StoreFailed(f"{what}: {str(error).splitlines()[0]}") from error
