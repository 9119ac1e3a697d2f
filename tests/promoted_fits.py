"""Fits that go wrong in a real sidecar, as a test chooses while it runs; no tests here.

`python -m monitor.pipeline.fits.worker` finds a sitecustomize of ours on its PYTHONPATH, which does
to it what a file says as it begins to fit: by then it has its job and watches its parent.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.edges.fit_processes import children, is_there

_AT_FITTING = """
import os, signal, sys, time

def befall(when):
    with open(os.environ["WHAT_BEFALLS_FITS"], encoding="utf-8") as file:
        what = file.read()
    match when, what:
        case "at once", "says something else":
            os.write(1, b"all is well")
            os._exit(0)
        case "at once", "never stops talking":
            while True:
                os.write(1, bytes(65536))
        case "fitting", "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "fitting", "raises":
            raise RuntimeError("the fit fell over")
        case "fitting", "hangs":
            while True:
                time.sleep(1)
        case "fitting", "is stopped":
            os.kill(os.getpid(), signal.SIGSTOP)

class AsItFits:
    def find_spec(self, name, path=None, target=None):
        if name == "monitor.promotion.fits":
            befall("fitting")
        return None

if "monitor.pipeline.fits.worker" in sys.orig_argv:
    befall("at once")
    sys.meta_path.insert(0, AsItFits())
"""


@dataclass(frozen=True, slots=True)
class Fits:
    """Of all sidecars that are started from now on."""

    what: Path

    @classmethod
    def under(cls, folder: Path, patch: pytest.MonkeyPatch) -> Fits:
        """Well, at first."""
        seam = folder / "seam"
        seam.mkdir()
        (seam / "sitecustomize.py").write_text(_AT_FITTING, encoding="utf-8")
        path = os.pathsep.join((str(seam), *filter(None, [os.environ.get("PYTHONPATH")])))
        patch.setenv("PYTHONPATH", path)
        found = cls(folder / "what")
        patch.setenv("WHAT_BEFALLS_FITS", str(found.what))
        found.now("nothing")
        return found

    def now(self, what: str) -> None:
        """What befalls every fit that begins from now on: one of the cases above, or nothing."""
        temporary = self.what.with_suffix(".new")
        temporary.write_text(what, encoding="utf-8")
        temporary.replace(self.what)


def workers(server: int) -> set[int]:
    """Processes that a sidecar has started to fit, and that are still there."""
    try:
        return {pid for pid in children(server) if is_there(pid)}
    except FileNotFoundError:
        return set()


def is_fitting(worker: int) -> bool:
    """Whether it has taken its job: it watches its parent by a thread then."""
    try:
        return len(list(Path(f"/proc/{worker}/task").iterdir())) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False
