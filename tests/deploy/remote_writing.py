"""The agent of deploy/prometheus/agent.yml, and a Prometheus that it writes to; no tests."""

import copy
import re
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from tests.components import program
from tests.deploy.scraping import PATIENCE, Answering, Started

# A name, and the labels beside it.
Series = tuple[str, frozenset[tuple[str, str]]]
Document = dict[str, Any]

VEHICLE, FLEET = "van-17", "vans"
_SECRETS = ("tls_config", "authorization")


class Receiver(Answering):
    """A Prometheus that scrapes nothing and takes what is written to it."""

    def __init__(self, folder: Path) -> None:
        (folder / "fleet.yml").write_text("{}", "utf-8")
        super().__init__(
            folder / "fleet.txt",
            program("prometheus"),
            "--web.enable-remote-write-receiver",
            f"--config.file={folder / 'fleet.yml'}",
            f"--storage.tsdb.path={folder / 'fleet'}",
        )

    def everything(self) -> dict[Series, float]:
        """The newest value of each series."""
        return {
            (labels.pop("__name__"), frozenset(labels.items())): value
            for labels, value in self.query('{job!=""}')
        }

    def times(self, series: str) -> list[float]:
        """Of all samples of the only series of a selector in the last ten minutes, in seconds."""
        (found,) = self.told("query", query=f"{series}[10m]")["result"]
        return [float(at) for at, _ in found["values"]]


class Agent(Started):
    """The agent of the file, in more of a hurry, and over a link without TLS."""

    def __init__(self, folder: Path, agent: Document, target: int, receiver: str) -> None:
        config = copy.deepcopy(agent)
        config["global"]["scrape_interval"] = "250ms"
        config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{target}"]}]
        (remote,) = config["remote_write"]
        for key in _SECRETS:
            del remote[key]
        remote |= {"url": f"http://{receiver}/api/v1/write", "remote_timeout": "1s"}
        remote["queue_config"] |= {"batch_send_deadline": "250ms", "max_backoff": "1s"}
        path = folder / "agent.yml"
        path.write_text(yaml.safe_dump(config), "utf-8")
        super().__init__(
            folder / "agent.txt",
            # It inherits our environment, to which its variable is added on the way.
            "env",
            f"VEHICLE={VEHICLE}",
            program("prometheus"),
            "--enable-feature=agent,expand-external-labels",
            f"--config.file={path}",
            f"--storage.agent.path={folder / 'agent'}",
        )

    def count(self, name: str) -> float:
        """A counter of its own, over all of its series."""
        found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", _fetched(f"{self.address}/metrics"), re.M)
        assert found, name
        return sum(map(float, found))


def _fetched(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}", timeout=PATIENCE) as response:
        text: str = response.read().decode()
        return text
