"""merge on files: what it adds up, what it prints, and what it refuses without a trace."""

from __future__ import annotations

import pytest

from monitor.commands.merge import write_state
from monitor.statistics.state import Slicing, StatisticsState
from monitor.store.files import write_body
from monitor.store.state_files import read_state
from monitor.store.statistics_state import StoredState
from tests.commands.spoken import done, found, refused
from tests.states import BINNING, OTHER_BINNING, WINDOWS, assert_same_state, counted, random_rows


def put(path, parts):
    with path.open("wb") as file:
        write_body(file, parts)


def refusal(*files) -> str:
    """The one line, without the name of the verb; no file is left."""
    output = files[0].with_name("refused.state")
    line = refused("merge", *files, "-o", output)
    assert not output.exists()
    return line.removeprefix("calibration-monitor merge: ")


@pytest.fixture
def files(tmp_path):
    """Three exports, and the states in them."""
    states = [counted(random_rows(seed, 30)) for seed in range(3)]
    paths = [tmp_path / f"car{i}.state" for i in range(3)]
    for path, state in zip(paths, states, strict=True):
        write_state(path, StoredState(state))
    return paths, states


def test_files_add_up_like_the_states_in_them(files, tmp_path):
    paths, (a, b, c) = files
    merged, output = a.merge(b).merge(c).in_order(), tmp_path / "fleet.state"
    lines = done("merge", *paths, "-o", output).splitlines()
    assert_same_state(read_state(output).state, merged)
    assert [line.split() for line in lines[:-1]] == [
        *([e.name, ",".join(e.space.names), str(e.n)] for e in merged.slices),
        ["lidar", "3", "classes", "90"],
    ]
    assert lines[-1] == f"4 slices, 90 labelled detections, 90 labelled or not, written to {output}"
    assert found("merge", *reversed(paths), "--output", output) == {
        "bins": BINNING.describe(),
        "clock_ns": merged.clock_ns,
        "detections": 90,
        "slices": [
            {"name": e.name, "dimensions": list(e.space.names), "overflow": e.overflow, "n": e.n}
            for e in read_state(output).state.slices
        ],
        "class_slices": [{"name": "lidar", "classes": 3, "n": 90}],
        "predicted": [
            {"name": e.name, "dimensions": list(e.space.names), "n": e.n}
            for e in read_state(output).state.predicted
        ],
        "output": str(output),
        **{"uploads": 0, "vehicles": 0, "duplicates": [], "skipped": []},
    }
    assert_same_state(read_state(output).state, merged)


def test_files_that_do_not_fit_are_refused_with_both_definitions_named(files, tmp_path):
    other = tmp_path / "other.state"
    write_state(other, StoredState(StatisticsState(OTHER_BINNING, WINDOWS)))
    line = refusal(files[0][0], other)
    for said in (str(files[0][0]), str(other), BINNING.describe(), OTHER_BINNING.describe()):
        assert said in line
    paths = [tmp_path / f"{by}.state" for by in ("class", "stream")]
    for path in paths:
        slicing = Slicing((path.stem,))
        write_state(path, StoredState(StatisticsState(BINNING, WINDOWS, slicing=slicing)))
    line = refusal(*paths)
    for said in (*map(str, paths), "slices by class", "slices by stream", "[statistics] slice_by"):
        assert said in line


def test_a_file_that_is_none_or_named_twice_is_named(files, tmp_path):
    first, second, third = files[0]
    link, table, gone = (tmp_path / name for name in ("link.state", "drive.csv", "nowhere.state"))
    link.symlink_to(first)
    assert refusal(first, link).startswith(f"{link} is named twice: it would be counted")
    table.write_text("x,y\n1,2\n", encoding="utf-8")
    assert refusal(first, table).startswith(f"{table}: 8 bytes, and no file of statistics.")
    assert refusal(first, gone) == f"{gone}: No such file or directory."
    second.write_bytes(second.read_bytes()[:-1])
    line = refusal(first, second)
    assert (
        line.startswith(f"{second}: ")
        and "Use an older one. Or leave it out: --skip-unusable." in line
    )
    put(third, [b"\x08\x63"])
    line = refusal(first, third)
    assert line.startswith(f"{third}: version: 99, but this monitor knows up to 1.")
    output = tmp_path / "nowhere" / "fleet.state"
    assert f"{output}: cannot be written" in refused("merge", first, "-o", output)
