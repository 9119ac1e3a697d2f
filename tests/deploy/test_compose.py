"""deploy/compose.yml as text, and its configurations in the real programs.

There is no container engine here, and no Grafana server: that the images start is not shown.
"""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitor.cli import build_parser
from monitor.commands.demo.run import config_text
from monitor.config import load
from tests.deploy.scraping import ROOT, printed

FILE = ROOT / "deploy" / "compose.yml"
CONFIGS = FILE.parent / "compose"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("sidecar", "demo")
EACH = pytest.mark.parametrize("service", SERVICES)
IN_SIDECAR = "/etc/calibration-monitor/sidecar.toml"
PROMETHEUS = yaml.safe_load((CONFIGS / "prometheus.yml").read_text("utf-8"))


def mounts(service: str) -> dict[Path, str]:
    """Finds files and folders of ours, by where the container of a service has them."""
    volumes = [volume.split(":") for volume in SERVICES[service].get("volumes", [])]
    return {
        FILE.parent / source: target for source, target, *_ in volumes if source.startswith(".")
    }


# ---- the file


def test_the_file_is_as_the_compose_specification_has_it():
    checker = Path(sys.executable).with_name("check-jsonschema")
    printed(str(checker), "--builtin-schema", "vendor.compose-spec", str(FILE))
    assert set(SERVICES) == {*OURS, "prometheus", "alertmanager", "grafana"}
    assert COMPOSE["name"] == "calibration-monitor"


@EACH
def test_every_file_that_is_mounted_exists_and_cannot_be_written_to(service):
    for volume in SERVICES[service].get("volumes", []):
        source, _, *options = volume.split(":")
        if source.startswith("."):
            assert (FILE.parent / source).exists(), volume
            assert options == ["ro"], volume
        else:
            assert source in COMPOSE["volumes"], volume


@EACH
def test_a_service_has_no_privilege_and_publishes_on_the_loopback_alone(service):
    settings = SERVICES[service]
    assert settings["cap_drop"] == ["ALL"]
    assert settings["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "user", "pid", "devices"} & set(settings)
    published = settings.get("ports", [])
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in published)
    # What shares a network publishes with the one that owns it.
    assert bool(published) != ("network_mode" in settings)


@EACH
def test_our_services_are_bounded_and_images_of_others_are_pinned_to_a_version(service):
    settings = SERVICES[service]
    if service not in OURS:
        assert re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", settings["image"])
        return
    assert settings["read_only"] is True
    assert settings["tmpfs"] == ["/tmp"]
    assert set(settings["deploy"]["resources"]["limits"]) == {"cpus", "memory"}


def test_the_traffic_shares_the_network_of_the_sidecar_and_restarts_with_it():
    demo = SERVICES["demo"]
    # It is not looked for in a registry, where somebody else may have one of that name.
    assert (demo["pull_policy"], demo["image"]) == ("never", SERVICES["sidecar"]["image"])
    assert demo["network_mode"] == "service:sidecar"
    assert demo["depends_on"] == {"sidecar": {"condition": "service_healthy", "restart": True}}
    # A sidecar that an engine restarts leaves us in its old network: we give up, and are restarted.
    assert "--patience" in demo["command"]
    assert demo["restart"] == "unless-stopped"


def test_the_sidecar_is_that_of_the_demo_with_http_for_its_neighbours_and_time_to_end_in_order():
    config = load(str(CONFIGS / "sidecar.toml"))
    period = int(SERVICES["sidecar"]["stop_grace_period"].removesuffix("s"))
    assert period >= 2 * config.server.grace_seconds
    parsed = {
        service: build_parser(SERVICES[service]["command"][0]).parse_args(
            SERVICES[service]["command"]
        )
        for service in OURS
    }
    assert parsed["sidecar"].config == IN_SIDECAR == mounts("sidecar")[CONFIGS / "sidecar.toml"]
    assert parsed["demo"].forever
    assert parsed["demo"].address == config.server.grpc_address
    ours = tomllib.loads((CONFIGS / "sidecar.toml").read_text("utf-8"))
    assert ours.pop("security") == {"allow_plain_metrics": True}
    assert ours["server"].pop("http_address") == "0.0.0.0:9464"
    assert ours == tomllib.loads(config_text(1.0))


def test_prometheus_loads_all_rules_and_scrapes_the_sidecar_where_it_listens():
    (pattern,) = PROMETHEUS["rule_files"]
    place = mounts("prometheus")[FILE.parent / "./prometheus"]
    assert (place, pattern) == ("/etc/prometheus/rules", "rules/*_rules.yml")
    (job,) = PROMETHEUS["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["sidecar:9464"], "labels": {"instance": "demo"}}]


# ---- Grafana, which does not run here


def test_grafana_lets_everybody_look_and_nobody_in():
    settings = SERVICES["grafana"]["environment"]
    assert settings["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert settings["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert settings["GF_AUTH_BASIC_ENABLED"] == "false"
    assert not any("PASSWORD" in name for name in settings)
    home = settings["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    place, _, name = home.rpartition("/")
    assert mounts("grafana")[FILE.parent / "./grafana/dashboards"] == place
    assert (ROOT / "deploy" / "grafana" / "dashboards" / name).is_file()
