"""Runs a verb in this process and returns what it prints; no tests."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

from monitor.cli import main


def spoken(*words: object) -> tuple[int, str, str]:
    """The exit code of a verb, its output and its complaints."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:
            code = int(end.code or 0)
    # That a recording has columns which nobody uses is said of many, and is no complaint.
    said = [line for line in err.getvalue().splitlines(True) if ": not used: " not in line]
    return code, out.getvalue(), "".join(said)


def done(*words: object) -> str:
    """What a verb prints that does its work without a complaint."""
    code, out, err = spoken(*words)
    assert (code, err) == (0, ""), (code, err)
    return out


def found(*words: object) -> Any:
    """The object that a verb prints, without the columns that nobody uses and remarks on them."""
    answer = json.loads(done(*words, "--json"))
    if isinstance(answer, dict):
        answer.pop("columns_not_used", None)
        answer.pop("remarks", None)
    return answer


def refused(*words: object) -> str:
    """The one line of a verb that does not do its work."""
    code, out, err = spoken(*words)
    assert (code, out) == (1, ""), (code, out, err)
    (line,) = err.splitlines()
    assert line.startswith(f"calibration-monitor {words[0]}: ")
    return line


def wrong_usage(option: str, text: str, *words: object) -> None:
    """A value that makes no sense for an option is named with it."""
    code, out, err = spoken(*words, f"{option}={text}")
    assert (code, out) == (2, "")
    assert f"argument {option}: " in err
    assert f"'{text}'" in err
