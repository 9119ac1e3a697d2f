"""Do the tests notice when the code is wrong? Mutants drawn by a seed, each before its own tests.

A mutant is one operator, comparison or constant changed in a function of some rooms. It is found
when a test that enters its line fails, or does not end. Which tests enter a line is told by a run
of all tests that need Python alone, with coverage by test; it is kept in a file, so that the same
mutants can be held before other tests of the same code.

    python -m tests.mutants [--seed 22] [--count 80] [--rooms drift matching …]
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[1]
ALONE = ("-m", "not components and not campaign", "-p", "no:cacheprovider", "-q", "--tb=no")
OPERATORS: dict[type[ast.operator], str] = {
    **{ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*"},
    **{ast.Mod: "*", ast.Pow: "*", ast.BitAnd: "|", ast.BitOr: "&", ast.LShift: ">>"},
}
COMPARISONS: dict[type[ast.cmpop], str] = {
    **{ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="},
    **{ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"},
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A stretch of a file, from byte to byte, and what stands there instead.

    statement  line in which the statement begins; coverage may know that line alone
    """

    path: str
    statement: int
    line: int
    begin: int
    end: int
    text: str

    def of(self, source: bytes) -> bytes:
        return source[: self.begin] + self.text.encode() + source[self.end :]

    def said(self, source: bytes) -> str:
        was = " ".join(source[self.begin : self.end].decode().split())
        return f"{self.path}:{self.line}: {was} -> {self.text}"


class Mutants(ast.NodeVisitor):
    """Finds the mutants of the functions of a file; types and docstrings are no code."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.found: list[Mutant] = []
        self._starts = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
        self._statement = 0  # line in which it begins; 0 outside of functions
        self.visit(ast.parse(source))

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            outer = self._statement
            for statement in node.body:
                self._statement = statement.lineno
                self.visit(statement)
            self._statement = outer
            return
        if isinstance(node, ast.AnnAssign):
            children: list[ast.AST] = [node.target, *([node.value] if node.value else [])]
        else:
            if isinstance(node, ast.stmt) and self._statement:
                self._statement = node.lineno
            children = list(ast.iter_child_nodes(node))
        if self._statement:
            self._change(node)
        for child in children:
            self.visit(child)

    def _change(self, node: ast.AST) -> None:
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            self._between(node.left, node.right, OPERATORS[type(node.op)])
        elif isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for operator, (left, right) in zip(node.ops, pairwise(operands), strict=True):
                self._between(left, right, COMPARISONS[type(operator)])
        elif isinstance(node, ast.BoolOp):
            first, second, *_ = node.values
            self._between(first, second, "or" if isinstance(node.op, ast.And) else "and")
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            other = not node.value if isinstance(node.value, bool) else node.value + 1
            self._add(node, self._begin(node), self._end(node), repr(other))

    def _between(self, left: ast.expr, right: ast.expr, text: str) -> None:
        begin, end = self._end(left), self._begin(right)
        # What lies between two operands is the operator, unless brackets are in the way.
        if not set(b"()\n\\#") & set(self.source[begin:end]):
            self._add(left, begin, end, f" {text} ")

    def _add(self, node: ast.expr, begin: int, end: int, text: str) -> None:
        self.found.append(Mutant(self.path, self._statement, node.lineno, begin, end, text))

    def _begin(self, node: ast.expr) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset


def drawn(rooms: list[str], count: int, seed: int) -> list[Mutant]:
    """Draws mutants of some rooms, any as likely as any other."""
    found = []
    for room in rooms:
        for file in sorted((ROOT / "monitor" / room).rglob("*.py")):
            found += Mutants(str(file.relative_to(ROOT)), file.read_bytes()).found
    return random.Random(seed).sample(found, count)


def tests_by_line(data: Path) -> dict[tuple[str, int], list[str]]:
    """Runs all tests that need Python alone, unless that was done; returns those of each line.

    Tests that enter few lines come first: they are quick, and the likeliest to find a mutant.
    """
    if not data.exists():
        command = [sys.executable, "-m", "pytest", *ALONE, "--numprocesses", "2"]
        command += ["--dist", "loadfile", "--cov=monitor", "--cov-context=test", "--cov-report="]
        environment = {**os.environ, "COVERAGE_FILE": str(data)}
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
    connection = sqlite3.connect(data)
    rows = connection.execute(
        "SELECT DISTINCT file.path, tono, context.context FROM arc"
        " JOIN file ON file.id = file_id JOIN context ON context.id = context_id WHERE tono > 0"
    )
    found: dict[tuple[str, int], set[str]] = {}
    lines: Counter[str] = Counter()
    for path, line, context in rows:
        if test := context.rpartition("|")[0]:
            found.setdefault((str(Path(path).relative_to(ROOT)), line), set()).add(test)
            lines[test] += 1
    connection.close()
    return {
        line: sorted(tests, key=lambda test: (lines[test], test)) for line, tests in found.items()
    }


def copied(folder: Path) -> Path:
    """Copies all that git knows of the work tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in listed.stdout.decode().splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def outcome(mutant: Mutant, tests: list[str], tree: Path) -> str:
    """Holds a mutant in a copy of the work tree before tests.

    A test that fails without the mutant too, on a busy machine say, finds nothing.
    """
    file = tree / mutant.path
    source = file.read_bytes()
    while tests:
        try:
            file.write_bytes(mutant.of(source))
            failed = failures(tests, tree)
        finally:
            file.write_bytes(source)
        if not failed:
            return "NOT FOUND"
        broken = failures(failed, tree)
        if len(broken) < len(failed):
            return f"found by {min(set(failed) - set(broken))}"
        tests = [test for test in tests if test not in broken]
    return "NOT FOUND: no sound test enters it"


