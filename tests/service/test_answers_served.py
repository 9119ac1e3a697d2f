"""What one real sidecar answers: tracks, quantiles, class probabilities, flags; and which of both
kinds of recalibrators it takes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from monitor.cli import main
from monitor.frames.frame import Header, TrackStatus
from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.recalibration.classes.class_scaling import Temperature
from monitor.recalibration.classes.class_selection import ClassSelection
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import IDENTITY, Selection
from monitor.v1 import frame_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.wire.client_messages import (
    AnsweredTracks,
    OutgoingFrame,
    decode_answer,
    encode_frame,
    encode_header,
)
from tests.labelled import header
from tests.served import PATIENCE, Conversation, process_bytes, running

CLASSES = ("car", "truck", "bus")
WARM = ClassSelection(CLASSES, Temperature(2.0))
DOUBLE = Selection(("x", "y"), VarianceScaling((2.0, 3.0)))


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory):
    """Begins with both kinds of recalibrators from its configuration."""
    folder = tmp_path_factory.mktemp("served")
    paths = [written(folder, name, one) for name, one in (("double", DOUBLE), ("warm", WARM))]
    config = (
        "[metrics]\nrefresh_seconds = 0.1\n[statistics]\nslice_by = ['stream']\n"
        f"[recalibration]\nrecalibrator = '{paths[0]}'\nclass_recalibrator = '{paths[1]}'\n"
        "[tracker]\nkind = 'embedded'\n"
    )
    with running(folder, config) as sidecar:
        yield sidecar


def written(folder, name, selection):
    path = folder / f"{name}.json"
    path.write_text(selection.to_json(), encoding="utf-8")
    return path


# ---- recalibrated answers


def in_frame(number=1, **fields) -> pb.ProcessRequest:
    """Detections with σ² = 4, as many as the fields have values."""
    frame = frame_pb2.Frame(frame_id=number, stamp_ns=number * 10**8)
    for i in range(len(next(iter(fields.values()), (0, 0)))):
        own = {name: values[i] for name, values in fields.items()}
        detection = {"mean": [i, 1.0], "covariance": [4.0, 4.0], **own}
        frame.detections.add(id=i, class_index=0, **detection)
    return pb.ProcessRequest(frame=frame)


def test_quantiles_come_where_asked_for_and_bad_levels_are_refused(sidecar):
    stream = Conversation(sidecar.monitor.Process)
    asking = header("asking", CLASSES)
    asking.header.quantile_levels.extend([0.5, 0.1])
    answer = stream.ask(asking).header
    assert (answer.accepted, answer.notice.field) == (False, "quantile_levels")
    asking.header.quantile_levels[:] = [0.05, 0.5, 0.9]
    assert stream.ask(asking).header.accepted
    sent = in_frame(class_probabilities=[[0.64, 0.32, 0.04], [1.0, 0.0, 0.0]])
    sent.frame.detections.add(id=7, class_index=0, mean=[0, 0])  # no covariance
    frame = stream.ask(sent).frame
    *good, bare = frame.detections
    assert list(frame.recalibrator_versions) == [DOUBLE.version]
    assert frame.class_recalibrator_version == WARM.version
    roots = np.array([0.8, 0.32**0.5, 0.2])
    expected = list(roots / roots.sum())
    assert list(good[0].class_probabilities) == pytest.approx(expected, abs=1e-12)
    for detection in good:
        assert detection.output == frame_pb2.OUTPUT_GAUSSIAN
        expected = [
            norm.ppf(level, detection.mean[k], (4.0, 6.0)[k])
            for k in range(2)
            for level in (0.05, 0.5, 0.9)
        ]
        assert list(detection.quantiles) == pytest.approx(expected, abs=1e-12)
    assert bare.status == frame_pb2.STATUS_PASSED_THROUGH
    assert (bare.output, len(bare.quantiles)) == (frame_pb2.OUTPUT_UNSPECIFIED, 0)
    stream.close()


@pytest.mark.parametrize(
    ("key", "selection", "said"),
    [
        ("class_recalibrator", WARM, ""),
        ("recalibrator", WARM, "is a temperature: name it in class_recalibrator."),
        ("class_recalibrator", DOUBLE, "is a variance-scaling: name it in recalibrator."),
    ],
)
def test_a_check_names_both_recalibrators_or_the_right_key(tmp_path, capsys, key, selection, said):
    document = written(tmp_path, "other", selection)
    config = tmp_path / "sidecar.toml"
    config.write_text(f"[recalibration]\n{key} = '{document}'\n", encoding="utf-8")
    assert main(["serve", "--config", str(config), "--check"]) == (1 if said else 0)
    found = capsys.readouterr()
    if said:
        (line,) = found.err.splitlines()
        assert f"[recalibration] {key} = '{document}'" in line
        assert line.endswith(said)
    else:
        assert IDENTITY.version in found.out and WARM.version in found.out


# ---- tracks

SPACE = Space(
    (*(Dimension(name, "m") for name in "xyz"), Dimension("yaw", "rad", DimensionKind.ANGLE))
)
SIGMA = np.array([0.2, 0.2, 0.1, 0.05])


def boxes(n: int, number: int) -> tuple[OutgoingFrame, np.ndarray]:
    """n boxes 6 m apart at 20 m/s, at 20 Hz: as seen, and where they are."""
    truth = np.zeros((n, 4))
    truth[:, 0], truth[:, 1] = 6.0 * (np.arange(n) % 5) + 1.0 * number, 6.0 * (np.arange(n) // 5)
    frame = OutgoingFrame(
        frame_id=number,
        stamp_ns=number * 5 * 10**7,
        id=np.arange(100, 100 + n, dtype=np.uint64),
        class_index=np.zeros(n, np.int64),
        mean=truth + np.random.default_rng([n, number]).normal(size=(n, 4)) * SIGMA,
        covariance=np.broadcast_to(np.diag(SIGMA**2), (n, 4, 4)),
    )
    return frame, truth


class Feed:
    """A Process stream of which every answer is looked at; the last one is kept."""

    def __init__(self, sidecar, name: str, *, return_tracks=True) -> None:
        self.conversation = Conversation(process_bytes(sidecar.channel))
        self.header = encode_header(Header(name, SPACE, ("car",), return_tracks=return_tracks))
        accepted = pb.ProcessResponse.FromString(self.conversation.ask(self.header)).header
        assert accepted.accepted
        self.dimensions = [(d.name, d.unit) for d in accepted.track_dimensions]

    def tracks(self, frame: OutgoingFrame) -> AnsweredTracks:
        reply = self.conversation.ask(encode_frame(frame))
        self.result = pb.ProcessResponse.FromString(reply).frame
        answer = decode_answer(reply, 4)
        tracks = answer.tracks
        assert np.isfinite(tracks.state).all()
        assert np.array_equal(tracks.has_detection, tracks.status != TrackStatus.COASTING)
        updated = tracks.has_detection
        named = dict(zip(tracks.detection_id[updated].tolist(), tracks.id[updated], strict=True))
        told = dict(zip(frame.id.tolist(), answer.track_id, strict=True))
        assert named == {detection: track for detection, track in told.items() if track}
        return tracks


def test_tracks_are_those_at_the_frame_they_come_with_and_outlive_the_connection(sidecar):
    feed = Feed(sidecar, "now")
    assert feed.dimensions == [
        *(("x", "m"), ("y", "m"), ("z", "m"), ("yaw", "rad")),
        *((f"{name}_velocity", "m/s") for name in "xyz"),
    ]
    for number in range(30):
        frame, truth = boxes(9, number)
        tracks = feed.tracks(frame)
        request = pb.ProcessFrameRequest(
            header=pb.ProcessRequest.FromString(feed.header).header,
            frame=pb.ProcessRequest.FromString(encode_frame(frame)).frame,
        )
        request.header.stream = "one_at_a_time"
        reply = sidecar.monitor.ProcessFrame(request, timeout=PATIENCE)
        assert list(reply.frame.tracks) == list(feed.result.tracks)
    feed.conversation.close()
    assert tracks.status.tolist() == [TrackStatus.CONFIRMED] * 9
    assert tracks.detections.tolist() == [30] * 9
    # A frame before, everything was 1 m back.
    states = tracks.state[np.argsort(tracks.detection_id)]
    assert np.abs(states[:, :4] - truth).max() < 0.4
    assert np.allclose(states[:, 4:], (20.0, 0.0, 0.0), atol=1.5)
    silent = Feed(sidecar, "now", return_tracks=False)
    assert silent.dimensions == []
    assert silent.tracks(boxes(9, 30)[0]).id.size == 0
    silent.conversation.close()
    again = Feed(sidecar, "now").tracks(boxes(9, 31)[0])
    assert sorted(again.id.tolist()) == sorted(tracks.id.tolist())
    assert again.detections.tolist() == [32] * 9
