"""The way of a class recalibrator through a real sidecar, there and back, over a kill."""

from __future__ import annotations

import time
from itertools import count

from monitor.recalibration.selection import CLASS_IDENTITY
from monitor.v1 import frame_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from tests.labelled import header
from tests.promoted import BEGAN, PROMOTED, ROLLED_BACK, listed, settings
from tests.promotion.simulated_tracks import class_tracks
from tests.served import PATIENCE, Conversation, Sidecar, eventually, starting

NAME, OBJECTS, LIFETIME = "class probabilities", 20, 12 * PATIENCE
CLASSES = class_tracks(0, 1)[0].kind.names


class Camera:
    """Sends probabilities with true classes; event time goes on over sidecars."""

    def __init__(self) -> None:
        self.stamp, self.track = count(1), count(1)

    def drive_until(self, sidecar: Sidecar, times: float, what: int) -> str:
        """Drives with logits so many times too large; returns the version after it happened."""
        process = sidecar.monitor.Process
        frames = Conversation(lambda sent, timeout: process(sent, timeout=LIFETIME))
        assert frames.ask(header("camera", CLASSES)).header.accepted
        deadline = time.monotonic() + PATIENCE
        for seed in count(1000 * what + next(self.stamp)):
            some = class_tracks(seed, OBJECTS, times)
            names = [next(self.track) for _ in some]
            for age in range(max(track.n for track in some)):
                stamp = next(self.stamp)
                frame = frame_pb2.Frame(frame_id=stamp, stamp_ns=stamp * 10**8)
                for name, track in zip(names, some, strict=True):
                    if age < track.n:
                        frame.detections.add(
                            id=name,
                            class_index=0,
                            mean=(0.0, 0.0),
                            covariance=(1.0, 1.0),
                            upstream_track_id=name,
                            class_probabilities=track.probabilities[age, 0],
                            ground_truth_class=int(track.label[age]),
                        )
                answer = frames.ask(pb.ProcessRequest(frame=frame)).frame
                assert answer.frame_id == stamp
            time.sleep(0.05)
            for record in listed(sidecar, records=1000).records:
                if record.what == what:
                    assert record.slice == NAME
                    frames.close()
                    return record.after
            assert time.monotonic() < deadline
        raise AssertionError


def test_a_detector_that_is_too_sure_is_softened_over_a_kill_and_left_alone_when_well(tmp_path):
    camera = Camera()
    with starting(tmp_path, settings(tmp_path / "state", mode="automatic")) as begin:
        sidecar = begin()
        camera.drive_until(sidecar, 2.0, BEGAN)
        assert eventually(lambda: f'slice="{NAME}",state="running"' in sidecar.get("/metrics"))
        assert NAME in sidecar.get("/")
        version = camera.drive_until(sidecar, 2.0, PROMOTED)
        assert version.startswith("temperature-")
        # What was told in the very last moment may not have come to the disk.
        time.sleep(1.0)
        sidecar.process.kill()
        sidecar.process.wait(PATIENCE)
        sidecar = begin()
        assert version in {one.version for one in listed(sidecar).recalibrators if one.promoted}
        assert camera.drive_until(sidecar, 1.0, ROLLED_BACK) == CLASS_IDENTITY.version
