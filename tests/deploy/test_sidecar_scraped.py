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
FRAMES, ROWS = 10, 200
TAU = EDGES.binning.tau
SLICE = "car"


class Detections:
    """The same ten frames, sent as often as asked, each time later and under other numbers."""

    def __init__(self) -> None:
        random = np.random.default_rng(11)
        shape = (FRAMES, ROWS, SPACE.k)
        # Six octaves: the bins of large deviations stay empty.
        self.deviation = 0.04 * 2.0 ** random.uniform(0, 6, size=shape)
        self.mean = random.normal(size=shape)
        error = self.deviation * random.normal(scale=1.3, size=shape)
        self.truth = self.mean + error
        self.sent = 0

    def send(self, sidecar: Sidecar) -> None:
        stream = Conversation(process_bytes(sidecar.channel))
        stream.ask(encode_header(Header("lidar", SPACE, (SLICE,))))
        for i in range(FRAMES):
            self.sent += 1
            frame = OutgoingFrame(
                self.sent,
                self.sent * 10**8,
                np.arange(ROWS, dtype=np.uint64),
                np.zeros(ROWS, np.int64),
                self.mean[i],
                self.deviation[i] ** 2,
                truth=self.truth[i],
            )
            stream.ask(encode_frame(frame))
        stream.close()

    def bins(self) -> StageBins:
        """What one sending counts; written bin by bin from the definitions."""
        k = SPACE.k
        sigma = self.deviation.reshape(-1, k)
        error = (self.truth - self.mean).reshape(-1, k)
        nees = ((error / sigma) ** 2).sum(axis=1)
        generalised = sigma.prod(axis=1) ** (1 / k)
        n = np.zeros((k + 1, EDGES.count), int)
        variance, squared_error = np.zeros((2, k, EDGES.count))
        nees_sum, within = np.zeros(EDGES.count), np.zeros((EDGES.count, len(TAU)), int)
        quantiles = chi_square_quantiles(np.array(TAU), k)
        for b, (low, high) in enumerate(
            zip([0, *EDGES.edges], [*EDGES.edges, np.inf], strict=True)
        ):
            for d in range(k):
                rows = (sigma[:, d] >= low) & (sigma[:, d] < high)
                n[d, b] = rows.sum()
                variance[d, b] = (sigma[rows, d] ** 2).sum()
                squared_error[d, b] = (error[rows, d] ** 2).sum()
            rows = (generalised >= low) & (generalised < high)
            n[k, b] = rows.sum()
            nees_sum[b] = nees[rows].sum()
            within[b] = (nees[rows, None] <= quantiles).sum(axis=0)
        return StageBins(n, variance, squared_error, nees_sum, within)


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """What the queries of the README gave."""
    folder = tmp_path_factory.mktemp("sidecar")
    port = free_port()
    config = f'[metrics]\nrefresh_seconds = 0.2\n[state]\nfolder = "{folder / "kept"}"\n'
    options = ("--http-address", f"127.0.0.1:{port}")
    detections = Detections()
    series = 'calibration_bin_detections_total{dimension="joint",stage="raw"}'
    running = []

    def start() -> Sidecar:
        running.append(Sidecar(folder, config, *options))
        return running[-1]

    prometheus = Prometheus(folder, {"sidecar": port})
    try:
        sidecar = start()
        # What a slice counts before its first scrape is in no increase: the first ten frames.
        for times in (1, 2):
            detections.send(sidecar)
            prometheus.seen("sidecar", series, times * FRAMES * ROWS)
        sidecar.stop()
        prometheus.gone("sidecar")
        detections.send(start())
        end = prometheus.seen("sidecar", series, FRAMES * ROWS)
        found = {
            name: prometheus.query(query.replace("van|bus", "sidecar"), end)
            for name, query in readme_queries().items()
        }
        found["n"] = prometheus.query(f"increase({series}[30m])", end)
        yield found
    finally:
        for each in running:
            each.end()
        prometheus.stop()


@pytest.mark.parametrize("measure", ["ence", "uce", "qce", "nees"])
def test_what_prometheus_makes_of_a_sidecar_is_what_numpy_makes_of_its_detections(asked, measure):
    expected = measures(Detections().bins(), TAU)[measure]
    values = {
        (SLICE, stage, dimension): value
        for stage in STAGES
        for dimension, value in expected.items()
    }
    found = {
        (labels["slice"], labels["stage"], labels["dimension"]): value
        for labels, value in asked[measure]
    }
    assert len(found) == len(asked[measure])
    assert found == pytest.approx(values, rel=1e-9)


def test_no_detection_is_counted_twice_after_a_restart_that_kept_its_statistics(asked):
    n = Detections().bins().n[-1]
    seen = {int(labels["bin"]): value for labels, value in asked["n"]}
    # Ten frames before the restart and ten after it. The start is extrapolated as far back as
    # the counter was 0, half as much again; the end by less than a scrape.
    growth = np.array([seen[b] for b in range(EDGES.count)])[n > 0] / (2 * n[n > 0])
    assert (np.abs(growth - growth[0]) < 1e-9).all()
    assert 1 < growth[0] < 1.7
    assert all(seen[b] == 0 for b in np.flatnonzero(n == 0).tolist())
