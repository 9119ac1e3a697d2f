"""A real sidecar under a real Prometheus, over a restart with its statistics kept on disk: the
queries of the README agree with NumPy on the detections that were sent.
"""

import numpy as np
import pytest

from monitor.frames.frame import Header
from monitor.frames.space import plain_space
from monitor.statistics.bins import StageBins
from monitor.statistics.measures import chi_square_quantiles
from monitor.wire.client_messages import OutgoingFrame, encode_frame, encode_header
from tests.deploy.scraping import Prometheus, free_port, readme_queries
from tests.exported import EDGES, STAGES, measures
from tests.served import Conversation, Sidecar, process_bytes

pytestmark = pytest.mark.components

SPACE = plain_space(("x0", "x1", "x2"), "m")
FRAMES, ROWS, K = 10, 200, 3
TAU = EDGES.binning.tau
RANDOM = np.random.default_rng(11)
# Six octaves: the bins of large deviations stay empty.
DEVIATION = 0.04 * 2.0 ** RANDOM.uniform(0, 6, size=(FRAMES, ROWS, K))
MEAN = RANDOM.normal(size=DEVIATION.shape)
TRUTH = MEAN + DEVIATION * RANDOM.normal(scale=1.3, size=DEVIATION.shape)


def send(sidecar: Sidecar, times_before: int) -> None:
    """Sends the same ten frames, each time later and under other numbers."""
    stream = Conversation(process_bytes(sidecar.channel))
    stream.ask(encode_header(Header("lidar", SPACE, ("car",))))
    ids, classes = np.arange(ROWS, dtype=np.uint64), np.zeros(ROWS, np.int64)
    for i in range(FRAMES):
        number = times_before * FRAMES + i + 1
        told = (number, number * 10**8, ids, classes, MEAN[i], DEVIATION[i] ** 2)
        stream.ask(encode_frame(OutgoingFrame(*told, truth=TRUTH[i])))
    stream.close()


def bins() -> StageBins:
    """Counts what one sending brings, bin by bin, from the definitions."""
    sigma, error = DEVIATION.reshape(-1, K), (TRUTH - MEAN).reshape(-1, K)
    nees = ((error / sigma) ** 2).sum(axis=1)
    generalised = sigma.prod(axis=1) ** (1 / K)
    quantiles = chi_square_quantiles(np.array(TAU), K)
    n = np.zeros((K + 1, EDGES.count), int)
    variance, squared_error = np.zeros((2, K, EDGES.count))
    nees_sum, within = np.zeros(EDGES.count), np.zeros((EDGES.count, len(TAU)), int)
    for b, (low, high) in enumerate(zip([0, *EDGES.edges], [*EDGES.edges, np.inf], strict=True)):
        inside = (sigma >= low) & (sigma < high)
        variance[:, b] = (sigma**2 * inside).sum(axis=0)
        squared_error[:, b] = (error**2 * inside).sum(axis=0)
        rows = (generalised >= low) & (generalised < high)
        n[:, b] = [*inside.sum(axis=0), rows.sum()]
        nees_sum[b] = nees[rows].sum()
        within[b] = (nees[rows, None] <= quantiles).sum(axis=0)
    return StageBins(n, variance, squared_error, nees_sum, within)


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """Asks the queries of the README."""
    folder = tmp_path_factory.mktemp("sidecar")
    port = free_port()
    config = f'[metrics]\nrefresh_seconds = 0.2\n[state]\nfolder = "{folder / "kept"}"\n'
    series = 'calibration_bin_detections_total{dimension="joint",stage="raw"}'
    running = []

    def start() -> Sidecar:
        running.append(Sidecar(folder, config, "--http-address", f"127.0.0.1:{port}"))
        return running[-1]

    prometheus = Prometheus(folder, {"sidecar": port})
    try:
        sidecar = start()
        # What a slice counts before its first scrape is in no increase: the first ten frames.
        for times in (0, 1):
            send(sidecar, times)
            prometheus.seen("sidecar", series, (times + 1) * FRAMES * ROWS)
        sidecar.stop()
        prometheus.gone("sidecar")
        send(start(), 2)
        end = prometheus.seen("sidecar", series, FRAMES * ROWS)
        queries = {"n": f"increase({series}[30m])", **readme_queries()}
        yield {
            name: prometheus.query(query.replace("van|bus", "sidecar"), end)
            for name, query in queries.items()
        }
    finally:
        for each in running:
            each.end()
        prometheus.stop()


@pytest.mark.parametrize("measure", ["ence", "uce", "qce", "nees"])
def test_what_prometheus_makes_of_a_sidecar_is_what_numpy_makes_of_its_detections(asked, measure):
    values = {
        ("car", stage, dimension): value
        for stage in STAGES
        for dimension, value in measures(bins(), TAU)[measure].items()
    }
    found = {
        (labels["slice"], labels["stage"], labels["dimension"]): value
        for labels, value in asked[measure]
    }
    assert len(found) == len(asked[measure])
    assert found == pytest.approx(values, rel=1e-9)


def test_no_detection_is_counted_twice_after_a_restart_that_kept_its_statistics(asked):
    n = bins().n[-1]
    seen = {int(labels["bin"]): value for labels, value in asked["n"]}
    # Ten frames before the restart and ten after it. The start is extrapolated as far back as
    # the counter was 0, half as much again; the end by less than a scrape.
    growth = np.array([seen[b] for b in range(EDGES.count)])[n > 0] / (2 * n[n > 0])
    assert (np.abs(growth - growth[0]) < 1e-9).all()
    assert 1 < growth[0] < 1.7
    assert all(seen[b] == 0 for b in np.flatnonzero(n == 0).tolist())
