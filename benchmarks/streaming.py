"""The streaming statistics by themselves: update, reading, memory, scrape.

Prints the shortest of all rounds, and beside it what re-evaluating a window for each new
arrival costs in the same run. Absolute numbers belong to the machine that is named; the
ratios travel better.

    python benchmarks/streaming.py [--rounds 10]
"""

from __future__ import annotations

import argparse
import http.client
import resource
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks.machine import machine, shortest
from monitor.config import StatisticsConfig
from monitor.frames.frame import MatchedRows, TrackIds
from monitor.frames.space import FloatArray, plain_space
from monitor.service.host import keep_freed_memory
from monitor.service.http import Endpoint
from monitor.statistics.bins import Binning, ExportEdges
from monitor.statistics.class_statistics import observe_classes
from monitor.statistics.exact_engine import evaluate_rows
from monitor.statistics.folding import SliceAccumulator
from monitor.statistics.reading import read
from monitor.statistics.stage import SliceStatistics, StageStatistics, observe
from monitor.statistics.state import SliceState, StatisticsState
from monitor.statistics.windows import PaneKey, Windows, WindowTotals
from monitor.store.statistics_state import PaneBytes, StoredState, serialised

DETECTIONS, K, FRAMES = 200, 7, 78
SPACE = plain_space(("x", "y", "z", "l", "w", "h", "v"), "m")
BINNING = Binning()
SECOND = 10**9
WINDOWS = Windows((300 * SECOND, 3600 * SECOND, 86400 * SECOND), 6)
EDGES = ExportEdges(tuple(2.0**octave for octave in range(-4, 5)), BINNING)
# Of one arrival into a window of 5,000 rows in four dimensions: ENCE, UCE and joint QCE.
NETCAL_MS = 19.0


def gaussians(
    random: np.random.Generator, n: int, k: int, spread: float = 0.5
) -> tuple[FloatArray, FloatArray]:
    """Errors (n, K) and covariances (n, K, K), calibrated."""
    root = random.normal(size=(n, k, k)) + 3 * np.eye(k)
    covariance: FloatArray = root @ root.transpose(0, 2, 1)
    covariance *= np.exp(spread * random.normal(size=n))[:, None, None] / 40
    draw = np.linalg.cholesky(covariance) @ random.normal(size=(n, k, 1))
    return draw[..., 0], covariance


def frames(slices: int, *, tracked: bool) -> list[MatchedRows]:
    """Matched frames whose recalibrated stage differs from the raw one."""
    random = np.random.default_rng(slices)
    found = []
    numbers = np.arange(DETECTIONS, dtype=np.uint64)
    for number in range(FRAMES):
        error, covariance = gaussians(random, DETECTIONS, K)
        found.append(
            MatchedRows(
                SPACE,
                random.integers(0, slices, DETECTIONS),
                error,
                covariance,
                error.copy(),
                1.2 * covariance,
                stamp_ns=number * SECOND // 20,
                tracks=TrackIds(numbers, np.ones(DETECTIONS, bool)) if tracked else None,
            )
        )
    return found


def update_case(rounds: int, slices: int, *, tracked: bool) -> str:
    """Both stages, joint and per dimension, amortised over whole folds."""
    matched = frames(slices, tracked=tracked)
    accumulator = SliceAccumulator(BINNING, WINDOWS, EDGES, StatisticsConfig().fold_rows)
    best, longest_step = float("inf"), 0.0
    for round_number in range(rounds + 1):
        began = time.perf_counter()
        for rows in matched:
            accumulator.add(rows)
            while accumulator.busy:
                step = time.perf_counter()
                accumulator.step()
                if round_number:
                    longest_step = max(longest_step, time.perf_counter() - step)
        for _ in accumulator.steps():
            pass
        best = min(best, time.perf_counter() - began)
    each = best / (FRAMES * DETECTIONS) * 1e6
    return (
        f"update, {slices:2d} slices, {'tracks' if tracked else 'no tracks':9s}: {each:5.2f} us a "
        f"detection, {each * DETECTIONS:5.0f} us a frame of {DETECTIONS}; longest step "
        f"{longest_step * 1e3:.1f} ms"
    )


def window_case(rounds: int) -> str:
    """What each new arrival costs when the whole window is evaluated again."""
    error, covariance = gaussians(np.random.default_rng(0), 5000, 4)
    space, mean = plain_space(("x", "y", "w", "h")), np.zeros((5000, 4))

    def again() -> None:
        evaluate_rows(space, mean, covariance, error)

    statistics = observe(space, BINNING, error, covariance)
    ours, theirs = shortest(rounds, lambda: read(statistics), again)
    return (
        f"window of 5000 rows in 4 dimensions, for each arrival: evaluated again {theirs * 1e3:.1f}"
        f" ms (netcal 1.4.0, ENCE, UCE and joint QCE, measured apart: {NETCAL_MS:g} ms), read from "
        f"the sums {ours * 1e3:.2f} ms: {theirs / ours:.0f} times"
    )


