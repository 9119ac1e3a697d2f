"""Holds the rules of the house, which docs/architecture.md shows, against the sources.

A rule takes the files of `monitor/` as a mapping from path to source, so that each is also shown a
small tree that breaks it. Nothing here imports the project.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1] / "monitor"

HALL = {"__init__", "__main__", "cli", "config", "sidecar", "client"}
FLOORS = {
    "__init__": 0,
    "native": 0,
    "frames": 1,
    "statistics": 2, "tracking": 2, "matching": 2,
    "recalibration": 3, "drift": 3, "promotion": 3, "figures": 3,
    "wire": 4, "store": 4, "config": 4,
    "pipeline": 5, "fleet": 5,
    "service": 6, "client": 6,
    "sidecar": 7, "options": 7,
    "commands": 8,
    "cli": 9,
    "__main__": 10,
}  # fmt: skip
SAME_FLOOR = {("promotion", "recalibration"), ("config", "wire")}
PURE = {room for room, floor in FLOORS.items() if floor in (1, 2, 3)}
PURE_LIBRARIES = frozenset(
    {"__future__", "abc", "collections", "dataclasses", "enum", "filterpy", "functools", "hashlib"}
    | {"heapq", "itertools", "json", "math", "monitor", "numpy", "operator", "scipy", "types"}
    | {"annotated_types", "base64", "binascii", "bisect", "html", "re", "typing"}
)
TOUCHES_THE_WORLD = frozenset(
    {"open", "print", "input", "fromfile", "genfromtxt", "loadtxt", "memmap", "savetxt", "savez"}
    | {"savez_compressed", "tofile"}
)
MOST_FILES, MOST_LINES, MOST_OF_A_PREFIX = 20, 700, 3
LONGER = {"config.py"}  # one table of keys
NOT_A_SENTENCE = ("Of ", "What ", "Whether ", "The same ")

Files = Mapping[str, str]


def hall(files: Files) -> Iterator[str]:
    """1. The hall holds six files, and the rooms."""
    for path in map(PurePosixPath, files):
        if path.stem not in HALL if len(path.parts) == 1 else path.parts[0] not in FLOORS:
            yield f"{path}: the hall holds {', '.join(sorted(HALL))} and the rooms alone"


def floors(files: Files) -> Iterator[str]:
    """2. A room imports lower floors only; so do functions, wherever the import stands."""
    for path, source in files.items():
        room = room_of(path)
        for line, module in imports(path, source):
            other = module.split(".")[1] if module.startswith("monitor.") else "v1"
            if other in (room, "v1") or (room, other) in SAME_FLOOR:
                continue
            if path == "__init__.py" and other == "commands":
                continue  # the Python API, imported when it is asked for
            if FLOORS.get(other, 0) >= FLOORS[room]:
                yield f"{path}:{line}: {room} is not above {other}"


def purity(files: Files) -> Iterator[str]:
    """3. Floors 1 to 3 know no clock, I/O, log, lock, global or system's randomness."""
    for path, source in files.items():
        if room_of(path) not in PURE:
            continue
        for line, module in imports(path, source):
            if module.split(".")[0] not in PURE_LIBRARIES or module.startswith("scipy.io"):
                yield f"{path}:{line}: imports {module} into a pure room"
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Global):
                yield f"{path}:{node.lineno}: a global in a pure room"
            elif isinstance(node, ast.Call):
                name = ast.unparse(node.func).split(".")[-1]
                from_system = name == "default_rng" and not (node.args or node.keywords)
                if name in TOUCHES_THE_WORLD or from_system:
                    yield f"{path}:{node.lineno}: calls {name}( in a pure room"


def subjects(files: Files) -> Iterator[str]:
    """4. A file is a subject, a room has at most twenty, a family of four is a folder."""
    paths = [PurePosixPath(path) for path in files if not path.endswith("__init__.py")]
    for folder, n in Counter(path.parent for path in paths).items():
        if n > MOST_FILES:
            yield f"{folder}: {n} files, at most {MOST_FILES}"
    families = Counter((path.parent, path.stem.split("_")[0]) for path in paths)
    for (folder, prefix), n in families.items():
        if prefix and n > MOST_OF_A_PREFIX:
            yield f"{folder}: {n} files begin with {prefix}: make them a folder or one file"
    for path, source in files.items():
        if source.count("\n") > MOST_LINES and path not in LONGER:
            yield f"{path}: {source.count(chr(10))} lines are more than one subject"


def base_names(files: Files) -> Iterator[str]:
    """5. No base name twice in a floor."""
    for (floor, name), n in Counter(
        (FLOORS[room_of(path)], PurePosixPath(path).stem)
        for path in files
        if not path.endswith("__init__.py")
    ).items():
        if n > 1:
            yield f"floor {floor}: {n} files are called {name}"


def docstrings(files: Files) -> Iterator[str]:
    """6. A docstring begins with a sentence, not with a piece of one."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for path, source in files.items():
        for node in ast.walk(ast.parse(source)):
            text = (isinstance(node, documented) and ast.get_docstring(node)) or ""
            if text.startswith(NOT_A_SENTENCE):
                yield f"{path}:{getattr(node, 'lineno', 1)}: '{text.splitlines()[0]}'"


def room_of(path: str) -> str:
    return PurePosixPath(path).with_suffix("").parts[0]


def imports(path: str, source: str) -> Iterator[tuple[int, str]]:
    """Yields line and dotted name of all that is imported, as `a.b` for `from a import b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            within = ["monitor", *PurePosixPath(path).parts][: -node.level] if node.level else []
            origin = [*within, *([node.module] if node.module else [])]
            yield from ((node.lineno, ".".join([*origin, alias.name])) for alias in node.names)


RULES = (hall, floors, purity, subjects, base_names, docstrings)


@pytest.mark.parametrize("rule", RULES)
def test_the_house_keeps_the_rule(rule):
    files = {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in ROOT.rglob("*.py")
    }
    assert "frames/space.py" in files
    mine = {path: source for path, source in files.items() if not path.startswith("v1/")}
    assert "\n".join(rule(mine)) == ""


@pytest.mark.parametrize(
    ("rule", "files"),
    [
        (hall, {"utils/time.py": ""}),
        (floors, {"frames/space.py": "from monitor.store import tables"}),
        (floors, {"drift/bets.py": "from ..promotion import trial"}),
        (purity, {"drift/bets.py": "import time"}),
        (purity, {"drift/bets.py": "def f():\n    global state"}),
        (purity, {"drift/bets.py": "np.savez_compressed('file')"}),
        (purity, {"drift/bets.py": "np.random.default_rng()"}),
        (subjects, {f"drift/file{n}.py": "" for n in range(21)}),
        (subjects, {f"drift/track_{n}.py": "" for n in range(4)}),
        (subjects, {"drift/bets.py": "\n" * 701}),
        (base_names, {"drift/state.py": "", "promotion/state.py": ""}),
        (docstrings, {"drift/bets.py": "def f():\n    'Of one slice.'"}),
    ],
)  # fmt: skip
def test_what_breaks_a_rule_is_found(rule, files):
    assert list(rule(files))
