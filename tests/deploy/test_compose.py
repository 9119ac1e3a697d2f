"""deploy/compose.yml: its configurations in the real programs. Its services run in
test_compose_running.py.

There is no container engine here, and no Grafana server: that the images start is not shown.
Grafana's provisioning files are held to its documentation.
"""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from monitor.cli import build_parser
from monitor.commands.demo.run import config_text
from monitor.config import load
from tests.components import program
from tests.deploy.composed import (
    COMPOSE,
    CONFIGS,
    FILE,
    SERVICES,
    laid_out,
    mounts,
)
from tests.deploy.provisioned import Dashboards, DataSources
from tests.deploy.scraping import ROOT, printed, promtool

OURS = ("sidecar", "demo")
IN_SIDECAR = "/etc/calibration-monitor/sidecar.toml"
DASHBOARDS = ROOT / "deploy" / "grafana" / "dashboards"
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")


# ---- the file


def test_the_file_is_as_the_compose_specification_has_it():
    checker = Path(sys.executable).with_name("check-jsonschema")
    printed(str(checker), "--builtin-schema", "vendor.compose-spec", str(FILE))


def test_the_services_are_these():
    assert set(SERVICES) == {"sidecar", "demo", "prometheus", "alertmanager", "grafana"}
    assert COMPOSE["name"] == "calibration-monitor"


@pytest.mark.parametrize("service", SERVICES)
def test_every_file_that_is_mounted_exists_and_cannot_be_written_to(service):
    for volume in SERVICES[service].get("volumes", []):
        source, _, *options = volume.split(":")
        if source.startswith("."):
            assert (FILE.parent / source).exists(), volume
            assert options == ["ro"], volume
        else:
            assert source in COMPOSE["volumes"], volume


@pytest.mark.parametrize("service", SERVICES)
def test_every_port_is_published_on_the_loopback_alone(service):
    published = SERVICES[service].get("ports", [])
    for port in published:
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), port
    # What shares a network publishes with the one that owns it.
    assert bool(published) != ("network_mode" in SERVICES[service])


