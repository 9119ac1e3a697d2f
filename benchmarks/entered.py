"""Records which functions of a sidecar are entered; here is neither traffic nor a table.

`recording` hands a copy of this file to a Python process, and to all that it starts, as their
`sitecustomize`. So the sidecar runs as it always does, and its source is not touched. One number
in a shared file says which window is open: each process reads it at every call.

A profiler sees calls and not why they happen. Therefore each entry names its unit of work: the
outermost function of the sidecar that one turn of the event loop, or one job of a thread, called.
What a housekeeping task does can then be told from what a request does.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import inspect
import mmap
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_TREE, _RECORDS = "TRIPS_TREE", "TRIPS_RECORDS"
_CLOSED = 0
# What a sidecar prints when its ports are open. It closes the window there and then: we would
# hear of it when the first housekeeping has begun.
READY = "listening "
# Both run one callback after the other; the next one is another unit of work.
_TURN = asyncio.Handle._run.__code__
_JOB = concurrent.futures.thread._WorkItem.run.__code__


@dataclass(frozen=True, slots=True)
class Entry:
    """The first time that a unit of work entered a function in a window.

    time_ns   CLOCK_MONOTONIC, the same in all processes
    on_loop   the main thread of its process called it
    unit      path:name of the unit of work
    file      path of the function's file, below the tree
    function  its qualified name
    """

    time_ns: int
    on_loop: bool
    unit: str
    file: str
    function: str


class Records:
    """Opens and closes windows, and reads what was entered in each of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        (folder / "window").write_bytes(bytes(8))
        (folder / "entries").touch()
        (folder / "seam").mkdir()
        shutil.copy(__file__, folder / "seam" / "sitecustomize.py")
        self._window = _window(folder)

    def environment(self, tree: Path) -> Mapping[str, str]:
        """Variables of a process whose functions below `tree`/monitor are recorded."""
        path = os.pathsep.join((str(self._folder / "seam"), str(tree)))
        return {"PYTHONPATH": path, _TREE: str(tree), _RECORDS: str(self._folder)}

    def open(self, number: int) -> None:
        """Records into a window, from 1 on; one that was closed may be opened again."""
        self._window[0] = number

    def close(self) -> None:
        """Records nothing until a window is opened."""
        self._window[0] = _CLOSED

    def entries(self, number: int) -> list[Entry]:
        """Lists what all processes entered in a window, in order of time."""
        found = []
        for line in (self._folder / "entries").read_text("utf-8").splitlines():
            window, time_ns, on_loop, unit, file, function = line.split("\t")
            if int(window) == number:
                found.append(Entry(int(time_ns), on_loop == "1", unit, file, function))
        return sorted(found, key=lambda entry: entry.time_ns)


def _window(folder: Path) -> memoryview:
    with (folder / "window").open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 8)).cast("q")


def _record(tree: str, folder: Path) -> None:
    """Installs the profiler in this process, on all threads that Python starts."""
    window = _window(folder)
    entries = os.open(folder / "entries", os.O_WRONLY | os.O_APPEND)
    package, generated = f"{tree}/monitor/", f"{tree}/monitor/v1/"
    files: dict[str, str] = {}
    seen: set[tuple[int, int, str]] = set()
    thread = threading.local()
    main = threading.main_thread()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code is _TURN or code is _JOB:
            thread.unit = ""
            return
        file = files.get(code.co_filename)
        if file is None:
            path = os.path.realpath(code.co_filename)
            ours = path.startswith(package) and not path.startswith(generated)
            file = files[code.co_filename] = path[len(tree) + 1 :] if ours else ""
        # The body of a module or a class is no function.
        if not file or not code.co_flags & inspect.CO_OPTIMIZED:
            return
        unit = getattr(thread, "unit", "")
        if not unit:
            if _is_importing(frame):
                return
            unit = thread.unit = f"{file}:{code.co_qualname}"
        number = window[0]
        key = (number, id(code), unit)
        if number == _CLOSED or key in seen or _is_importing(frame):
            return
        seen.add(key)
        on_loop = int(threading.current_thread() is main)
        cells = (number, time.monotonic_ns(), on_loop, unit, file, code.co_qualname)
        os.write(entries, ("\t".join(map(str, cells)) + "\n").encode())

    write = sys.stdout.write

    def write_and_close(text: str) -> int:
        if text.startswith(READY):
            window[0] = _CLOSED
        return write(text)

    setattr(sys.stdout, "write", write_and_close)  # noqa: B010  # mypy refuses an assignment
    threading.setprofile(profile)
    sys.setprofile(profile)


def _is_importing(frame: FrameType | None) -> bool:
    """Tells whether a function runs because its module, or another one, is being imported."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


if __name__ == "sitecustomize" and _RECORDS in os.environ:
    _record(os.environ[_TREE], Path(os.environ[_RECORDS]))
