"""Options of the verbs that start a sidecar, or ask one that runs, and of `merge`."""

from __future__ import annotations

import argparse
import functools

from monitor.frames.words import LogLevel
from monitor.options.values import (
    add_action,
    add_actor,
    add_flag,
    add_json,
    add_value,
    number_of,
    seconds_above_zero,
)

SERVE = """examples:
  calibration-monitor serve
  calibration-monitor serve --config deploy/sidecar.toml --check
  calibration-monitor serve --state fleet.state --read-only
  calibration-monitor serve --grpc-address 127.0.0.1:0 --http-address 127.0.0.1:0"""


def serve(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb `serve`."""
    add_value(parser, "--config", "F", "TOML file; --print-config lists all keys")
    text = "print a configuration with all keys at their defaults, explained, and exit"
    add_flag(parser, "--print-config", text)
    parser.add_argument("--check", action="store_true", help="validate the configuration and exit")
    parser.add_argument("--grpc-address", metavar="H:P", help="overrides [server] grpc_address")
    parser.add_argument("--http-address", metavar="H:P", help="overrides [server] http_address")
    parser.add_argument(
        "--log-level", choices=tuple(map(str, LogLevel)), help="overrides [log] level"
    )
    text = (
        "stop when standard input, a pipe, closes: as it does when the program that "
        "started this one is gone, however it ended"
    )
    add_flag(parser, "--exit-with-parent", text)
    text = "neither load nor keep anything on disk, whatever [state] folder says"
    # The second is its name of before.
    parser.add_argument("--no-state", "--no-snapshot", action="store_true", help=text)
    text = "statistics from merge or export to show, in place of counting; with --read-only"
    add_value(parser, "--state", "F", text)
    add_flag(parser, "--read-only", "take nothing in and keep nothing; SIGHUP reads --state again")
    text = (
        "count everything, however long frames wait for it: for recordings, which can wait; "
        "[server] shed_lag_seconds and shed_rows are 0 then"
    )
    add_flag(parser, "--never-shed", text)


def add_sidecar(parser: argparse.ArgumentParser) -> None:
    """Adds the option that names the sidecar, and those of add_access()."""
    text = "of the sidecar (default 127.0.0.1:50051)"
    add_value(parser, "--address", "H:P", text, default="127.0.0.1:50051")
    add_access(parser)


def add_access(parser: argparse.ArgumentParser) -> None:
    """Adds options for the files that a sidecar with a [security] section asks for."""
    files = parser.add_argument_group("access", "where the sidecar has a [security] section")
    text = "that the certificate of the sidecar must be of (default: plain text)"
    add_value(files, "--certificate-authority", "PEM", text, default="")
    files.add_argument("--certificate", metavar="PEM", default="", help="of this client")
    files.add_argument("--key", metavar="PEM", default="", help="of that certificate")
    add_value(files, "--token-file", "F", "whose first line is our bearer token", default="")


DOCTOR = """examples:
  calibration-monitor doctor
  calibration-monitor doctor --address 10.0.0.7:50051 --http-address 10.0.0.7:9464 --json
  docker exec NAME calibration-monitor doctor
  kubectl exec POD -c CONTAINER -- calibration-monitor doctor"""

# Between two looks, where no other number of seconds is given; and where one is.
MOST_SECONDS, _LONGEST_SECONDS = 5.0, 600.0


def doctor(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb `doctor`."""
    add_sidecar(parser)
    text = "of its /metrics (default 127.0.0.1:9464)"
    add_value(parser, "--http-address", "H:P", text, default="127.0.0.1:9464")
    text = f"between two looks (default: until the metrics are new, at most {MOST_SECONDS:g})"
    add_value(parser, "--seconds", "S", text, _seconds)
    text = "seconds within which truth is due; more, where labels come in batches (default 1800)"
    add_value(parser, "--truth-within", "S", text, seconds_above_zero, default=1800.0)
    add_json(parser)


def _seconds(text: str) -> float:
    value = seconds_above_zero(text)
    if value > _LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"'{text}': at most {_LONGEST_SECONDS:g} seconds")
    return value


ALARMS = """examples:
  calibration-monitor alarms list
  calibration-monitor alarms list Car total --json
  calibration-monitor alarms acknowledge Car --actor "anna, after the mirror was cleaned"
  calibration-monitor alarms watch --address 127.0.0.1:50051 --json"""


def alarms(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb `alarms`."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "slices",
        metavar="SLICE",
        nargs="*",
        help="as list shows it; total: all of them together (default: all, and total)",
    )
    add_sidecar(shared)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    text = "how the evidence of drift stands, and what it rests on"
    add_json(add_action(actions, "list", text, shared))
    text = "end alarms; what is watched goes on, and may raise them again"
    acknowledge = add_action(actions, "acknowledge", text, shared)
    add_json(acknowledge)
    add_actor(acknowledge, "who says so, for the log")
    text = "a line when an alarm is raised or over, until interrupted"
    add_json(add_action(actions, "watch", text, shared), "JSON, an object a line")


