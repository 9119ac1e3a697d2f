"""Writes tables and numbers as HTML: for those who read, for those who hear, and for tests."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from html import escape

_NUMBER = re.compile(r"[-−+]?[\d.,]+(e[-+]?\d+)?( ?%)?|–|")


@dataclass(frozen=True, slots=True)
class Table:
    """The numbers behind a figure, as text: a reader who cannot see the drawing has them all."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def html(self, name: str) -> str:
        """Writes the table, with words left in their column; `name` is heard in front of it."""
        columns = enumerate(zip(*self.rows, strict=True))
        words = [i for i, cells in columns if not all(map(_NUMBER.fullmatch, cells))]
        rows = (map(escape, row) for row in self.rows)
        return html_table(name, map(escape, self.head), rows, {"text": words})


def html_table(
    name: str,
    head: Iterable[str],
    rows: Iterable[Iterable[str]],
    kinds: Mapping[str, Collection[int]] = {},
) -> str:
    """Writes a table of cells that are HTML already; the first cell of a row names it.

    name   of the table, for those who hear the page
    kinds  classes of the style sheet, each with the numbers of its columns
    """

    def kind(i: int) -> str:
        found = " ".join(one for one, columns in kinds.items() if i in columns)
        return f' class="{found}"' * bool(found)

    heads = "".join(
        f'<th scope="col"{kind(i)}>{cell}</th>' if cell else "<td></td>"
        for i, cell in enumerate(head)
    )
    lines = "".join(
        f'<tr><th scope="row">{first}</th>'
        + "".join(f"<td{kind(i)}>{cell}</td>" for i, cell in enumerate(rest, 1))
        + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(name)}"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def fact(text: str, *of: str) -> str:
    """Writes a number with what it is, such as `Car/raw/x/ence`."""
    return f'<span data-of="{escape("/".join(of))}">{escape(text)}</span>'
