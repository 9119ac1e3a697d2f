"""replay: through a real sidecar, and what comes out is what the formulas say of the file."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monitor.cli import main
from monitor.commands import replay, sending
from monitor.commands.sending import Addresses, running_sidecar
from monitor.commands.sidecar_client import SidecarFailed
from monitor.wire.client_messages import encode_frame
from tests.verbs.recordings import (
    DIMENSIONS,
    FRAMES,
    SEQUENCES,
    Recorded,
    csv_file,
    nees,
    npz_file,
    recorded,
    with_bad_covariances,
)

CLASSES = ("car", "pedestrian")
STAGES = ("raw", "recalibrated")
MEASURES = {
    *("n", "k", "nees_over_k", "nees_median_ratio", "nll", "ence", "ence_noise_floor"),
    *("uce", "qce", "qce_by_tau", "bins"),
}
BIN = {"lower", "upper", "n", "variance", "squared_error", "nees", "within"}


def replayed(*words: object) -> str:
    """What replay prints, once it has done its work without a complaint."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["replay", *map(str, words)])
    assert (code, err.getvalue()) == (0, "")
    return out.getvalue()


@pytest.fixture
def refusal(capsys):
    """What replay says when it cannot."""

    def refused(*words):
        assert main(["replay", *map(str, words)]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("calibration-monitor replay: ")
        assert "Traceback" not in said.err
        return said.err.rstrip("\n")

    return refused


@pytest.fixture(scope="module")
def rows() -> Recorded:
    return recorded()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replay")


@pytest.fixture(scope="module")
def drive(rows: Recorded, folder: Path) -> Path:
    return csv_file(folder / "drive.csv.gz", rows)


@pytest.fixture(scope="module")
def words(drive: Path) -> tuple[object, ...]:
    """Of most runs here: in the last frames there is nothing of these classes."""
    return drive, "--class", ",".join(CLASSES), "--json"


@pytest.fixture(scope="module")
def plain(words: tuple[object, ...]) -> str:
    return replayed(*words)


@pytest.fixture(scope="module")
def found(plain: str) -> Any:
    return json.loads(plain)


@pytest.fixture(scope="module")
def sidecar() -> Iterator[Addresses]:
    """For runs that only count."""
    with running_sidecar("") as addresses:
        yield addresses


# ---- a plain run


def test_every_frame_is_sent_from_0_to_the_last_of_its_sequence(found, rows):
    there = rows.of_class(*CLASSES)
    assert there.frame.max() < FRAMES - 1
    assert found["frames"] == FRAMES * len(SEQUENCES)
    assert found["detections"] == there.n < rows.n
    assert found["matched"] == np.count_nonzero(there.labelled) < there.n


def test_the_object_has_the_keys_of_the_contract(found):
    assert found.keys() == {
        *("frames", "detections", "matched", "tau", "slices", "total"),
        *("alarms", "drift"),
    }
    assert found["tau"] == [0.5, 0.68, 0.9, 0.95, 0.99]
    assert tuple(found["slices"]) == CLASSES
    for stages in (*found["slices"].values(), found["total"]):
        assert tuple(stages) == STAGES
        for stage in stages.values():
            assert stage.keys() == MEASURES
            assert tuple(stage["ence"]) == tuple(stage["uce"]) == DIMENSIONS
            assert tuple(stage["qce"]) == tuple(stage["bins"]) == (*DIMENSIONS, "joint")
            for bins in stage["bins"].values():
                assert 15 <= len(bins) <= 20
                assert all(entry.keys() == BIN for entry in bins)
                assert all(len(entry["within"]) == 5 for entry in bins)


def each_stage(found):
    return [
        stages[stage] for stages in (*found["slices"].values(), found["total"]) for stage in STAGES
    ]


def test_the_nees_is_that_of_the_formula_without_yaw(found, rows):
    expected = nees(rows.of_class(*CLASSES)).mean() / 3
    assert found["total"]["raw"]["nees_over_k"] == pytest.approx(expected, rel=1e-9)
    assert found["total"]["raw"]["k"] == 3
    for name in CLASSES:
        expected = nees(rows.of_class(name)).mean() / 3
        raw = found["slices"][name]["raw"]
        assert raw["nees_over_k"] == pytest.approx(expected, rel=1e-9)


def test_yaw_is_measured_as_an_angle(found, rows):
    there = rows.of_class(*CLASSES)
    difference = (there.truth - there.mean)[there.labelled, 3]
    assert np.abs(difference).max() > 5  # on both sides of ±π
    bins = found["total"]["raw"]["bins"]["yaw"]
    assert sum(b["nees"] for b in bins) == pytest.approx(nees(there, (3,)).sum(), rel=1e-9)


def test_ence_uce_and_qce_follow_from_the_bins(found):
    tau = np.array(found["tau"])
    for stage in each_stage(found):
        for name, bins in stage["bins"].items():
            column = {key: np.array([b[key] for b in bins]) for key in BIN}
            n = column["n"]
            assert n.sum() == stage["n"]
            gap = np.abs(column["within"] - n[:, None] * tau).sum(axis=0) / n.sum()
            assert stage["qce_by_tau"][name] == pytest.approx(gap, abs=1e-9)
            assert stage["qce"][name] == pytest.approx(gap.mean(), abs=1e-9)
            if name == "joint":
                mean = column["nees"].sum() / (stage["k"] * n.sum())
                assert stage["nees_over_k"] == pytest.approx(mean, rel=1e-9)
                continue
            rmv, rmse = np.sqrt(column["variance"] / n), np.sqrt(column["squared_error"] / n)
            assert stage["ence"][name] == pytest.approx(np.mean(np.abs(rmv - rmse) / rmv), rel=1e-9)
            uce = np.abs(column["squared_error"] - column["variance"]).sum() / n.sum()
            assert stage["uce"][name] == pytest.approx(uce, rel=1e-9)


def test_the_slices_add_up_to_the_total(found):
    for stage in STAGES:
        parts = [stages[stage] for stages in found["slices"].values()]
        total = found["total"][stage]
        assert total["n"] == sum(part["n"] for part in parts) == found["matched"]
        for name in (*DIMENSIONS, "joint"):
            for key in ("variance", "squared_error", "nees"):
                sums = [sum(b[key] for b in part["bins"][name]) for part in (*parts, total)]
                assert sums[-1] == pytest.approx(sum(sums[:-1]), rel=1e-9)


def test_without_a_recalibrator_both_stages_are_one(found):
    assert found["total"]["recalibrated"] == found["total"]["raw"]


# ---- what must not matter


def test_neither_order_nor_delay_nor_pace_change_a_digit(found, words):
    again = json.loads(replayed(*words, "--ground-truth-delay", "1s", "--speed", "50"))
    # Evidence of drift grows in the order in which truth comes.
    assert len(again["drift"]) == len(found["drift"])
    assert {**again, "drift": None} == {**found, "drift": None}


def test_what_is_sent_while_much_is_on_its_way_is_read_all_the_same(sidecar, tmp_path):
    # Far more than the transport holds in either direction: who only sends waits for ever.
    n, k = 12 * 4000, 7
    mean = np.random.default_rng(0).normal(size=(n, k))
    archive = tmp_path / "large.npz"
    np.savez(
        archive,
        mean=mean,
        cov=np.broadcast_to(np.eye(k), (n, k, k)),
        gt=mean + 1,
        frame=np.arange(n) // 4000,
    )
    found = json.loads(replayed(archive, "--address", sidecar.grpc, "--json"))
    assert (found["frames"], found["detections"], found["matched"]) == (12, n, n)


# ---- recalibrators and faults


@pytest.fixture(scope="module")
def model(words: tuple[object, ...], folder: Path) -> Path:
    path = folder / "model.json"
    fit = ("fit", *words[:-1], "--by-class", "--method", "covariance-scaling", "--output", path)
    with contextlib.redirect_stdout(io.StringIO()):
        assert main([str(word) for word in fit]) == 0
    return path


@pytest.mark.parametrize(
    "more",
    [
        (),
        # All labels come when the last frame has long been answered.
        ("--mode", "observe", "--ground-truth-delay", "1000"),
    ],
    ids=" ".join,
)
def test_a_recalibrator_changes_only_the_recalibrated_stage(found, words, model, capsys, more):
    now = json.loads(replayed(*words, "--recalibrator", model, *more))
    for key in ("frames", "detections", "matched"):
        assert now[key] == found[key]
    for name in CLASSES:
        before, after = found["slices"][name], now["slices"][name]
        assert after["raw"] == before["raw"]
        # The file that it was fitted on.
        assert main(["evaluate", *map(str, words), "--class", name, "--model", str(model)]) == 0
        joint = json.loads(capsys.readouterr().out)["joint"]
        recalibrated = after["recalibrated"]
        assert recalibrated["nees_over_k"] == pytest.approx(joint["nees_over_k"], rel=1e-9)
        assert recalibrated["nees_over_k"] != pytest.approx(after["raw"]["nees_over_k"], rel=1e-3)
    assert now["total"]["raw"] == found["total"]["raw"]


def test_a_fault_begins_at_its_second_of_each_sequence(words, rows):
    out = replayed(*words, "--fault", "variance=0.2@t=1.5s", "--recalibrator", "none")
    there = rows.of_class(*CLASSES)
    factor = np.where(there.time_s >= 1.5, 0.2, 1.0)
    faulty = replace(there, covariance=there.covariance * factor[:, None, None])
    total = json.loads(out)["total"]
    assert total["raw"]["nees_over_k"] == pytest.approx(nees(faulty).mean() / 3, rel=1e-9)
    assert total["recalibrated"] == total["raw"]


# ---- files and slices


def test_several_files_are_sliced_by_class_and_stream(drive, rows, folder):
    archive = npz_file(folder / "more.npz", rows)
    out = replayed(drive, archive, "--slice-by", "class,stream", "--bins", "5", "--json")
    found = json.loads(out)
    # An archive without frames comes in pieces of 200 rows.
    assert found["frames"] == FRAMES * len(SEQUENCES) + -(-rows.n // 200)
    assert found["detections"] == 2 * rows.n
    assert found["matched"] == 2 * np.count_nonzero(rows.labelled)
    streams = [*(f"file0.{name}" for name in SEQUENCES), "file1.more"]
    assert {name.split("/")[0] for name in found["slices"]} == set(streams)
    assert list(found["slices"]) == sorted(found["slices"])
    for name, stages in found["slices"].items():
        stream, kind = name.split("/")
        there = rows.of_class(kind)
        if stream != "file1.more":
            there = there.of(there.sequence == stream.removeprefix("file0."))
        assert stages["raw"]["n"] == np.count_nonzero(there.labelled)
        assert stages["raw"]["nees_over_k"] == pytest.approx(nees(there).mean() / 3, rel=1e-9)
        assert len(stages["raw"]["bins"]["x"]) <= 5
    assert found["total"]["raw"]["nees_over_k"] == pytest.approx(nees(rows).mean() / 3, rel=1e-9)


# ---- a sidecar of its own


def test_a_running_sidecar_is_used_and_counts_nothing_twice(sidecar, words, rows, capsys):
    to = ("--address", sidecar.grpc)
    first = json.loads(replayed(*words, *to))
    for name in CLASSES:
        expected = nees(rows.of_class(name)).mean() / 3
        assert first["slices"][name]["raw"]["nees_over_k"] == pytest.approx(expected, rel=1e-9)
    # Once more: the labels of these frames are already there, and it says so.
    assert main(["replay", *map(str, (*words, *to))]) == 0
    said = capsys.readouterr()
    again = json.loads(said.out)
    (line,) = said.err.splitlines()
    assert f"0 of {first['matched']} labels matched" in line
    assert f"{first['matched']} duplicate" in line
    assert again["matched"] == 0
    assert again["slices"] == first["slices"]


def test_bad_covariances_are_sent_counted_and_left_out(sidecar, rows, tmp_path, capsys):
    spoiled, bad = with_bad_covariances(rows)
    spoiled = replace(spoiled, sequence=np.char.add("spoiled_", rows.sequence))
    archive = tmp_path / "spoiled.npz"
    np.savez(
        archive,
        mean=spoiled.mean,
        cov=spoiled.covariance,
        gt=spoiled.truth,
        seq=spoiled.sequence,
        frame=spoiled.frame,
        dimensions=np.array(["px", "py", "pz", "yaw"]),
    )
    assert main(["replay", str(archive), "--address", sidecar.grpc, "--json"]) == 0
    said = capsys.readouterr()
    labels = np.count_nonzero(rows.labelled)
    assert f"{labels - 4} of {labels} labels matched" in said.err
    assert "4 unusable" in said.err
    found = json.loads(said.out)
    assert found["detections"] == rows.n
    assert found["matched"] == labels - 4
    # What it is called depends on what the sidecar saw before.
    (own,) = (
        entry["raw"]
        for name, entry in found["slices"].items()
        if name.startswith("object") and "px" in entry["raw"]["ence"]
    )
    expected = nees(rows.of(~bad)).mean() / 3
    assert own["nees_over_k"] == pytest.approx(expected, rel=1e-9)


def test_people_get_a_line_for_each_slice_and_stage(sidecar, drive, rows):
    (row, *_) = np.flatnonzero((rows.sequence == "west") & ~rows.labelled)
    out = replayed(drive, "--address", sidecar.grpc, "--rows", f"{row}:{row + 1}")
    lines = [line.split()[:2] for line in out.splitlines()]
    assert "30 frames, 1 detections" in out
    assert lines[1] == ["slice", "stage"]
    totals = [line for line in lines if line[0] == "total" and line[1] in STAGES]
    assert totals == [["total", "raw"], ["total", "recalibrated"]]


# ---- what it does not do


def test_where_nobody_listens_it_gives_up_and_says_where(refusal, drive, monkeypatch):
    waits = []
    wait_for = asyncio.wait_for

    async def impatient(awaitable, timeout):
        waits.append(timeout)
        return await wait_for(awaitable, 0.2)

    monkeypatch.setattr(asyncio, "wait_for", impatient)
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        line = refusal(drive, "--address", address)
    assert line == (
        f"calibration-monitor replay: no sidecar answers at {address}: start one with "
        "`calibration-monitor serve`, or check the address."
    )
    assert waits and max(waits) <= 10


def kill_at_frame(monkeypatch, number):
    """Kills the youngest child of this process when such a frame is first about to be sent."""
    killed: list[int] = []

    def encode_and_kill(frame):
        if frame.frame_id == number and not killed:
            children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
            killed.append(int(children.split()[-1]))
            os.kill(killed[0], signal.SIGKILL)
        return encode_frame(frame)

    monkeypatch.setattr(sending, "encode_frame", encode_and_kill)


def test_a_sidecar_killed_on_the_way_is_told(refusal, words, monkeypatch):
    kill_at_frame(monkeypatch, 10)
    said = refusal(*words, "--speed", "20")
    assert "the sidecar was killed by signal 9 while it was needed" in said.splitlines()[0]


def test_another_ones_sidecar_killed_on_the_way_is_told_in_a_line(refusal, words, monkeypatch):
    kill_at_frame(monkeypatch, 10)
    with (
        pytest.raises(SidecarFailed),
        running_sidecar("") as addresses,
    ):
        line = refusal(*words, "--speed", "20", "--address", addresses.grpc)
        assert f"the sidecar at {addresses.grpc} ended a stream" in line
        assert "\n" not in line


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (("--class", "tram"), "'tram'"),
        (("--rows", "9:9"), "rows 9:9. Ask for less"),
        (("--dimensions", "x,q"), "'q'"),
        (("--recalibrator", "gone.json"), "gone.json"),
        (("--address", "127.0.0.1:1", "--mode", "observe"), "--mode and --slice-by are settings"),
        (("--address", "127.0.0.1:1", "--slice-by", "stream"), "--mode and --slice-by"),
    ],
)
def test_what_cannot_be_sent_is_told_before_a_sidecar_is_started(
    refusal, drive, monkeypatch, more, named
):
    monkeypatch.setattr(replay, "running_sidecar", None)
    line = refusal(drive, *more)
    assert named in line
    assert "\n" not in line


