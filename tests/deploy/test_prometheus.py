"""A real Prometheus that scrapes the real exporter of two vehicles, one of which restarts:
the recording rules and the queries of the README agree with NumPy to 1e-9.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.deploy.scraping import (
    ROOT,
    Prometheus,
    free_port,
    readme_queries,
    worst,
)
from tests.exported import (
    EDGES,
    STAGES,
    Counts,
    added,
    drawn,
    measures,
    nothing,
    scaled,
    slice_bins,
    snapshot,
    text_of,
)

pytestmark = pytest.mark.components

K, EMPTY = 3, 7
TAU = EDGES.binning.tau
SLICES = ("car", 'a "quoted" \\ one')
KEYS = [(name, stage) for name in SLICES for stage in STAGES]

# A process of its own, so that it can be killed: it publishes the files it is told.
EXPORTER = """
import sys
from pathlib import Path
from monitor.service.http import Endpoint

endpoint = Endpoint()
endpoint.published.metrics = Path(sys.argv[2]).read_bytes()
endpoint.start("127.0.0.1", int(sys.argv[1]))
print("listening", flush=True)
for line in sys.stdin:
    endpoint.published.metrics = Path(line.strip()).read_bytes()
    print("published", flush=True)
"""


class Vehicle:
    """An exporter whose counters begin at 0 with each start."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name, self.port = folder, name, free_port()
        self.published = 0
        self.start()

    def start(self) -> None:
        self.counts: Counts = {key: nothing(K, EDGES) for key in KEYS}
        # Nothing heavy is imported there.
        options = str(self.port), str(self.written())
        self.process = subprocess.Popen(
            [sys.executable, "-c", EXPORTER, *options],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.hear("listening")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def count(self, increments: Counts) -> None:
        self.counts = {key: added(self.counts[key], increments[key]) for key in KEYS}
        assert self.process.stdin is not None
        print(self.written(), file=self.process.stdin, flush=True)
        self.hear("published")

    def hear(self, word) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word

    def written(self) -> Path:
        """The text as of now in a file; its number is a gauge in it."""
        self.published += 1
        path = self.folder / f"{self.name}-{self.published}.txt"
        bins = slice_bins(self.counts, K)
        path.write_text(text_of(snapshot(bins, EDGES, checkpoint_age=self.published)), "utf-8")
        return path


class Drive:
    """What two vehicles counted; the van starts again in between.

    middle  when both had been seen with their first increments, and these are in none of `later`
    end     when the rules had been evaluated for the last ones
    whole   by vehicle, slice and stage: all increments; `later`: those after the middle
    """

    def __init__(self, folder: Path) -> None:
        self.random = np.random.default_rng(7)
        self.vehicles = {name: Vehicle(folder, name) for name in ("van", "bus")}
        self.counted: dict[str, list[Counts]] = {name: [] for name in self.vehicles}
        self.prometheus = Prometheus(
            folder, {name: vehicle.port for name, vehicle in self.vehicles.items()}
        )

    def play(self) -> None:
        for vehicle in self.vehicles.values():
            self.seen(vehicle)
        # Far more than later: increase() extrapolates no counter to before it was 0.
        self.middle = self.count(10_000)
        for vehicle in self.vehicles.values():
            self.seen(vehicle, self.middle)
        self.count(100)
        van = self.vehicles["van"]
        van.kill()
        self.prometheus.gone(van.name)
        van.start()
        self.seen(van)
        self.end = self.prometheus.recorded_after(self.count(100))
        self.whole = {name: summed(parts) for name, parts in self.counted.items()}
        self.later = {name: summed(parts[1:]) for name, parts in self.counted.items()}

    def seen(self, vehicle: Vehicle, after: float = 0) -> float:
        """When what the vehicle published last was seen."""
        marker = f'calibration_checkpoint_age_seconds{{instance="{vehicle.name}"}}'
        return self.prometheus.seen(vehicle.name, marker, vehicle.published, after)

    def count(self, per_bin) -> float:
        """Count in every vehicle; the moment when all of it had been seen."""
        for name, vehicle in self.vehicles.items():
            increments = {key: drawn(self.random, per_bin, K, EDGES, EMPTY) for key in KEYS}
            vehicle.count(increments)
            self.counted[name].append(increments)
        return max(self.seen(vehicle) for vehicle in self.vehicles.values())

    def stop(self) -> None:
        for vehicle in self.vehicles.values():
            vehicle.kill()
        self.prometheus.stop()

    def weights(self, counted: dict[str, Counts], window) -> dict[str, float]:
        """How far increase() extrapolates each vehicle: the same for all of its series."""
        detections = 'calibration_bin_detections_total{slice="car",stage="raw",dimension="joint"}'
        seen = self.prometheus.query(
            f"sum by (instance) (increase({detections}[{window}]))", self.end
        )
        found = {
            labels["instance"]: value / counted[labels["instance"]]["car", "raw"].n[-1].sum()
            for labels, value in seen
        }
        assert found.keys() == counted.keys()
        # At most a scrape interval on either side, of four seconds or more.
        assert all(1 - 1e-9 < weight <= 2 for weight in found.values())
        return found


def summed(parts: list[Counts]) -> Counts:
    return {key: added(*(part[key] for part in parts)) for key in KEYS}


def expected(parts: list[Counts], measure) -> dict[tuple[str, str, str], float]:
    """By slice, stage and dimension, of all parts together."""
    together = summed(parts)
    return {
        (*key, dimension): value
        for key in KEYS
        for dimension, value in measures(together[key], TAU)[measure].items()
    }


@pytest.fixture(scope="module")
def drive(tmp_path_factory):
    found = Drive(tmp_path_factory.mktemp("drive"))
    try:
        found.play()
        yield found
    finally:
        found.stop()


@pytest.mark.parametrize("measure", ["ence", "ence_noise_floor_gaussian", "uce", "qce", "nees"])
def test_recorded_measures_agree_with_numpy_over_a_restart_and_an_empty_bin(drive, measure):
    name = f"calibration_{measure}:10m"
    if measure != "ence_noise_floor_gaussian":
        # The floor falls with n, and n is extrapolated.
        for vehicle, counts in drive.whole.items():
            found = drive.prometheus.query(f'instance:{name}{{instance="{vehicle}"}}', drive.end)
            assert worst(found, expected([counts], measure)) < 1e-9
    weights = drive.weights(drive.whole, "10m")
    parts = [
        {key: scaled(value, weights[vehicle]) for key, value in counts.items()}
        for vehicle, counts in drive.whole.items()
    ]
    found = drive.prometheus.query(f"fleet:{name}", drive.end)
    difference = worst(found, expected(parts, measure))
    print(f"{measure}: {difference:.2g}")
    assert difference < 1e-9


@pytest.mark.parametrize("measure", ["ence", "uce", "qce", "nees"])
@pytest.mark.parametrize("vehicles", ["van", "bus", "van|bus"])
@pytest.mark.parametrize("window", ["whole", "later"])
def test_queries_of_the_readme_agree_with_numpy_over_any_window_and_vehicles(
    drive, measure, vehicles, window
):
    seconds = {"whole": "30m", "later": f"{round(1000 * (drive.end - drive.middle))}ms"}[window]
    counted = {"whole": drive.whole, "later": drive.later}[window]
    weights = drive.weights(counted, seconds)
    parts = [
        {key: scaled(value, weights[name]) for key, value in counted[name].items()}
        for name in vehicles.split("|")
    ]
    query = readme_queries()[measure].replace("van|bus", vehicles).replace("30m", seconds)
    found = drive.prometheus.query(query, drive.end)
    difference = worst(found, expected(parts, measure))
    print(f"{measure}: {difference:.2g}")
    assert difference < 1e-9


def test_no_bin_is_labelled_like_a_histogram_and_the_empty_one_is_there_at_zero(drive):
    for name in ("detections", "variance", "squared_error", "nees", "nees_within"):
        found = drive.prometheus.query(f"calibration_bin_{name}_total", drive.end)
        assert all("le" not in labels for labels, _ in found)
        empty = [value for labels, value in found if labels["bin"] == str(EMPTY)]
        assert empty and set(empty) == {0.0}


def test_the_bins_tell_their_edges_and_the_levels_their_value(drive):
    bins = drive.prometheus.query('calibration_bin_info{instance="bus"}', drive.end)
    assert {labels["bin"]: (labels["lower"], labels["upper"]) for labels, _ in bins} == {
        str(b): (f"{low:g}", "+Inf" if b == 9 else f"{high:g}")
        for b, (low, high) in enumerate(zip([0, *EDGES.edges], [*EDGES.edges, np.inf], strict=True))
    }
    levels = drive.prometheus.query('calibration_tau{instance="bus"}', drive.end)
    assert {float(labels["tau"]): value for labels, value in levels} == {t: t for t in TAU}
