"""What deploy/compose.yml says, and its services as real processes where the program exists; no
tests.
"""

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.components import program
from tests.deploy.scraping import ROOT, Answering, Started, free_port

FILE = ROOT / "deploy" / "compose.yml"
CONFIGS = FILE.parent / "compose"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def mounts(service: str) -> dict[Path, str]:
    """Files and folders of ours, by where the container of a service has them."""
    found = {}
    for volume in SERVICES[service].get("volumes", []):
        source, target, *_ = volume.split(":")
        if source.startswith("."):
            found[FILE.parent / source] = target
    return found


def laid_out(folder: Path, service: str) -> Path:
    """A folder in place of the root of the container of a service, its mounts as links in it."""
    for ours, target in mounts(service).items():
        link = folder / target.removeprefix("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(ours)
    return folder


class Process:
    """A program of ours, its output in a file."""

    def __init__(self, log: Path, *arguments: str, folder: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "monitor", *arguments],
                cwd=folder,
                env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def told(self) -> str:
        """All of its output up to now."""
        return self.log.read_text("utf-8")

    def kill(self) -> None:
        """As by the kernel."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """As compose does; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


class Alertmanager(Started):
    """With the command of the compose file; only its address and its folder are others."""

    def __init__(self, folder: Path) -> None:
        root = laid_out(folder / "alertmanager", "alertmanager")
        command = [
            re.sub(r"=(/.*)", lambda path: f"={root}{path[1]}", word)
            for word in SERVICES["alertmanager"]["command"]
        ]
        alertmanager = program("prometheus-alertmanager")
        super().__init__(folder / "alertmanager.txt", alertmanager, *command)


class Stack:
    """Sidecar, traffic, Prometheus, Alertmanager: configurations and commands of the compose file,
    addresses moved to free ports.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "state").mkdir()
        self.grpc, self.http = free_port(), free_port()
        text = (CONFIGS / "sidecar.toml").read_text("utf-8")
        (folder / "sidecar.toml").write_text(text.replace("0.0.0.0:9464", f"127.0.0.1:{self.http}"))
        self.running: list[Process | Started] = []

    def start(self) -> None:
        """The traffic first: order must not matter."""
        self.demo = self._started("demo")
        self.sidecar = self._started("sidecar")
        self.alertmanager = Alertmanager(self.folder)
        self.running.append(self.alertmanager)
        self.prometheus = ComposedPrometheus(self.folder, self.http, self.alertmanager.address)
        self.running.append(self.prometheus)

    def _started(self, service: str) -> Process:
        moved = {
            "/etc/calibration-monitor/sidecar.toml": str(self.folder / "sidecar.toml"),
            "127.0.0.1:50051": f"127.0.0.1:{self.grpc}",
        }
        words = [moved.get(word, word) for word in SERVICES[service]["command"]]
        if service == "sidecar":
            words += ["--grpc-address", f"127.0.0.1:{self.grpc}"]
        found = Process(self.folder / f"{service}.txt", *words, folder=self.folder / "state")
        self.running.append(found)
        return found

    def restart_sidecar(self) -> None:
        """Killed, and started again."""
        self.sidecar.kill()
        self.sidecar = self._started("sidecar")

    def end(self) -> None:
        """Nothing stays."""
        for one in self.running:
            if isinstance(one, Process):
                one.kill()
            else:
                one.stop()


class ComposedPrometheus(Answering):
    """With the configuration of the compose file and its rules, all of it twice a second."""

    def __init__(self, folder: Path, port: int, alertmanager: str) -> None:
        root = laid_out(folder / "prometheus_root", "prometheus") / "etc" / "prometheus"
        text = (root / "prometheus.yml").read_text("utf-8")
        text = re.sub(r"(scrape|evaluation)_interval: \d+s", r"\1_interval: 500ms", text)
        text = text.replace("sidecar:9464", f"127.0.0.1:{port}")
        text = text.replace("alertmanager:9093", alertmanager)
        moved = root / "moved.yml"
        moved.write_text(text, "utf-8")
        super().__init__(
            folder / "prometheus.txt",
            program("prometheus"),
            f"--config.file={moved}",
            f"--storage.tsdb.path={folder / 'prometheus'}",
        )


@contextlib.contextmanager
def stack(folder: Path) -> Iterator[Stack]:
    """All of it, as long as the context lasts."""
    found = Stack(folder)
    try:
        found.start()
        yield found
    finally:
        found.end()
