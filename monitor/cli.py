"""Runs the verbs of the command line, turning what they raise into a line and an exit code.

What a shell completes is written here, too, from the same tree of parsers.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NoReturn

from monitor import __version__, native
from monitor.options import played, recorded, sidecars

EXAMPLE = """examples:
  calibration-monitor completion fish > calibration-monitor.fish
  source <(calibration-monitor completion bash)     # in ~/.bashrc
  source <(calibration-monitor completion zsh)      # in ~/.zshrc, behind compinit"""


def _completion(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb `completion`."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb before its work is imported: `run` in the module of its name in `commands`.

    text         what it does
    example      how it is called
    add_options  adds its options to a parser
    """

    text: str
    example: str
    add_options: Callable[[argparse.ArgumentParser], None]


VERBS: Mapping[str, Verb] = {
    "serve": Verb("run the sidecar", sidecars.SERVE, sidecars.serve),
    "doctor": Verb(
        "what is wrong with a running sidecar, why, and what to do",
        *(sidecars.DOCTOR, sidecars.doctor),
    ),
    "demo": Verb(
        "a simulated drive through a real sidecar, with a fault", played.DEMO, played.demo
    ),
    "replay": Verb(
        "stream recorded detections through a real sidecar", played.REPLAY, played.replay
    ),
    "reference": Verb(
        "learn the reference of drift from recorded drives", played.REFERENCE, played.reference
    ),
    "sample": Verb(
        "write an example of each kind of file that can be read",
        *(recorded.SAMPLE, recorded.sample),
    ),
    "evaluate": Verb(
        "judge and measure the calibration of a recorded file",
        *(recorded.EVALUATE, recorded.evaluate),
    ),
    "fit": Verb("fit a recalibrator to a recorded file", recorded.FIT, recorded.fit),
    "apply": Verb("recalibrate a recorded file", recorded.APPLY, recorded.apply),
    "report": Verb(
        "write one HTML file on what a running sidecar has found",
        *(sidecars.REPORT, sidecars.report),
    ),
    "export": Verb(
        "write the statistics of a running sidecar to a file", sidecars.EXPORT, sidecars.export
    ),
    "merge": Verb("add up the statistics of several sidecars", sidecars.MERGE, sidecars.merge),
    "recalibrators": Verb(
        "show and change the recalibrators of a running sidecar",
        *(sidecars.RECALIBRATORS, sidecars.recalibrators),
    ),
    "alarms": Verb(
        "list, acknowledge and watch the drift alarms of a running sidecar",
        *(sidecars.ALARMS, sidecars.alarms),
    ),
    "completion": Verb(
        "write a script that lets a shell complete verbs, options and their values",
        *(EXAMPLE, _completion),
    ),
}


class _VerbsHelp(argparse.HelpFormatter):
    """Leaves room for the longest verb, which argparse measures before it indents it."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = 2 * self._indent_increment + max(map(len, VERBS))


def _meant(word: str, words: Iterable[str]) -> str:
    """Asks for the word that was meant; nothing where none is near."""
    near = difflib.get_close_matches(word, list(words), 1, cutoff=0.75)
    return f" Did you mean {near[0]}?" if near else ""


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, in place of a usage of twenty lines."""

    def parse_known_args(  # type: ignore[override]  # of the overloads, the one that is called
        self,
        args: Sequence[str] | None = None,
        namespace: argparse.Namespace | None = None,
    ) -> tuple[argparse.Namespace, list[str]]:
        found, left = super().parse_known_args(args, namespace)
        if left:
            word = left[0].partition("=")[0]
            if not word.startswith("-"):
                self.error(f"{word!r} is one argument too many")
            self.error(f"there is no option {word}.{_meant(word, self._option_string_actions)}")
        return found, left

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            words = tuple(map(str, action.choices))
            text = f"'{value}' is none of {', '.join(words)}.{_meant(str(value), words)}"
            raise argparse.ArgumentError(action, text)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        # Before an enumeration is made of it, which would name itself and none of its words.
        if action.type is not None and action.choices is not None:
            self._check_value(action, arg_string)
        return super()._get_value(action, arg_string)

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith((".", "?")) else "."
        self.exit(2, f"{self.prog}: {message}{end} `{self.prog} --help` lists the options.\n")


@contextlib.contextmanager
def _ended_by_interrupts() -> Iterator[None]:
    """Lets Ctrl-C end the process silently: an import that it breaks off may raise anything."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _work(name: str) -> ModuleType:
    """Imports what a verb does, when it is to be done: its help comes without.

    returns  a module with `run(options)`, which returns the exit code; what it raises is shown as a
             line, with code 1
    """
    # Before gRPC is imported: its line for every handshake that fails would know no limit, and we
    # say in our words where we cannot listen.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if name == "completion":
        return sys.modules[__name__]
    with _ended_by_interrupts():
        return importlib.import_module(f"monitor.commands.{name}")


def build_parser(*chosen: str | None) -> argparse.ArgumentParser:
    """Builds the command line, with the options of the chosen verbs."""
    parser = _Parser(
        prog="calibration-monitor",
        description="Watches and corrects the covariances that a detector reports.",
        formatter_class=_VerbsHelp,
    )
    parser.add_argument(
        "--version", action="version", version=f"{__version__} (kernels: {native.NAME})"
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in VERBS.items():
        if name not in chosen:
            verbs.add_parser(name, help=verb.text)
            continue
        described = verbs.add_parser(
            name,
            help=verb.text,
            description=f"{verb.text[0].upper()}{verb.text[1:]}.",
            epilog=verb.example,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.add_options(described)
    return parser


_BASH = """\
_calibration_monitor() {
  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
  local at= words= options= word
  for word in "${COMP_WORDS[@]:1:$((COMP_CWORD-1))}"; do
    case "$at $word" in
%(places)s
    esac
  done
  case "$at" in
%(words)s
  esac
  [[ $current == -* ]] && words=$options
  case "$at $before" in
%(values)s
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _calibration_monitor calibration-monitor
"""


def run(options: argparse.Namespace) -> int:
    """0 when the script of a shell was written, for the verb `completion`."""
    tree = dict(_tree(build_parser(*VERBS), ""))
    print(_fish(tree) if options.shell == "fish" else _bash(tree, options.shell), end="")
    return 0


def _tree(
    parser: argparse.ArgumentParser, place: str
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yields the parser of each place, such as " alarms list"; that of the program is at ""."""
    yield place, parser
    for name, below in _below(parser).items():
        yield from _tree(below, f"{place} {name}")


def _below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Finds verbs, or actions of a verb, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _values(action: argparse.Action) -> str:
    """Lists the values of an option, or of an argument, that takes one of a few."""
    return "" if action.choices is None else " ".join(map(str, action.choices))


def _bash(tree: dict[str, argparse.ArgumentParser], shell: str) -> str:
    places, words, values = [], [], []
    for place, parser in tree.items():
        if place:
            places.append(f"      '{place}') at='{place}' ;;")
        options, offered = list[str](), [*_below(parser)]
        for action in parser._actions:
            options += action.option_strings
            if not action.option_strings and not offered:
                offered = _values(action).split()
            elif action.option_strings and action.nargs != 0:
                named = "|".join(f"'{place} {option}'" for option in action.option_strings)
                # Without a few values: files, by `-o default`.
                values.append(f"    {named}) words='{_values(action)}' ;;")
        words.append(f"    '{place}') words='{' '.join(offered)}' options='{' '.join(options)}' ;;")
    parts = {"places": places, "words": words, "values": values}
    script = _BASH % {name: "\n".join(lines) for name, lines in parts.items()}
    return ("autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else "") + script


def _fish(tree: dict[str, argparse.ArgumentParser]) -> str:
    lines = []
    for place, parser in tree.items():
        below = _below(parser)
        seen = [f"__fish_seen_subcommand_from {word}" for word in place.split()]
        if below:
            seen.append(f"not __fish_seen_subcommand_from {' '.join(below)}")
        command = f"complete -c calibration-monitor -n '{'; and '.join(seen)}'"
        lines += [f"{command} -f -a {name}" for name in below]
        for action in parser._actions:
            values = f" -f -a '{_values(action)}'" if _values(action) else ""
            if action.option_strings:
                ways = (
                    f"-{'l' if o[:2] == '--' else 's'} {o.lstrip('-')}"
                    for o in action.option_strings
                )
                takes = " -r" if action.nargs != 0 else ""
                lines.append(f"{command} {' '.join(ways)}{takes}{values}")
            elif values and not below:
                lines.append(command + values)
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a verb. 0: the work was done; 1: it was not, and a line says why; 2: wrong usage."""
    arguments = sys.argv[1:] if arguments is None else arguments
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    if chosen == "serve":
        # Until the sidecar listens to it, a reload is asked for too early, and no reason to end.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if chosen is not None and chosen not in VERBS:
        print(
            f"calibration-monitor: there is no verb {chosen!r}.{_meant(chosen, VERBS)} Verbs: "
            f"{', '.join(VERBS)}.",
            file=sys.stderr,
        )
        return 2
    try:
        options = build_parser(chosen).parse_args(arguments)
        code: int = _work(options.verb).run(options)
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
            print(f"calibration-monitor {chosen}: {_said(cause)}", file=sys.stderr)
        return 1


def _said(error: Exception) -> str:
    """Says an error without its number in the system."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}." if error.filename else error.strerror


def _causes(error: Exception) -> list[Exception]:
    """Lists the errors of a group of tasks, or the error itself."""
    if not isinstance(error, ExceptionGroup):
        return [error]
    return [cause for part in error.exceptions for cause in _causes(part)]
