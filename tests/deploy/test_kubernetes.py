"""The manifests of Kubernetes: valid by its own schemas, within the "restricted" standard, and in
agreement with the image and the sidecar. No cluster runs here: what a scheduler, a kubelet or a
network plugin makes of them is not tested.
"""

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from monitor import __version__
from monitor.cli import build_parser
from monitor.config import load, split_address
from monitor.service.http import Endpoint
from tests.deploy.scraping import ROOT, promtool

FOLDER = ROOT / "deploy" / "kubernetes"
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
# The first that knows a sidecar, the first that promises to keep it so, and the newest.
VERSIONS = ["1.29", "1.33", "1.37"]
Manifest = dict[str, Any]


def read(name: str) -> Manifest:
    """A file of one document."""
    found: Manifest = yaml.safe_load((FOLDER / name).read_text("utf-8"))
    return found


KUSTOMIZATION = read("kustomization.yaml")
MANIFESTS: list[str] = KUSTOMIZATION["resources"]
POD: Manifest = read("deployment.yaml")["spec"]["template"]
SPEC: Manifest = POD["spec"]
(SIDECAR,) = SPEC["initContainers"]
(DETECTOR,) = SPEC["containers"]


def instruction(pattern: str) -> str:
    """Of the Dockerfile's final stage."""
    found = re.findall(pattern, DOCKERFILE.rpartition("\nFROM ")[2], flags=re.MULTILINE)
    assert found, pattern
    return str(found[-1])


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """What the sidecar makes of the ConfigMap."""
    path = tmp_path_factory.mktemp("configuration") / "sidecar.toml"
    path.write_text(read("configmap.yaml")["data"]["sidecar.toml"], "utf-8")
    return load(path)


# ---- the schemas of Kubernetes


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_valid(name, version):
    kubernetes_validate.validate(read(name), version, strict=True)


