"""A recalibrator's way through a real sidecar, there and back; also over kills."""

from __future__ import annotations

import random
import time
from functools import partial

import numpy as np
import pytest

from monitor.recalibration.selection import IDENTITY
from monitor.v1.recalibration_record_pb2 import RecalibrationRecord as Record
from tests.promoted import (
    BEGAN,
    PROMOTED,
    ROLLED_BACK,
    SWAPS,
    Traffic,
    Watcher,
    active_version,
    drive,
    drive_for,
    listed,
    series,
    settings,
)
from tests.served import PATIENCE, Sidecar, eventually, running, starting

FAULT = 0.2  # of the variance that is sent


def killed(sidecar: Sidecar) -> None:
    sidecar.process.kill()
    sidecar.process.wait(PATIENCE)


def compensated(traffic: Traffic) -> bool:
    factors = traffic.factors() * traffic.variance["car"]
    return bool(np.all((factors > 0.6) & (factors < 1.6)))


def history(sidecar: Sidecar) -> list[Record]:
    """All of it, which has no hole."""
    found = list(listed(sidecar, records=1000).records)
    assert [record.sequence for record in found] == list(range(1, len(found) + 1))
    return found


def briefly(records: list[Record]) -> list[tuple[int, int, str, int]]:
    """What tells one from another."""
    return [(r.sequence, r.what, r.version, r.time.ToNanoseconds()) for r in records]


def test_a_fault_is_found_compensated_and_the_way_back_taken_when_it_ends(tmp_path):
    with running(tmp_path, settings(mode="automatic")) as sidecar:
        traffic, watcher = Traffic(sidecar), Watcher(sidecar)
        drive_for(traffic, 60)
        assert not watcher.records
        assert np.array_equal(traffic.forwarded, traffic.sent)
        traffic.variance["car"] = FAULT
        drive(traffic, until=lambda: watcher.of(PROMOTED), tracks=3000)
        began, promoted = watcher.of(BEGAN)[0], watcher.of(PROMOTED)[0]
        assert began.sequence < promoted.sequence
        assert began.before == began.after == promoted.before == IDENTITY.version
        assert promoted.version == promoted.after != IDENTITY.version
        assert (promoted.slice, promoted.actor) == ("car", "trial")
        assert promoted.evidence.log10_better >= promoted.evidence.log10_threshold >= 1
        assert [factor.dimension for factor in promoted.factors] == ["x", "y"]
        # The first may be of a time that was half before the fault: then others follow.
        drive(traffic, until=lambda: compensated(traffic), tracks=3000)
        traffic.send(1)
        assert traffic.versions == (active_version(sidecar),)
        swaps = "recalibrator_swaps_total"
        assert eventually(lambda: series(sidecar, swaps)['outcome="promoted"'] >= 1)

        traffic.variance.clear()
        drive(traffic, until=lambda: active_version(sidecar) == IDENTITY.version, tracks=3000)
        # After several promotions the way back may take several steps; the last is told last.
        assert eventually(
            lambda: [one.after for one in watcher.of(ROLLED_BACK)][-1:] == [IDENTITY.version]
        )
        back = watcher.of(ROLLED_BACK)[-1]
        assert back.after == IDENTITY.version
        assert back.evidence.log10_better >= back.evidence.log10_threshold == pytest.approx(5)
        traffic.send(1)
        assert np.array_equal(traffic.forwarded, traffic.sent)
        traffic.close()

        camera = Traffic(sidecar, tuple("abcde"), stream="camera", too_sure=2.0)
        classes = "class probabilities"
        drive(camera, until=lambda: watcher.of(PROMOTED, slice=classes), tracks=3000)
        (softer,) = watcher.of(PROMOTED, slice=classes)
        assert softer.version.startswith("temperature-")
        assert softer.version in {one.version for one in listed(sidecar).recalibrators}
        trial = f'slice="{classes}",state="guard"'
        # The first track after it makes the guard.
        guarded = lambda: any(trial in one for one in series(sidecar, "trial_tracks"))  # noqa: E731
        drive(camera, until=guarded, tracks=3000)
        assert classes in sidecar.get("/")
        camera.close()


# `python -m monitor.pipeline.fit_process` finds this on its PYTHONPATH: it hangs as it begins to
# fit, by when it has its job and watches its parent.


@pytest.mark.campaign
def test_wherever_it_is_killed_what_is_active_is_what_its_audit_log_says(tmp_path):
    chance = random.Random(6)
    with starting(
        tmp_path, settings(tmp_path / "kept", mode="automatic", allow_shrinking=True)
    ) as start:
        sidecar = start()
        traffic, told = Traffic(sidecar), list[Record]()
        for _ in range(5):
            watcher = Watcher(sidecar)
            # What is in force is wrong: sooner or later it must change.
            home = active_version(sidecar) == IDENTITY.version
            traffic.variance["car"] = FAULT if home else 1.0
            until = chance.choice([(BEGAN, *SWAPS), SWAPS])
            drive(traffic, until=partial(watcher.of, *until), tracks=4000)
            time.sleep(chance.choice([0, 0, 0.02, 0.1]))
            killed(sidecar)
            watcher.close()
            told += watcher.records
            sidecar = start()
            records = history(sidecar)
            swaps = [record.after for record in records if record.what in SWAPS]
            assert active_version(sidecar) == (swaps[-1] if swaps else IDENTITY.version)
            # What was told in the very last moments may not have come to the disk, nothing else.
            sure = briefly(told)[:-3]
            assert briefly(records)[: len(sure)] == sure
            told = records
            traffic.connect(sidecar)
