"""The agent of a vehicle: promtool is content with it, every name it keeps is one that the sidecar
exports, and no alert needs another.
"""

import re
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

AGENT: dict[str, Any] = yaml.safe_load((FOLDER / "agent.yml").read_text("utf-8"))
(SCRAPE,) = AGENT["scrape_configs"]
# The rules that say what is kept.
MARKS = [r for r in SCRAPE["metric_relabel_configs"] if r.get("target_label") == "__tmp_headline"]
# The golden text leaves these out, since they are never the same; dashboards ask for them, too.
BESIDE = {"calibration_build_info", "calibration_stamp_lag_seconds", "process_open_fds"}
BESIDE |= {"process_resident_memory_bytes", "process_start_time_seconds"}


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
    families = text_string_to_metric_families(EXPOSITION.read_text("utf-8"))
    assert names() <= BESIDE | {each.name for family in families for each in family.samples}
    for path in ALERT_FILES:
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]:
            for rule in group["rules"]:
                asked = metrics(rule["expr"])
                assert asked, rule["alert"]
                assert asked <= names() | {"up"}, rule["alert"]
                words = " ".join(rule["annotations"].values())
                told = set(re.findall(r'query \(printf "[^{]*?(calibration_\w+)', words))
                assert told <= names(), rule["alert"]
