"""The services of deploy/compose.yml as real processes, from the traffic to the alerts; Grafana,
for which there is no server here, is left out.
"""

from pathlib import Path

import pytest

from tests.deploy.composed import Stack, stack
from tests.deploy.scraping import ROOT, until

pytestmark = pytest.mark.components


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with stack(tmp_path_factory.mktemp("stack")) as found:
        yield found


@pytest.mark.timeout(100)
def test_traffic_comes_up_is_scraped_and_watched_whatever_starts_first(running: Stack):
    ask = running.prometheus.query
    until(lambda: ask('up{job="calibration_monitor",instance="demo"} == 1'), "a scrape")
    until(lambda: ask("calibration_frames_total > 120"), "frames")
    until(lambda: ask("increase(calibration_frames_total[5s]) > 0"), "further frames")
    until(lambda: ask('calibration_ground_truth_total{outcome="matched"} > 0'), "labels that match")
    told = running.prometheus.told
    (_,) = until(lambda: told("alertmanagers")["activeAlertmanagers"], "the Alertmanager")
    until(lambda: ask('count({__name__=~"fleet:.+|slice:.+|calibration_.+"}) > 500'), "the rest")
    assert ask("count(up == 0)") == []


def test_the_rules_of_the_file_are_loaded(running: Stack):
    files = {Path(group["file"]).name for group in running.prometheus.told("rules")["groups"]}
    assert files == {path.name for path in (ROOT / "deploy" / "prometheus").glob("*_rules.yml")}


@pytest.mark.timeout(100)
def test_a_sidecar_that_is_killed_and_started_again_has_its_traffic_back(running: Stack):
    ask = running.prometheus.query
    assert running.demo.told().count("connected") == 1
    running.restart_sidecar()
    until(lambda: "connected again" in running.demo.told(), "the traffic")
    until(lambda: ask("changes(process_start_time_seconds[1m]) > 0 and up == 1"), "another start")
    until(lambda: ask("increase(calibration_frames_total[3s]) > 30"), "frames")


@pytest.mark.timeout(100)
def test_all_of_it_ends_in_order(running: Stack):
    assert running.demo.terminate() == 0
    assert running.demo.told().splitlines()[-1].partition(" s  ")[2].startswith("stopped: ")
    assert running.sidecar.terminate() == 0
    log = running.sidecar.told()
    assert "Traceback" not in log
    assert "ERROR" not in log
