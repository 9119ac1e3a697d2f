"""Reads the values of options, and adds options the way that all verbs do."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import math
import socket
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def checked(
    text: str, read: Callable[[str], T], expected: str, fits: Callable[[T], bool] | None = None
) -> T:
    """Reads the value of an option. Raises ArgumentTypeError unless it can be read and fits."""
    with contextlib.suppress(ValueError):
        value = read(text)
        if fits is None or fits(value):
            return value
    raise argparse.ArgumentTypeError(f"'{text}': expected {expected}")


def confidence_levels(text: str) -> tuple[float, ...]:
    """Reads ascending levels in (0, 1), each once. Raises ArgumentTypeError."""
    return checked(
        text,
        lambda text: tuple(sorted({float(part) for part in text.split(",")})),
        "levels between 0 and 1, such as 0.5,0.9,0.95",
        lambda levels: all(0 < level < 1 for level in levels),
    )


def above_zero(text: str) -> float:
    """Reads a finite number above 0. Raises ArgumentTypeError."""
    return checked(text, float, "a number above 0, such as 30", lambda value: 0 < value < math.inf)


def seconds(text: str) -> float:
    """Reads finite seconds from 0 on, such as 3 or 3s. Raises ArgumentTypeError."""
    expected = "seconds, such as 30s"
    return checked(
        text, lambda text: float(text.removesuffix("s")), expected, lambda s: 0 <= s < math.inf
    )


def seconds_above_zero(text: str) -> float:
    """Reads finite seconds above 0. Raises ArgumentTypeError."""
    return checked(text, seconds, "seconds above 0, such as 60s", bool)


def number_of(what: str, most: int) -> Callable[[str], int]:
    """Makes a reader of whole numbers from 1 to `most`; the reader raises ArgumentTypeError."""

    def read(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(
                f"'{text}': expected a number of {what}, from 1 to {most}"
            )
        return int(text)

    return read


def names_of(text: str) -> dict[str, str]:
    """Reads OURS=THEIRS,…, each of ours once. Raises ArgumentTypeError."""
    parts = [part.partition("=") for part in text.split(",") if part.strip()]
    names = {ours.strip(): theirs.strip() for ours, _, theirs in parts}
    if len(names) < len(parts) or not all((*names, *names.values())):
        raise argparse.ArgumentTypeError(
            f"'{text}': expected OURS=THEIRS,…, each of our names once, such as var_x=x_variance"
        )
    return names


def pair(text: str) -> tuple[float, float]:
    """Reads LO:HI. Raises ValueError."""
    lower, _, upper = text.partition(":")
    return float(lower), float(upper)


def add_value(
    parser: argparse._ActionsContainer,
    option: str,
    metavar: str,
    help: str,
    read: Callable[[str], object] | None = None,
    default: object = None,
) -> None:
    """Adds an option with a value; `read` raises ArgumentTypeError for what it does not take."""
    parser.add_argument(option, metavar=metavar, type=read or str, default=default, help=help)


def add_flag(parser: argparse._ActionsContainer, option: str, help: str) -> None:
    """Adds an option without a value."""
    parser.add_argument(option, action="store_true", help=help)


def add_json(parser: argparse.ArgumentParser, help: str = "print one JSON object") -> None:
    """Adds --json."""
    parser.add_argument("--json", action="store_true", help=help)


def add_actor(parser: argparse.ArgumentParser, help: str) -> None:
    """Adds --actor, who asks for a change; by default whoever runs this program, and where."""
    add_value(parser, "--actor", "WHO", f"{help} (default %(default)s)", default=this_person())


def this_person() -> str:
    """Names who runs this program, and where."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a user without a name
        return "command line"


def add_action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    *parents: argparse.ArgumentParser,
) -> argparse.ArgumentParser:
    """Adds an action of a verb, which takes the options of its parents, too."""
    described = f"{text[0].upper()}{text[1:]}."
    return actions.add_parser(name, help=text, description=described, parents=parents)


def flag(name: str) -> str:
    """Spells an option as on the command line, from its destination."""
    return "--class" if name == "classes" else f"--{name.replace('_', '-')}"


def allow(options: argparse.Namespace, of_use: object, why: str, *names: str) -> None:
    """Raises ValueError if one of these options, by destination, was given and is of no use.

    why  it is of no use, and what to do
    """
    found = [flag(name) for name in names if getattr(options, name) is not None]
    if found and not of_use:
        raise ValueError(f"{', '.join(found)}: {why}")
