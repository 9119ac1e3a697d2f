"""The counts of benchmarks.grain, on sources small enough to be counted by hand."""

from benchmarks.grain import (
    LONG,
    Source,
    by_room,
    code_lines,
    components,
    docstrings,
    floors,
    import_graph,
    literal_bytes,
    public_names,
)

PROSE = '''\
"""Text of the module,
on two lines."""

import math  # a comment behind code

# a comment
HALF = """no
docstring"""


class Shape:
    """Has an area."""

    sides = 0

    def area(self) -> float:
        "Of one literal." " And another."
        return (
            math.pi  # code

        )

    def _hidden(self) -> None: ...


class _Private:
    def method(self) -> None: ...


if HALF:

    def chosen() -> None:
        def inner() -> None: ...
'''


def source(path: str, text: str = "") -> Source:
    return Source.of(path, text)


def test_code_lines_bear_a_token_that_is_neither_comment_nor_docstring():
    expected = ["import", "HALF", 'docstring"', "class", "sides", "def area", "return", "math", ")"]
    expected += ["def _hidden", "class _P", "def method", "if", "def chosen", "def inner"]
    assert code_lines(source("monitor/shape.py", PROSE)) == len(expected)


def test_docstrings_of_private_names_count_and_a_string_with_a_name_does_not():
    texts = [text.value for _, text in docstrings(source("monitor/shape.py", PROSE).tree)]
    assert texts == [
        "Text of the module,\non two lines.",
        "Has an area.",
        "Of one literal. And another.",
    ]


def test_public_names_are_those_that_others_can_reach():
    found = public_names(source("monitor/shape.py", PROSE))
    assert [getattr(node, "name", "module") for node in found] == [
        "module",
        "Shape",
        "area",
        "chosen",
    ]
    assert public_names(source("monitor/__main__.py")) == []
    assert len(public_names(source("monitor/edges/__init__.py"))) == 1


def test_only_long_literals_that_are_no_docstrings_are_data():
    long, short = "ä" * (LONG + 1), "a" * LONG
    assert literal_bytes(source("monitor/a.py", f'"""{long}"""\nx = "{short}"').tree) == 0
    assert literal_bytes(source("monitor/a.py", f'x = "{long}"').tree) == 2 * (LONG + 1)
    pieces = f'x = f"{short}{{y}}{short}"'
    assert literal_bytes(source("monitor/a.py", pieces).tree) == 2 * LONG


def test_an_import_is_an_arrow_however_and_wherever_it_is_written():
    graph = import_graph(
        [
            source("monitor/__init__.py"),
            source("monitor/cli.py", "def f():\n    from monitor.edges import wire"),
            source("monitor/edges/__init__.py", "NAME = 1"),
            source("monitor/edges/wire.py", "from . import NAME\nfrom ..cli import f\nimport grpc"),
        ]
    )
    assert graph == {
        "monitor/__init__.py": set(),
        "monitor/cli.py": {"monitor/edges/wire.py"},
        "monitor/edges/__init__.py": set(),
        "monitor/edges/wire.py": {"monitor/edges/__init__.py", "monitor/cli.py"},
    }


def test_a_circle_is_one_floor():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}
    assert sorted(map(sorted, components(graph))) == [["a"], ["b", "c"], ["d"]]
    assert floors(graph) == 3


def test_files_without_a_circle_may_make_rooms_with_one():
    graph = {"a1": {"b1"}, "a2": set(), "b1": set(), "b2": {"a2"}}
    assert floors(graph) == 2
    rooms = by_room(graph, {name: name[0] for name in graph})
    assert rooms == {"a": {"b"}, "b": {"a"}}
    assert floors(rooms) == 1
