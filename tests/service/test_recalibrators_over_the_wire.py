"""Recalibrators over the wire: promoted, listed, refused, observed."""

from __future__ import annotations

import json

import grpc
import pytest

from monitor.v1 import frame_pb2, recalibrator_admin_pb2
from tests.foreign_client import failure, in_frame, opened, promote, scaling
from tests.served import BY_STREAM, PATIENCE, running


@pytest.fixture(scope="module")
def swapping(tmp_path_factory):
    """One sidecar for tests that promote."""
    with running(tmp_path_factory.mktemp("swapping"), BY_STREAM) as sidecar:
        yield sidecar


def listed(sidecar):
    return sidecar.admin.List(recalibrator_admin_pb2.ListRequest(), timeout=PATIENCE)


def got(sidecar, version):
    request = recalibrator_admin_pb2.GetRequest(version=version)
    return sidecar.admin.Get(request, timeout=PATIENCE)


def promoted(sidecar) -> list[str]:
    """Versions of the promoted recalibrators of estimates."""
    entries = [entry for entry in listed(sidecar).recalibrators if entry.promoted]
    return [entry.version for entry in entries if entry.method != "class-identity"]


def test_a_promoted_recalibrator_is_shown_and_in_force_from_the_next_frame_on(swapping):
    identity = listed(swapping).recalibrators[0]
    assert identity.method == "identity"
    promote(swapping, version=identity.version)
    stream = opened(swapping, "promoted")
    assert list(stream.ask(in_frame(1)).frame.recalibrator_versions) == [identity.version]
    document = scaling(2.0, 3.0)
    answer = promote(swapping, document=document)
    assert answer.before == identity.version
    assert answer.after.startswith("variance-scaling-")
    result = stream.ask(in_frame(2)).frame
    assert list(result.recalibrator_versions) == [answer.after]
    for detection in result.detections:
        assert detection.status == frame_pb2.STATUS_RECALIBRATED
        assert result.recalibrator_versions[detection.recalibrator_index] == answer.after
        assert list(detection.covariance) == [16.0, 36.0]
    assert promoted(swapping) == [answer.after]
    for summary in listed(swapping).recalibrators:
        assert got(swapping, summary.version).summary == summary
    shown = got(swapping, answer.after)
    assert shown.document == document
    assert (shown.summary.method, list(shown.summary.dimensions)) == (
        "variance-scaling",
        ["x", "y"],
    )
    back = promote(swapping, version=identity.version)
    assert (back.before, back.after) == (answer.after, identity.version)
    result = stream.ask(in_frame(3)).frame
    assert list(result.recalibrator_versions) == [identity.version]
    assert list(result.detections[0].covariance) == [4.0, 4.0]
    stream.close()


def test_a_recalibrator_of_other_dimensions_passes_frames_through(swapping):
    promote(swapping, document=scaling(2.0, 2.0, dimensions=("u", "v")))
    stream = opened(swapping, "mismatch")
    result = stream.ask(in_frame(1)).frame
    assert {d.status for d in result.detections} == {frame_pb2.STATUS_PASSED_THROUGH}
    assert {d.reason for d in result.detections} == {frame_pb2.REASON_RECALIBRATOR_MISMATCH}
    assert list(result.detections[0].covariance) == [4.0, 4.0]
    stream.close()


def test_what_is_no_recalibrator_or_unknown_is_refused_by_field_and_nothing_changes(swapping):
    before = promoted(swapping)
    for document, field in (
        ("", "JSON"),
        ("{}", "format"),
        (scaling(2.0, 3.0).replace("2.0", "2.5"), "version"),
        ("[" * 100_000, "JSON"),
        (scaling(2.0, dimensions=("\ud800",)), "holds text that is no Unicode"),
        (json.dumps({**json.loads(scaling(2.0)), "fallback": 3}), "fallback"),
    ):
        code, text = failure(lambda document=document: promote(swapping, document=document))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert field in text
    for ask in (promote, lambda sidecar, version: got(sidecar, version)):
        code, text = failure(lambda ask=ask: ask(swapping, version="gp-normal-0123456789ab"))
        assert code is grpc.StatusCode.NOT_FOUND
        assert "gp-normal-0123456789ab" in text
    assert promoted(swapping) == before


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
