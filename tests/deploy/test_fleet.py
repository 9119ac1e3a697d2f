"""The agent of a vehicle: promtool is content with it, every name it keeps is one that the sidecar
exports and no alert needs another; and a real agent sends exactly these to a real Prometheus.
"""

import contextlib
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from monitor.service.http import Endpoint
from tests.deploy.remote_writing import FLEET, VEHICLE, Agent, Document, Receiver, Series
from tests.deploy.scraping import FOLDER, promtool, until
from tests.edges.test_exporter import busy_pipeline, text_of

AGENT = FOLDER / "agent.yml"
HEADLINE = "__tmp_headline"
# As the file says: 13 and one a dimension of each slice, and at most so many of a vehicle.
OF_A_SLICE, OF_A_VEHICLE = 13, 120
# Of the process, which makes them up itself: no exporter of ours in this test has them.
PROCESS = """\
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 3e8
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7e9
# TYPE process_open_fds gauge
process_open_fds 30
"""


@pytest.fixture(scope="module")
def agent() -> Document:
    found: Document = yaml.safe_load(AGENT.read_text("utf-8"))
    return found


@pytest.fixture(scope="module")
def exposition() -> str:
    """All that a sidecar exports, with slices of three dimensions and of two."""
    return text_of(busy_pipeline()) + PROCESS


@pytest.fixture(scope="module")
def samples(exposition) -> dict[Series, float]:
    families = text_string_to_metric_families(exposition)
    return {
        # To Prometheus a label without a value is none.
        (sample.name, frozenset((k, v) for k, v in sample.labels.items() if v)): sample.value
        for family in families
        for sample in family.samples
    }


def marks(agent: Document) -> list[Document]:
    """The rules that say what is kept."""
    (scrape,) = agent["scrape_configs"]
    return [
        rule for rule in scrape["metric_relabel_configs"] if rule.get("target_label") == HEADLINE
    ]


def kept(agent: Document, samples: dict[Series, float]) -> dict[Series, float]:
    """What the rules leave, read as Prometheus reads them."""

    def wanted(series: Series) -> bool:
        labels = {"__name__": series[0], **dict(series[1])}
        return any(
            re.fullmatch(rule["regex"], ";".join(labels.get(x, "") for x in rule["source_labels"]))
            for rule in marks(agent)
        )

    return {series: value for series, value in samples.items() if wanted(series)}


def names(agent: Document) -> set[str]:
    """Every name that is kept, spelt out."""

    def spelt(regex: str) -> Iterator[str]:
        found = re.fullmatch(r"(\w+?)(?:\(([\w|]+)\)(\w*))?", regex.partition(";")[0])
        assert found, regex
        before, choices, after = found.groups()
        for choice in (choices or "").split("|"):
            yield f"{before}{choice}{after or ''}"

    return {name for rule in marks(agent) for name in spelt(rule["regex"])}


def metrics_of(expression: str) -> set[str]:
    """The names that a query asks for."""
    return set(re.findall(r"\b(?:up|calibration_\w+)\b", re.sub(r'"[^"]*"', "", expression)))


# ---- the file


@pytest.mark.components
def test_promtool_is_content_with_the_agent(tmp_path, agent):
    path = tmp_path / AGENT.name
    path.write_text(AGENT.read_text("utf-8"), "utf-8")
    (remote,) = agent["remote_write"]
    secrets = [*remote["tls_config"].values(), remote["authorization"]["credentials_file"]]
    for name in secrets:
        assert not Path(name).is_absolute()
        (tmp_path / name).write_text("", "utf-8")
    assert "SUCCESS" in promtool("check", "config", "--agent", str(path))


def test_every_name_that_is_kept_is_exported(agent, samples):
    assert names(agent) <= {name for name, _ in samples}


def test_no_alert_needs_what_is_not_kept(agent):
    kept_names = names(agent) | {"up"}
    for path in sorted(FOLDER.glob("*alert_rules.yml")):
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]:
            for rule in group["rules"]:
                asked = metrics_of(rule["expr"])
                assert asked, rule["alert"]
                assert asked <= kept_names, (rule["alert"], asked - kept_names)


def test_a_vehicle_has_as_many_series_as_the_file_says(agent, samples):
    found = kept(agent, samples)
    of_slices = Counter(dict(labels)["slice"] for _, labels in found if "slice" in dict(labels))
    dimensions = Counter(
        dict(labels)["slice"] for name, labels in found if name.endswith("recalibration_factor")
    )
    others = len(found) - of_slices.total()
    all_of = Counter(dict(labels)["slice"] for _, labels in samples if "slice" in dict(labels))
    print(f"kept of {len(samples)} series {len(found)}; of each slice {dict(of_slices)}")
    print(f"of {dict(all_of)}; of the vehicle {others}")
    for name, count in of_slices.items():
        assert count <= OF_A_SLICE + dimensions[name], name
    assert others <= OF_A_VEHICLE
    text = AGENT.read_text("utf-8")
    assert f"{OF_A_SLICE} + K" in text
    assert f"and {OF_A_VEHICLE} a vehicle" in text
    assert f"at most {OF_A_SLICE + 7} series a slice of up to seven" in text


# ---- a real agent, and a real Prometheus that receives


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, agent, exposition):
    """An agent that scrapes an endpoint of that exposition, and the Prometheus it writes to."""
    folder = tmp_path_factory.mktemp("fleet")
    endpoint = Endpoint()
    endpoint.published.metrics = exposition.encode()
    target = endpoint.start("127.0.0.1", 0)
    with contextlib.ExitStack() as started:
        started.callback(endpoint.stop)
        receiver = Receiver(folder)
        started.callback(receiver.stop)
        writer = Agent(folder, agent, target, receiver.address)
        started.callback(writer.stop)
        yield writer, receiver


@pytest.mark.components
def test_exactly_what_is_kept_arrives_under_the_name_of_the_vehicle(fleet, agent, samples):
    _, receiver = fleet
    common = {("job", "calibration_monitor"), ("instance", VEHICLE), ("fleet", FLEET)}
    expected = {
        (name, labels | common): value for (name, labels), value in kept(agent, samples).items()
    } | {("up", frozenset(common)): 1.0}
    until(lambda: len(receiver.everything()) >= len(expected), "the series of the agent")
    found = receiver.everything()
    assert found.keys() == expected.keys()
    for series, value in expected.items():
        assert found[series] == pytest.approx(value, rel=1e-12, nan_ok=True), series


@pytest.mark.components
def test_what_is_scraped_while_the_link_stalls_arrives_when_it_is_back(fleet):
    writer, receiver = fleet
    until(lambda: receiver.query("up"), "the first samples")
    a_scrape = len(receiver.everything())
    stalled = time.time()
    receiver.process.send_signal(signal.SIGSTOP)
    try:
        retried = writer.count("prometheus_remote_storage_samples_retried_total")
        scraped = writer.count("prometheus_remote_storage_samples_in_total")
        until(
            lambda: (
                writer.count("prometheus_remote_storage_samples_retried_total") > retried
                and writer.count("prometheus_remote_storage_samples_in_total")
                > scraped + 4 * a_scrape
            ),
            "requests that came to nothing, and scrapes meanwhile",
        )
    finally:
        receiver.process.send_signal(signal.SIGCONT)
    back = time.time()
    until(lambda: receiver.query(f"timestamp(up) > {back}"), "the link to be back")
    assert sum(stalled <= at <= back for at in receiver.times("up")) >= 3
    assert writer.count("prometheus_remote_storage_samples_failed_total") == 0
