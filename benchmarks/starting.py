"""Measures how long a verb takes to start: CPU time and wall clock in ms, the least of some rounds.

Each `VERB --help`; `doctor`, `alarms list` and `recalibrators list` on a running sidecar;
`evaluate` of a small file; the Python API; `serve` until it listens; `python -c pass` beside them.
With --beside TREE, a clone of another version, each round measures both, one after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.machine import machine
from monitor.cli import VERBS

HERE = Path(__file__).parents[1]
TICKS = os.sysconf("SC_CLK_TCK")
MONITOR = ("-m", "monitor")
SERVE = (*MONITOR, "serve", "--no-state", "--exit-with-parent", "--log-level", "error")
PORTS = ("--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0")

# s of CPU, and by the clock.
Took = tuple[float, float]


def started(tree: Path, folder: Path, *words: str) -> subprocess.Popen[str]:
    """Starts Python on the package of a tree, in a folder without one."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *words], cwd=folder, env=environment, stdin=pipe, stdout=pipe, text=True
    )


def ended(tree: Path, folder: Path, *words: str) -> Took:
    """Times a command from its start to its end."""
    began = time.perf_counter()
    process = started(tree, folder, *words)
    assert process.stdout is not None
    process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    took = used.ru_utime + used.ru_stime, time.perf_counter() - began
    # doctor finds that nobody sends: 1.
    assert process.returncode in (0, 1), words
    return took


@contextlib.contextmanager
def serving(tree: Path, folder: Path) -> Iterator[tuple[dict[str, str], Took]]:
    """Yields the addresses of a sidecar, and what it took until it listened."""
    began = time.perf_counter()
    process = started(tree, folder, *SERVE, *PORTS)
    assert process.stdout is not None
    line = process.stdout.readline()
    wall = time.perf_counter() - began
    fields = Path(f"/proc/{process.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    cpu = (int(fields[11]) + int(fields[12])) / TICKS
    try:
        yield json.loads(line.removeprefix("listening ")), (cpu, wall)
    finally:
        process.communicate()  # closes its standard input, which ends it


def round_of(tree: Path, folder: Path) -> dict[str, Took]:
    """Times everything once."""
    found = {"python -c pass": ended(tree, folder, "-c", "pass")}
    for name, words in {"--version": ("--version",), "completion": ("completion", "bash")}.items():
        found[name] = ended(tree, folder, *MONITOR, *words)
    for verb in VERBS:
        found[f"{verb} --help"] = ended(tree, folder, *MONITOR, verb, "--help")
    found["from monitor import evaluate"] = ended(
        tree, folder, "-c", "from monitor import evaluate"
    )
    found["sample"] = ended(tree, folder, *MONITOR, "sample", "--output", "drive.csv")
    found["evaluate drive.csv"] = ended(tree, folder, *MONITOR, "evaluate", "drive.csv")
    with serving(tree, folder) as (at, took):
        found["serve, until it listens"] = took
        there = ("--address", at["grpc"])
        found["doctor"] = ended(
            tree, folder, *MONITOR, "doctor", *there, "--http-address", at["http"]
        )
        for verb in ("alarms", "recalibrators"):
            found[f"{verb} list"] = ended(tree, folder, *MONITOR, verb, "list", *there)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", type=Path, action="append", default=[], metavar="TREE")
    options = parser.parse_args()
    trees = [*(tree.resolve() for tree in options.beside), HERE]
    least: list[dict[str, Took]] = [{} for _ in trees]
    with tempfile.TemporaryDirectory() as name:
        for _ in range(options.rounds):
            for best, tree in zip(least, trees, strict=True):
                for what, (cpu, wall) in round_of(tree, Path(name)).items():
                    had = best.get(what, (cpu, wall))
                    best[what] = min(cpu, had[0]), min(wall, had[1])
    print(f"{machine()}; least of {options.rounds} rounds; CPU ms, wall ms")
    print(f"{'':<30}" + "".join(f"{tree.name:>18}" for tree in trees))
    for what in least[-1]:
        cells = (f"{1e3 * best[what][0]:9.0f}{1e3 * best[what][1]:9.0f}" for best in least)
        print(f"{what:<30}" + "".join(cells))


if __name__ == "__main__":
    main()
