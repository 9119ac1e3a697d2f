"""What is forwarded, over the wire of a real process: outputs, quantiles, class probabilities,
flags; and the administration of both kinds of recalibrators.
"""

from __future__ import annotations

import json
import re

import grpc
import pytest
from scipy.special import softmax
from scipy.stats import norm

from monitor.cli import main
from monitor.recalibration.classes.class_scaling import Temperature
from monitor.recalibration.classes.class_selection import CLASS_IDENTITY, ClassSelection
from monitor.recalibration.rejection import RejectedBy
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import IDENTITY, Selection
from monitor.v1 import frame_pb2, recalibrator_admin_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from tests.labelled import converse, header
from tests.piped_classes import rejection
from tests.served import PATIENCE, Conversation, eventually, running, starting

CLASSES = ("car", "truck", "bus")
CONFIG = """
[metrics]
refresh_seconds = 0.2
"""
WARM = ClassSelection(CLASSES, Temperature(2.0))
DOUBLE = Selection(("x", "y"), VarianceScaling((2.0, 3.0)))


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory):
    """Shared: every test promotes what it needs."""
    with running(tmp_path_factory.mktemp("forwarding"), CONFIG) as sidecar:
        yield sidecar


@pytest.fixture
def start(tmp_path):
    with starting(tmp_path, CONFIG) as begin:
        yield begin


def in_frame(number=1, **fields) -> pb.ProcessRequest:
    """Two detections with σ² = 4."""
    frame = frame_pb2.Frame(frame_id=number, stamp_ns=number)
    for i in range(2):
        frame.detections.add(
            id=i,
            class_index=0,
            mean=[i, 1.0],
            covariance=[4.0, 4.0],
            **{name: values[i] for name, values in fields.items()},
        )
    return pb.ProcessRequest(frame=frame)


def promote(sidecar, selection) -> recalibrator_admin_pb2.PromoteResponse:
    request = recalibrator_admin_pb2.PromoteRequest(actor="test", document=selection.to_json())
    found: recalibrator_admin_pb2.PromoteResponse = sidecar.admin.Promote(request, timeout=PATIENCE)
    return found


def back_to_identity(sidecar) -> None:
    promote(sidecar, IDENTITY)
    promote(sidecar, CLASS_IDENTITY)


def listed(sidecar) -> dict[str, recalibrator_admin_pb2.RecalibratorSummary]:
    found = sidecar.admin.List(recalibrator_admin_pb2.ListRequest(), timeout=PATIENCE)
    return {summary.version: summary for summary in found.recalibrators}


def test_quantiles_come_where_they_are_asked_for(sidecar):
    back_to_identity(sidecar)
    promote(sidecar, DOUBLE)
    asking = header("asking", CLASSES)
    asking.header.quantile_levels.extend([0.05, 0.5, 0.9])
    sent = in_frame()
    sent.frame.detections.add(id=7, class_index=0, mean=[0, 0])  # no covariance
    _, answer = converse(sidecar, asking, sent)
    *good, bare = answer.frame.detections
    for detection in good:
        assert detection.output == frame_pb2.OUTPUT_GAUSSIAN
        expected = [
            norm.ppf(level, detection.mean[k], (4.0, 6.0)[k])
            for k in range(2)
            for level in (0.05, 0.5, 0.9)
        ]
        assert list(detection.quantiles) == pytest.approx(expected, abs=1e-12)
    assert bare.status == frame_pb2.STATUS_PASSED_THROUGH
    assert bare.output == frame_pb2.OUTPUT_UNSPECIFIED
    assert not bare.quantiles
    asking.header.ClearField("quantile_levels")
    _, answer = converse(sidecar, asking, in_frame(2))
    assert not any(detection.quantiles for detection in answer.frame.detections)


@pytest.mark.parametrize("levels", [[0.5, 0.1], [0.0], [1.0], [0.01 * i for i in range(1, 21)]])
def test_levels_that_are_none_are_refused_and_the_stream_lives(sidecar, levels):
    stream = Conversation(sidecar.monitor.Process)
    asking = header("refused", CLASSES)
    asking.header.quantile_levels.extend(levels)
    answer = stream.ask(asking).header
    assert not answer.accepted
    assert answer.notice.field == "quantile_levels"
    assert stream.ask(header("refused", CLASSES)).header.accepted
    stream.close()


def test_class_probabilities_are_recalibrated_from_promotion_on(sidecar):
    back_to_identity(sidecar)
    stream = Conversation(sidecar.monitor.Process)
    assert stream.ask(header("classes", CLASSES)).header.accepted
    sent = {"class_probabilities": [[0.64, 0.32, 0.04], [1.0, 0.0, 0.0]]}
    plain = stream.ask(in_frame(1, **sent)).frame
    assert not any(detection.class_probabilities for detection in plain.detections)
    assert plain.class_recalibrator_version == ""
    promotion = promote(sidecar, WARM)
    assert (promotion.before, promotion.after) == (CLASS_IDENTITY.version, WARM.version)
    warm = stream.ask(in_frame(2, **sent)).frame
    assert warm.class_recalibrator_version == WARM.version
    assert list(warm.recalibrator_versions) == [IDENTITY.version]
    total = 0.8 + 0.32**0.5 + 0.2
    expected = [0.8 / total, 0.32**0.5 / total, 0.2 / total]
    assert list(warm.detections[0].class_probabilities) == pytest.approx(expected, abs=1e-12)
    sent = {"class_logits": [[4.0, 2.0, 0.0], [float("nan"), 0.0, 0.0]]}
    logits = stream.ask(in_frame(3, **sent)).frame
    expected = list(softmax([2.0, 1.0, 0.0]))
    assert list(logits.detections[0].class_probabilities) == pytest.approx(expected, abs=1e-12)
    assert not logits.detections[1].class_probabilities
    (notice,) = logits.notices
    assert (notice.field, notice.count) == ("class_logits", 1)
    stream.close()


