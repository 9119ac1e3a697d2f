"""A real Prometheus on the loopback, and what to ask it; no tests."""

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROMETHEUS = shutil.which("prometheus")
PATIENCE = 30  # s; far above what anything here takes

with_prometheus = pytest.mark.skipif(
    PROMETHEUS is None, reason="prometheus (Debian package prometheus) is not installed"
)


def promtool(*arguments: str, given: str | None = None) -> str:
    """What it prints; it must be content. Skips, and says so, where it is not installed."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool (Debian package prometheus) is not installed")
    done = subprocess.run(
        [found, *arguments], input=given, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def until(check, what):
    """What the check finds, as soon as it finds anything."""
    end = time.monotonic() + PATIENCE
    while not (found := check()):
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.1)
    return found


class Prometheus:
    """A server on an own port that scrapes and evaluates every second."""

    def __init__(self, folder: Path, targets: dict[str, int]) -> None:
        rules = (ROOT / "deploy/prometheus/recording_rules.yml").read_text("utf-8")
        (folder / "rules.yml").write_text(re.sub(r"interval: \d+m", "interval: 1s", rules), "utf-8")
        scraped = [
            {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name}}
            for name, port in targets.items()
        ]
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "fleet", "static_configs": scraped}],
        }
        # JSON is YAML.
        (folder / "prometheus.yml").write_text(json.dumps(settings), "utf-8")
        self.address = f"127.0.0.1:{free_port()}"
        self.log = folder / "prometheus.txt"
        assert PROMETHEUS is not None
        self.process = subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self.address}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=self.log.open("wb"),
        )
        until(self.ready, "prometheus to be ready")

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text("utf-8")
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=PATIENCE):
                return True
        except OSError:
            return False

    def query(self, expression, at=None) -> list[tuple[dict[str, str], float]]:
        """Labels and values of an instant vector, now or at a time in seconds."""
        asked = {"query": expression} | ({"time": f"{at:.3f}"} if at is not None else {})
        url = f"http://{self.address}/api/v1/query?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as response:
            result = json.load(response)["data"]["result"]
        return [(entry["metric"], float(entry["value"][1])) for entry in result]

    def seen(self, instance: str, series: str, value: float, after: float = 0) -> float:
        """When a gauge or a sum was seen to have this value, after some moment; waits for that."""
        up = f'max(timestamp(up{{instance="{instance}"}}))'
        expression = f"{up} > {after} and sum({series}) == {value}"
        found: float = until(lambda: self.query(expression), f"{series} to be {value}")[0][1]
        return found

    def gone(self, instance: str) -> None:
        """Wait until a scrape has failed."""
        until(lambda: self.query(f'up{{instance="{instance}"}} == 0'), "a failed scrape")

    def recorded_after(self, moment: float) -> float:
        """When the rules were first evaluated after that, to the last of their group."""
        last = "min(timestamp(fleet:calibration_nees:10m))"
        found: float = until(lambda: self.query(f"{last} > {moment}"), "the rules")[0][1]
        return found

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE)


def worst(found: list[tuple[dict[str, str], float]], values) -> float:
    """Largest relative difference of what must be the same series."""
    by_labels = {
        (labels["slice"], labels["stage"], labels["dimension"]): value for labels, value in found
    }
    assert len(by_labels) == len(found)
    assert by_labels.keys() == values.keys()
    return float(max(abs(by_labels[key] / values[key] - 1) for key in values))


def readme_queries() -> dict[str, str]:
    """By the word each begins with in a comment."""
    readme = (ROOT / "README.md").read_text("utf-8")
    (block,) = re.findall(r"```promql\n(.*?)```", readme, flags=re.DOTALL)
    parts = re.split(r"^# (\w+).*$", block, flags=re.MULTILINE)[1:]
    return {name.lower(): query for name, query in zip(parts[::2], parts[1::2], strict=True)}
