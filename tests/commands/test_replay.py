"""replay: through a real sidecar, and what comes out is what the formulas say of the file."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monitor.commands import replay
from monitor.commands.sending import PlayedFrame, RecordedSequence, running_sidecar
from monitor.commands.sidecar_client import SidecarFailed
from tests.commands.recordings import DIMENSIONS, FRAMES, SEQUENCES, csv_file, nees, npz_file
from tests.commands.spoken import done, found, refused, spoken

replayed = partial(found, "replay")
refusal = partial(refused, "replay")
CLASSES = ("car", "pedestrian")
STAGES = ("raw", "recalibrated")
MEASURES = {
    *("n", "k", "nees_over_k", "nees_median_ratio", "nll", "ence", "ence_noise_floor"),
    *("uce", "qce", "qce_by_tau", "bins"),
}
BIN = {"lower", "upper", "n", "variance", "squared_error", "nees", "within"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replay")


@pytest.fixture(scope="module")
def words(drive: Path) -> tuple[object, ...]:
    """Of most runs here: in the last frames there is nothing of these classes."""
    return drive, "--class", ",".join(CLASSES)


@pytest.fixture(scope="module")
def plain(words: tuple[object, ...]) -> Any:
    return replayed(*words)


def test_every_frame_is_sent_and_the_object_has_the_keys_of_the_contract(plain, rows):
    there = rows.of_class(*CLASSES)
    assert there.frame.max() < FRAMES - 1
    assert plain["frames"] == FRAMES * len(SEQUENCES)
    assert plain["detections"] == there.n < rows.n
    assert plain["matched"] == np.count_nonzero(there.labelled) < there.n
    keys = {"frames", "detections", "matched", "tau", "slices", "total"}
    keys |= {"alarms", "drift", "drift_left_out"}
    assert plain.keys() == keys
    assert plain["tau"] == [0.5, 0.68, 0.9, 0.95, 0.99]
    assert tuple(plain["slices"]) == CLASSES
    both = [stages[stage] for stages in plain["slices"].values() for stage in STAGES]
    for stage in both:
        assert stage.keys() == MEASURES
        assert tuple(stage["ence"]) == tuple(stage["uce"]) == DIMENSIONS
        assert tuple(stage["qce"]) == tuple(stage["bins"]) == (*DIMENSIONS, "joint")
        for bins in stage["bins"].values():
            assert 15 <= len(bins) <= 20
            assert all(entry.keys() == BIN and len(entry["within"]) == 5 for entry in bins)
    assert plain["total"]["recalibrated"] == plain["total"]["raw"]


def test_a_recalibrator_changes_its_stage_and_delay_and_pace_nothing(plain, words, folder):
    model = folder / "model.json"
    fit = ("--by-class", "--method", "covariance-scaling", "--output", model)
    done("fit", *words, *fit)
    # All labels come when the last frame has long been answered.
    more = ("--mode", "observe", "--ground-truth-delay", "1000", "--speed", "50")
    now = replayed(*words, "--recalibrator", model, *more)
    for key in ("frames", "detections", "matched"):
        assert now[key] == plain[key]
    for name in CLASSES:
        before, after = plain["slices"][name], now["slices"][name]
        assert after["raw"] == before["raw"]
        # The file that it was fitted on.
        joint = found("evaluate", *words, "--class", name, "--model", model)["joint"]
        ratio = after["recalibrated"]["nees_over_k"]
        assert ratio == pytest.approx(joint["nees_over_k"], rel=1e-9)
        assert ratio != pytest.approx(after["raw"]["nees_over_k"], rel=1e-3)
    assert now["total"]["raw"] == plain["total"]["raw"]


def test_several_files_are_sliced_by_class_and_stream(drive, rows, folder):
    archive = npz_file(folder / "more.npz", rows)
    run = replayed(drive, archive, "--slice-by", "class,stream", "--bins", "5")
    # An archive without frames comes in pieces of 200 rows.
    assert run["frames"] == FRAMES * len(SEQUENCES) + -(-rows.n // 200)
    assert run["detections"] == 2 * rows.n
    assert run["matched"] == 2 * np.count_nonzero(rows.labelled)
    streams = {*(f"file0.{name}" for name in SEQUENCES), "file1.more"}
    assert {name.split("/")[0] for name in run["slices"]} == streams
    assert list(run["slices"]) == sorted(run["slices"])
    for name, stages in run["slices"].items():
        stream, kind = name.split("/")
        there = rows.of_class(kind)
        if stream != "file1.more":
            there = there.of(there.sequence == stream.removeprefix("file0."))
        assert stages["raw"]["n"] == np.count_nonzero(there.labelled)
        assert stages["raw"]["nees_over_k"] == pytest.approx(nees(there).mean() / 3, rel=1e-9)
        assert len(stages["raw"]["bins"]["x"]) <= 5


def test_a_running_sidecar_is_used_and_counts_nothing_twice(words, rows, folder):
    with running_sidecar("") as addresses:
        to = ("--address", addresses.grpc)
        first = replayed(*words, *to)
        said = done("export", *to, "-o", folder / "all.state")
        # Once more: the labels of these frames are already there, and it says so.
        code, out, err = spoken("replay", *words, *to, "--json")
    for name in CLASSES:
        expected = nees(rows.of_class(name)).mean() / 3
        ratio = first["slices"][name]["raw"]["nees_over_k"]
        assert ratio == pytest.approx(expected, rel=1e-9)
    (line,) = err.splitlines()
    assert f"0 of {first['matched']} labels matched" in line
    assert f"{first['matched']} duplicate" in line
    again = json.loads(out)
    assert (code, again["matched"], again["slices"]) == (0, 0, first["slices"])
    told = f", {first['matched']} labelled detections, {first['detections']:,} labelled or not, "
    assert said.endswith(f"{told}written to {folder / 'all.state'}\n")


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (("--class", "tram"), "'tram'"),
        (("--recalibrator", "gone.json"), "gone.json"),
        (("--address", "127.0.0.1:1", "--slice-by", "stream"), "--mode and --slice-by"),
    ],
)
def test_what_cannot_be_sent_is_told_before_a_sidecar_is_started(drive, monkeypatch, more, named):
    monkeypatch.setattr(replay, "running_sidecar", None)
    assert named in refusal(drive, *more)


def test_what_a_running_sidecar_refuses_is_named_with_its_stream(rows, folder):
    mean, crowd, spaced = np.zeros((5000, 1)), folder / "crowd.npz", folder / "spaced.npz"
    np.savez(crowd, mean=mean, var=mean + 1, frame=np.repeat([0, 1], [10, 4990]))
    named = np.char.add("north of ", rows.sequence)
    np.savez(spaced, mean=rows.mean, cov=rows.covariance, seq=named)
    early = csv_file(folder / "early.csv", replace(rows, frame=rows.frame - 1))
    with running_sidecar("") as addresses:
        to = ("--address", addresses.grpc)
        assert "frame 1 of crowd: " in refusal(crowd, *to)
        assert "stream: 'north of " in refusal(spaced, *to)
        assert "sequence north has frame numbers from -1 to 28" in refusal(early, *to)


def test_a_sidecar_of_others_that_is_killed_on_the_way_is_told_in_a_line(words, monkeypatch):
    killed: list[int] = []

    play = RecordedSequence.play

    def play_and_kill(sequence: RecordedSequence) -> Iterator[PlayedFrame]:
        for frame in play(sequence):
            if frame.number == 10 and not killed:
                children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
                killed.append(int(children.split()[-1]))
                os.kill(killed[0], signal.SIGKILL)
                os.waitid(os.P_PID, killed[0], os.WEXITED | os.WNOWAIT)
            yield frame

    monkeypatch.setattr(RecordedSequence, "play", play_and_kill)
    with pytest.raises(SidecarFailed, match="signal 9"), running_sidecar("") as addresses:
        line = refusal(*words, "--speed", "20", "--address", addresses.grpc)
        assert f"the sidecar at {addresses.grpc} ended a stream" in line
