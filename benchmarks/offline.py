"""Measures evaluate and replay on simulated files: rows a second and core, memory, CPU of replay.

Each run is a process of its own, whose CPU and largest memory the system counts; the CPU of the
same verb on 200 rows of the same kind, for the interpreter and its imports, is taken off and told
apart. Runs of a round follow one another, and the least CPU of all rounds counts: on a busy machine
all of it is too much. Where netcal is
installed, its ENCE and its joint QCE of the same rows stand beside.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from benchmarks.machine import machine
from monitor.frames.space import FloatArray

NAMES = ("x", "y", "z", "l", "w", "h", "yaw")
FEW = 200

# Started in place of the verb: tells the CPU in s and the memory in MB of what it runs, and the CPU
# of the processes which that has started and ended.
_RUN = """
import resource, sys
from monitor.cli import main
main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
# Not ru_maxrss, which begins with the memory of whoever started this process.
largest = int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) / 1024
told = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, largest, told.ru_utime + told.ru_stime, file=sys.stderr)
"""


def simulated(n: int, k: int) -> dict[str, Any]:
    """Simulates columns of n rows: correlated errors of tracks of 40 rows, 2 % without truth."""
    random = np.random.default_rng(0)
    root = random.normal(0, 0.15, (n, k, k))
    covariance = root @ root.transpose(0, 2, 1)
    covariance += np.eye(k) * np.exp(random.normal(-2, 1, (n, 1, 1)))
    track = np.arange(n) // 40
    draw = random.normal(size=(n, k)) + random.normal(0, 0.6, (track[-1] + 1, k))[track]
    mean = random.uniform(-3, 3, (n, k))
    mean[:, :3] *= 10
    mean[:, 3:6] = 1 + np.abs(mean[:, 3:6])
    truth = mean + (np.linalg.cholesky(covariance) @ draw[:, :, None])[:, :, 0]
    truth[::50] = np.nan
    columns: dict[str, Any] = {"frame": np.arange(n) // FEW, "gt_id": track}
    for i, name in enumerate(NAMES[:k]):
        columns |= {name: mean[:, i], f"var_{name}": covariance[:, i, i], f"gt_{name}": truth[:, i]}
        columns |= {f"cov_{NAMES[j]}_{name}": covariance[:, i, j] for j in range(i)}
    return columns


def write(path: Path, columns: dict[str, Any]) -> Path:
    """Writes columns as the ending of the name says."""
    if path.suffix == ".parquet":
        parquet.write_table(pa.table(columns), path)
        return path
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    return path


def run(*words: object) -> tuple[float, float, float, float]:
    """Runs a verb: its CPU in s, memory in MB, CPU of processes that it started, seconds."""
    began = time.perf_counter()
    command = [sys.executable, "-c", _RUN, *map(str, words)]
    found = subprocess.run(command, capture_output=True, check=True, text=True)
    cpu, memory, others = map(float, found.stderr.splitlines()[-1].split())
    return cpu, memory, others, time.perf_counter() - began


def evaluated(folder: Path, rows: int, rounds: int) -> Iterator[str]:
    """Measures evaluate, by dimensions, format and jobs."""
    yield (
        f"{'evaluate':<30}{'rows':>10}{'file':>8}{'memory':>8}{'of it':>7}{'start':>8}{'CPU':>8}"
        f"{'rows/s/core':>13}{'rows/s':>11}"
    )
    for k in (3, 7):
        for ending in ("parquet", "csv"):
            n = rows if ending == "parquet" else rows // 10
            file = write(folder / f"{k}.{ending}", simulated(n, k))
            few = write(folder / f"few{k}.{ending}", simulated(FEW, k))
            for words in ((), ("--jobs", os.cpu_count() or 1), ("--json",)):
                every = [
                    (run("evaluate", few, *words), run("evaluate", file, *words))
                    for _ in range(rounds)
                ]
                start = min(one[0] for one, _ in every)
                cpu, memory, _, wall = (min(two[i] for _, two in every) for i in range(4))
                size, name = file.stat().st_size / 2**20, f"K = {k}, {ending}"
                yield (
                    f"{' '.join(map(str, (name, *words))):<30}{n:>10,}{size:>8.0f}{memory:>8.0f}"
                    f"{memory / size:>7.2f}{start:>8.2f}{cpu:>8.2f}{n / (cpu - start):>13,.0f}"
                    f"{n / wall:>11,.0f}"
                )
            file.unlink()


def of_netcal(rows: int, rounds: int) -> Iterator[str]:
    """Measures netcal's ENCE and joint QCE of rows of three dimensions."""
    try:
        metrics: Any = importlib.import_module("netcal.metrics.regression")
    except ImportError:
        yield "netcal is not installed: pip install netcal, in an environment of its own"
        return
    columns, names = simulated(rows, 3), NAMES[:3]
    known = np.isfinite(columns["gt_x"])
    mean, truth = (np.stack([columns[f"{p}{n}"][known] for n in names], 1) for p in ("", "gt_"))
    covariance = np.empty((mean.shape[0], 3, 3))
    for i, name in enumerate(names):
        covariance[:, i, i] = columns[f"var_{name}"][known]
        for j in range(i):
            both = columns[f"cov_{names[j]}_{name}"][known]
            covariance[:, i, j] = covariance[:, j, i] = both
    deviation: FloatArray = np.sqrt(np.einsum("nkk->nk", covariance))
    tau = np.arange(1, 20) / 20
    ence, qce = metrics.ENCE(bins=20), metrics.QCE(bins=20, marginal=False)
    calls: dict[str, Callable[[], object]] = {
        "ENCE of each dimension": lambda: ence.measure((mean, deviation), truth),
        "joint QCE": lambda: qce.measure((mean, covariance), truth, q=tau),
    }
    for name, call in calls.items():
        took = []
        for _ in range(rounds):
            began = time.process_time()
            call()
            took.append(time.process_time() - began)
        speed = f"{min(took):>8.2f}{rows / min(took):>13,.0f}"
        yield f"{f'netcal, {name}':<30}{rows:>10,}{'':>31}{speed}"


def replayed(folder: Path, rows: int, rounds: int) -> Iterator[str]:
    """Measures replay at its highest speed: CPU of the client and of its sidecar, a frame."""
    yield f"{'replay, µs of CPU a frame of 200':<34}{'frames':>10}{'client':>8}{'sidecar':>9}"
    for k in (3, 7):
        file = write(folder / f"drive{k}.parquet", simulated(rows, k))
        few = write(folder / f"few{k}.parquet", simulated(FEW, k))
        found = []
        for _ in range(rounds):
            pairs = zip(run("replay", few)[::2], run("replay", file)[::2], strict=True)
            found.append([(after - before) / (rows / FEW) * 1e6 for before, after in pairs])
        client, sidecar = (min(one[i] for one in found) for i in range(2))
        yield f"{f'K = {k}':<34}{rows // FEW:>10,}{client:>8.0f}{sidecar:>9.0f}"


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of Parquet; CSV has a tenth")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{machine()}; memory and files in MB, CPU in s; start: the verb on {FEW} rows\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables = (
            evaluated(folder, options.rows, options.rounds),
            of_netcal(options.rows, options.rounds),
            replayed(folder, options.rows // 10, options.rounds),
        )
        for table in tables:
            for line in table:
                print(line, flush=True)
            print()


if __name__ == "__main__":
    main()
