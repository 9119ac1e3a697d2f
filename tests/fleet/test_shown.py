"""serve --state F --read-only: a fleet looks like one vehicle that has counted everything."""

from __future__ import annotations

import asyncio
import re
import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from monitor.pipeline.frame_path import Pipeline
from monitor.service.http import Endpoint, Exporting
from monitor.service.server import Server
from monitor.statistics.holdings import Holdings
from monitor.statistics.observations import finished
from monitor.statistics.reading import read
from monitor.statistics.state import StatisticsState
from monitor.store.state_files import read_state
from monitor.v1 import perception_monitor_pb2 as pb
from tests.commands.spoken import done, found, refused, spoken
from tests.exported import snapshot
from tests.fleet.uploads import file_of
from tests.labelled import header, labelled_frame
from tests.piped import pipeline_of
from tests.served import PATIENCE, eventually
from tests.service.handled import service_of, talked

# None of them at its default.
SETTINGS: dict[str, Any] = {
    "slice_by": ("class", "stream"),
    "windows": ("2m", "30m"),
    "panes": 4,
    "micro_bins_per_octave": 16,
    "lowest_deviation": 2.0**-12,
    "tau": (0.5, 0.9),
}
CLASSES = ("car", "bus")
FRAMES = 30
# Families that are read from statistics.
READ = re.compile(
    r"calibration_(matched|ence|uce|qce|nees|effective|coverage|window|class|predicted)"
)


def vehicle(*cars: int, frames: int = FRAMES) -> Pipeline:
    """Has counted the frames of some cars, 20 s after one another."""
    pipeline = pipeline_of(statistics=SETTINGS)
    service = service_of(pipeline)
    for car in cars:
        sent = (
            labelled_frame(car, n, rows=40, classes=(0, 1), stamp_s=20 * n) for n in range(frames)
        )
        messages = [header(f"car{car}", CLASSES), *sent]
        talked(service, *(one.SerializeToString() for one in messages), header=None)
    return pipeline


def state_of(pipeline: Pipeline) -> StatisticsState:
    return finished(pipeline.live.state_in_steps())


def metrics_of(pipeline: Pipeline) -> str:
    endpoint, server = Endpoint(), cast(Server, SimpleNamespace(address="here:1"))
    live = snapshot(edges=pipeline.live.accumulator.edges, pipeline=pipeline)
    asyncio.run(Exporting(live, endpoint.published, server).refresh())
    return endpoint.published.metrics.decode()


def read_in(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if READ.match(line))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Uploads of two cars, two each, and a pipeline that has counted all."""
    folder = tmp_path_factory.mktemp("fleet")
    for car in range(2):
        before = state_of(vehicle(car, frames=FRAMES // 2))
        now = state_of(vehicle(car))
        for number, gained in enumerate((before, finished(now.since(before))), start=1):
            held = replace(gained, holds=Holdings.of(f"car {car}", "1", number))
            (folder / f"{car}{number}.state").write_bytes(file_of(held))
    return folder, vehicle(0, 1)


def test_a_fleet_is_served_like_a_vehicle_that_has_counted_everything(fleet, start, tmp_path):
    folder, whole = fleet
    path = tmp_path / "fleet.state"
    # At first without the last upload of each.
    done("merge", folder / "01.state", folder / "11.state", "-o", path)
    # With a vehicle's own configuration, nothing is uploaded.
    upload = f"file://{tmp_path}/up/{{vehicle}}/{{epoch}}/{{sequence}}.state"
    configured = f"[fleet]\nupload = '{upload}'\nvehicle = 'ops'\nevery_minutes = 0.001\n"
    configured += "[metrics]\nrefresh_seconds = 0.2\n"
    sidecar = start(configured, "--state", path, "--read-only")
    assert (sidecar.metric("fleet_vehicles"), sidecar.metric("fleet_uploads")) == (2, 2)
    for call in (
        sidecar.monitor.Process(iter([header("car", CLASSES)]), timeout=PATIENCE),
        sidecar.monitor.ReportGroundTruth(iter([pb.ReportGroundTruthRequest()]), timeout=PATIENCE),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "shows a stored state" in caught.value.details()
    with pytest.raises(grpc.RpcError) as caught:
        sidecar.monitor.ProcessFrame(pb.ProcessFrameRequest(), timeout=PATIENCE)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    # SIGHUP brings what the file has gained.
    done("merge", path, folder, "-o", path)
    data = path.read_bytes()
    sidecar.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: sidecar.metric("fleet_uploads") == 4)
    expected = read_in(metrics_of(whole))
    assert len(expected) > 100
    # Windows are read every few seconds.
    eventually(lambda: read_in(sidecar.get("/metrics")) == expected, 3 * PATIENCE)
    assert read_in(sidecar.get("/metrics")) == expected
    page = sidecar.get("/")
    assert "read only: 4 uploads of 2 vehicles, fleet.state" in page
    assert "No frames" not in page
    assert sidecar.calibration().slices
    # An export holds the uploads as the file does: nobody adds them once more.
    exported = folder.parent / "exported.state"
    done("export", "--address", sidecar.grpc, "-o", exported)
    assert len(read_state(exported).state.holds) == 4
    sidecar.stop()
    assert path.read_bytes() == data
    assert sorted(one.name for one in path.parent.iterdir()) == ["0", "fleet.state"]
    assert sorted(one.name for one in (tmp_path / "0").iterdir()) == ["sidecar.toml", "stderr.txt"]


def test_a_state_is_shown_read_only_or_not_at_all(fleet, tmp_path):
    assert "give both" in refused("serve", "--state", fleet[0] / "01.state", "--check")
    assert "give both" in refused("serve", "--read-only", "--check")


def test_a_fleet_is_judged_and_reported_as_far_as_sums_tell(fleet, tmp_path):
    folder, whole = fleet
    path, page = tmp_path / "fleet.state", tmp_path / "fleet.html"
    done("merge", folder, "-o", path)
    answer = found("evaluate", path)
    assert (answer["rows"], answer["uploads"], answer["vehicles"]) == (2 * FRAMES * 40, 4, 2)
    assert list(answer["groups"]) == [f"car{n}/{name}" for n in (0, 1) for name in ("bus", "car")]
    readings = dict(finished(whole.live.in_steps()))
    for verdict in answer["verdicts"]:
        of = read(readings[verdict["group"]].raw).dimensions[verdict["dimension"]]
        low, high = verdict["sigma_factor_interval"]
        assert low < verdict["sigma_factor"] < high
        assert verdict["sigma_factor"] == of.std_scaling
        assert verdict["n_eff"] == of.n_eff
        assert verdict["bias_interval"] == list(of.bias_interval)
    text = done("evaluate", path, "--full", "--bins", 5)
    assert (
        f"{2 * FRAMES * 40:,} rows with ground truth in 4 slices; 4 uploads of 2 vehicles" in text
    )
    assert "Not known from sums: whether σ ranks the errors" in text
    code, _, err = spoken(
        "evaluate", path, "--fail-if", "sigma_factor > 0.5", "--fail-if", "ence>9"
    )
    assert code == 3 and "car0/car, x: sigma_factor is" in err and "ence" not in err
    assert "holds sums, and no rows" in refused("evaluate", path, "--by", "range")
    done("report", "--state", path, "--output", page)
    assert "4 uploads of 2 vehicles" in page.read_text("utf-8")
