"""The agent of a vehicle: promtool is content with it, every name it keeps is one that the sidecar
exports, and no alert needs another.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.panel_names import metrics
from tests.deploy.scraping import (
    ALERT_FILES,
    EXPOSITION,
    FOLDER,
    promtool,
)

# A name, and the labels beside it.
Series = tuple[str, frozenset[tuple[str, str]]]

AGENT: dict[str, Any] = yaml.safe_load((FOLDER / "agent.yml").read_text("utf-8"))
(SCRAPE,) = AGENT["scrape_configs"]
# The rules that say what is kept.
MARKS = [r for r in SCRAPE["metric_relabel_configs"] if r.get("target_label") == "__tmp_headline"]
# As the file says: 13 and one a dimension of each slice, and at most so many of a vehicle.
OF_A_SLICE, OF_A_VEHICLE = 13, 120
# The golden text leaves these out, since they are never the same; dashboards ask for them, too.
BESIDE = """\
# TYPE calibration_build_info gauge
calibration_build_info{version="1.0"} 1
# TYPE calibration_stamp_lag_seconds gauge
calibration_stamp_lag_seconds{of="freshest"} 0.1
calibration_stamp_lag_seconds{of="stalest"} 0.2
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 3e8
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7e9
# TYPE process_open_fds gauge
process_open_fds 30
"""
EXPORTED = EXPOSITION.read_text("utf-8") + BESIDE
SAMPLES: dict[Series, float] = {
    # To Prometheus a label without a value is none.
    (sample.name, frozenset((k, v) for k, v in sample.labels.items() if v)): sample.value
    for family in text_string_to_metric_families(EXPORTED)
    for sample in family.samples
}


def kept() -> dict[Series, float]:
    """Finds what the rules leave, read as Prometheus reads them."""

    def wanted(series: Series) -> bool:
        labels = {"__name__": series[0], **dict(series[1])}
        return any(
            re.fullmatch(rule["regex"], ";".join(labels.get(x, "") for x in rule["source_labels"]))
            for rule in MARKS
        )

    return {series: value for series, value in SAMPLES.items() if wanted(series)}


def names() -> set[str]:
    """Spells out every name that is kept."""
    found = set()
    for rule in MARKS:
        spelt = re.fullmatch(r"(\w+?)(?:\(([\w|]+)\)(\w*))?", rule["regex"].partition(";")[0])
        assert spelt, rule
        before, choices, after = spelt.groups()
        found |= {f"{before}{choice}{after or ''}" for choice in (choices or "").split("|")}
    return found


# ---- the file


@pytest.mark.components
def test_promtool_is_content_with_the_agent(tmp_path):
    path = tmp_path / "agent.yml"
    path.write_text((FOLDER / "agent.yml").read_text("utf-8"), "utf-8")
    (remote,) = AGENT["remote_write"]
    for name in (*remote["tls_config"].values(), remote["authorization"]["credentials_file"]):
        assert not Path(name).is_absolute()
        (tmp_path / name).write_text("", "utf-8")
    assert "SUCCESS" in promtool("check", "config", "--agent", str(path))


def test_every_name_that_is_kept_is_exported_and_no_alert_needs_another():
    assert names() <= {name for name, _ in SAMPLES}
    for path in ALERT_FILES:
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]:
            for rule in group["rules"]:
                asked = metrics(rule["expr"])
                assert asked, rule["alert"]
                assert asked <= names() | {"up"}, rule["alert"]


def test_a_vehicle_has_as_many_series_as_the_file_says():
    found = kept()
    of_slices = Counter(dict(labels)["slice"] for _, labels in found if "slice" in dict(labels))
    dimensions = Counter(
        dict(labels)["slice"] for name, labels in found if name.endswith("recalibration_factor")
    )
    assert of_slices and dimensions
    for name, count in of_slices.items():
        assert count <= OF_A_SLICE + dimensions[name], name
    assert len(found) - of_slices.total() <= OF_A_VEHICLE
    text = (FOLDER / "agent.yml").read_text("utf-8")
    assert f"{OF_A_SLICE} + K" in text
    assert f"and {OF_A_VEHICLE} a vehicle" in text
    assert f"at most {OF_A_SLICE + 7} series a slice of up to seven" in text
