"""`serve` as a command: what it refuses to start with, and how it ends."""

import os
import signal

import pytest
from grpc_health.v1 import health_pb2

from monitor.cli import main
from monitor.recalibration.selection import IDENTITY
from tests.foreign_client import (
    scaling,
    serve_to_the_end,
)
from tests.served import (
    BY_STREAM,
    PATIENCE,
)


@pytest.mark.parametrize("key", ["grpc_address", "http_address"])
def test_a_second_sidecar_on_the_same_port_says_so_and_ends(shared, key):
    taken = shared.grpc if key == "grpc_address" else shared.http.removeprefix("http://")
    done = serve_to_the_end(f"--{key.replace('_', '-')}", taken)
    assert done.returncode == 1
    assert f"[server] {key} = '{taken}'" in done.stderr
    assert "Choose a free port" in done.stderr
    assert "Traceback" not in done.stderr
    assert "listening" not in done.stdout
    assert shared.health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE).status == 1


def check_command(tmp_path, text):
    path = tmp_path / "checked.toml"
    path.write_text(text, encoding="utf-8")
    return ["--config", str(path), "--check"]


def test_a_valid_configuration_is_checked_without_serving(tmp_path):
    document = tmp_path / "scaling.json"
    document.write_text(scaling(2.0, 3.0), encoding="utf-8")
    text = BY_STREAM + f"[recalibration]\nrecalibrator = '{document}'\n[state]\nname = 'front'\n"
    done = serve_to_the_end(*check_command(tmp_path, text))
    assert (done.returncode, done.stderr) == (0, "")
    assert "valid" in done.stdout
    (line,) = done.stdout.splitlines()
    assert line.startswith("configuration is valid; recalibrator variance-scaling-")
    assert ", or what the last run left in /" in line
    assert line.endswith("/front")


@pytest.mark.parametrize(
    ("text", "flags"), [("[state]\nfolder = ''\n", []), ("", ["--no-snapshot"])]
)
def test_a_check_speaks_of_the_last_run_only_where_it_would_be_asked(tmp_path, capsys, text, flags):
    assert main(["serve", *check_command(tmp_path, text), *flags]) == 0
    printed = capsys.readouterr().out
    assert printed == f"configuration is valid; recalibrator {IDENTITY.version}\n"
    assert main(["serve", *check_command(tmp_path, "")]) == 0
    printed = capsys.readouterr().out
    assert f"{IDENTITY.version}, or what the last run left in " in printed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\ngrpc_port = 1\n", ["server.grpc_port", "1"]),
        ("[sever]\n", ["sever"]),
        ("[statistics]\ntau = [0.9, 0.5]\n", ["statistics.tau", "ascending"]),
        ("[statistics]\nbins = 0\n", ["statistics.bins", "0"]),
        ("[recalibration]\nmode = 'improve'\n", ["recalibration.mode", "improve"]),
        ("[recalibration]\nrecalibrator = '/nowhere/r.json'\n", ["recalibrator", "/nowhere/r"]),
        ("[server\n", ["TOML"]),
    ],
)
def test_an_invalid_configuration_is_refused_by_key_value_and_remedy(tmp_path, capsys, text, words):
    assert main(["serve", *check_command(tmp_path, text)]) == 1
    output, errors = capsys.readouterr()
    assert output == ""
    (line,) = errors.splitlines()
    for word in words:
        assert word in line


def test_an_invalid_configuration_ends_the_process_with_a_line_and_1(tmp_path):
    done = serve_to_the_end(*check_command(tmp_path, "[server]\ngrpc_port = 1\n"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "server.grpc_port" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_recalibrator_that_is_none_keeps_the_sidecar_from_starting(tmp_path):
    document = tmp_path / "broken.json"
    document.write_text("{}", encoding="utf-8")
    path = tmp_path / "sidecar.toml"
    path.write_text(f"[recalibration]\nrecalibrator = '{document}'\n", encoding="utf-8")
    done = serve_to_the_end("--config", str(path))
    assert done.returncode == 1
    assert str(document) in done.stderr
    assert "format" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999"])
@pytest.mark.parametrize("key", ["grpc-address", "http-address"])
def test_an_address_without_a_port_is_refused_by_name(capsys, key, address):
    assert main(["serve", f"--{key}", address, "--check"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert key.replace("-", "_") in line
    assert address in line


def test_interrupting_ends_in_order(start):
    sidecar = start()
    os.kill(sidecar.process.pid, signal.SIGINT)
    assert sidecar.process.wait(PATIENCE) == 0
    assert sidecar.stopped() == (0, 0, 0)