def reading_case(rounds: int) -> str:
    """All measures of one slice, both stages, 120 or so micro-bins of each axis occupied."""
    random = np.random.default_rng(1)
    raw = observe(SPACE, BINNING, *gaussians(random, 50_000, K))
    recalibrated = observe(SPACE, BINNING, *gaussians(random, 50_000, K))
    (seconds,) = shortest(rounds, lambda: (read(raw), read(recalibrated)))
    return (
        f"reading all measures of one slice, K = {K}, both stages, "
        f"{raw.cells.keys.size / (K + 1):.0f} micro-bins an axis: {seconds * 1e3:.2f} ms"
    )


def memory_case() -> str:
    """24 slices, every pane of every window full; the panes share nothing."""
    random = np.random.default_rng(2)
    before = resident()
    one = observe(SPACE, BINNING, *gaussians(random, 20_000, K, spread=0.6))
    held: list[dict[PaneKey, SliceStatistics]] = []
    size = 0
    for _ in range(24):
        panes = {}
        for key in _all_panes():
            raw, recalibrated = (_copied(one) for _ in range(2))
            panes[key] = SliceStatistics(raw, recalibrated)
            size += sum(
                stage.cells.nbytes + stage.nees.nbytes + 2 * stage.companions.low.nbytes
                for stage in (raw, recalibrated)
            )
        held.append(panes)
    grown = [resident() - before]
    totals: WindowTotals[SliceStatistics] = WindowTotals()
    for level in range(WINDOWS.older + 1):
        for index, panes in enumerate(held):
            assert totals.read(index, panes, WINDOWS, level) is not None
    grown.append(resident() - before)
    slices = (SliceState(f"class {i}", SPACE, False, panes) for i, panes in enumerate(held))
    state = StatisticsState(BINNING, WINDOWS, 0, tuple(slices))
    stored = PaneBytes()
    snapshot = sum(map(len, serialised(StoredState(state), stored)))
    grown.append(resident() - before)
    alone, read_too, stored_too = (f"{each / 2**20:.0f}" for each in grown)
    return (
        f"memory, 24 slices x {len(held[0])} panes, K = {K}, both stages, "
        f"{one.cells.keys.size / (K + 1):.0f} micro-bins an axis in every pane: "
        f"{size / 2**20:.0f} MiB of arrays; process grown by {alone} MiB, {read_too} with every "
        f"window read, {stored_too} with a snapshot of {snapshot / 2**20:.0f} MiB written"
    )


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _all_panes() -> Iterable[PaneKey]:
    yield WINDOWS.older, 0
    for level in range(WINDOWS.older):
        for number in range(WINDOWS.panes + 1):
            yield level, number


def _copied(one: StageStatistics) -> StageStatistics:
    """The same with arrays of its own."""
    return one.merge(one).merge(one.negated())


def class_case(rounds: int) -> str:
    """Probabilities of ten classes."""
    random = np.random.default_rng(3)
    logits = 2 * random.normal(size=(8192, 10))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = random.integers(0, 10, 8192)
    (seconds,) = shortest(rounds, lambda: observe_classes(probabilities, labels))
    return f"update, class probabilities, C = 10: {seconds / 8192 * 1e6:.2f} us a row"


def scrape_case(rounds: int) -> str:
    """A scrape of prepared text: nothing is computed for it."""
    endpoint = Endpoint()
    port = endpoint.start("127.0.0.1", 0)
    line = 'calibration_bin_detections_total{{slice="Car",stage="raw",dimension="x",bin="{}"}} {}\n'
    text = "".join(line.format(i, i * 7) for i in range(2000)).encode()
    endpoint.published.metrics = text
    connection = http.client.HTTPConnection("127.0.0.1", port)

    def scrape() -> None:
        connection.request("GET", "/metrics")
        assert len(connection.getresponse().read()) == len(text)

    (seconds,) = shortest(20 * rounds, scrape)
    connection.close()
    endpoint.stop()
    return (
        f"scrape, 2000 series, {len(text) / 1024:.0f} KiB of prepared text: {seconds * 1e3:.2f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    kept = keep_freed_memory()
    print(f"{machine()}, NumPy {np.__version__}; freed memory {'kept' if kept else 'given back'}")
    print(memory_case())
    for slices, tracked in ((1, False), (3, False), (10, False), (24, False), (3, True)):
        print(update_case(rounds, slices, tracked=tracked))
    print(class_case(rounds))
    print(reading_case(rounds))
    print(window_case(rounds))
    print(scrape_case(rounds))


if __name__ == "__main__":
    main()
