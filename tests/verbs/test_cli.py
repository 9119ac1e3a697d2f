"""The command line as a whole: every verb is there, explains itself and ends as it should."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

import monitor
from monitor import cli
from monitor.cli import VERBS, build_parser, main
from tests.verbs.recordings import csv_file, recorded

COMMAND = [sys.executable, "-m", "monitor"]


def ended(capsys, *words):
    """The exit code of argparse, and what was said."""
    with pytest.raises(SystemExit) as end:
        main(words)
    return end.value.code, capsys.readouterr()


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_offers_what_the_command_line_asks_of_it(verb):
    module = importlib.import_module(f"monitor.commands.{verb}")
    assert isinstance(module.EXAMPLE, str)
    assert callable(module.add_options)
    assert callable(module.run)
    assert module.run.__doc__.startswith("0 ")  # says what the exit code means


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_has_an_example(capsys, verb):
    code, said = ended(capsys, verb, "--help")
    assert code == 0
    assert said.err == ""
    assert "examples:\n  calibration-monitor " in said.out
    assert said.out.count(f"\n  calibration-monitor {verb}") >= 1


@pytest.mark.parametrize("verb", VERBS)
def test_every_example_is_a_command_that_parses(verb):
    text = importlib.import_module(f"monitor.commands.{verb}").EXAMPLE
    commands = re.findall(r"^  calibration-monitor (.*)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        options = build_parser(verb).parse_args(shlex.split(command.split(" >")[0]))
        assert options.verb == verb


def test_the_help_lists_every_verb(capsys):
    code, said = ended(capsys, "--help")
    assert code == 0
    for verb, text in VERBS.items():
        assert re.search(rf"^ +{verb} +{re.escape(text[:30])}", said.out, re.MULTILINE)


def test_the_version_is_that_of_the_package(capsys):
    code, said = ended(capsys, "--version")
    assert (code, said.out) == (0, f"{monitor.__version__}\n")


@pytest.mark.parametrize("words", [(), ("watch",), ("--loud",), ("evaluate",), ("fit", "--loud")])
def test_a_command_that_makes_no_sense_is_wrong_usage(capsys, words):
    code, said = ended(capsys, *words)
    assert code == 2
    assert said.out == ""
    assert "usage: calibration-monitor" in said.err
    assert "Traceback" not in said.err


def test_the_installed_command_is_this_one():
    (script,) = entry_points(group="console_scripts", name="calibration-monitor")
    assert script.load() is main


class Failing:
    """A verb that raises."""

    def __init__(self, error):
        self.error = error

    def run(self, options):
        raise self.error


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (ValueError("rows: none."), ["rows: none."]),
        (FileNotFoundError(2, "No such file", "a.csv"), ["[Errno 2] No such file: 'a.csv'"]),
        (
            ExceptionGroup("tasks", [ValueError("one."), ExceptionGroup("", [OSError("two.")])]),
            ["one.", "two."],
        ),
    ],
)
def test_an_expected_error_is_a_line_and_exit_code_1(monkeypatch, capsys, error, lines):
    parse = build_parser("evaluate").parse_args
    monkeypatch.setattr(cli, "build_parser", lambda _: type("", (), {"parse_args": parse}))
    monkeypatch.setattr(cli, "_verb", lambda _: Failing(error))
    assert main(["evaluate", "drive.csv"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [f"calibration-monitor evaluate: {line}" for line in lines]


@pytest.mark.parametrize("error", [ZeroDivisionError(), ExceptionGroup("", [KeyError("a")])])
def test_a_mistake_of_ours_is_not_hidden(monkeypatch, error):
    parse = build_parser("evaluate").parse_args
    monkeypatch.setattr(cli, "build_parser", lambda _: type("", (), {"parse_args": parse}))
    monkeypatch.setattr(cli, "_verb", lambda _: Failing(error))
    with pytest.raises(type(error)):
        main(["evaluate", "drive.csv"])


def test_an_interrupt_is_no_traceback(monkeypatch, capsys):
    parse = build_parser("evaluate").parse_args
    monkeypatch.setattr(cli, "build_parser", lambda _: type("", (), {"parse_args": parse}))
    monkeypatch.setattr(cli, "_verb", lambda _: Failing(KeyboardInterrupt()))
    assert main(["evaluate", "drive.csv"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("unbuffered", ["1", ""])  # it fails in the verb, or when all is done
def test_a_reader_that_has_had_enough_is_no_error(tmp_path, unbuffered):
    drive = csv_file(tmp_path / "drive.csv", recorded().of(slice(0, 50)))
    command = [*COMMAND, "evaluate", str(drive)]
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as evaluating:
        assert evaluating.stdout is not None and evaluating.stderr is not None
        evaluating.stdout.close()  # long before it has anything to say
        complaint = evaluating.stderr.read()
        assert (evaluating.wait(30), complaint) == (0, b"")


def test_the_module_ends_with_the_exit_code_of_the_verb():
    done = subprocess.run(
        [*COMMAND, "evaluate", "nowhere.csv"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(r"calibration-monitor evaluate: nowhere\.csv: .*\n", done.stderr)
