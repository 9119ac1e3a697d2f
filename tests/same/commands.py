"""Runs command lines of one tree, as `python -P commands.py`, with the tree as PYTHONPATH.

Reads a list of JSON objects a line, {"argv", "stdout", "stderr"}, and answers with the exit code of
the last. Every line is a fork that runs `python -m monitor ARGV` of each: NumPy, SciPy and gRPC,
which take longer to import than most commands to run, are imported once; the tree by each fork.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import sys
from typing import Any, NoReturn

# What commands import of others, not of the tree; one that is missing is left to them.
_BEFORE = (
    *("filterpy.kalman", "google.protobuf.json_format", "grpc.aio", "numpy", "prometheus_client"),
    *("pydantic", "scipy.linalg", "scipy.optimize", "scipy.special", "scipy.stats"),
)


def main() -> None:
    """Runs commands until standard input ends."""
    for name in _BEFORE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        wanted = json.loads(line)
        child = os.fork()
        if child == 0:
            _run_all(wanted)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run_all(wanted: list[dict[str, Any]]) -> NoReturn:
    """Becomes the commands, one after the other; the first that fails is the last."""
    code = 1
    try:
        for command in wanted:
            code = _run(command["argv"], command["stdout"], command["stderr"])
            sys.stdout.flush()
            sys.stderr.flush()
            if code:
                break
    finally:
        os._exit(code)


def _run(argv: list[str], stdout: str, stderr: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, path, how in ((0, os.devnull, os.O_RDONLY), (1, stdout, flags), (2, stderr, flags)):
        opened = os.open(path, how, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = ["monitor", *argv]
    try:
        runpy.run_module("monitor", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


if __name__ == "__main__":
    main()
