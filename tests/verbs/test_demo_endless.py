"""The demo's drive through a sidecar that runs already, and may come late."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from typing import cast

import pytest

from monitor.cli import main
from monitor.client import Access, InvalidAccess
from monitor.commands.demo.endless import (
    Connection,
    CycleDrive,
    CycleLog,
    config_text,
    drive_in_cycles,
)
from monitor.commands.demo.plan import Plan
from monitor.commands.demo.scene import simulate
from monitor.commands.sidecar_client import Client, SidecarUnavailable
from monitor.config import Config
from monitor.frames.frame import Header
from tests.deploy.scraping import free_port, until
from tests.served import ROOT, Sidecar

# A cycle of a few seconds: nothing is found out in it, but all is sent.
SHORT = Plan(duration_s=4.0, speed=2.0)
MATCHED = 'ground_truth_total{outcome="matched"}'


def test_the_printed_configuration_is_that_of_the_demo_and_a_sidecar_takes_it(capsys):
    assert main(["demo", "--print-config"]) == 0
    printed = tomllib.loads(capsys.readouterr().out)
    assert printed == tomllib.loads(config_text(1.0))
    config = Config.model_validate(printed)
    assert config.promotion.mode == "automatic"
    assert config.tracker.kind == "embedded"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--forever", "--json"), "--json"),
        (("--address", "127.0.0.1", "--forever"), "--address"),
        (("--address", "127.0.0.1:1", "--speed", "2"), "--speed 2"),
    ],
)
def test_options_that_do_not_go_together_are_named(options, named, capsys):
    assert main(["demo", *options]) == 1
    assert named in capsys.readouterr().err


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory):
    """For all of them, one after the other; the last one kills it."""
    found = Sidecar(tmp_path_factory.mktemp("sidecar"), config_text(1.0), "--no-snapshot")
    yield found
    found.end()


def test_a_cycle_is_sent_whole_and_every_label_of_it_matches(sidecar):
    lines: list[str] = []
    drive_in_cycles(CycleDrive(SHORT, sidecar.grpc, cycles=1, patience_s=0.0), lines.append)
    # Frames of 4 s, 60 a second.
    (sent,) = re.findall(r"stopped: 240 frames, ([\d,]+) labels matched", lines[-1])
    counts = sidecar.calibration().counts
    assert counts.frames == 240
    assert counts.matched == int(sent.replace(",", "")) > 5000
    told = [line.partition(" s  ")[2] for line in lines]
    assert told[0].startswith("connected to the sidecar")
    assert [line.partition(":")[0] for line in told[1:4]] == ["healthy", "fault", "the fault ends"]


def test_another_drive_through_the_same_sidecar_goes_on_later_and_under_new_numbers(sidecar):
    drive_in_cycles(CycleDrive(SHORT, sidecar.grpc, cycles=1, patience_s=0.0), _nobody)
    counts = sidecar.calibration().counts
    assert counts.frames == 480
    until(lambda: sidecar.metric(MATCHED) == counts.matched, "the metrics")
    for outcome in ("orphan", "duplicate", "too_late", "refused", "unusable"):
        assert sidecar.metric(f'ground_truth_total{{outcome="{outcome}"}}') == 0


def test_without_patience_a_sidecar_that_goes_ends_the_drive(sidecar):
    def kill_at_the_fault(line: str) -> None:
        if "fault:" in line:
            sidecar.process.kill()

    with pytest.raises(SidecarUnavailable):
        drive_in_cycles(CycleDrive(SHORT, sidecar.grpc, patience_s=0.0), kill_at_the_fault)


def test_a_token_that_cannot_be_read_is_no_sidecar_to_wait_for(tmp_path):
    access = Access(token_file=str(tmp_path / "token"))
    with pytest.raises(InvalidAccess, match="cannot be read"):
        drive_in_cycles(CycleDrive(SHORT, "127.0.0.1:1", access), _nobody)


def _nobody(_: str) -> None:
    """Nobody reads it."""


@pytest.mark.timeout(100)
def test_it_waits_for_a_sidecar_says_what_that_will_not_show_and_ends_in_order_at_sigterm(tmp_path):
    port = free_port()
    command = [sys.executable, "-m", "monitor", "demo", "--address", f"127.0.0.1:{port}"]
    log = tmp_path / "demo.txt"
    with log.open("wb") as output:
        demo = subprocess.Popen(
            [*command, "--forever", "--duration", "20"], stdout=output, stderr=output, cwd=ROOT
        )
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
    assert any("slices are not the sensors" in line for line in told)
    assert told[-1].startswith("stopped: ")


# ---- a sidecar that takes nothing


class Stuck:
    """A stream on which nothing goes out and nothing comes in."""

    track_dimensions = ()

    async def send(self, data: bytes) -> None:
        await asyncio.Event().wait()

    async def receive(self) -> bytes:
        await asyncio.Event().wait()
        return b""


class StuckClient:
    """Opens such streams."""

    async def open(self, header: Header) -> Stuck:
        return Stuck()

    def truth(self) -> Stuck:
        return Stuck()

    async def events(self) -> AsyncIterator[object]:
        await asyncio.Event().wait()
        yield None


def test_frames_that_a_sidecar_does_not_take_are_left_out_and_not_kept():
    async def offered() -> int:
        tale = CycleLog(SHORT, _nobody)
        client = cast("Client", StuckClient())
        connection = await Connection.opened(client, tale, lambda stamp_ns: 0.0)
        running = asyncio.create_task(connection.run())
        taken = 0
        for frame in simulate(SHORT.settings, 1, 30.0):
            taken += connection.offer(frame)
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return taken

    # Of 1800: eight wait for each of six sensors, and one is on its way.
    assert asyncio.run(offered()) == 6 * (8 + 1)
