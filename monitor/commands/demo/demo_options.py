"""The options of the demo."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from monitor.commands.options import seconds
from monitor.commands.sidecar_client import add_access

DEFAULT = 60.0  # s, of a drive that ends


DEFAULT_CYCLE = 120.0  # s, of a drive in cycles


_SHORTEST, _LONGEST = 20.0, 3600.0  # s


_FASTEST = 10.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument(
        "--seed", type=_seed, default=4, metavar="N", help="of the drive (default 4)"
    )
    parser.add_argument(
        "--duration",
        type=_duration,
        metavar="S",
        help=f"of the drive, {_SHORTEST:g} to {_LONGEST:g} seconds (default {DEFAULT:g}); more "
        "where the sidecar takes longer to find out. With --forever or --address: of a cycle, not "
        f"a second more (default {DEFAULT_CYCLE:g})",
    )
    parser.add_argument(
        "--speed",
        type=_speed,
        default=1.0,
        metavar="X",
        help=f"seconds of the drive in a second, 0.1 to {_FASTEST:g} (default 1)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--address",
        metavar="H:P",
        help="gRPC of a sidecar that runs already: one cycle through it, stamps from now on; "
        "--print-config prints the settings that the story needs",
    )
    parser.add_argument(
        "--forever",
        action="store_true",
        help="cycle after cycle until SIGTERM: the fault comes, is corrected, goes, and comes "
        "again; with --address, a sidecar that is not there yet, or goes, is waited for",
    )
    parser.add_argument(
        "--patience",
        type=seconds,
        default=math.inf,
        metavar="S",
        help="with --address and --forever: for which the sidecar may be away, in seconds, before "
        "this ends with an error (default: for ever)",
    )
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print the configuration of the sidecar (TOML), and do nothing else",
    )
    add_access(parser)


def _number(kind: Callable[[str], float], low: float, high: float, text: str) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"'{text}': give a number of {low:g} to {high:g}")
    return value


def _seed(text: str) -> int:
    return int(_number(int, 0, 2**32 - 1, text))


def _duration(text: str) -> float:
    return _number(float, _SHORTEST, _LONGEST, text)


def _speed(text: str) -> float:
    return _number(float, 0.1, _FASTEST, text)