def test_a_frame_number_below_0_is_named(refusal, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(replay, "running_sidecar", None)
    line = refusal(csv_file(tmp_path / "drive.csv", replace(rows, frame=rows.frame - 1)))
    assert "sequence north has frame numbers from -1 to 28" in line
    assert "Renumber the frames" in line


def test_a_model_of_other_dimensions_is_refused(refusal, words, model, monkeypatch):
    monkeypatch.setattr(replay, "running_sidecar", None)
    line = refusal(*words, "--dimensions", "x,y", "--recalibrator", model)
    assert "x,y,z,yaw" in line
    assert "\n" not in line


def test_a_sequence_that_cannot_name_a_stream_is_named(refusal, sidecar, rows, tmp_path):
    named = replace(rows, sequence=np.char.add("north of ", rows.sequence))
    npz = tmp_path / "drive.npz"
    np.savez(npz, mean=named.mean, cov=named.covariance, seq=named.sequence)
    line = refusal(npz, "--address", sidecar.grpc)
    assert "stream: 'north of " in line
    assert "\n" not in line


def test_a_frame_that_is_refused_is_named_with_its_stream(refusal, sidecar, tmp_path):
    mean = np.zeros((5000, 1))
    archive = tmp_path / "crowd.npz"
    np.savez(archive, mean=mean, var=mean + 1, frame=np.repeat([0, 1], [10, 4990]))
    line = refusal(archive, "--address", sidecar.grpc)
    assert "frame 1 of crowd" in line
    assert "4990" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("option", "text"),
    [
        *[("--ground-truth-delay", text) for text in ("-1", "soon", "inf", "nan")],
        *[("--speed", text) for text in ("0", "-1", "fast", "nan")],
        *[("--bins", text) for text in ("0", "-1", "513", "2.5", "many")],
        ("--slice-by", "colour"),
        ("--mode", "watch"),
        ("--rows", "5"),
        ("--where", "role"),
        ("--fault", "0.2"),
    ],
)
def test_an_option_that_makes_no_sense_is_wrong_usage(capsys, drive, option, text):
    with pytest.raises(SystemExit) as end:
        main(["replay", str(drive), f"{option}={text}"])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert f"argument {option}: " in said
    assert f"'{text}'" in said
