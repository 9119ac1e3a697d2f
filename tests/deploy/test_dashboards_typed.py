"""The dashboards compile against Grafana's own types, `@grafana/schema`; what is wrong does not.

It proves names and types of keys; not how Grafana draws them, which nothing here can run.
"""

import copy
import json
import shutil
import subprocess

import pytest

from deploy.grafana.__main__ import FOLDER
from deploy.grafana.panels import PLUGINS
from tests.components import program

# package.json with its lock file, the compiler's settings, and types.ts.
TYPES = FOLDER.parent / "typed"

# s; the registry may be slow, and so may be a machine with much else to do.
PATIENCE = 110
BOARDS = {path.stem: json.loads(path.read_text("utf-8")) for path in FOLDER.glob("*.json")}


def panels(board):
    """Lists what can be seen, in folded rows too; rows themselves are none."""
    every = [panel for top in board["panels"] for panel in (top, *top.get("panels", ()))]
    return [panel for panel in every if panel["type"] != "row"]


KINDS = {panel["type"]: uid for uid, board in BOARDS.items() for panel in panels(board)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Makes one with what the lock file names, which `make test-all` installs."""
    installed = TYPES / "node_modules"
    if not installed.is_dir():
        pytest.fail(f"{installed} is not there: make dashboard-types")
    folder = tmp_path_factory.mktemp("types")
    for name in ("package.json", "tsconfig.json", "types.ts"):
        shutil.copy(TYPES / name, folder)
    (folder / "node_modules").symlink_to(installed)
    return folder


def complaints(folder, sources) -> dict[str, str]:
    """Returns what the compiler says of each file that is wrong, by its name."""
    for name, text in sources.items():
        (folder / f"{name}.ts").write_text(text, "utf-8")
    compiler = folder / "node_modules" / "typescript" / "bin" / "tsc"
    done = subprocess.run(
        [program("node"), str(compiler), "--project", "."],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    for name in sources:
        (folder / f"{name}.ts").unlink()
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        name, _, said = line.partition(".ts(")
        if said:
            found.setdefault(name, said)
    assert (done.returncode == 0) == (not found), done.stdout + done.stderr
    return found


def changed(uid, change):
    """Changes a dashboard that is left with the first panel of each kind."""
    board = copy.deepcopy(BOARDS[uid])
    firsts = {panel["type"]: panel for panel in reversed([*panels(board)])}
    board["panels"] = list(firsts.values())
    change(board)
    return source(board)


def source(board) -> str:
    """Writes a dashboard as a literal, since types of imported JSON are wide: any string fits."""
    literal = json.dumps(board, indent=2, sort_keys=True, ensure_ascii=False)
    return (
        f"import type {{ Dashboard }} from './types';\n\nexport const it: Dashboard = {literal};\n"
    )


def of_kind(board, kind):
    return next(panel for panel in panels(board) if panel["type"] == kind)


OVERVIEW = "calibration-overview"
MISTAKES = {
    "title": (OVERVIEW, lambda board: board.update(title=3)),
    "unknown-key": (OVERVIEW, lambda board: board.update(colour="red")),
    "enumeration": (OVERVIEW, lambda board: board.update(graphTooltip=7)),
    "variable": (OVERVIEW, lambda board: board["templating"]["list"][1].update(multi="yes")),
    "annotation": (OVERVIEW, lambda board: board["annotations"]["list"][0].update(step=1)),
    "link": (OVERVIEW, lambda board: board["links"][0].update(keepTime=1)),
    "kind": (OVERVIEW, lambda board: of_kind(board, "stat").update(type="stats")),
    "unit": (
        OVERVIEW,
        lambda board: of_kind(board, "stat")["fieldConfig"]["defaults"].update(unit=1),
    ),
    "query": (OVERVIEW, lambda board: of_kind(board, "stat")["targets"][0].update(format="json")),
    "legend": (
        OVERVIEW,
        lambda board: of_kind(board, "timeseries")["options"]["legend"].update(placement="top"),
    ),
}
for kind, uid in KINDS.items():
    MISTAKES[f"option-of-{kind}"] = (
        uid,
        lambda board, kind=kind: of_kind(board, kind)["options"].update(unheardOf=True),
    )
    MISTAKES[f"custom-of-{kind}"] = (
        uid,
        lambda board, kind=kind: of_kind(board, kind)["fieldConfig"]["defaults"]["custom"].update(
            unheardOf=True
        ),
    )


@pytest.mark.components
def test_the_dashboards_are_of_grafanas_types_and_each_mistake_is_found(folder):
    """Compiles all in one go: most of the time is the compiler's start."""
    right = {uid: source(board) for uid, board in BOARDS.items()}
    wrong = {name: changed(*mistake) for name, mistake in MISTAKES.items()}
    found = complaints(folder, right | wrong)
    assert {name: said for name, said in found.items() if name in right} == {}
    assert found.keys() == wrong.keys()
    assert "Type 'number' is not assignable to type 'string'" in found["title"]
    assert "'\"unheardOf\"' does not exist in type" in found["option-of-timeseries"]


def test_versions_are_pinned_and_no_registry_is_named():
    package = json.loads((TYPES / "package.json").read_text("utf-8"))
    lock = (TYPES / "package-lock.json").read_text("utf-8")
    assert "resolved" not in lock and "http" not in lock
    packages = json.loads(lock)["packages"]
    assert packages.pop("")["devDependencies"] == package["devDependencies"]
    for name, version in package["devDependencies"].items():
        assert version[0].isdigit()
        assert packages.pop(f"node_modules/{name}")["version"] == version
    assert packages == {}  # they need no others


def test_the_types_are_of_the_version_that_the_dashboards_are_written_for():
    package = json.loads((TYPES / "package.json").read_text("utf-8"))
    assert package["devDependencies"]["@grafana/schema"] == PLUGINS
    versions = {panel["pluginVersion"] for board in BOARDS.values() for panel in panels(board)}
    assert versions == {PLUGINS}
