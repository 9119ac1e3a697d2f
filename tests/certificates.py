"""Certificates for the tests of TLS, made with the `openssl` command; no tests here."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.components import program

_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"


def _openssl(*arguments: str | Path) -> None:
    command = [program("openssl"), *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, timeout=30)
    assert run.returncode == 0, run.stderr.decode()


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    certificate: Path
    key: Path

    def written_to(self, place: "Pair") -> None:
        """Put it where another one is, a file at a time, as who renews it does."""
        for source, target in ((self.key, place.key), (self.certificate, place.certificate)):
            new = target.with_name(f"{target.name}.new")
            new.write_bytes(source.read_bytes())
            new.chmod(0o600)
            new.replace(target)


@dataclass(frozen=True, slots=True)
class Authority:
    """Who signs certificates; its own is self-signed."""

    folder: Path
    name: str

    def __post_init__(self) -> None:
        own = ("-keyout", self._key, "-out", self.certificate)
        _openssl("req", "-x509", *_CURVE, *own, "-subj", f"/CN={self.name}", "-days", "2")

    @property
    def certificate(self) -> Path:
        return self.folder / f"{self.name}.pem"

    @property
    def _key(self) -> Path:
        return self.folder / f"{self.name}.key"

    def signed(self, name: str, *, days: int = 2) -> Pair:
        """A certificate of localhost and 127.0.0.1; days below 0: it has expired."""
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        request = self.folder / f"{name}.csr"
        _openssl(
            *("req", *_CURVE, "-keyout", pair.key, "-out", request),
            *("-subj", f"/CN={name}", "-addext", _NAMES),
        )
        _openssl(
            *("x509", "-req", "-in", request, "-out", pair.certificate, "-days", str(days)),
            *("-CA", self.certificate, "-CAkey", self._key, "-copy_extensions", "copy"),
        )
        return pair
