"""Options that choose the rows of a recorded file, name its columns, and bring labels to it."""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from monitor.frames.words import DistanceKind, Format
from monitor.options.values import add_value, allow, checked, flag, names_of, seconds

# Dimensions that wrap, unless others are named. Beyond the first two a name may mean another thing,
# so that it is said when one is taken for an angle.
SURELY_ANGLES = ("yaw", "heading")
ANGLES = (*SURELY_ANGLES, "yaw_rad", "rotation_y", "orientation", "theta", "psi", "rz")


# Share of refused rows above which a verb ends with exit code 3, unless it is told otherwise.
MOST_REFUSED = 0.01

# As the sidecar has them unless it is told otherwise: [statistics] range_edges, range_dimensions.
RANGE_EDGES = (20.0, 40.0, 60.0)


RANGE_DIMENSIONS = ("x", "y", "z")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fire drill: reported covariances times `variance`, from `since` seconds on."""

    variance: float
    since: float = 0.0


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Adds the options of verbs that read a file; None where they are not given."""
    add_value(parser, "--dimensions", "D,D", "dimensions to use; default: all", names_in)
    text = (
        f"dimensions in radians that wrap; left out of joint measures (default {','.join(ANGLES)})"
    )
    add_value(parser, "--angles", "D,D", text, names_in)
    parser.add_argument(
        "--class", dest="classes", metavar="C,C", type=names_in, help="classes to keep"
    )
    add_condition(parser, "--where", "keep rows whose column has this value; may be repeated")
    add_value(parser, "--rows", "A:B", "row numbers of the file, before other filters", _rows)
    text = "multiply the reported variances by F from second T of each sequence on"
    add_value(parser, "--fault", "variance=F[@t=T]", text, _fault)
    text = "names of the file for names of docs/files.md, such as var_x=x_variance,gt_id=object"
    add_value(parser, "--map", "OURS=THEIRS,…", text, names_of)
    text = "standard deviations where there are no variances, such as x=0.3,y=0.3 (default 1)"
    add_value(parser, "--assume-std", "D=S,…", text, _deviations)
    text = "format of the file (default: by its look; table is .csv, .parquet, .npz)"
    parser.add_argument("--format", choices=tuple(Format), type=Format, help=text)
    add_labels(parser)


def add_condition(parser: argparse._ActionsContainer, option: str, help: str) -> None:
    """Adds an option that chooses rows by the value of a column; None where it is not given."""
    parser.add_argument(option, metavar="COLUMN=VALUE", type=_condition, action="append", help=help)


def add_most_refused(parser: argparse.ArgumentParser) -> None:
    """Adds the option for the share of refused rows above which the exit code is 3."""
    parser.add_argument(
        "--most-refused",
        metavar="SHARE",
        type=_share,
        default=MOST_REFUSED,
        help="end with exit code 3 if more of the rows are refused (default %(default)g)",
    )


def add_labels(parser: argparse.ArgumentParser) -> None:
    """Adds the options of verbs that may find ground truth in another file."""
    group = parser.add_argument_group("labels in a file of their own")
    text = "a row for each labelled object and frame: seq, frame or t, class, gt_id, dimensions"
    add_value(group, "--labels", "FILE", text)
    text = (
        "how far a detection may be off its label, for all classes or by class: in the plane of x "
        "and y, of KITTI x and z, else of the first two dimensions of the file; of bev-iou and "
        "image-iou 1 - overlap (default 2 for x and y)"
    )
    add_value(group, "--gate", "G|C=G,C=G", text, gates_of)
    text = "how the distance to a label is measured (default centre)"
    kinds = tuple(DistanceKind)
    group.add_argument("--distance", choices=kinds, type=DistanceKind, help=text)
    text = (
        "most seconds between two labels that are interpolated; 0: only labels of a frame's own "
        "time count (default 1, but for classes where it would change the verdict)"
    )
    add_value(group, "--label-gap", "S", text, seconds)
    text = "class names of the labels for those of the detections, such as person=Pedestrian"
    add_value(group, "--class-map", "LABEL=OURS,…", text, names_of)
    text = "as --format, for the labels"
    group.add_argument("--label-format", choices=tuple(Format), type=Format, help=text)
    text = "as --map, for the labels"
    add_value(group, "--label-map", "OURS=THEIRS,…", text, names_of)


