"""Builds the image, and says what is in it; no tests here."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
_BUILD = ROOT / "deploy/image/build"


@dataclass(frozen=True, slots=True)
class Image:
    """Describes what was built.

    name      as buildah knows it
    config    of the image, in Docker's words: User, Env, Entrypoint, Cmd, Healthcheck, …
    tree      its root file system, unpacked; not to be written to
    built_s   seconds until it was there; nearly none where the same was built before
    """

    name: str
    config: Mapping[str, Any]
    tree: Path
    built_s: float

    @property
    def environment(self) -> dict[str, str]:
        return dict(entry.split("=", 1) for entry in self.config["Env"])

    @property
    def command(self) -> list[str]:
        """Returns what it runs when nothing is said."""
        return [*self.config["Entrypoint"], *self.config["Cmd"]]


@contextlib.contextmanager
def build() -> Iterator[Image]:
    """Builds the image of this very tree; keeps it where IMAGE_STORAGE names a folder."""
    began = time.monotonic()
    done = subprocess.run([_BUILD], stdout=subprocess.PIPE, text=True, timeout=1200)
    if done.returncode:
        pytest.fail(f"{_BUILD.relative_to(ROOT)} failed: see what it said above", pytrace=False)
    storage, name = done.stdout.split()
    built_s = time.monotonic() - began
    buildah = [
        *("buildah", "--storage-driver", "vfs"),
        *("--root", f"{storage}/root", "--runroot", f"{storage}/run"),
    ]

    def say(*words: str) -> str:
        return subprocess.check_output([*buildah, *words], text=True, timeout=300).strip()

    config = json.loads(say("inspect", "--type", "image", name))["Docker"]["config"]
    container = say("from", "--pull-never", name)
    try:
        yield Image(name, config, Path(say("mount", container)), built_s)
    finally:
        say("rm", container)
        if "IMAGE_STORAGE" not in os.environ:
            shutil.rmtree(storage)
