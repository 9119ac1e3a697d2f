"""The demo for real: through a sidecar of its own, and through one that comes late."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request

import pytest

from monitor.cli import main
from monitor.client import Access, InvalidAccess
from monitor.commands.demo.run import Player, config_text
from monitor.commands.demo.story import Plan
from monitor.commands.sidecar_client import SidecarUnavailable
from monitor.config import Config
from tests.deploy.scraping import free_port, until
from tests.served import PATIENCE, ROOT, Sidecar

DEMO = [sys.executable, "-m", "monitor", "demo"]
_PATIENCE = 580.0  # s; it takes 40 where nothing else runs
# A cycle of a few seconds: nothing is found out in it, but all is sent.
SHORT = Plan(duration_s=4.0, patience_s=0.0)
MATCHED = 'ground_truth_total{outcome="matched"}'


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return tmp_path_factory.mktemp("demo") / "demo.html"


@pytest.fixture(scope="module")
def told(page):
    """What a real drive through a real sidecar printed with --json."""
    command = [*DEMO, "--duration", "30", "--speed", "1.5", "--json", "--output", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_the_sidecar_counts_what_the_demo_sent(told):
    assert told["counts_agree"], told["differences"]
    for count in ("frames", "detections", "matched"):
        assert told["sidecar"][count] == told[count] > 0


@pytest.mark.campaign
def test_the_story_is_whole_and_in_order_and_nothing_of_it_is_asked_for_by_the_demo(told):
    assert told["story_is_whole"], told["missing"]
    steps = [step for step in told["story"] if step["slice"] == told["faulty_sensor"]]
    promoted = next(s for s in steps if s["what"] == "promoted")
    back = [s for s in steps if s["what"] == "rolled_back"][-1]
    begins, ends = told["fault_seconds"], told["fault_end_seconds"]
    assert begins < promoted["seconds"] < ends < back["seconds"]
    for step in (promoted, back):
        assert step["evidence"]["log10_better"] >= step["evidence"]["log10_threshold"]
    assert back["after"] == told["sidecar"]["recalibrator_version"]
    assert list(told["phase_seconds"]) == ["healthy", "fault", "corrected", "after", "home"]
    assert begins < told["page_seconds"] < ends


@pytest.mark.campaign
def test_the_fault_reads_five_is_corrected_and_then_reads_as_it_is_sent(told):
    nees = {
        phase: (cell["raw"]["nees_over_k"], cell["recalibrated"]["nees_over_k"])
        for phase, cell in told["sensors"][told["faulty_sensor"]].items()
    }
    assert nees["fault"][0] == nees["fault"][1] > 3
    # The first step may be a small one, as long as tracks of the time before are in it.
    assert 0.6 < nees["corrected"][1] < nees["corrected"][0] / 1.5
    assert nees["after"][1] < nees["after"][0] / 1.5
    for phase in ("healthy", "home"):
        assert nees[phase][0] == nees[phase][1] == pytest.approx(1, abs=0.6)


@pytest.mark.campaign
def test_a_covariance_is_learned_for_the_sensor_that_reports_none(told):
    bare = told["without_covariance"]
    assert bare["sensor"] == "lidar"
    assert bare["labelled_objects"] > 10
    assert bare["learned_seconds"] > 6
    assert bare["nees_over_k"]["assumed"] < 0.15
    assert 0.5 < bare["nees_over_k"]["estimated"] < 2
    assert "lidar reports no covariance" in told["headline"]


@pytest.mark.campaign
def test_objects_keep_their_tracks_again_when_the_fault_is_corrected(told):
    tracking = told["tracking"]
    for phase in ("healthy", "fault"):
        # The sidecar's tracker and the demo's own are one code, fed the same.
        assert tracking[phase]["recalibrated"] == tracking[phase]["raw"]
    raw, recalibrated = tracking["corrected"]["raw"], tracking["corrected"]["recalibrated"]
    assert recalibrated["tracked"] > raw["tracked"]
    assert recalibrated["id_switches"] < raw["id_switches"]


@pytest.mark.campaign
def test_the_page_has_the_headline_and_names_no_other_address(told, page):
    text = page.read_text("utf-8")
    assert told["headline"].partition(".")[0] in text
    assert "<svg" in text
    assert "://" not in text


def test_an_interrupted_demo_ends_with_130_and_takes_its_sidecar_along():
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None and demo.stderr is not None
        address = re.search(r"http://127\.0\.0\.1:(\d+)/", demo.stdout.readline())
        assert address is not None
        assert "connected" in demo.stdout.readline()
        assert "healthy" in demo.stdout.readline()
        demo.send_signal(signal.SIGINT)
        assert demo.wait(20) == 130
        assert demo.stderr.read() == ""
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(address[1]))) != 0


@pytest.mark.parametrize(
    "options",
    [
        ("--duration", "19"),
        ("--duration", "nan"),
        ("--speed", "0"),
        ("--speed", "11"),
        ("--seed", "-1"),
    ],
)
def test_an_option_out_of_range_is_named(options, capsys):
    with pytest.raises(SystemExit) as end:
        main(["demo", *options])
    assert end.value.code == 2
    assert f"'{options[1]}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--forever", "--json"), "--json"),
        (("--forever", "--output", "page.html"), "--output"),
        (("--address", "127.0.0.1", "--forever"), "--address"),
        (("--hold", "--forever"), "--hold"),
        (("--hold", "--address", "127.0.0.1:1"), "--hold"),
        (("--address", "127.0.0.1:1", "--speed", "2"), "--speed 2"),
    ],
)
def test_options_that_do_not_go_together_are_named(options, named, capsys):
    assert main(["demo", *options]) == 1
    assert named in capsys.readouterr().err


def test_the_printed_configuration_is_that_of_the_demo_and_a_sidecar_takes_it(capsys):
    assert main(["demo", "--print-config"]) == 0
    printed = tomllib.loads(capsys.readouterr().out)
    assert printed == tomllib.loads(config_text(1.0))
    config = Config.model_validate(printed)
    assert config.promotion.mode == "automatic"
    assert config.tracker.kind == "embedded"


# ---- through a sidecar that runs already


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory):
    """For all of them, one after the other; the last one kills it."""
    found = Sidecar(tmp_path_factory.mktemp("sidecar"), config_text(1.0), "--no-snapshot")
    yield found
    found.end()


def played(address: str) -> list[str]:
    lines: list[str] = []
    asyncio.run(Player(SHORT, address, lines.append).run())
    return [line.partition(" s  ")[2] for line in lines]


def test_a_cycle_that_is_not_corrected_is_sent_whole_says_so_and_every_label_matches(sidecar):
    lines = played(sidecar.grpc)
    counts = sidecar.calibration().counts
    # 60 a second: at least 4 s, and those for which the end is shown.
    assert 240 <= counts.frames < 720
    assert counts.matched > 3000
    words = [line.partition(":")[0] for line in lines]
    assert words[0].startswith("connected to the sidecar at ")
    assert words[1:3] == ["healthy", "fault"]
    assert "not corrected within 1 s" in lines
    assert "the fault ends" in words


def test_another_drive_through_the_same_sidecar_goes_on_later_and_under_new_numbers(sidecar):
    before = sidecar.calibration().counts.frames
    played(sidecar.grpc)
    counts = sidecar.calibration().counts
    assert counts.frames >= before + 240
    until(lambda: sidecar.metric(MATCHED) == counts.matched, "the metrics")
    for outcome in ("orphan", "duplicate", "too_late", "refused", "unusable"):
        assert sidecar.metric(f'ground_truth_total{{outcome="{outcome}"}}') == 0


def test_without_patience_a_sidecar_that_goes_ends_the_drive(sidecar):
    def kill_at_the_fault(line: str) -> None:
        if "fault:" in line:
            sidecar.process.kill()

    with pytest.raises(SidecarUnavailable):
        asyncio.run(Player(SHORT, sidecar.grpc, kill_at_the_fault).run())


def test_a_token_that_cannot_be_read_is_no_sidecar_to_wait_for(tmp_path):
    access = Access(token_file=str(tmp_path / "token"))
    with pytest.raises(InvalidAccess, match="cannot be read"):
        asyncio.run(Player(SHORT, "127.0.0.1:1", print, access).run())


@pytest.mark.timeout(100)
def test_it_waits_for_a_sidecar_says_what_that_will_not_show_and_ends_in_order_at_sigterm(tmp_path):
    port = free_port()
    command = [*DEMO, "--address", f"127.0.0.1:{port}", "--forever", "--duration", "20"]
    log = tmp_path / "demo.txt"
    with log.open("wb") as output:
        demo = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT)
    sidecar = None
    try:
        until(lambda: "waits for a sidecar at" in log.read_text("utf-8"), "a line")
        sidecar = Sidecar(tmp_path, "", "--no-snapshot", "--grpc-address", f"127.0.0.1:{port}")
        until(lambda: "mode is advise" in log.read_text("utf-8"), "what will not happen")
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(20) == 0
    finally:
        demo.kill()
        demo.wait()
        if sidecar is not None:
            sidecar.end()
    told = [line.partition(" s  ")[2] for line in log.read_text("utf-8").splitlines()]
    assert told[1] == f"connected to the sidecar at 127.0.0.1:{port}"
    assert any("keeps no tracks" in line for line in told)
    assert told[-1].startswith("stopped: ")


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_the_status_page_stays_open_after_the_end_until_it_is_interrupted():
    command = [*DEMO, "--hold", "--duration", "20", "--speed", "1.5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        told: list[str] = []
        while not told or not told[-1].startswith("open "):
            told.append(demo.stdout.readline())
            assert told[-1], told
        assert told[0].startswith("status page http://127.0.0.1:")
        with urllib.request.urlopen(told[-1].split()[1], timeout=PATIENCE) as response:
            assert b"camera_front" in response.read()
        demo.send_signal(signal.SIGINT)
        demo.wait(_PATIENCE)
    # The story may not be whole on a computer that is busy: that is said, and nothing else is.
    assert demo.returncode in (0, 1)
