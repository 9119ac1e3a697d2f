"""Recalibrators over the wire: promoted, listed, refused, observed."""

import json

import grpc
import pytest

from monitor.v1 import (
    frame_pb2,
    recalibrator_admin_pb2,
)
from tests.foreign_client import (
    failure,
    in_frame,
    opened,
    promote,
    scaling,
)
from tests.served import (
    BY_STREAM,
    PATIENCE,
    Sidecar,
)


@pytest.fixture(scope="module")
def swapping(tmp_path_factory):
    """One sidecar for tests that promote; each begins with the identity in force."""
    sidecar = Sidecar(tmp_path_factory.mktemp("swapping"), BY_STREAM)
    yield sidecar
    sidecar.end()
    assert "Traceback" not in sidecar.log.read_text("utf-8")


def identity_of(sidecar) -> str:
    """The version of the identity, which is put in force."""
    listed = sidecar.admin.List(recalibrator_admin_pb2.ListRequest(), timeout=PATIENCE)
    version: str = listed.recalibrators[0].version
    promote(sidecar, version=version)
    return version


def active_version(listed) -> list[str]:
    """Versions of the promoted recalibrators of estimates."""
    entries = [entry for entry in listed.recalibrators if entry.promoted]
    return [entry.version for entry in entries if entry.method != "class-identity"]


def test_a_promoted_recalibrator_is_in_force_from_the_next_frame_on(swapping):
    sidecar, before = swapping, identity_of(swapping)
    stream = opened(sidecar, "promoted")
    assert list(stream.ask(in_frame(1)).frame.recalibrator_versions) == [before]
    answer = promote(sidecar, document=scaling(2.0, 3.0))
    assert answer.before == before
    assert answer.after.startswith("variance-scaling-")
    result = stream.ask(in_frame(2)).frame
    assert list(result.recalibrator_versions) == [answer.after]
    for detection in result.detections:
        assert detection.status == frame_pb2.STATUS_RECALIBRATED
        assert result.recalibrator_versions[detection.recalibrator_index] == answer.after
        assert list(detection.covariance) == [16.0, 36.0]
    back = promote(sidecar, version=before)
    assert (back.before, back.after) == (answer.after, before)
    result = stream.ask(in_frame(3)).frame
    assert list(result.recalibrator_versions) == [before]
    assert list(result.detections[0].covariance) == [4.0, 4.0]
    stream.close()


def test_list_and_get_show_what_was_promoted(swapping):
    sidecar, identity = swapping, identity_of(swapping)
    document = scaling(4.0, 5.0)
    version = promote(sidecar, document=document).after
    listed = sidecar.admin.List(recalibrator_admin_pb2.ListRequest(), timeout=PATIENCE)
    assert active_version(listed) == [version]
    assert (listed.recalibrators[0].version, listed.recalibrators[0].method) == (
        identity,
        "identity",
    )
    for summary in listed.recalibrators:
        request = recalibrator_admin_pb2.GetRequest(version=summary.version)
        got = sidecar.admin.Get(request, timeout=PATIENCE)
        assert got.summary == summary
        assert json.loads(got.document)["version"] == summary.version
    summary = listed.recalibrators[-1]
    assert (summary.version, summary.method) == (version, "variance-scaling")
    assert list(summary.dimensions) == ["x", "y"]
    request = recalibrator_admin_pb2.GetRequest(version=version)
    assert sidecar.admin.Get(request, timeout=PATIENCE).document == document


def test_a_recalibrator_of_other_dimensions_passes_frames_through(swapping):
    sidecar = swapping
    promote(sidecar, document=scaling(2.0, 2.0, dimensions=("u", "v")))
    stream = opened(sidecar, "mismatch")
    result = stream.ask(in_frame(1)).frame
    assert {d.status for d in result.detections} == {frame_pb2.STATUS_PASSED_THROUGH}
    assert {d.reason for d in result.detections} == {frame_pb2.REASON_RECALIBRATOR_MISMATCH}
    assert list(result.detections[0].covariance) == [4.0, 4.0]
    stream.close()


def test_unknown_versions_are_not_found(shared):
    code, text = failure(lambda: promote(shared, version="gp-normal-0123456789ab"))
    assert code is grpc.StatusCode.NOT_FOUND
    assert "gp-normal-0123456789ab" in text
    request = recalibrator_admin_pb2.GetRequest(version="nothing")
    code, text = failure(lambda: shared.admin.Get(request, timeout=PATIENCE))
    assert code is grpc.StatusCode.NOT_FOUND
    assert "nothing" in text


def changed(**parameters):
    """The document of a scaling with other parameters."""
    content = json.loads(scaling(2.0, 3.0))
    del content["version"]
    content["fallback"]["parameters"].update(parameters)
    return json.dumps(content)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ("", "JSON"),
        ("not json", "JSON"),
        ("[]", "'document' is []"),
        ("{}", "format"),
        ('{"format": "calibration-monitor/recalibrator/1"}', "dimensions"),
        ('{"format": "calibration-monitor/recalibrator/1", "dimensions": ["x"]}', "fallback"),
        (changed(scale=[1.0]), "fallback"),
        (changed(scale=[1.0, -1.0]), "scale"),
        (changed(scale=[1.0, float("nan")]), "scale"),
        (changed(scale=[1.0, 10**400]), "scale"),
        (changed(scale="wide"), "scale"),
        (changed(objective="best"), "fallback"),
        (scaling(2.0, 3.0).replace("2.0", "2.5"), "version"),
        ("[" * 100_000, "JSON"),
        (scaling(2.0, dimensions=("\ud800",)), "holds text that is no Unicode"),
    ],
)
def test_a_document_that_is_no_recalibrator_is_an_invalid_argument_by_field(
    swapping, document, field
):
    identity = identity_of(swapping)
    code, text = failure(lambda: promote(swapping, document=document))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert field in text
    listed = swapping.admin.List(recalibrator_admin_pb2.ListRequest(), timeout=PATIENCE)
    assert active_version(listed) == [identity]


def test_observing_forwards_what_came_and_shows_what_would_have_been(start, tmp_path):
    document = tmp_path / "scaling.json"
    document.write_text(scaling(2.0, 3.0), encoding="utf-8")
    sidecar = start(BY_STREAM + f"[recalibration]\nmode = 'observe'\nrecalibrator = '{document}'\n")
    stream = opened(sidecar, "observed")
    for detection in stream.ask(in_frame(1)).frame.detections:
        assert detection.status == frame_pb2.STATUS_PASSED_THROUGH
        assert detection.reason == frame_pb2.REASON_OBSERVE_MODE
        assert list(detection.covariance) == [4.0, 4.0]
        assert detection.shadow_mean == detection.mean
        assert list(detection.shadow_covariance) == [16.0, 36.0]
    raw, recalibrated = sidecar.calibration("observed").slices[0].stages
    assert raw.dimensions[0].nees_mean == 0.25
    assert recalibrated.dimensions[0].nees_mean == 0.0625
    stream.close()
