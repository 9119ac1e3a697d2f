"""Measures the grain of monitor/: how many files, lines and lines of code, room by room.

The sources are read and never imported; generated code (v1/) is left out.

    python -m tests.grain [--tree FOLDER]
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

PACKAGE, GENERATED = "monitor", "v1"
SMALL, LARGE = 60, 500  # lines

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def docstring_lines(tree: ast.Module) -> set[int]:
    """Finds the lines of string statements at the head of modules, classes and functions."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if ast.get_docstring(node, clean=False) is not None and first is not None:
                found |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found


def code_lines(text: str) -> int:
    """Counts lines with a token that is neither comment nor docstring nor white space."""
    heads = docstring_lines(ast.parse(text))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and token.start[0] in heads
        if token.type not in _NO_CODE and not is_docstring:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code)


def rows(root: Path) -> Iterator[tuple[str, int, int, int]]:
    """Yields room, files, lines and code lines; a room is a folder of monitor/, or its hall."""
    rooms: dict[str, list[str]] = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        inside = path.relative_to(root / PACKAGE).parts
        if inside[0] != GENERATED:
            room = inside[0] if len(inside) > 1 else "(hall)"
            rooms.setdefault(room, []).append(path.read_text("utf-8"))
    for room, texts in sorted(rooms.items()):
        lines = sum(len(text.splitlines()) for text in texts)
        yield room, len(texts), lines, sum(map(code_lines, texts))
    every = [text for texts in rooms.values() for text in texts]
    sizes = [len(text.splitlines()) for text in every]
    yield "all", len(every), sum(sizes), sum(map(code_lines, every))
    yield f"under {SMALL} lines", sum(size < SMALL for size in sizes), 0, 0
    yield f"over {LARGE} lines", sum(size > LARGE for size in sizes), 0, 0


def main() -> int:
    """Prints a line for each room, and their sums."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1], metavar="FOLDER")
    print(f"{'':<18}{'files':>8}{'lines':>8}{'code':>8}")
    for room, files, lines, code in rows(parser.parse_args().tree):
        print(f"{room:<18}{files:>8}" + (f"{lines:>8}{code:>8}" if lines else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
