"""Measures the grain of monitor/: how many files of which size, how deep imports go, and what has
a docstring. The sources are read and never imported; generated code (v1/) is left out.

    python -m benchmarks.grain [--tree FOLDER]
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

PACKAGE, GENERATED = "monitor", "monitor/v1"
SMALL, LARGE = 60, 500  # lines
LONG = 400  # characters of a string literal, beyond which it is data

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_WITHOUT_VERB = re.compile(r"\s*(Of|What|Whether|The same)\b")

Documented: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Definition: TypeAlias = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Graph: TypeAlias = Mapping[str, set[str]]


@dataclass(frozen=True, slots=True)
class Source:
    """Holds a file as it is read.

    path  from the root of the tree, with /
    """

    path: str
    text: str
    tree: ast.Module

    @classmethod
    def of(cls, path: str, text: str) -> Source:
        """Parses a file. Raises SyntaxError."""
        return cls(path, text, ast.parse(text, filename=path))

    @property
    def lines(self) -> int:
        """Counts all lines."""
        return len(self.text.splitlines())

    @property
    def in_hall(self) -> bool:
        """Tells whether the file stands in monitor/ itself."""
        return self.path.count("/") == 1

    @property
    def room(self) -> str:
        """Names the first folder below monitor/; a file of the hall is a room of its own."""
        return self.path.split("/")[1]


def sources(root: Path) -> list[Source]:
    """Reads all files of monitor/ that people write."""
    paths = sorted((root / PACKAGE).rglob("*.py"))
    names = [path.relative_to(root).as_posix() for path in paths]
    kept = (name for name in names if not name.startswith(f"{GENERATED}/"))
    return [Source.of(name, (root / name).read_text("utf-8")) for name in kept]


def data_bytes(root: Path) -> int:
    """Adds up the files of monitor/ that are no Python."""
    files = (path for path in (root / PACKAGE).rglob("*") if path.is_file())
    return sum(
        path.stat().st_size
        for path in files
        if path.suffix not in (".py", ".pyi", ".pyc") and not path.is_relative_to(root / GENERATED)
    )


# ---- lines


def docstrings(tree: ast.Module) -> Iterator[tuple[Documented, ast.Constant]]:
    """Finds string statements at the head of modules, classes and functions, private ones too."""
    for node in ast.walk(tree):
        if isinstance(node, Documented) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield node, first.value


def code_lines(source: Source) -> int:
    """Counts lines with a token that is neither comment nor docstring nor white space."""
    # A docstring of several literals is left out as a whole.
    prose = [(text.lineno, text.end_lineno or text.lineno) for _, text in docstrings(source.tree)]
    heads = {line for begin, end in prose for line in range(begin, end + 1)}
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        is_docstring = token.type == tokenize.STRING and token.start[0] in heads
        if token.type not in _NO_CODE and not is_docstring:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code)


def literal_bytes(tree: ast.Module) -> int:
    """Adds up, in UTF-8, the string literals of more than LONG characters that are no docstring."""
    prose = {id(text) for _, text in docstrings(tree)}
    total = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part for part in node.values if isinstance(part, ast.Constant)]
            # They are met again below, each by itself.
            prose.update(map(id, parts))
            text = "".join(str(part.value) for part in parts)
        elif isinstance(node, ast.Constant) and id(node) not in prose:
            text = node.value if isinstance(node.value, str) else ""
        else:
            continue
        total += len(text.encode()) if len(text) > LONG else 0
    return total


# ---- names


def public_names(source: Source) -> list[Documented]:
    """Lists the module, its classes and functions, and their methods, where no `_` leads.

    A package's `__init__` has the name of its folder. What is defined inside a function, or in a
    private class, is not public.
    """
    path = PurePosixPath(source.path)
    name = path.parent.name if path.stem == "__init__" else path.stem
    module: list[Documented] = [] if name.startswith("_") else [source.tree]
    return [*module, *_defined(source.tree.body)]


def _defined(statements: Iterable[ast.stmt]) -> Iterator[Definition]:
    for node in statements:
        if isinstance(node, Definition):
            if not node.name.startswith("_"):
                yield node
                if isinstance(node, ast.ClassDef):
                    yield from _defined(node.body)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _defined(_inside(node))


def _inside(node: ast.If | ast.Try | ast.With) -> list[ast.stmt]:
    """Lists the statements that a statement at the top of a file holds, in all of its branches."""
    if isinstance(node, ast.With):
        return node.body
    if isinstance(node, ast.If):
        return [*node.body, *node.orelse]
    handlers = [statement for handler in node.handlers for statement in handler.body]
    return [*node.body, *handlers, *node.orelse, *node.finalbody]


# ---- imports


def imports(source: Source, known: Mapping[str, str]) -> set[str]:
    """Finds the files of the tree that a file imports, wherever in it the import stands.

    known  paths by dotted name
    """
    wanted: list[tuple[str, ...]] = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            wanted += [(alias.name,) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = [node.module] if node.module else []
            if node.level:
                origin = [*PurePosixPath(source.path).parts[: -node.level], *origin]
            module = ".".join(origin)
            # What is imported from a package is a module of it, or a name in its __init__.
            wanted += [(f"{module}.{alias.name}", module) for alias in node.names]
    found = {next((known[name] for name in names if name in known), "") for names in wanted}
    return found - {"", source.path}


def import_graph(files: Iterable[Source]) -> dict[str, set[str]]:
    """Maps each path to the paths that it imports."""
    files = list(files)
    known = {
        source.path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): source.path
        for source in files
    }
    return {source.path: imports(source, known) for source in files}


def by_room(graph: Graph, rooms: Mapping[str, str]) -> dict[str, set[str]]:
    """Merges the files of each room.

    rooms  by path
    """
    found: dict[str, set[str]] = {room: set() for room in rooms.values()}
    for path, imported in graph.items():
        found[rooms[path]] |= {rooms[other] for other in imported} - {rooms[path]}
    return found


def components(graph: Graph) -> list[set[str]]:
    """Groups nodes that import each other in a circle; a node in none is a group of its own."""
    reached = {node: _reached(graph, node) for node in graph}
    groups: list[set[str]] = []
    for node in graph:
        if not any(node in group for group in groups):
            groups.append({node} | {other for other in reached[node] if node in reached[other]})
    return groups


def _reached(graph: Graph, node: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[node])
    while waiting:
        other = waiting.pop()
        if other not in found:
            found.add(other)
            waiting += graph[other]
    return found


def floors(graph: Graph) -> int:
    """Counts the groups on the longest chain of imports; a circle is one group."""
    groups = components(graph)
    of = {node: number for number, group in enumerate(groups) for node in group}
    below = {
        number: {of[other] for node in group for other in graph[node]} - {number}
        for number, group in enumerate(groups)
    }
    height: dict[int, int] = {}
    while len(height) < len(groups):
        for number in below.keys() - height.keys():
            if below[number] <= height.keys():
                height[number] = 1 + max((height[other] for other in below[number]), default=0)
    return max(height.values(), default=0)


# ---- the table


def rows(root: Path) -> Iterator[tuple[str, int, str]]:
    """Measures a tree: what, how much, and a remark."""
    files = sources(root)
    yield "files", len(files), "without v1/"
    yield "files in the hall", sum(source.in_hall for source in files), "monitor/*.py"
    yield f"files under {SMALL} lines", sum(source.lines < SMALL for source in files), ""
    yield f"files over {LARGE} lines", sum(source.lines > LARGE for source in files), ""
    yield "lines", sum(source.lines for source in files), ""
    yield "code lines", sum(map(code_lines, files)), "without comments, docstrings, empty lines"
    graph = import_graph(files)
    rooms = by_room(graph, {source.path: source.room for source in files})
    for title, nodes in (("files", graph), ("rooms", rooms)):
        circles = [sorted(group) for group in components(nodes) if len(group) > 1]
        largest = max(circles, key=len, default=[])
        yield f"import floors, {title}", floors(nodes), f"of {len(nodes)} {title}; circles folded"
        yield f"circles of {title}", len(circles), f"the largest of {len(largest)} {title}"
        yield f"{title} in circles", sum(map(len, circles)), " ".join(largest[:8])
    public = [node for source in files for node in public_names(source)]
    yield "public names", len(public), "modules, classes, functions, methods"
    with_text = sum(ast.get_docstring(node) is not None for node in public)
    yield "public names with a docstring", with_text, f"{with_text / max(len(public), 1):.1%}"
    texts = [str(text.value) for source in files for _, text in docstrings(source.tree)]
    without_verb = sum(_WITHOUT_VERB.match(text) is not None for text in texts)
    yield "docstrings", len(texts), "private names too"
    yield "docstrings without a verb", without_verb, "begin with Of, What, Whether, The same"
    literals = sum(literal_bytes(source.tree) for source in files)
    yield "bytes of long literals", literals, f"strings over {LONG} characters, no docstrings"
    yield "bytes of data files", data_bytes(root), "in monitor/, neither .py nor .pyi"


def main() -> int:
    """Prints a line for each measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1], metavar="FOLDER")
    for what, number, remark in rows(parser.parse_args().tree):
        print(f"{what:<32}{number:>9}  {remark}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