def failures(tests: list[str], tree: Path) -> list[str]:
    """Runs tests up to the first that fails; returns it, or that and others that could not run."""
    (tree / "tests.txt").write_text("\n".join(tests), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", *ALONE, "-x", "-rfE", "@tests.txt"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, check=False)
    said = done.stdout.decode("utf-8", "replace")
    if done.returncode == 0:
        return []
    found = [
        test for test in tests if re.search(rf"^(FAILED|ERROR) {re.escape(test)}( |$)", said, re.M)
    ]
    if found:
        return found
    # A file that cannot be imported, or an interpreter that died: all of its tests fail.
    files = set(re.findall(r"^ERROR (\S+\.py)", said, re.M))
    return [test for test in tests if test.partition("::")[0] in files] or tests[:1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=22)
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--data", type=Path, default=ROOT / ".coverage-by-test")
    rooms = ["drift", "matching", "pipeline", "statistics"]
    parser.add_argument("--rooms", nargs="+", default=rooms)
    options = parser.parse_args()
    print(f"{options.count} mutants of {', '.join(options.rooms)}, seed {options.seed}")
    by_line = tests_by_line(options.data)
    mutants = drawn(options.rooms, options.count, options.seed)
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.jobs) as pool:
        trees: SimpleQueue[Path] = SimpleQueue()
        for i in range(options.jobs):
            trees.put(copied(Path(name) / str(i)))

        def held(mutant: Mutant) -> str:
            lines = dict.fromkeys([mutant.line, mutant.statement])
            tests = list(dict.fromkeys(t for i in lines for t in by_line.get((mutant.path, i), ())))
            tree = trees.get()
            try:
                how = outcome(mutant, tests, tree) if tests else "NOT FOUND: no test enters it"
            finally:
                trees.put(tree)
            said = mutant.said((ROOT / mutant.path).read_bytes())
            print(f"{said}: {how} ({len(tests)} tests)", flush=True)
            return how

        outcomes = list(pool.map(held, mutants))
    found = sum(how.startswith("found") for how in outcomes)
    print(f"{found} of {len(mutants)} found")


if __name__ == "__main__":
    main()
