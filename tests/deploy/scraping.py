"""Runs a real Prometheus on the loopback, and asks it; no tests."""

import json
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.components import program

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
RECORDING = FOLDER / "recording_rules.yml"
RECALIBRATORS = FOLDER / "alert_rules.yml"
DRIFT = FOLDER / "drift_alert_rules.yml"
SERVICE = FOLDER / "service_alert_rules.yml"
ALERT_FILES = (RECALIBRATORS, DRIFT, SERVICE)
# All that a sidecar exports, but for its process.
EXPOSITION = ROOT / "tests" / "golden" / "metrics.txt"
PATIENCE = 30  # s; far above what anything here takes


def printed(*command: str, given: str | None = None, within_s: float = 100) -> str:
    """Returns what a program prints, which must be content."""
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=within_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def promtool(*arguments: str, given: str | None = None, within_s: float = 100) -> str:
    return printed(program("promtool"), *arguments, given=given, within_s=within_s)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def until(check, what):
    """Returns what the check finds, as soon as it finds anything."""
    end = time.monotonic() + PATIENCE
    while not (found := check()):
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.1)
    return found


class Prometheus:
    """Scrapes and evaluates twice a second; tells a second later what has ended.

    target  port that it scrapes
    rules   files; their intervals are shortened
    """

    def __init__(self, folder: Path, target: int, rules: Sequence[Path] = ()) -> None:
        for path in rules:
            text = re.sub(r"interval: \d+[sm]", "interval: 500ms", path.read_text("utf-8"))
            text = re.sub(r"keep_firing_for: \d+m", "keep_firing_for: 1s", text)
            (folder / path.name).write_text(text, "utf-8")
        scraped = {"targets": [f"127.0.0.1:{target}"], "labels": {"instance": "demo"}}
        settings = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [path.name for path in rules],
            "scrape_configs": [{"job_name": "calibration_monitor", "static_configs": [scraped]}],
        }
        config, self.log = folder / "prometheus.yml", folder / "prometheus.txt"
        config.write_text(json.dumps(settings), "utf-8")  # JSON is YAML
        self.address = f"127.0.0.1:{free_port()}"
        self.process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'prometheus'}",
                f"--web.listen-address={self.address}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=self.log.open("wb"),
        )
        try:
            until(self.ready, "Prometheus to be ready")
        except BaseException:
            self.stop()
            raise

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text("utf-8")
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=PATIENCE):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def readme_queries() -> dict[str, str]:
    """Reads them by the word that each begins with in a comment."""
    readme = (ROOT / "README.md").read_text("utf-8")
    (block,) = re.findall(r"```promql\n(.*?)```", readme, flags=re.DOTALL)
    parts = re.split(r"^# (\w+).*$", block, flags=re.MULTILINE)[1:]
    return {name.lower(): query for name, query in zip(parts[::2], parts[1::2], strict=True)}
