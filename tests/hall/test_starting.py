"""Help imports nothing that is slow, and a verb no more than its work needs."""

from __future__ import annotations

import json
import subprocess
import sys

from monitor.cli import VERBS
from monitor.recalibration import methods
from monitor.recalibration.fitting import FITTINGS
from monitor.recalibration.mean_correction import KEEPS_MEAN
from monitor.recalibration.selection import CLASS_METHODS
from tests.served import running

# Packages that take longer to import than the help may take; `google` is protobuf.
SLOW = {
    *("numpy", "scipy", "pydantic", "grpc", "google", "prometheus_client", "filterpy", "rich"),
    *("asyncio", "pandas", "pyarrow", "matplotlib"),
}
ACTIONS = [("alarms", "list"), ("recalibrators", "promote")]

# Prints the packages that are there after each command.
PROGRAM = """
import contextlib, io, json, sys
from monitor.cli import main
found = {}
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main(words)
    found[" ".join(words)] = sorted({name.split(".")[0] for name in sys.modules})
print(json.dumps(found))
"""


def imported(*commands: tuple[str, ...]) -> dict[str, set[str]]:
    """Packages that are there after each command, one process running them in this order."""
    words = [sys.executable, "-c", PROGRAM, json.dumps(commands)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return {command: set(there) for command, there in json.loads(done.stdout).items()}


def test_help_and_completion_import_nothing_that_is_slow():
    commands = [("--version",), ("--help",), *((verb, "--help") for verb in VERBS)]
    commands += [(*action, "--help") for action in ACTIONS]
    for command, there in imported(*commands, ("completion", "bash")).items():
        assert not there & SLOW, command


def test_a_verb_that_asks_a_sidecar_neither_computes_nor_checks_settings(tmp_path):
    with running(tmp_path, "") as sidecar:
        where = ("--address", sidecar.grpc)
        page = ("--http-address", sidecar.http.removeprefix("http://"))
        asked = [("doctor", *where, *page), ("alarms", "list", *where)]
        found = imported(*asked, ("recalibrators", "list", *where))
    assert {"grpc", "asyncio"} <= min(found.values(), key=len)
    for command, there in found.items():
        assert not there & {"scipy", "pydantic", "prometheus_client", "filterpy", "rich"}, command


def test_a_verb_that_measures_a_file_needs_no_model_no_settings_and_no_network(tmp_path):
    drive = str(tmp_path / "drive.csv")
    written, measured = ("sample", "--output", drive), ("evaluate", drive)
    found = imported(written, measured)
    assert "scipy" not in found[" ".join(written)]
    assert not found[" ".join(measured)] & (SLOW - {"numpy", "scipy"})


def test_the_names_that_a_parser_offers_are_those_of_the_methods_there_are():
    assert tuple(methods.METHODS) == tuple(FITTINGS)
    assert tuple(methods.OF_CLASSES) == tuple(CLASS_METHODS)
    assert [name for name, keeps in methods.METHODS.items() if keeps] == list(KEEPS_MEAN)
    assert {methods.USUAL, methods.USUAL_WITHOUT_COVARIANCE} <= FITTINGS.keys()
