"""Who may import what, read from the sources with `ast`; nothing here imports the project.

The checker is a function of a path and a source, so that every rule is also shown a small
source that breaks it: a rule that cannot fail holds nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]

PURE_STDLIB = (
    "__future__",
    "abc",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "json",
    "math",
    "types",
    "typing",
)
# What a pure package may import beside the stdlib above, numpy and scipy.
PURE_PACKAGES = {
    "monitor/calibration": ("monitor.calibration",),
    "monitor/diagnosis": (
        "monitor.diagnosis",
        "monitor.status",
        "monitor.promotion",
        "monitor.calibration",
    ),
    "monitor/promotion": ("monitor.promotion", "monitor.recalibration", "monitor.calibration"),
    "monitor/recalibration": ("monitor.recalibration", "monitor.calibration"),
    "monitor/simulation": ("monitor.simulation", "monitor.calibration"),
    "monitor/tracking": ("monitor.tracking", "monitor.calibration", "filterpy"),
}
IO_CALLS = {"open", "print", "input"}
NUMPY_IO = {
    "fromfile",
    "genfromtxt",
    "load",
    "loadtxt",
    "memmap",
    "save",
    "savetxt",
    "savez",
    "savez_compressed",
}
PURE_FORBIDDEN = ("scipy.io", *(f"numpy.{name}" for name in NUMPY_IO))

# Each library has one owner: a file, or a folder where the path ends in a slash.
OWNERS = {
    "argparse": ("monitor/cli.py", "monitor/verbs.py", "monitor/verbs/"),
    "csv": ("monitor/edges/tables.py",),
    "ssl": ("monitor/edges/credentials.py",),
    "ctypes": ("monitor/edges/allocator.py", "monitor/edges/fit_worker.py"),
    "filterpy": ("monitor/tracking/motion.py",),
    "google.protobuf": ("monitor/edges/",),
    "grpc": (
        "monitor/edges/server.py",
        "monitor/edges/service.py",
        "monitor/edges/calls.py",
        "monitor/edges/client.py",
        "monitor/edges/detector_client.py",
        "monitor/edges/truth_stream.py",
        "monitor/edges/state_client.py",
        "monitor/edges/status_client.py",
        "monitor/edges/tracker_client.py",
        "monitor/edges/credentials.py",
        "monitor/edges/authorisation.py",
    ),
    "grpc_health": (
        "monitor/edges/server.py",
        "monitor/edges/status_client.py",
        "monitor/edges/tracker_client.py",
    ),
    "grpc_reflection": ("monitor/edges/server.py",),
    "gzip": ("monitor/edges/tables.py",),
    "http": ("monitor/edges/page.py",),
    "monitor.v1": ("monitor/edges/",),
    "motmetrics": ("monitor/edges/mot.py",),
    "prometheus_client": ("monitor/edges/exposition.py",),
    "pydantic": (
        "monitor/config.py",
        "monitor/config_section.py",
        "monitor/config_security.py",
        "monitor/config_promotion.py",
        "monitor/config_drift.py",
        "monitor/config_log.py",
        "monitor/config_pending.py",
        "monitor/config_matching.py",
        "monitor/config_tracker.py",
    ),
    "sqlite3": ("monitor/edges/partition_file.py",),
    "tomllib": ("monitor/config.py",),
}

# Reading a file must never run what is in it.
UNSAFE_MODULES = ("pickle", "marshal", "shelve", "dill", "cloudpickle")
UNSAFE_CALLS = {"eval", "exec", "__import__"}

# Names that say nothing about what lives there.
EMPTY_NAMES = {"utils", "helpers", "common", "manager", "base"}


def violations(path: str, source: str) -> list[str]:
    """The broken rules of one file, each as `path:line: sentence`; path from the root, with /."""
    if path.startswith("monitor/v1/"):
        return []
    tree = ast.parse(source, filename=path)
    found = [*name_violations(path), *everywhere(tree), *ownership(path, tree)]
    for package, allowed in PURE_PACKAGES.items():
        if path.startswith(f"{package}/"):
            found += purity(path, tree, package, allowed)
    return [f"{path}:{line}: {sentence}" for line, sentence in found]


def name_violations(path: str) -> Iterator[tuple[int, str]]:
    for part in PurePosixPath(path).with_suffix("").parts:
        if part in EMPTY_NAMES:
            yield 1, f"the name {part!r} says nothing; name what lives there"


def everywhere(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for line, module in imports("", tree):
        if any(within(module, unsafe) for unsafe in UNSAFE_MODULES):
            yield line, f"imports {module}, which runs what it reads"
    for call in calls(tree):
        if name_of(call.func) in UNSAFE_CALLS:
            yield call.lineno, f"calls {name_of(call.func)}("
        for keyword in call.keywords:
            if keyword.arg == "allow_pickle" and not is_false(keyword.value):
                yield call.lineno, "allows pickle"


def ownership(path: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    if not path.startswith("monitor/"):
        return
    for line, module in imports(path, tree):
        for library, owners in OWNERS.items():
            if within(module, library) and not any(owns(owner, path) for owner in owners):
                yield line, f"imports {module}, which belongs to {' and '.join(owners)}"


def purity(
    path: str, tree: ast.AST, package: str, allowed: tuple[str, ...]
) -> Iterator[tuple[int, str]]:
    permitted = (*PURE_STDLIB, "numpy", "scipy", *allowed)
    for line, module in imports(path, tree):
        if not any(within(module, name) for name in permitted) or any(
            within(module, name) for name in PURE_FORBIDDEN
        ):
            yield line, f"imports {module}, but {package} is pure"
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield node.lineno, f"has a global, but {package} is pure"
    for call in calls(tree):
        name = name_of(call.func)
        if name in IO_CALLS:
            yield call.lineno, f"calls {name}(, but {package} is pure"
        if isinstance(call.func, ast.Attribute) and (
            call.func.attr == "tofile"
            or (name_of(call.func.value) in {"np", "numpy"} and call.func.attr in NUMPY_IO)
        ):
            yield call.lineno, f"calls {ast.unparse(call.func)}(, but {package} is pure"
        if last_name(call.func) == "default_rng" and not (call.args or call.keywords):
            yield call.lineno, "seeds from the system: randomness is an argument"


def imports(path: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of all that is imported, wherever in the file it stands.

    `from a import b` gives a.b, whether b is a module or not; relative imports are resolved.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            origin = [node.module] if node.module else []
            if node.level:
                origin = [*PurePosixPath(path).parts[: -node.level], *origin]
            for alias in node.names:
                yield node.lineno, ".".join([*origin, alias.name])


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def name_of(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def last_name(node: ast.expr) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else name_of(node)


def is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def owns(owner: str, path: str) -> bool:
    return path.startswith(owner) if owner.endswith("/") else path == owner


def sources() -> list[Path]:
    return sorted(file for top in ("monitor", "benchmarks") for file in (ROOT / top).rglob("*.py"))


def test_the_sources_keep_every_rule():
    broken = [
        violation
        for file in sources()
        for violation in violations(file.relative_to(ROOT).as_posix(), file.read_text("utf-8"))
    ]
    assert not broken, "\n" + "\n".join(broken)


def test_the_rules_are_held_against_real_files():
    folders = {file.parent.relative_to(ROOT).as_posix() for file in sources()}
    assert {"monitor", "monitor/calibration", "monitor/v1"} <= folders


@pytest.mark.parametrize("package", PURE_PACKAGES)
@pytest.mark.parametrize(
    "module",
    [
        "asyncio",
        "datetime",
        "io",
        "logging",
        "os",
        "pathlib",
        "pydantic",
        "random",
        "scipy.io",
        "threading",
        "time",
        "monitor.config",
        "monitor.edges.wire",
        "monitor.pipeline",
    ],
)
def test_a_pure_package_with_an_impure_import_is_found(package, module):
    assert violations(f"{package}/measures.py", f"import {module}\n")


@pytest.mark.parametrize(
    ("package", "module"),
    [
        ("calibration", "monitor.recalibration.isotonic"),
        ("calibration", "monitor.simulation.drive"),
        ("calibration", "monitor.tracking.filter"),
        ("recalibration", "monitor.simulation.drive"),
        ("simulation", "monitor.recalibration.isotonic"),
        ("tracking", "monitor.recalibration.isotonic"),
    ],
)
def test_an_import_against_the_order_of_the_pure_packages_is_found(package, module):
    assert violations(f"monitor/{package}/measures.py", f"import {module}\n")


@pytest.mark.parametrize(
    "source",
    [
        "print('hello')",
        "open('file')",
        "input()",
        "def f():\n    global state",
        "np.load('file')",
        "np.savez_compressed('file')",
        "values.tofile('file')",
        "np.random.default_rng()",
        "from numpy.random import default_rng\ndefault_rng()",
        "from numpy import load",
    ],
)
def test_a_pure_package_that_touches_the_world_is_found(source):
    assert violations("monitor/calibration/measures.py", source)


@pytest.mark.parametrize(
    "source",
    [
        "from .. import edges",
        "from ..edges import wire",
        "from ..edges.wire import decode",
        "from monitor import edges",
        "from monitor import __version__",
        "import monitor",
        "def f():\n    import time",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from monitor.edges import wire",
        "try:\n    import os.path as elsewhere\nexcept ImportError: pass",
    ],
)
def test_an_import_is_found_however_it_is_written(source):
    assert violations("monitor/calibration/measures.py", source)


@pytest.mark.parametrize("library", OWNERS)
@pytest.mark.parametrize("path", ["monitor/pipeline.py", "monitor/calibration/measures.py"])
def test_a_library_away_from_its_owner_is_found(library, path):
    assert violations(path, f"import {library}\n")
    assert violations(path, f"from {library} import something\n")


@pytest.mark.parametrize(
    ("library", "path"),
    [
        ("grpc", "monitor/edges/wire.py"),
        ("grpc_health.v1", "monitor/edges/wire.py"),
        ("prometheus_client", "monitor/edges/page.py"),
        ("http.server", "monitor/edges/server.py"),
        ("csv", "monitor/edges/files.py"),
        ("motmetrics", "monitor/tracking/quality.py"),
        ("google.protobuf", "monitor/cli.py"),
        ("monitor.v1", "monitor/verbs/replay.py"),
        ("argparse", "monitor/edges/server.py"),
    ],
)
def test_a_neighbour_of_the_owner_does_not_own_the_library(library, path):
    assert violations(path, f"import {library}\n")


def test_a_library_imported_by_its_parent_is_found():
    assert violations("monitor/pipeline.py", "from google import protobuf")
    assert violations("monitor/pipeline.py", "from monitor import v1")
    assert violations("monitor/pipeline.py", "from . import v1")


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "eval('1')",
        "exec('pass')",
        "__import__('os')",
        "np.load(file, allow_pickle=True)",
        "np.load(file, allow_pickle=flag)",
    ],
)
@pytest.mark.parametrize("path", ["monitor/edges/files.py", "benchmarks/loopback.py"])
def test_code_that_runs_what_it_reads_is_found(source, path):
    assert violations(path, source)


@pytest.mark.parametrize("name", sorted(EMPTY_NAMES))
def test_a_name_that_says_nothing_is_found(name):
    assert violations(f"monitor/{name}.py", "")
    assert violations(f"monitor/edges/{name}.py", "")
    assert violations(f"monitor/{name}/wire.py", "")


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("monitor/calibration/measures.py", "from collections.abc import Iterator"),
        ("monitor/calibration/measures.py", "import numpy.typing as npt"),
        ("monitor/calibration/measures.py", "from scipy.stats import chi2"),
        ("monitor/calibration/measures.py", "from .space import Space"),
        ("monitor/calibration/measures.py", "from monitor.calibration import space"),
        ("monitor/recalibration/isotonic.py", "from monitor.calibration.space import Space"),
        ("monitor/simulation/drive.py", "from monitor.calibration.space import Space"),
        ("monitor/simulation/drive.py", "np.random.default_rng(seed)"),
        ("monitor/tracking/motion.py", "from filterpy.common import Q_discrete_white_noise"),
        ("monitor/edges/server.py", "import grpc.aio\nfrom grpc_health.v1 import health"),
        ("monitor/edges/client.py", "import grpc\nfrom monitor.v1 import frame_pb2"),
        ("monitor/edges/wire.py", "from google.protobuf import message"),
        ("monitor/edges/exposition.py", "import prometheus_client"),
        ("monitor/edges/page.py", "from http import HTTPStatus"),
        ("monitor/edges/tables.py", "import csv, gzip"),
        ("monitor/edges/files.py", "np.load(file, allow_pickle=False)"),
        ("monitor/config.py", "import pydantic, tomllib"),
        ("monitor/verbs/serve.py", "import argparse, asyncio, time\nprint('ready')"),
        ("monitor/v1/frame_pb2.py", "from google.protobuf import descriptor"),
        ("benchmarks/loopback.py", "import argparse, csv, grpc\nprint(1)"),
    ],
)
def test_what_is_allowed_passes(path, source):
    assert violations(path, source) == []