def test_too_uncertain_detections_are_flagged_and_counted(sidecar):
    back_to_identity(sidecar)
    promote(sidecar, ClassSelection((), Temperature(1.0), rejection(RejectedBy.ENTROPY, 0.5)))
    promote(
        sidecar, Selection((), IDENTITY.fallback, rejection=rejection(RejectedBy.DEVIATION, 3.0))
    )
    sent = in_frame(class_probabilities=[[0.4, 0.3, 0.3], [0.98, 0.01, 0.01]])
    sent.frame.detections[1].covariance[:] = [16.0, 16.0]
    sent.frame.detections.add().CopyFrom(sent.frame.detections[0])
    sent.frame.detections[2].id = 2
    sent.frame.detections[2].covariance[:] = [16.0, 16.0]
    _, answer = converse(sidecar, header("uncertain", CLASSES), sent)
    assert [detection.rejected_by for detection in answer.frame.detections] == [
        frame_pb2.REJECTED_BY_ENTROPY,
        frame_pb2.REJECTED_BY_DEVIATION,
        frame_pb2.REJECTED_BY_BOTH,
    ]
    assert {d.status for d in answer.frame.detections} == {frame_pb2.STATUS_RECALIBRATED}

    def shown():
        text = sidecar.get("/metrics")
        found = re.findall(r'^calibration_uncertain_detections_total{by="(\w+)"} (\d+)', text, re.M)
        return found == [("entropy", "1"), ("deviation", "1"), ("both", "1")]

    assert eventually(shown)


def test_both_kinds_are_listed_and_shown_whole(sidecar):
    back_to_identity(sidecar)
    for selection in (DOUBLE, WARM):
        promote(sidecar, selection)
    found = listed(sidecar)
    assert {version for version, summary in found.items() if summary.promoted} == {
        DOUBLE.version,
        WARM.version,
    }
    assert found[WARM.version].method == "temperature"
    assert list(found[WARM.version].class_names) == list(CLASSES)
    assert not found[WARM.version].dimensions
    assert not found[DOUBLE.version].class_names
    for version, selection in ((WARM.version, WARM), (DOUBLE.version, DOUBLE)):
        request = recalibrator_admin_pb2.GetRequest(version=version)
        got = sidecar.admin.Get(request, timeout=PATIENCE)
        assert got.document == selection.to_json()
        assert got.summary == found[version]
    versions = eventually(
        lambda: re.findall(r'recalibrator_info{.*version="temper', sidecar.get("/metrics"))
    )
    assert len(versions) == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"classes": ["car"]}, "classes"),
        ({"recalibrator": {"method": "magic"}}, "recalibrator.method"),
        ({"rejection": {"by": "deviation"}}, "rejection"),
        ({"version": "temperature-000000000000"}, "version"),
    ],
)
def test_a_class_document_that_is_none_is_an_invalid_argument_by_field(sidecar, change, field):
    document = json.dumps(json.loads(WARM.to_json()) | change)
    request = recalibrator_admin_pb2.PromoteRequest(document=document)
    with pytest.raises(grpc.RpcError) as caught:
        sidecar.admin.Promote(request, timeout=PATIENCE)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field in caught.value.details()


# ---- configuration


def written(folder, name, selection):
    path = folder / name
    path.write_text(selection.to_json(), encoding="utf-8")
    return path


def test_both_may_be_promoted_by_the_configuration(start, tmp_path):
    of_estimates = written(tmp_path, "double.json", DOUBLE)
    of_classes = written(tmp_path, "warm.json", WARM)
    sidecar = start(
        CONFIG
        + f"[recalibration]\nrecalibrator = '{of_estimates}'\nclass_recalibrator = '{of_classes}'\n"
    )
    sent = in_frame(class_probabilities=[[0.6, 0.3, 0.1]] * 2)
    _, answer = converse(sidecar, header("configured", CLASSES), sent)
    assert list(answer.frame.recalibrator_versions) == [DOUBLE.version]
    assert answer.frame.class_recalibrator_version == WARM.version
    assert WARM.version in sidecar.get("/")


@pytest.mark.parametrize(
    ("key", "selection", "words"),
    [
        ("recalibrator", WARM, "is a temperature: name it in class_recalibrator."),
        ("class_recalibrator", DOUBLE, "is a variance-scaling: name it in recalibrator."),
    ],
)
def test_a_recalibrator_of_the_other_kind_is_refused_with_the_right_key(
    tmp_path, capsys, key, selection, words
):
    document = written(tmp_path, "other.json", selection)
    config = tmp_path / "sidecar.toml"
    config.write_text(f"[recalibration]\n{key} = '{document}'\n", encoding="utf-8")
    assert main(["serve", "--config", str(config), "--check"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"[recalibration] {key} = '{document}'" in line
    assert line.endswith(words)


def test_a_check_names_both(tmp_path, capsys):
    document = written(tmp_path, "warm.json", WARM)
    config = tmp_path / "sidecar.toml"
    config.write_text(f"[recalibration]\nclass_recalibrator = '{document}'\n", encoding="utf-8")
    assert main(["serve", "--config", str(config), "--check"]) == 0
    printed = capsys.readouterr().out
    assert IDENTITY.version in printed
    assert WARM.version in printed
