"""The manifests of Kubernetes: valid by its own schemas, within the "restricted" standard, and in
agreement with the image and the sidecar. No cluster runs here: what a scheduler, a kubelet or a
network plugin makes of them is not tested.
"""

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from monitor import __version__
from monitor.cli import build_parser
from monitor.config import load
from monitor.wire.access import split_address
from tests.deploy.scraping import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
# The first that knows a sidecar, the first that promises to keep it so, and the newest.
VERSIONS = ["1.29", "1.33", "1.37"]
Manifest = dict[str, Any]


def read(name: str) -> Manifest:
    found: Manifest = yaml.safe_load((FOLDER / name).read_text("utf-8"))
    return found


KUSTOMIZATION = read("kustomization.yaml")
MANIFESTS: list[str] = KUSTOMIZATION["resources"]
POD: Manifest = read("deployment.yaml")["spec"]["template"]
SPEC: Manifest = POD["spec"]
(SIDECAR,) = SPEC["initContainers"]
(DETECTOR,) = SPEC["containers"]


def instruction(pattern: str) -> str:
    """Finds an instruction of the Dockerfile's final stage."""
    found = re.findall(pattern, DOCKERFILE.rpartition("\nFROM ")[2], flags=re.MULTILINE)
    assert found, pattern
    return str(found[-1])


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Loads what the sidecar makes of the ConfigMap."""
    path = tmp_path_factory.mktemp("configuration") / "sidecar.toml"
    path.write_text(read("configmap.yaml")["data"]["sidecar.toml"], "utf-8")
    return load(path)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_valid(name, version):
    kubernetes_validate.validate(read(name), version, strict=True)


def test_every_manifest_is_listed_and_in_the_namespace_that_is_made():
    others = {"kustomization.yaml", "prometheus.yml"}
    assert {path.name for path in FOLDER.iterdir()} == {*MANIFESTS, *others}
    namespace = read("namespace.yaml")["metadata"]["name"]
    assert KUSTOMIZATION["namespace"] == namespace
    for name in set(MANIFESTS) - {"namespace.yaml"}:
        assert read(name)["metadata"]["namespace"] == namespace


# ---- Pod Security Standards, "restricted"


def test_the_pod_keeps_to_the_restricted_standard_and_has_no_account_of_the_cluster():
    assert read("namespace.yaml")["metadata"]["labels"] == {
        "pod-security.kubernetes.io/enforce": "restricted"
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & SPEC.keys()
    assert SPEC["securityContext"]["runAsNonRoot"] is True
    assert SPEC["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    allowed = {"configMap", "persistentVolumeClaim", "emptyDir"}
    assert {key for volume in SPEC["volumes"] for key in volume} == {"name", *allowed}
    assert SPEC["automountServiceAccountToken"] is False


@pytest.mark.parametrize("container", [SIDECAR, DETECTOR], ids=["sidecar", "detector"])
def test_a_container_keeps_to_the_restricted_standard_and_its_command_line_is_understood(container):
    user, group = map(int, instruction(r"^USER (\d+:\d+)$").split(":"))
    assert container["securityContext"] == {
        "runAsUser": user,
        "runAsGroup": group,
        "runAsNonRoot": True,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not any("hostPort" in port for port in container.get("ports", []))
    verb = container["args"][0]
    assert build_parser(verb).parse_args(container["args"]).verb == verb


# ---- the image


def test_folders_and_configuration_are_those_of_the_image_of_this_version():
    assert SPEC["securityContext"]["fsGroup"] == SIDECAR["securityContext"]["runAsGroup"]
    mounted = {mount["mountPath"]: mount for mount in SIDECAR["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in SPEC["volumes"]}
    assert {mount["name"] for mount in mounted.values()} == set(volumes)
    claim = volumes["state"]["persistentVolumeClaim"]["claimName"]
    assert claim == read("state.yaml")["metadata"]["name"]
    assert set(mounted) == {
        instruction(r"^ +STATE_DIRECTORY=(\S+)$"),
        str(Path(SIDECAR["args"][-1]).parent),
        "/tmp",
    }
    # A mount of a single file is never replaced when the ConfigMap changes.
    assert not any("subPath" in mount for mount in mounted.values())
    assert SIDECAR["args"] == json.loads(instruction(r"^CMD (\[.*\])$"))
    assert "command" not in SIDECAR
    assert json.loads(instruction(r"^ENTRYPOINT (\[.*\])$")) == ["calibration-monitor"]
    (image,) = KUSTOMIZATION["images"]
    assert {SIDECAR["image"], DETECTOR["image"]} == {image["name"]}
    assert image["newTag"] == __version__


# ---- the sidecar


def test_the_sidecar_starts_before_the_detector_which_sends_to_where_it_listens(config):
    assert SIDECAR["restartPolicy"] == "Always"
    assert split_address(config.server.grpc_address, "grpc_address")[0] == "127.0.0.1"
    assert config.server.grpc_address in DETECTOR["args"]
    assert config.security.allow_plain_metrics


def test_probes_and_scrapes_ask_for_what_is_served_where_it_is_served(config):
    _, port = split_address(config.server.http_address, "http_address")
    assert SIDECAR["ports"] == [{"name": "metrics", "containerPort": port}]
    asked = {
        (SIDECAR[probe]["httpGet"]["port"], SIDECAR[probe]["httpGet"]["path"])
        for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert asked == {("metrics", "/readyz"), ("metrics", "/healthz")}
    annotations = POD["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port)
    assert annotations["prometheus.io/path"] == "/metrics"


def test_the_sidecar_has_the_time_the_disk_and_the_memory_that_its_configuration_asks_for(config):
    assert SPEC["terminationGracePeriodSeconds"] >= 2 * config.server.grace_seconds + 30
    claim = read("state.yaml")["spec"]["resources"]["requests"]["storage"]
    assert int(claim.removesuffix("Gi")) * 2**30 > 1.5 * config.pending.disk_bytes
    memory = SIDECAR["resources"]["requests"]["memory"]
    assert int(memory.removesuffix("Gi")) * 2**30 > 3 * config.pending.max_bytes
    # No limit of processor time.
    assert set(SIDECAR["resources"]["limits"]) == {"memory"}


# ---- who may read it


def test_the_policy_lets_prometheus_in_at_the_metrics_alone():
    policy = read("networkpolicy.yaml")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= POD["metadata"]["labels"].items()
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": "metrics", "protocol": "TCP"}]
    # Two entries would be one or the other; one with both is both.
    (peer,) = rule["from"]
    assert set(peer) == {"namespaceSelector", "podSelector"}
