"""The command line: verbs, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from monitor import __version__
from monitor.verbs import apply, demo, evaluate, fit, replay, serve

VERBS = {
    "serve": (serve, "run the sidecar"),
    "demo": (demo, "a simulated drive through a real sidecar, with a fault"),
    "replay": (replay, "stream recorded detections through a real sidecar"),
    "evaluate": (evaluate, "measures of calibration of a recorded file"),
    "fit": (fit, "fit a recalibrator to a recorded file"),
    "apply": (apply, "recalibrate a recorded file"),
}


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="calibration-monitor",
        description="Watches and corrects the covariances that a detector reports.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, (module, text) in VERBS.items():
        verb = verbs.add_parser(
            name,
            help=text,
            description=(module.__doc__ or "").split(": ", 1)[-1],
            epilog=module.EXAMPLE,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_options(verb)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb. 0: the work was done; 1: it was not, and a line says why; 2: wrong usage."""
    options = build_parser().parse_args(arguments)
    module, _ = VERBS[options.verb]
    try:
        return module.run(options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has had enough, as `head` does.
        sys.stderr.close()
        return 0
    except (ValueError, OSError) as error:
        print(f"calibration-monitor {options.verb}: {error}", file=sys.stderr)
        return 1
