"""Runs a real Prometheus on the loopback, and asks it; no tests."""

import json
import re
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

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
RUNBOOK_BASE = "https://wiki.example.com/runbook"
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


class Started:
    """Runs a program that serves HTTP on a port of its own until it is ready, and on."""

    def __init__(self, log: Path, command: str, *options: str) -> None:
        self.log = log
        self.address = f"127.0.0.1:{free_port()}"
        self.process = subprocess.Popen(
            [command, *options, f"--web.listen-address={self.address}"],
            stdout=subprocess.DEVNULL,
            stderr=log.open("wb"),
        )
        try:
            until(self.ready, f"{command} to be ready")
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
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Answering(Started):
    """Asks a Prometheus, however it is configured."""

    def told(self, what: str, **asked: str) -> Any:
        """Returns the data of an answer of its API."""
        url = f"http://{self.address}/api/v1/{what}?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as response:
            return json.load(response)["data"]

    def query(self, expression, at=None) -> list[tuple[dict[str, str], float]]:
        """Returns labels and values of an instant vector, now or at a time in seconds."""
        asked = {"query": expression} | ({"time": f"{at:.3f}"} if at is not None else {})
        result = self.told("query", **asked)["result"]
        return [(entry["metric"], float(entry["value"][1])) for entry in result]


class Prometheus(Answering):
    """Scrapes and evaluates twice a second; tells a second later what has ended.

    targets        ports by the name of their instance
    rules          files; their intervals are shortened
    alertmanagers  addresses
    """

    def __init__(
        self,
        folder: Path,
        targets: dict[str, int],
        rules: Sequence[Path] = (RECORDING,),
        alertmanagers: Sequence[str] = (),
    ) -> None:
        for path in rules:
            text = re.sub(r"interval: \d+[sm]", "interval: 500ms", path.read_text("utf-8"))
            text = re.sub(r"keep_firing_for: \d+m", "keep_firing_for: 1s", text)
            (folder / path.name).write_text(text, "utf-8")
        scraped = [
            {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name}}
            for name, port in targets.items()
        ]
        told = [{"static_configs": [{"targets": list(alertmanagers)}]}] if alertmanagers else []
        example = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))
        settings = {
            "global": {
                "scrape_interval": "500ms",
                "evaluation_interval": "500ms",
                "external_labels": {"runbook_base": RUNBOOK_BASE},
            },
            "rule_files": [path.name for path in rules],
            "alerting": example["alerting"] | {"alertmanagers": told},
            "scrape_configs": [{"job_name": "calibration_monitor", "static_configs": scraped}],
        }
        # JSON is YAML.
        config = folder / "prometheus.yml"
        config.write_text(json.dumps(settings), "utf-8")
        super().__init__(
            folder / "prometheus.txt",
            program("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'prometheus'}",
        )

    def seen(self, instance: str, series: str, value: float) -> float:
        """Waits until a gauge or a sum is seen to have this value; returns when."""
        up = f'max(timestamp(up{{instance="{instance}"}}))'
        expression = f"{up} and sum({series}) == {value}"
        found: float = until(lambda: self.query(expression), f"{series} to be {value}")[0][1]
        return found

    def gone(self, instance: str) -> None:
        """Waits until a scrape has failed."""
        until(lambda: self.query(f'up{{instance="{instance}"}} == 0'), "a failed scrape")


def documented_queries() -> dict[str, str]:
    """Reads those of docs/metrics.md by the word that each begins with in a comment."""
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    (block,) = re.findall(r"```promql\n(.*?)```", page, flags=re.DOTALL)
    parts = re.split(r"^# (\w+).*$", block, flags=re.MULTILINE)[1:]
    return {name.lower(): query for name, query in zip(parts[::2], parts[1::2], strict=True)}