def test_what_is_wrong_in_a_manifest_is_found():
    wrong = read("deployment.yaml")
    wrong["spec"]["template"]["spec"]["initContainers"][0]["restartpolicy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_every_manifest_is_listed_and_in_the_namespace_that_is_made():
    others = {"kustomization.yaml", "prometheus.yml"}
    assert {path.name for path in FOLDER.iterdir()} == {*MANIFESTS, *others}
    namespace = read("namespace.yaml")["metadata"]["name"]
    assert KUSTOMIZATION["namespace"] == namespace
    for name in set(MANIFESTS) - {"namespace.yaml"}:
        assert read(name)["metadata"]["namespace"] == namespace


# ---- Pod Security Standards, "restricted"


def test_the_pod_keeps_to_the_restricted_standard():
    assert read("namespace.yaml")["metadata"]["labels"] == {
        "pod-security.kubernetes.io/enforce": "restricted"
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & SPEC.keys()
    assert SPEC["securityContext"]["runAsNonRoot"] is True
    assert SPEC["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    allowed = {"configMap", "persistentVolumeClaim", "emptyDir"}
    assert {key for volume in SPEC["volumes"] for key in volume} == {"name", *allowed}


@pytest.mark.parametrize("container", [SIDECAR, DETECTOR], ids=lambda one: str(one["name"]))
def test_a_container_keeps_to_the_restricted_standard(container):
    assert container["securityContext"] == {
        "runAsUser": 10001,
        "runAsGroup": 10001,
        "runAsNonRoot": True,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not any("hostPort" in port for port in container.get("ports", []))


def test_the_pod_has_no_account_of_the_cluster():
    assert SPEC["automountServiceAccountToken"] is False


# ---- the image


def test_user_folders_and_configuration_are_those_of_the_image():
    user, group = instruction(r"^USER (\d+:\d+)$").split(":")
    context = SIDECAR["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (int(user), int(group))
    assert SPEC["securityContext"]["fsGroup"] == int(group)
    mounted = {mount["mountPath"]: mount for mount in SIDECAR["volumeMounts"]}
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


def test_every_mount_has_its_volume_and_every_volume_its_source():
    volumes = {volume["name"]: volume for volume in SPEC["volumes"]}
    assert {mount["name"] for mount in SIDECAR["volumeMounts"]} == set(volumes)
    claim = volumes["state"]["persistentVolumeClaim"]["claimName"]
    assert claim == read("state.yaml")["metadata"]["name"]
    configuration = volumes["configuration"]["configMap"]["name"]
    assert configuration == read("configmap.yaml")["metadata"]["name"]


def test_the_image_is_the_one_that_is_named_and_of_this_version():
    (image,) = KUSTOMIZATION["images"]
    assert {SIDECAR["image"], DETECTOR["image"]} == {image["name"]}
    assert image["newTag"] == __version__


# ---- the sidecar


def test_the_sidecar_takes_the_configuration_of_the_map(config):
    assert split_address(config.server.grpc_address, "grpc_address")[0] == "127.0.0.1"
    assert config.security.allow_plain_metrics


@pytest.mark.parametrize("container", [SIDECAR, DETECTOR], ids=lambda one: str(one["name"]))
def test_the_command_line_of_a_container_is_understood(container):
    verb = container["args"][0]
    assert build_parser(verb).parse_args(container["args"]).verb == verb


def test_the_detector_sends_to_where_the_sidecar_listens(config):
    assert config.server.grpc_address in DETECTOR["args"]


def test_the_sidecar_starts_before_the_detector_and_goes_on():
    assert SIDECAR["restartPolicy"] == "Always"
    assert SIDECAR["startupProbe"]["httpGet"]["path"] == "/readyz"


def test_probes_and_scrapes_ask_for_what_is_served_where_it_is_served(config):
    _, port = split_address(config.server.http_address, "http_address")
    (named,) = SIDECAR["ports"]
    assert named == {"name": "metrics", "containerPort": port}
    asked = [
        SIDECAR[probe]["httpGet"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    ]
    assert {get["port"] for get in asked} == {"metrics"}
    annotations = POD["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port)
    endpoint = Endpoint()
    endpoint.published.ready = True
    own = endpoint.start("127.0.0.1", 0)
    try:
        for path in {get["path"] for get in asked} | {annotations["prometheus.io/path"]}:
            with urllib.request.urlopen(f"http://127.0.0.1:{own}{path}", timeout=10) as answer:
                assert answer.status == 200
    finally:
        endpoint.stop()


def test_the_sidecar_has_the_time_to_end_in_order(config):
    assert SPEC["terminationGracePeriodSeconds"] >= 2 * config.server.grace_seconds + 30


def test_the_claim_is_larger_than_what_is_kept(config):
    size = read("state.yaml")["spec"]["resources"]["requests"]["storage"]
    assert int(size.removesuffix("Gi")) * 2**30 > 1.5 * config.pending.disk_bytes


def test_there_is_memory_for_what_waits_and_no_limit_of_processor_time(config):
    resources = SIDECAR["resources"]
    assert set(resources["limits"]) == {"memory"}
    assert int(resources["requests"]["memory"].removesuffix("Gi")) * 2**30 > 3 * (
        config.pending.max_bytes
    )


# ---- who may read it


def test_the_policy_lets_prometheus_in_at_the_metrics_alone():
    policy = read("networkpolicy.yaml")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= POD["metadata"]["labels"].items()
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": "metrics", "protocol": "TCP"}]
    # Two entries would be one or the other; one with both is both.
    (peer,) = rule["from"]
    assert set(peer) == {"namespaceSelector", "podSelector"}


def found_in_a_cluster(folder: Path, *pods: dict[str, str]) -> list[dict[str, str]]:
    """The labels of the targets that are left of pods, whose discovery is made up.

    Debian's Prometheus was built without that of Kubernetes; what comes after it is looked at.
    """
    job = read("prometheus.yml")
    (scrape,) = job["scrape_configs"]
    assert scrape["job_name"] == "calibration_monitor"
    assert scrape.pop("kubernetes_sd_configs") == [{"role": "pod"}]
    scrape["static_configs"] = [
        {
            "targets": [f"10.0.0.{number}:9464"],
            "labels": {f"__meta_kubernetes_{name}": value for name, value in pod.items()},
        }
        for number, pod in enumerate(pods)
    ]
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(job), "utf-8")
    assert "SUCCESS" in promtool("check", "config", str(path))
    # It waits for so long, whatever it finds: what is given in the file is there at once.
    told = promtool("check", "service-discovery", "--timeout=2s", str(path), scrape["job_name"])
    return [target["labels"] for target in json.loads(told) if target.get("labels")]


@pytest.mark.components
def test_of_all_ports_in_a_cluster_prometheus_scrapes_the_sidecars(tmp_path):
    (port,) = SIDECAR["ports"]
    annotations = POD["metadata"]["annotations"].items()
    ours = {
        "namespace": KUSTOMIZATION["namespace"],
        "pod_phase": "Running",
        "pod_label_app_kubernetes_io_name": "detector",
        "pod_container_name": SIDECAR["name"],
        "pod_container_port_name": port["name"],
        **{f"pod_annotation_{re.sub('[./]', '_', name)}": value for name, value in annotations},
    }
    (found,) = found_in_a_cluster(
        tmp_path,
        ours,
        ours | {"pod_container_name": "detector", "pod_container_port_name": "camera"},
        ours | {"pod_phase": "Succeeded"},
        {name: value for name, value in ours.items() if not name.endswith("_scrape")},
    )
    assert found["__address__"] == "10.0.0.0:9464"
    assert found["__metrics_path__"] == "/metrics"
    assert (found["job"], found["instance"]) == ("calibration_monitor", "perception/detector")
