"""The command line: every verb explains itself; `serve` refuses what it cannot start with."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import monitor
from monitor import cli, native
from monitor.cli import VERBS, build_parser, main
from monitor.commands.sending import running_sidecar
from monitor.commands.sidecar_client import SidecarFailed
from monitor.recalibration.selection import IDENTITY
from tests.commands.recordings import csv_file, recorded
from tests.foreign_client import scaling, serve_to_the_end
from tests.served import ROOT, serve_command

COMMAND = [sys.executable, "-m", "monitor"]


def ended(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main(words)
    return end.value.code, capsys.readouterr()


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_with_examples_that_parse(capsys, verb):
    assert cli._work(verb).run.__doc__.startswith("0 ")  # says what the exit code means
    code, said = ended(capsys, verb, "--help")
    assert (code, said.err) == (0, "")
    assert "examples:\n  calibration-monitor " in said.out
    assert f"\n  calibration-monitor {verb}" in said.out
    commands = re.findall(r"^  calibration-monitor (.*)$", VERBS[verb].example, re.MULTILINE)
    assert commands
    for command in commands:
        words = shlex.split(command)
        words = words[: words.index(">")] if ">" in words else words
        assert build_parser(words[0]).parse_args(words).verb == words[0]


def test_the_help_lists_every_verb_and_the_version_is_that_of_the_package(capsys):
    code, said = ended(capsys, "--help")
    assert code == 0
    for verb, about in VERBS.items():
        assert re.search(rf"^ +{verb} +{re.escape(about.text[:30])}", said.out, re.MULTILINE)
    code, said = ended(capsys, "--version")
    assert (code, said.out) == (0, f"{monitor.__version__} (kernels: {native.NAME})\n")
    (script,) = entry_points(group="console_scripts", name="calibration-monitor")
    assert script.load() is main


def test_a_misspelt_verb_is_wrong_usage_with_the_verb_that_is_meant(capsys):
    assert main(["evalute", "drive.csv"]) == 2
    assert "mean evaluate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["evaluate"], "evaluate: the following arguments are required: FILE."),
        (["evaluate", "d.csv", "--rows", "5-10"], "--rows: '5-10': expected A:B, such as 0:2000."),
        (
            ["evaluate", "d.csv", "--dimesions=x"],
            "no option --dimesions. Did you mean --dimensions?",
        ),
        (["evaluate", "d.csv", "more.csv"], "'more.csv' is one argument too many."),
        (["evaluate", "d.csv", "--format=cocoa"], "'cocoa' is none of table, kitti, mot, coco"),
        (["evaluate", "d.csv", "--assume-std=x"], "'x': expected D=S,… with numbers above 0"),
        (["fit", "d.csv", "--method=temprature"], "Did you mean temperature?"),
    ],
)
def test_wrong_usage_is_one_line_that_names_value_and_remedy(capsys, words, said):
    code, (out, err) = ended(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"calibration-monitor {words[0]}: ")
    assert said in err
    assert err.endswith(f" `calibration-monitor {words[0]} --help` lists the options.\n")


def test_an_interrupt_that_breaks_off_an_import_ends_the_process_without_a_word():
    # As NumPy does: what an import was broken off by becomes another error.
    broken = """