SELECTION = (
    *("dimensions", "angles", "classes", "where", "rows", "map", "assume_std", "format"),
    *("labels", "gate", "distance", "label_gap", "class_map", "label_format", "label_map"),
)


def selection_words(options: argparse.Namespace, names: tuple[str, ...] = SELECTION) -> list[str]:
    """Spells the options that choose and read rows, as they were given, for another command."""
    words = []
    for name in names:
        value = getattr(options, name)
        if value is None:
            continue
        if name == "where":
            words += [word for pair in value for word in (flag(name), shlex.quote("=".join(pair)))]
            continue
        if isinstance(value, Mapping):
            text = ",".join(f"{key}={one}" if key else f"{one}" for key, one in value.items())
        elif isinstance(value, slice):
            text = f"{'' if value.start is None else value.start}:" + (
                "" if value.stop is None else f"{value.stop}"
            )
        else:
            text = ",".join(value) if isinstance(value, tuple) else str(value)
        words += [flag(name), shlex.quote(text)]
    return words


# Options that say how labels are matched, by destination.
_SETTINGS = ("gate", "distance", "label_gap", "class_map", "label_map", "label_format")


def check_labels(options: argparse.Namespace) -> None:
    """Raises ValueError where options of matching have no labels to act on."""
    why = "there are no labels to match. Give --labels FILE as well, or leave it out."
    allow(options, options.labels is not None, why, *_SETTINGS)


def names_in(text: str) -> tuple[str, ...]:
    """Reads names with commas between them."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _deviations(text: str) -> dict[str, float]:
    expected = "D=S,… with numbers above 0, each D once, such as x=0.3,y=0.3"

    def read(text: str) -> dict[str, float]:
        with contextlib.suppress(argparse.ArgumentTypeError):
            return {name: float(value) for name, value in names_of(text).items()}
        raise ValueError  # in the words of this option, which has no names of the file

    return checked(
        text, read, expected, lambda found: all(0 < value < math.inf for value in found.values())
    )


def _condition(text: str) -> tuple[str, str]:
    column, sign, value = text.partition("=")
    if not sign or not column:
        raise argparse.ArgumentTypeError(f"'{text}': expected COLUMN=VALUE, such as role=deploy")
    return column, value


def _rows(text: str) -> slice:
    match = re.fullmatch(r"(\d*):(\d*)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"'{text}': expected A:B, such as 0:2000")
    start, stop = (int(part) if part else None for part in match.groups())
    return slice(start, stop)


def _fault(text: str) -> Fault:
    def read(text: str) -> Fault:
        match = re.fullmatch(r"variance=([0-9.eE+-]+)(?:@t=([0-9.eE+-]+)s?)?", text)
        return Fault(*(float(part or 0) for part in match.groups())) if match else Fault(0.0)

    return checked(
        text,
        read,
        "variance=F or variance=F@t=T, such as variance=0.2@t=10s",
        lambda fault: 0 < fault.variance < math.inf and 0 <= fault.since < math.inf,
    )


def _share(text: str) -> float:
    return checked(text, float, "a share from 0 to 1, such as 0.01", lambda share: 0 <= share <= 1)


def gates_of(text: str) -> dict[str, float]:
    """Reads a gate for all classes, by the name '', or one by class. Raises ArgumentTypeError."""
    expected = "a distance above 0, such as 2, or one by class, such as Car=3,Pedestrian=1.5"

    def read(text: str) -> dict[str, float]:
        if "=" not in text:
            return {"": float(text)}
        return {name: float(gate) for name, gate in names_of(text).items()}

    return checked(
        text, read, expected, lambda gates: all(0 < gate < math.inf for gate in gates.values())
    )