RECALIBRATORS = """examples:
  calibration-monitor recalibrators list
  calibration-monitor recalibrators show variance-scaling-0123456789ab --output inforce.json
  calibration-monitor recalibrators fit --slice Car --slice Pedestrian
  calibration-monitor recalibrators promote variance-scaling-0123456789ab
  calibration-monitor recalibrators promote --file car.json --actor "release 7"
  calibration-monitor recalibrators rollback --slice Car
  calibration-monitor recalibrators pin --address 127.0.0.1:50051
  calibration-monitor recalibrators history -n 100 --json"""


# Records that a sidecar remembers; further ones are in its audit log.
MOST_RECORDS = 1000


def recalibrators(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb `recalibrators`."""
    where = argparse.ArgumentParser(add_help=False)
    add_sidecar(where)
    told = argparse.ArgumentParser(add_help=False, parents=[where])
    add_json(told)
    asked = argparse.ArgumentParser(add_help=False, parents=[told])
    add_actor(asked, "who asks, for the audit log")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    action = functools.partial(add_action, actions)
    action("list", "all that are known, all trials, and who promotes", told)
    show = action("show", "one of them: its document, and what happened to it", told)
    show.add_argument("version", metavar="VERSION", help="as list shows it")
    show.add_argument("-o", "--output", metavar="F", help="file to write the document to")
    fit = action("fit", "fit candidates now, and put them on trial", asked)
    fit.add_argument(
        "--slice",
        metavar="S",
        action="append",
        default=[],
        help="a slice to fit; may be given several times (default: all)",
    )
    add_value(fit, "--method", "M", "as in `fit --method` (default: as configured)", default="")
    promote = action("promote", "make one active from the next frame on", asked)
    which = promote.add_mutually_exclusive_group(required=True)
    which.add_argument("version", metavar="VERSION", nargs="?", help="as list shows it")
    which.add_argument("--file", metavar="F", help="a recalibrator that `fit --output` wrote")
    text = "make active again what was before the last change"
    rollback = action("rollback", text, asked)
    scope = rollback.add_mutually_exclusive_group()
    scope.add_argument("--slice", metavar="S", default="", help="the only slice that goes back")
    add_flag(scope, "--classes", "that of class probabilities, not of estimates")
    action("pin", "from now on nothing happens by itself", asked)
    action("unpin", "things may happen by themselves again, as configured", asked)
    history = action("history", "what happened last, latest at the end", told)
    text = f"records to show, at most {MOST_RECORDS:,} (default 20)"
    add_value(history, "-n", "N", text, number_of("records", MOST_RECORDS), 20)


REPORT = """examples:
  calibration-monitor report --output today.html
  calibration-monitor report --address 127.0.0.1:50051 --output today.html
  calibration-monitor report fleet.state --output fleet.html
  calibration-monitor report --evidence today.intoto.jsonl
  calibration-monitor report --verify today.intoto.jsonl"""


def report(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb `report`."""
    add_sidecar(parser)
    text = "statistics from export or merge, in place of a sidecar"
    parser.add_argument("file", metavar="FILE", nargs="?", help=text)
    add_value(parser, "--state", "FILE", "the same")
    add_value(parser, "--output", "F", "HTML file to write")
    text = "write an in-toto statement of type test-result, and the files that it is about"
    add_value(parser, "--evidence", "F", text)
    text = "check that no file that this statement is about has changed, and do nothing else"
    add_value(parser, "--verify", "F", text)
    add_json(parser)


EXPORT = """examples:
  calibration-monitor export --address 127.0.0.1:50051 -o car1.state"""


def export(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb `export`."""
    add_sidecar(parser)
    add_output(parser)


MERGE = """examples:
  calibration-monitor merge monday.state tuesday.state -o week.state
  calibration-monitor merge uploads/ -o fleet.state --jobs 8
  calibration-monitor merge fleet.state s3://bucket/uploads -o fleet.state --json"""


def merge(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb `merge`."""
    text = (
        "statistics, as `export`, `merge` or an upload wrote them: files, folders, and prefixes "
        "such as s3://bucket/uploads (also gs://, az://, file://)"
    )
    parser.add_argument("addresses", metavar="PREFIX", nargs="+", help=text)
    add_output(parser)
    text = "processes that add up (default: one for each 64 objects, as far as there are CPUs)"
    add_value(parser, "--jobs", "N", text, number_of("processes", 1024))
    text = (
        "leave out objects that are damaged or do not fit most others, and end with exit code 3, "
        "in place of refusing all"
    )
    add_flag(parser, "--skip-unusable", text)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a verb that writes statistics."""
    parser.add_argument("-o", "--output", metavar="F", required=True, help="file to write")
    add_json(parser)