import importlib, os, signal, sys
import monitor.cli
def imported(name):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        raise ImportError(name)
importlib.import_module = imported
sys.exit(monitor.cli.main(["sample"]))
"""
    done = subprocess.run([sys.executable, "-c", broken], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


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
        assert evaluating.wait(30) == 0
        assert complaint.endswith(b"drive.csv: not used: role\n")
        assert complaint.count(b"\n") == 1


def checking(tmp_path, text, *flags) -> list[str]:
    path = tmp_path / "checked.toml"
    path.write_text(text, encoding="utf-8")
    return ["serve", "--config", str(path), "--check", *flags]


def test_a_valid_configuration_is_checked_without_serving(tmp_path, capsys):
    document = tmp_path / "scaling.json"
    document.write_text(scaling(2.0, 3.0), encoding="utf-8")
    kept = "[state]\nfolder = '/kept'\n"
    text = f"[recalibration]\nrecalibrator = '{document}'\n"
    assert main(checking(tmp_path, text + kept)) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("configuration is valid; recalibrator variance-scaling-")
    assert line.endswith(", or what the last run left in /kept")
    for given, flags in (("[state]\nfolder = ''\n", ()), ("", ("--no-state",))):
        assert main(checking(tmp_path, given, *flags)) == 0
        said = capsys.readouterr().out
        assert said == f"configuration is valid; recalibrator {IDENTITY.version}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\ngrpc_port = 1\n", ["server.grpc_port", "1"]),
        ("[server\n", ["TOML"]),
        ("[recalibration]\nrecalibrator = '/nowhere/r.json'\n", ["recalibrator", "/nowhere/r"]),
        ("[recalibration]\nrecalibrator = '{broken}'\n", ["broken.json", "format"]),
        ("[security]\ndata_token_file = '/nowhere/none'\n", ["'/nowhere/none' cannot be read"]),
        ("[server]\ngrpc_address = '127.0.0.1'\n", ["grpc_address", "127.0.0.1"]),
        ("[server]\nhttp_address = '127.0.0.1:99999'\n", ["http_address", "99999"]),
    ],
)
def test_an_invalid_configuration_is_refused_by_key_value_and_remedy(tmp_path, capsys, text, words):
    broken = tmp_path / "broken.json"
    broken.write_text("{}", encoding="utf-8")
    assert main(checking(tmp_path, text.replace("{broken}", str(broken)))) == 1
    output, errors = capsys.readouterr()
    assert output == ""
    (line,) = errors.splitlines()
    for word in words:
        assert word in line


def test_a_process_that_cannot_start_or_listen_ends_with_a_line_and_1(tmp_path):
    config = tmp_path / "old.toml"
    config.write_text("[drift]\npath = '/before/drift'\n", "utf-8")
    done = serve_to_the_end("--config", str(config), "--check")
    assert done.returncode == 0
    assert done.stderr.count("[drift] path is deprecated") == done.stderr.count("\n") == 1
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for key in ("grpc_address", "http_address"):
            done = serve_to_the_end("--no-state", f"--{key.replace('_', '-')}", address)
            assert done.returncode == 1
            assert f"[server] {key} = '{address}'" in done.stderr
            assert "Choose a free port" in done.stderr
            assert "add_port.cc" not in done.stderr  # gRPC has nothing to say beside us
            assert "Traceback" not in done.stderr
            assert "listening" not in done.stdout


def listens(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_a_sidecar_lives_as_long_as_the_context_and_leaves_nothing_behind(tmp_path):
    kept = f'[state]\nfolder = "{tmp_path}/kept"\nevery_seconds = 0.1\n'
    with pytest.raises(ZeroDivisionError), running_sidecar(kept) as addresses:
        assert listens(addresses.grpc)
        assert listens(addresses.http)
        raise ZeroDivisionError  # an error of the body stays what it is
    assert not listens(addresses.grpc)
    assert not listens(addresses.http)
    assert list(tmp_path.iterdir()) == []


def test_a_sidecar_that_does_not_start_or_ends_by_itself_is_told():
    with (
        pytest.raises(SidecarFailed, match=r"exit code 1(.|\n)*\[statistics\.bins\] = -3"),
        running_sidecar("[statistics]\nbins = -3\n"),
    ):
        pass
    with (
        pytest.raises(SidecarFailed, match="killed by signal 9 while it was needed"),
        running_sidecar(""),
    ):
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
        os.kill(int(children.read_text().split()[-1]), signal.SIGKILL)
        raise ConnectionResetError("the stream ended")


def test_a_sidecar_whose_parent_is_gone_stops_by_itself_and_keeps_what_it_was_told_to(tmp_path):
    config = tmp_path / "sidecar.toml"
    config.write_text(f'[state]\nfolder = "{tmp_path}/kept"\n', "utf-8")
    serve = serve_command("--exit-with-parent", "--config", str(config))
    with subprocess.Popen(
        serve, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as sidecar:
        assert sidecar.stdin is not None and sidecar.stdout is not None
        assert sidecar.stdout.readline().startswith(b"listening ")
        sidecar.stdin.close()
        assert sidecar.wait(20) == 0
    assert (tmp_path / "kept" / "state.db").exists()
    done = subprocess.run(
        serve, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "standard input is not a pipe" in done.stderr
