"""Guesses which column of a file is meant by which name of docs/files.md.

A guess is only ever offered to people, as an option that they may give; nothing is read by it.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence

# How people write the variance or the deviation of a dimension: before or after its name.
_SPREADS = (
    re.compile(r"(?P<kind>var|std|sigma)(?:iance|dev)?[_.]?(?P<of>.+)"),
    re.compile(r"(?P<of>.+)[_.](?P<kind>var|std|sigma)(?:iance|dev)?"),
    re.compile(r"(?P<kind>cov)(?:ariance)?[_.]?(?P<of>.+?)[_.]?(?P=of)"),
    re.compile(r"(?P<kind>[PC])[_.](?P<of>.+?)[_.](?P=of)"),
)

# What any of these looks like, in whatever form.
LOOKS_LIKE_SPREAD = re.compile(r"cov|var|std|sigma|uncertain", re.IGNORECASE)

# And the covariance of two dimensions.
_PAIR = re.compile(r"(?:cov|covariance|[PC])[_.](?P<a>.+?)[_.](?P<b>.+)")


# Words beside the name of a dimension that say that a column is its mean, or its ground truth.
_MEAN = {"mean", "mu", "pred", "predicted", "est", "estimate", "estimated", "det", "detected"}
_MEAN |= {"measured", "meas", "center", "centre", "hat", "box", "pos", "position"}
_TRUTH = {"gt", "true", "truth", "label", "labelled", "target", "ref", "reference", "actual"}

# Names that others give to columns that are no dimensions.
_OTHERS: Mapping[str, frozenset[str]] = {
    "class": frozenset(
        {"label", "category", "type", "cls", "object_class", "class_name", "name", "object_type"}
    ),
    "seq": frozenset(
        {"sequence", "scene", "drive", "log", "video", "camera", "sensor", "stream", "run", "clip"}
    ),
    "frame": frozenset(
        {"frame_id", "frame_number", "frame_index", "frame_idx", "image_id"}
        | {"frame_no", "frame_nr", "frame_num", "frame_count", "frameid", "frame_nb"}
        | {"image", "image_name", "img", "file_name", "filename"}
    ),
    "t": frozenset(
        {"time", "timestamp", "time_s", "seconds", "sec", "timestamp_s"}
        | {"t_ms", "time_ms", "timestamp_ms", "t_us", "time_us", "timestamp_us"}
    ),
    "stamp_ns": frozenset({"timestamp_ns", "time_ns", "stamp", "nsec"}),
    "gt_id": frozenset(
        {"track_id", "object_id", "object", "instance_id", "instance", "id", "gt_track_id"}
        | {"true_id", "truth_id", "label_id", "obj_id", "trackid"}
    ),
    "score": frozenset({"confidence", "conf", "probability"}),
    "ignore": frozenset({"ignored", "dont_care"}),
}


# Columns among which it is guessed, and that are listed in a message.
_MOST_NAMES, _MOST_LISTED = 1000, 60


def some_of(names: Collection[str], most: int = 5) -> str:
    """Lists the first few names for a message, and counts the others."""
    more = len(names) - most
    return ", ".join([*names][:most]) + (f" and {more:,} more" if more > 0 else "")


def listed(names: Sequence[str]) -> str:
    """Lists names for a message, as many as a person reads."""
    return some_of(names, _MOST_LISTED) or "none"


def nearest(name: str, names: Sequence[str]) -> str | None:
    """Finds the name that is spelled most alike, if one is near enough to be meant."""
    some = names[:_MOST_NAMES]
    return next(iter(difflib.get_close_matches(name, some, n=1, cutoff=0.7)), None)


def meant(names: Sequence[str]) -> dict[str, str]:
    """Guesses names that are missing: ours → the column that is meant by it.

    names  of all columns of a file
    """
    if len(names) > _MOST_NAMES:
        return {}
    found: dict[str, str] = {}
    dimensions = dict.fromkeys(name for name in names if {f"var_{name}", f"std_{name}"} & {*names})
    for dimension, ours, theirs in _spreads(names):
        mean = dimension if dimension in names else _beside(dimension, names, _MEAN)
        if mean is None:
            continue
        dimensions[dimension] = None
        if ours not in names:
            found.setdefault(ours, theirs)
        if dimension not in names:
            found[dimension] = mean
    for name in names:
        pair = _PAIR.fullmatch(name)
        if pair and pair["a"] != pair["b"] and {pair["a"], pair["b"]} <= dimensions.keys():
            ours = f"cov_{pair['a']}_{pair['b']}"
            if ours not in names:
                found[ours] = name
    for dimension in dimensions:
        truth = _beside(dimension, names, _TRUTH)
        if f"gt_{dimension}" not in names and truth is not None:
            found[f"gt_{dimension}"] = truth
    for ours, others in _OTHERS.items():
        column = next((name for name in names if _plain(name) in others), None)
        known = ours in names or (ours == "gt_id" and "track" in names)
        if column is not None and not known and column not in found.values():
            found[ours] = column
    return found


def other_than_dimensions(names: Sequence[str]) -> frozenset[str]:
    """Finds columns that by their names are numbers of objects, frames and the like."""
    others = frozenset[str]().union(*_OTHERS.values())
    return frozenset(name for name in names if _plain(name) in others)


def offered(names: Sequence[str], option: str = "--map") -> str:
    """Writes the option for all that is guessed; '' where nothing is."""
    guesses = ",".join(f"{ours}={theirs}" for ours, theirs in meant(names).items())
    return f"{option} {shlex.quote(guesses)}" if guesses else ""


def _spreads(names: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yields dimension, our name of its variance or deviation, and the column that looks so."""
    for name in names:
        for match in filter(None, (spread.fullmatch(name) for spread in _SPREADS)):
            kind = "std" if match["kind"] in ("std", "sigma") else "var"
            yield match["of"], f"{kind}_{match['of']}", name


def _beside(dimension: str, names: Sequence[str], words: set[str]) -> str | None:
    """Finds the column whose name is a dimension with some of these words beside it."""
    for name in names:
        parts = set(re.split(r"[_.\s]+", name.lower()))
        if dimension.lower() in parts and (rest := parts - {dimension.lower()}) and rest <= words:
            return name
    return None


def _plain(name: str) -> str:
    return re.sub(r"[\s.-]+", "_", name.strip().lower())
