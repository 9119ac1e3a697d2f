"""merge on files: what it adds up, what it prints, and what it refuses without a trace."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from monitor.cli import main
from monitor.commands.states import read_state, write_state
from monitor.statistics.state import Slicing, StatisticsState
from monitor.store.files import write_body
from monitor.store.statistics_state import StoredState, serialised
from tests.states import (
    BINNING,
    OTHER_BINNING,
    WINDOWS,
    assert_same_state,
    counted,
    random_rows,
)

# A field that only newer code knows: number 1000, five bytes.
ADDED = b"\xc2\x3e\x05newer"


def put(path, parts):
    with path.open("wb") as file:
        write_body(file, parts)


@pytest.fixture
def run(capsys):
    """The verb, done; what it prints."""

    def done(*words):
        assert main(["merge", *map(str, words)]) == 0
        said = capsys.readouterr()
        assert said.err == ""
        return said.out

    return done


@pytest.fixture
def refused(capsys, tmp_path):
    """The one line of a verb that does not do its work, and leaves no file."""

    def said(*words):
        output = tmp_path / "refused.state"
        assert main(["merge", *map(str, words), "-o", str(output)]) == 1
        answer = capsys.readouterr()
        assert answer.out == ""
        assert not output.exists()
        (line,) = answer.err.splitlines()
        return line.removeprefix("calibration-monitor merge: ")

    return said


@pytest.fixture
def files(tmp_path):
    """Three exports, and the states in them."""
    states = [counted(random_rows(seed, 30)) for seed in range(3)]
    paths = [tmp_path / f"car{i}.state" for i in range(3)]
    for path, state in zip(paths, states, strict=True):
        write_state(path, StoredState(state))
    return paths, states


def test_files_add_up_like_the_states_in_them(run, files, tmp_path):
    paths, (a, b, c) = files
    run(*paths, "-o", tmp_path / "fleet.state")
    assert_same_state(read_state(tmp_path / "fleet.state").state, a.merge(b).merge(c))
    run(*reversed(paths), "--output", tmp_path / "other.state")
    assert_same_state(read_state(tmp_path / "other.state").state, a.merge(b).merge(c))


def test_one_file_alone_is_written_as_it_is(run, files, tmp_path):
    paths, states = files
    run(paths[0], "-o", tmp_path / "same.state")
    assert (tmp_path / "same.state").read_bytes() == paths[0].read_bytes()
    assert_same_state(read_state(paths[0]).state, states[0])


def test_the_output_may_be_one_of_the_files(run, files):
    paths, states = files
    run(paths[0], paths[1], "-o", paths[0])
    assert_same_state(read_state(paths[0]).state, states[0].merge(states[1]))


def test_the_table_names_slices_dimensions_and_detections(run, files, tmp_path):
    paths, (a, b, c) = files
    output = tmp_path / "fleet.state"
    lines = run(*paths, "-o", output).splitlines()
    merged = a.merge(b).merge(c)
    assert [line.split() for line in lines[:-1]] == [
        *([e.name, ",".join(e.space.names), str(e.n)] for e in merged.slices),
        ["lidar", "3", "classes", "90"],
    ]
    assert lines[-1] == f"4 slices, 90 detections, written to {output}"


def test_json_has_the_same(run, files, tmp_path):
    paths, (a, b, c) = files
    found = json.loads(run(*paths, "-o", tmp_path / "fleet.state", "--json"))
    merged = a.merge(b).merge(c)
    assert found == {
        "bins": BINNING.describe(),
        "clock_ns": merged.clock_ns,
        "detections": 90,
        "slices": [
            {
                "name": e.name,
                "dimensions": list(e.space.names),
                "overflow": e.overflow,
                "n": e.n,
            }
            for e in merged.slices
        ],
        "class_slices": [{"name": "lidar", "classes": 3, "n": 90}],
        "output": str(tmp_path / "fleet.state"),
    }


def test_what_newer_code_has_added_to_either_file_is_kept(run, files, tmp_path):
    paths, states = files
    for path, state in zip(paths, states, strict=True):
        put(path, [*serialised(StoredState(state)), ADDED])
    run(*paths, "-o", tmp_path / "fleet.state")
    assert read_state(tmp_path / "fleet.state").unknown == 3 * ADDED


def test_files_on_other_bins_are_refused_with_both_definitions_named(refused, files, tmp_path):
    other = tmp_path / "other.state"
    write_state(other, StoredState(StatisticsState(OTHER_BINNING, WINDOWS)))
    line = refused(files[0][0], other)
    for said in (str(files[0][0]), str(other), BINNING.describe(), OTHER_BINNING.describe()):
        assert said in line


def test_files_of_other_slices_are_refused_with_both_definitions_named(refused, tmp_path):
    paths = [tmp_path / f"{by}.state" for by in ("class", "stream")]
    for path in paths:
        slicing = Slicing((path.stem,))
        write_state(path, StoredState(StatisticsState(BINNING, WINDOWS, slicing=slicing)))
    line = refused(*paths)
    for said in (*map(str, paths), "slices by class", "slices by stream", "[statistics] slice_by"):
        assert said in line


def test_a_file_that_is_named_twice_is_refused(refused, files, tmp_path):
    link = tmp_path / "link.state"
    link.symlink_to(files[0][0])
    assert refused(files[0][0], link) == (
        f"{link} is named twice: it would be counted twice. Name it once."
    )


def test_a_file_that_is_no_state_is_named(refused, files, tmp_path):
    table = tmp_path / "drive.csv"
    table.write_text("x,y\n1,2\n", encoding="utf-8")
    assert refused(files[0][0], table).startswith(f"{table}: 8 bytes, and no file of statistics.")


def test_a_torn_file_is_named(refused, files):
    path = files[0][1]
    path.write_bytes(path.read_bytes()[:-1])
    line = refused(*files[0])
    assert line.startswith(f"{path}: ") and line.endswith("Use an older one.")


def test_a_file_of_a_newer_version_is_named(refused, files):
    path = files[0][2]
    put(path, [b"\x08\x63"])
    assert refused(*files[0]).startswith(f"{path}: version: 99, but this monitor knows up to 1.")


def test_a_file_that_is_not_there_is_named(refused, files, tmp_path):
    assert str(tmp_path / "nowhere.state") in refused(files[0][0], tmp_path / "nowhere.state")


def test_an_output_that_cannot_be_written_is_named(capsys, files, tmp_path):
    output = tmp_path / "nowhere" / "fleet.state"
    assert main(["merge", str(files[0][0]), "-o", str(output)]) == 1
    assert f"--output {output}: cannot be written" in capsys.readouterr().err


def test_detections_that_were_taken_back_count_less_than_nothing(run, tmp_path):
    taken = counted([replace(row, sign=-1) for row in random_rows(1, 30)])
    write_state(tmp_path / "taken.state", StoredState(taken))
    assert "-30 detections" in run(tmp_path / "taken.state", "-o", tmp_path / "same.state")
