"""Runs the verbs of the command line, turning what they raise into a line and an exit code."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from types import ModuleType

from monitor import __version__

VERBS = {
    "serve": "run the sidecar",
    "doctor": "what is wrong with a running sidecar, why, and what to do",
    "demo": "a simulated drive through a real sidecar, with a fault",
    "replay": "stream recorded detections through a real sidecar",
    "reference": "learn what is usual of recorded drives, to tell drift from",
    "sample": "write an example of each kind of file that can be read",
    "evaluate": "judge and measure the calibration of a recorded file",
    "fit": "fit a recalibrator to a recorded file",
    "apply": "recalibrate a recorded file",
    "report": "write what a running sidecar has found, to read and to hand on",
    "export": "write the statistics of a running sidecar to a file",
    "merge": "add up the statistics of several sidecars",
    "recalibrators": "see and change the recalibrators of a running sidecar",
    "alarms": "see, end and watch the alarms of drift of a running sidecar",
}


class _VerbsHelp(argparse.HelpFormatter):
    """Leaves room for the longest verb, which argparse measures before it indents it."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = 2 * self._indent_increment + max(map(len, VERBS))


def _verb(name: str) -> ModuleType:
    """Imports a verb when it is asked for: the sidecar starts without the simulation.

    returns  a module with EXAMPLE, `add_options(parser)` and `run(options)`, which returns the exit
             code; what it raises is shown as a line, with code 1
    """
    # Before gRPC is imported: its line for every handshake that fails would know no limit.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    return importlib.import_module(f"monitor.commands.{name}")


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """Builds the command line, with the options of the chosen verb."""
    parser = argparse.ArgumentParser(
        prog="calibration-monitor",
        description="Watches and corrects the covariances that a detector reports.",
        formatter_class=_VerbsHelp,
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, text in VERBS.items():
        if name != chosen:
            verbs.add_parser(name, help=text)
            continue
        verb = _verb(name)
        described = verbs.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog=verb.EXAMPLE,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.add_options(described)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a verb. 0: the work was done; 1: it was not, and a line says why; 2: wrong usage."""
    arguments = sys.argv[1:] if arguments is None else arguments
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    if chosen == "serve":
        # Until the sidecar listens to it, a reload is asked for too early, and no reason to end.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if chosen is not None and chosen not in VERBS:
        near = difflib.get_close_matches(chosen, VERBS, n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        print(
            f"calibration-monitor: there is no verb {chosen!r}.{meant} Verbs: {', '.join(VERBS)}.",
            file=sys.stderr,
        )
        return 2
    try:
        options = build_parser(chosen).parse_args(arguments)
        code: int = _verb(options.verb).run(options)
        if sys.stdout is not None:  # closed by whoever started us
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has had enough, as `head` does; what is left goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, ExceptionGroup) as error:
        for cause in _causes(error):
            if not isinstance(cause, ValueError | OSError):
                raise
            print(f"calibration-monitor {chosen}: {cause}", file=sys.stderr)
        return 1


def _causes(error: Exception) -> list[Exception]:
    """Lists the errors of a group of tasks, or the error itself."""
    if not isinstance(error, ExceptionGroup):
        return [error]
    return [cause for part in error.exceptions for cause in _causes(part)]
