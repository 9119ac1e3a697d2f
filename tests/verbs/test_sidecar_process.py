"""A sidecar as a child: it comes up, it goes away, and its end is told."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.commands.sending import running_sidecar
from monitor.commands.sidecar_client import SidecarFailed


def listens(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_a_sidecar_listens_as_long_as_the_context_lasts():
    with running_sidecar('[statistics]\nslice_by = ["stream"]\n') as addresses:
        assert listens(addresses.grpc)
        assert listens(addresses.http)
    assert not listens(addresses.grpc)
    assert not listens(addresses.http)


def test_a_sidecar_that_does_not_start_is_told_with_its_last_words():
    with (
        pytest.raises(SidecarFailed, match=r"exit code 1(.|\n)*\[statistics\.bins\] = -3"),
        running_sidecar("[statistics]\nbins = -3\n"),
    ):
        pass


def test_a_sidecar_that_ends_by_itself_is_told():
    def child() -> int:
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
        return int(children.read_text().split()[-1])

    with (
        pytest.raises(SidecarFailed, match="killed by signal 9 while it was needed"),
        running_sidecar(""),
    ):
        os.kill(child(), signal.SIGKILL)
        raise ConnectionResetError("the stream ended")


def test_an_error_of_the_body_stays_what_it_is():
    with pytest.raises(ZeroDivisionError), running_sidecar("") as addresses:
        raise ZeroDivisionError
    assert not listens(addresses.grpc)


SERVE = [sys.executable, "-m", "monitor", "serve", "--exit-with-parent", "--no-snapshot"]
SERVE += ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]


def test_a_sidecar_whose_parent_is_gone_stops_by_itself():
    with subprocess.Popen(
        SERVE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as sidecar:
        assert sidecar.stdin is not None and sidecar.stdout is not None
        assert sidecar.stdout.readline().startswith(b"listening ")
        sidecar.stdin.close()
        assert sidecar.wait(20) == 0


def test_what_a_sidecar_of_ours_counts_ends_with_it(tmp_path):
    with running_sidecar(f'[state]\nfolder = "{tmp_path}/kept"\nevery_seconds = 0.1\n'):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_sidecar_that_ends_with_its_parent_keeps_what_it_was_told_to(tmp_path):
    config = tmp_path / "sidecar.toml"
    config.write_text(f'[state]\nfolder = "{tmp_path}/kept"\n', "utf-8")
    serve = [*(word for word in SERVE if word != "--no-snapshot"), "--config", str(config)]
    with subprocess.Popen(
        serve, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as sidecar:
        assert sidecar.stdin is not None and sidecar.stdout is not None
        assert sidecar.stdout.readline().startswith(b"listening ")
        sidecar.stdin.close()
        assert sidecar.wait(20) == 0
    assert (tmp_path / "kept" / "state.db").exists()


def test_exit_with_parent_needs_a_pipe():
    done = subprocess.run(
        SERVE, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "standard input is not a pipe" in done.stderr