@pytest.mark.parametrize("service", SERVICES)
def test_no_service_has_a_privilege(service):
    settings = SERVICES[service]
    assert settings["cap_drop"] == ["ALL"]
    assert settings["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "user", "pid", "devices"} & set(settings)


def test_our_image_is_built_here_and_once():
    """Two services that build the same at once fail now and then, and first of all the first time:
    "image already exists".
    """
    (builder,) = (name for name, settings in SERVICES.items() if "build" in settings)
    assert builder == "sidecar"
    assert (FILE.parent / SERVICES[builder]["build"]["context"]).resolve() == ROOT
    assert {SERVICES[service]["image"] for service in OURS} == {"calibration-monitor"}
    # It is not looked for in a registry, where somebody else may have one of that name.
    assert SERVICES["demo"]["pull_policy"] == "never"


@pytest.mark.parametrize("service", OURS)
def test_our_services_write_only_to_tmp_and_their_volume(service):
    settings = SERVICES[service]
    assert settings["read_only"] is True
    assert settings["tmpfs"] == ["/tmp"]
    limits = settings["deploy"]["resources"]["limits"]
    assert set(limits) == {"cpus", "memory"}


@pytest.mark.parametrize("service", [name for name in SERVICES if name not in OURS])
def test_images_of_others_are_pinned_to_a_version(service):
    assert re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", SERVICES[service]["image"])


def test_the_traffic_shares_the_network_of_the_sidecar_and_restarts_with_it():
    demo = SERVICES["demo"]
    assert demo["network_mode"] == "service:sidecar"
    assert demo["depends_on"] == {"sidecar": {"condition": "service_healthy", "restart": True}}
    # A sidecar that an engine restarts leaves us in its old network: we give up, and are restarted.
    assert "--patience" in demo["command"]
    assert demo["restart"] == "unless-stopped"


def test_the_commands_of_our_services_are_ones_that_the_program_knows():
    parsed = {}
    for service in OURS:
        words = SERVICES[service]["command"]
        parsed[service] = build_parser(words[0]).parse_args(words)
    assert parsed["sidecar"].config == IN_SIDECAR
    assert parsed["demo"].forever
    assert parsed["demo"].address == load(str(CONFIGS / "sidecar.toml")).server.grpc_address


def test_the_sidecar_has_time_to_end_in_order():
    config = load(str(CONFIGS / "sidecar.toml"))
    period = int(SERVICES["sidecar"]["stop_grace_period"].removesuffix("s"))
    assert period >= 2 * config.server.grace_seconds


def test_the_health_check_is_that_of_the_image_and_comes_sooner():
    (check,) = re.findall(r"^HEALTHCHECK .*\n +CMD (\[.*\])$", DOCKERFILE, flags=re.MULTILINE)
    assert SERVICES["sidecar"]["healthcheck"]["test"] == ["CMD", *json.loads(check)]


# ---- configurations in the real programs


def test_the_sidecar_of_the_file_is_that_of_the_demo_with_http_for_its_neighbours():
    ours = tomllib.loads((CONFIGS / "sidecar.toml").read_text("utf-8"))
    demo = tomllib.loads(config_text(1.0))
    assert ours.pop("security") == {"allow_plain_metrics": True}
    assert ours["server"].pop("http_address") == "0.0.0.0:9464"
    assert ours == demo


def test_the_sidecar_takes_its_configuration():
    (path,) = (ours for ours, target in mounts("sidecar").items() if target == IN_SIDECAR)
    command = [sys.executable, "-m", "monitor", "serve", "--config", str(path), "--check"]
    assert "configuration is valid" in printed(*command)


@pytest.mark.components
def test_prometheus_takes_its_configuration_and_finds_all_rules(tmp_path):
    root = laid_out(tmp_path, "prometheus")
    config = SERVICES["prometheus"]["command"][0].removeprefix("--config.file=")
    said = promtool("check", "config", f"{root}{config}")
    files = {path.name for path in (ROOT / "deploy" / "prometheus").glob("*_rules.yml")}
    assert len(files) >= 4
    assert set(re.findall(r"(\w+_rules\.yml)$", said, re.MULTILINE)) >= files
    assert "FAILED" not in said


@pytest.mark.components
def test_alertmanager_takes_its_configuration(tmp_path):
    root = laid_out(tmp_path, "alertmanager")
    config = SERVICES["alertmanager"]["command"][0].removeprefix("--config.file=")
    command = (program("amtool"), "check-config", f"{root}{config}")
    assert "SUCCESS" in printed(*command)


def test_prometheus_scrapes_and_alerts_services_of_the_file_on_the_ports_that_they_have():
    config = yaml.safe_load((CONFIGS / "prometheus.yml").read_text("utf-8"))
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "calibration_monitor"
    (scraped,) = job["static_configs"]
    assert scraped["targets"] == ["sidecar:9464"]
    assert scraped["labels"] == {"instance": "demo"}
    (told,) = config["alerting"]["alertmanagers"][0]["static_configs"]
    assert told["targets"] == ["alertmanager:9093"]
    for target in (*scraped["targets"], *told["targets"]):
        service, port = target.split(":")
        assert f"127.0.0.1:{port}:{port}" in SERVICES[service]["ports"]


# ---- Grafana, which does not run here


def provisioned(kind: str) -> Path:
    (folder,) = (
        ours
        for ours, target in mounts("grafana").items()
        if target == f"/etc/grafana/provisioning/{kind}"
    )
    (file,) = folder.iterdir()
    return file


def test_the_data_source_is_the_prometheus_of_the_file_under_the_uid_that_dashboards_name():
    found = DataSources.model_validate(
        yaml.safe_load(provisioned("datasources").read_text("utf-8"))
    )
    (source,) = found.datasources
    assert (source.uid, source.is_default) == ("prometheus", True)
    assert source.url == "http://prometheus:9090"
    assert "127.0.0.1:9090:9090" in SERVICES["prometheus"]["ports"]
    scraping = yaml.safe_load((CONFIGS / "prometheus.yml").read_text("utf-8"))
    assert source.json_data.time_interval == scraping["global"]["scrape_interval"]


def test_the_dashboards_are_where_the_provider_looks():
    found = Dashboards.model_validate(yaml.safe_load(provisioned("dashboards").read_text("utf-8")))
    (provider,) = found.providers
    assert mounts("grafana")[FILE.parent / "./grafana/dashboards"] == provider.options.path
    assert provider.folder == "Calibration monitor"
    uids = {json.loads(file.read_text("utf-8"))["uid"] for file in DASHBOARDS.glob("*.json")}
    assert uids == {
        "calibration-overview",
        "calibration-slice",
        "calibration-recalibrators",
        "calibration-service",
    }


def test_the_first_dashboard_that_is_shown_is_one_of_them():
    settings = SERVICES["grafana"]["environment"]
    home = Path(settings["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) in mounts("grafana").values()
    assert (DASHBOARDS / home.name).is_file()


def test_grafana_lets_everybody_look_and_nobody_in():
    settings = SERVICES["grafana"]["environment"]
    assert settings["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert settings["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert settings["GF_AUTH_BASIC_ENABLED"] == "false"
    assert not any("PASSWORD" in name for name in settings)
    # A boolean in YAML would be handed on as such, and compose refuses it.
    assert all(isinstance(value, str) for value in settings.values())
