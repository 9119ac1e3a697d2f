"""Class probabilities over the wire of a real process, in GetCalibration and /metrics."""

from __future__ import annotations

import re
from statistics import fmean

import numpy as np
import pytest

from monitor.frames.space import FloatArray
from monitor.statistics.class_evaluation import read_classes
from monitor.statistics.class_statistics import ClassStatistics
from monitor.v1 import calibration_pb2, frame_pb2, truth_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from tests.calibration import class_oracle
from tests.labelled import (
    SECOND,
    assert_message,
    calibration,
    converse,
    exported,
    header,
    labelled_frame,
)
from tests.served import Conversation, Sidecar, eventually
from tests.states import within

CLASSES = ("car", "truck", "bus")


def probabilities(seed, rows: int, opinions: int) -> FloatArray:
    """(rows, opinions, C); opinions of one row resemble each other."""
    random = np.random.default_rng(seed)
    middle = random.dirichlet(np.full(3, 0.7), size=(rows, 1))
    return np.stack([random.dirichlet(30 * row + 0.05, size=opinions) for row in middle[:, 0]])


def send_classes(
    sidecar: Sidecar, stream: str, sent, true_class, *, late=False, per_frame=25, apart_s=1
) -> None:
    """Detections with class probabilities and without any ground truth of their place."""
    messages, told = [header(stream, CLASSES)], []
    for number, start in enumerate(range(0, len(sent), per_frame)):
        frame = frame_pb2.Frame(frame_id=number, stamp_ns=number * apart_s * SECOND)
        truth = truth_pb2.FrameTruth(stream=stream, frame_id=number)
        for i in range(start, min(start + per_frame, len(sent))):
            frame.detections.add(
                id=i,
                class_index=int(sent[i].mean(axis=0).argmax()),
                mean=[0.0, 0.0],
                covariance=[1.0, 1.0],
                class_probabilities=sent[i].ravel(),
            )
            if late:
                truth.detections.add(detection_id=i, class_index=true_class[i])
            else:
                frame.detections[-1].ground_truth_class = true_class[i]
        messages.append(pb.ProcessRequest(frame=frame))
        told.append(pb.ReportGroundTruthRequest(truth=truth))
    converse(sidecar, *messages)
    if late:
        labels = Conversation(sidecar.monitor.ReportGroundTruth)
        accounts = [labels.ask(message).account for message in told]
        labels.close()
        assert sum(account.matched for account in accounts) == len(sent)


def true_classes(seed, sent) -> list[int]:
    """Drawn from the mean of the opinions: calibrated."""
    random = np.random.default_rng([seed, 1])
    mean = sent.mean(axis=1)
    return [int(random.choice(3, p=row / row.sum())) for row in mean]


def classes_of(sidecar: Sidecar, name: str, **request) -> calibration_pb2.ClassCalibration:
    found: calibration_pb2.ClassCalibration
    (found,) = (each for each in calibration(sidecar, **request).classes if each.slice == name)
    return found


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("opinions", [1, 4])
def test_class_measures_are_those_of_the_papers_over_what_was_sent(shared, opinions, late):
    name = f"classes-{opinions}-{late}"
    sent = probabilities(opinions, 200, opinions)
    labels = true_classes(opinions, sent)
    send_classes(shared, name, sent, labels, late=late)
    found = classes_of(shared, name)
    assert (list(found.class_names), found.n) == (list(CLASSES), 200)
    mean = sent.mean(axis=1)
    rows = [(row.tolist(), label) for row, label in zip(mean, labels, strict=True)]
    edges = np.linspace(0, 1, 21).tolist()
    oracle = class_oracle
    near = {
        "accuracy": fmean(map(oracle.right, rows)),
        "nll": fmean(map(oracle.cross_entropy, rows)),
        "brier": fmean(map(oracle.brier, rows)),
        "sharpness": oracle.sharpness(rows),
        "overconfidence": oracle.mean_where(rows, oracle.confidence, oracle.wrong),
        "underconfidence": 1 - oracle.mean_where(rows, oracle.confidence, oracle.right),
        "ece": oracle.expected(oracle.gaps(rows, oracle.confidence, oracle.right, edges)),
        "uce_entropy": oracle.expected(oracle.gaps(rows, oracle.entropy, oracle.wrong, edges)),
        "cece": fmean(oracle.classwise_ece(rows, c, edges) for c in range(3)),
    }
    for field, value in near.items():
        assert getattr(found, field) == pytest.approx(value, abs=1e-6), field
    assert found.ause == pytest.approx(
        oracle.ause(rows, lambda row: 1 - oracle.confidence(row), oracle.wrong), abs=0.01
    )
    if opinions > 1:
        parts = [oracle.entropy_parts(row.tolist()) for row in sent]
        assert found.aleatoric == pytest.approx(fmean(p[0] for p in parts), abs=1e-6)
        assert found.epistemic == pytest.approx(fmean(p[1] for p in parts), abs=1e-6)
    else:
        assert np.isnan([found.aleatoric, found.epistemic]).all()


def test_every_field_is_what_is_read_off_the_statistics_of_the_window(start):
    sidecar = start()
    sent = probabilities(7, 300, 3)
    # Two minutes apart, so that the windows hold different parts of them.
    send_classes(sidecar, "seen", sent, true_classes(7, sent), apart_s=120)
    state = exported(sidecar).state
    (entry,) = [each for each in state.class_slices if each.name == "seen"]
    counts = []
    for level, window in enumerate(("5m", "1h", "24h", "")):
        parts: list[ClassStatistics] = within(entry.panes, level)
        named = list(calibration(sidecar, window=window).classes)
        if not parts:
            assert named == []
            continue
        statistics = parts[0]
        for part in parts[1:]:
            statistics = statistics.merge(part)
        (found,) = named
        besides = {"slice", "class_names"}
        assert assert_message(found, read_classes(statistics), besides) == 20
        counts.append(found.n)
    assert counts[-1] == 300
    assert counts == sorted(counts)


def test_classes_are_in_the_metrics_under_the_names_of_the_readme(shared):
    sent = probabilities(9, 120, 2)
    send_classes(shared, "exposed", sent, true_classes(9, sent))
    found = classes_of(shared, "exposed")
    expected = {"classified_detections": 120.0} | {
        f"class_{name}": getattr(found, name)
        for name in (
            *("accuracy", "ece", "uce_entropy", "brier", "nll", "ause"),
            *("overconfidence", "underconfidence"),
        )
    }

    def exposed() -> dict[str, float]:
        pattern = r'^calibration_(class\w+)\{slice="exposed"\} (\S+)$'
        lines = re.findall(pattern, shared.get("/metrics"), re.MULTILINE)
        return {name: float(value) for name, value in lines}

    assert eventually(lambda: exposed() == expected), exposed()


def test_streams_that_send_no_probabilities_have_no_classes(start):
    sidecar = start()
    converse(sidecar, header("plain", CLASSES), labelled_frame(1, 1))
    response = calibration(sidecar)
    assert len(response.slices) == 2
    assert not response.classes
