"""Files of benchmarks as named columns: KITTI tracking, MOT Challenge, COCO and nuScenes.

Detections and labels of a format are read alike. None of the formats has variances of its own:
they come from further fields, or there are none. docs/files.md says which field becomes what.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from monitor.frames.space import FloatArray
from monitor.frames.words import Format
from monitor.store.column_names import LOOKS_LIKE_SPREAD
from monitor.store.stored_arrays import AnyArray
from monitor.store.tables import BOX, RecordingError, reading

NamedArrays: TypeAlias = dict[str, AnyArray]

_KITTI = (
    *("frame", "track", "class", "truncated", "occluded", "alpha"),
    *("left", "top", "right", "bottom", "h", "w", "l", "x", "y", "z", "yaw"),
)

# In camera axes x is right, y down, z ahead. The yaw is about y, 0 along x: in the plane from z to
# x it points along the width.
_CAMERA_BOX = ("z", "x", "w", "l", "yaw")

# Fields of KITTI and MOT that are text.
_TEXT = ("class",)

# Fields of a box in an image, of COCO and MOT, and of a box in 3-D, of nuScenes.
_IMAGE, _PLACE, _SIZE = ("cx", "cy", "w", "h"), ("x", "y", "z"), ("w", "l", "h")

# Further fields of JSON formats: the variances or deviations of these; others that look so are
# named as not used.
_SPREADS: Mapping[str, Sequence[str]] = {
    "bbox": _IMAGE,
    "translation": _PLACE,
    "size": _SIZE,
    "yaw": ("yaw",),
}

# What detections of a format measure; further fields such as the image box of KITTI only by name.
_MEASURED: Mapping[Format, tuple[str, ...]] = {
    Format.KITTI: (*_PLACE, "l", "w", "h", "yaw"),
    Format.MOT: _IMAGE,
    Format.COCO: _IMAGE,
    Format.NUSCENES: (*_PLACE, *_SIZE, "yaw"),
}


def format_of(path: Path) -> Format:
    """Tells the format of a file from its ending, and from how it begins.

    Raises RecordingError where it cannot be read.
    """
    if path.suffix == ".json":
        with reading(path, "Give a readable JSON file."):
            head = path.open(encoding="utf-8").read(4096)
        nuscenes = any(name in head for name in ('"results"', '"translation"', '"sample_token"'))
        return Format.NUSCENES if nuscenes else Format.COCO
    if path.suffix == ".txt":
        with reading(path, "Give a readable text file."):
            head = path.open(encoding="utf-8").readline()
        return Format.MOT if "," in head else Format.KITTI
    return Format.TABLE


def is_global(file: object, kind: Format | None) -> bool:
    """Tells whether places of a file are those of a map, and not seen from the vehicle.

    kind  of the file; None: by its look
    """
    if kind is None and isinstance(file, str | Path) and str(file).endswith(".json"):
        kind = format_of(Path(file))
    return kind is Format.NUSCENES


def box_of(kind: Format, names_here: Mapping[str, str]) -> tuple[str, ...]:
    """Names a box seen from above in the columns of a format, as they are renamed by --map."""
    return BOX if kind is not Format.KITTI else _renamed(_CAMERA_BOX, names_here)


def dimensions_of(kind: Format, names_here: Mapping[str, str]) -> tuple[str, ...]:
    """Names what a detection of a format measures, as it is renamed by --map; none of a table."""
    return _renamed(_MEASURED.get(kind, ()), names_here)


def _renamed(names: tuple[str, ...], names_here: Mapping[str, str]) -> tuple[str, ...]:
    ours_of = {theirs: ours for ours, theirs in names_here.items()}
    return tuple(ours_of.get(name, name) for name in names)


def read_format(path: Path, kind: Format) -> NamedArrays:
    """Reads a file of a benchmark's format. Raises RecordingError."""
    with reading(path, f"Give a readable file of format {kind}."):
        text = path.read_text(encoding="utf-8")
        try:
            return _READERS[kind](path, text)
        except RecordingError as error:
            raise RecordingError(f"{error} It was read as --format {kind}.") from None


def _kitti(path: Path, text: str) -> NamedArrays:
    """A row for each object: frame, track, type and 14 numbers, then the score of detections.

    Rows DontCare have no place and are left out. Fields behind the score are extra_1, extra_2, …
    """
    rows = _lines(text, None)
    kept = {line: row for line, row in rows.items() if row[2:3] != ["DontCare"]}
    line, first = next(iter(rows.items()), (0, ["0"]))
    if len(first) >= 15 and not _is_number(first[0]):
        raise RecordingError(
            f"{path}, line {line}: begins with {first[0]!r}, as KITTI object does, a file for each "
            "frame. Only KITTI tracking is read: put frame and track (-1: unknown) before each "
            "row, and all frames into one file, by: for f in FOLDER/*.txt; do awk -v "
            "f=$(basename $f .txt) '{print f+0, -1, $0}' $f; done > all.txt"
        )
    return _named(path, kept, _KITTI, ("score",))


def _mot(path: Path, text: str) -> NamedArrays:
    """Ten fields are a detection: frame, id, left, top, w, h, confidence, then three of the world.

    Nine are a label, whose seventh is 0 where it is not to be considered, and whose eighth is the
    class. Frames count from 1. Fields behind the tenth are extra_1, extra_2, …
    """
    rows = _lines(text, ",")
    labels = len(next(iter(rows.values()), ())) == 9
    box = ("frame", "track", "left", "top", "w", "h")
    further = ("considered", "class", "visibility") if labels else ("score",)
    unused = () if labels else ("world_x", "world_y", "world_z")
    found = _named(path, rows, (*box, *further), unused)
    found["cx"], found["cy"] = found["left"] + found["w"] / 2, found["top"] + found["h"] / 2
    if labels:
        found["ignore"] = (found.pop("considered") == 0).astype(np.int64)
    return found


def _lines(text: str, separator: str | None) -> dict[int, list[str]]:
    """Splits lines into fields, by the number of the line from 1; empty lines are left out."""
    lines = enumerate(text.splitlines(), start=1)
    return {i: line.strip().split(separator) for i, line in lines if line.strip()}


def _named(
    path: Path, rows: Mapping[int, list[str]], names: tuple[str, ...], optional: tuple[str, ...]
) -> NamedArrays:
    """Names the fields of rows, all of one length; those beyond the names are extra_1, extra_2, …

    rows    by line
    raises  RecordingError, naming line, field and value
    """
    lines, listed = tuple(rows), list(rows.values())
    width = len(listed[0]) if listed else len(names)
    for line, row in rows.items():
        if len(row) != width or width < len(names):
            raise RecordingError(
                f"{path}, line {line}: {len(row)} fields, but there should be {len(names)} or "
                f"more, and as many in each row. Is --format right?"
            )
    extra = range(1, width - len(names) - len(optional) + 1)
    every = (*names, *optional, *(f"extra_{i}" for i in extra))[:width]
    found: NamedArrays = {}
    columns = list(zip(*listed, strict=True)) or [()] * width
    for name, cells in zip(every, columns, strict=True):
        if name in _TEXT:
            found[name] = np.array(cells, np.str_)
            continue
        try:
            found[name] = np.array(cells, np.float64)
        except ValueError:
            bad = next(i for i, cell in enumerate(cells) if not _is_number(cell))
            raise RecordingError(
                f"{path}, line {lines[bad]}: {name} is {cells[bad]!r}, not a number. Is --format "
                "right?"
            ) from None
    for name in ("frame", "track"):
        values = found[name]
        broken = ~((np.abs(values) < 2.0**63) & (np.trunc(values) == values))
        if broken.any():
            bad = int(np.argmax(broken))
            raise RecordingError(
                f"{path}, line {lines[bad]}: {name} is {values[bad]:g}, not a whole number. Is "
                "--format right?"
            )
        found[name] = values.astype(np.int64)
    return found


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _coco(path: Path, text: str) -> NamedArrays:
    """Detections are a list of objects with image_id, category_id, bbox and score; labels are
    `annotations` beside `categories`. The class is the category_id, as text.
    """
    document = json.loads(text)
    labels = isinstance(document, dict)
    items = document.get("annotations") if labels else document
    rows = _objects(path, items, ("image_id", "category_id", "bbox"))
    left, top, width, height = _vectors(path, rows, "bbox", 4).T
    found: NamedArrays = {
        "frame": _numbered([row["image_id"] for row in rows]),
        "class": np.array([str(row["category_id"]) for row in rows], np.str_),
        "cx": left + width / 2,
        "cy": top + height / 2,
        "w": width,
        "h": height,
    }
    if labels:
        found["ignore"] = np.array([int(row.get("iscrowd") or 0) for row in rows], np.int64)
    return found | _ids(rows, "track_id", "instance_id") | _further(path, rows)


def _nuscenes(path: Path, text: str) -> NamedArrays:
    """Boxes by sample token under `results`, or a list of them, as a table of annotations has.

    The frame is a number made of the sample token, the same in every file.
    """
    document = json.loads(text)
    items = document
    if isinstance(document, dict):
        items = document.get("results", document)
    if isinstance(items, dict):
        items = [box for boxes in items.values() if isinstance(boxes, list) for box in boxes]
    rows = _objects(path, items, ("sample_token", "translation", "size", "rotation"))
    place, size = _vectors(path, rows, "translation", 3), _vectors(path, rows, "size", 3)
    w, x, y, z = _vectors(path, rows, "rotation", 4).T
    found: NamedArrays = {
        "frame": _numbered([row["sample_token"] for row in rows]),
        **dict(zip(_PLACE, place.T, strict=True)),
        **dict(zip(_SIZE, size.T, strict=True)),
        "yaw": np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)),
    }
    named = ("detection_name", "tracking_name", "category_name")
    name = _first(rows, named)
    if name is not None:
        found["class"] = np.array([str(row.get(name, "")) for row in rows], np.str_)
    return found | _ids(rows, "tracking_id", "instance_token") | _further(path, rows)


def _objects(path: Path, items: Any, needed: tuple[str, ...]) -> list[dict[str, Any]]:
    """Checks that items are objects with some keys. Raises RecordingError."""
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise RecordingError(f"{path}: there is no list of objects. Is --format right?")
    for i, item in enumerate(items):
        missing = [name for name in needed if name not in item]
        if missing:
            raise RecordingError(
                f"{path}, object {i}: there is no {missing[0]!r}. Keys there are: "
                f"{', '.join(item)}. Is --format right?"
            )
    return items


def _vectors(path: Path, rows: list[dict[str, Any]], name: str, length: int) -> FloatArray:
    """(n, length) numbers of a field. Raises RecordingError."""
    for i, row in enumerate(rows):
        given = row[name]
        numbers = isinstance(given, list) and all(
            one is None or isinstance(one, int | float) for one in given
        )
        if not numbers or len(given) != length:
            raise RecordingError(
                f"{path}, object {i}: {name} is {str(row[name])[:60]}, not {length} numbers. "
                "Correct it or leave the object out."
            )
    return np.array([row[name] for row in rows], np.float64).reshape(len(rows), length)


def _numbered(keys: Iterable[object]) -> AnyArray:
    """Numbers images and samples: whole numbers stay, a text has the same number in every file."""
    return np.array(
        [
            key
            if isinstance(key, int) and -(2**63) <= key < 2**63
            else int(sha256(str(key).encode()).hexdigest()[:15], 16)
            for key in keys
        ],
        np.int64,
    )


def _first(rows: list[dict[str, Any]], names: Iterable[str]) -> str | None:
    """Finds the first of some keys that any object has."""
    return next((name for name in names if any(name in row for row in rows)), None)


def _ids(rows: list[dict[str, Any]], *names: str) -> NamedArrays:
    name = _first(rows, names)
    if name is None:
        return {}
    return {"gt_id": np.array([str(row.get(name, "")) for row in rows], np.str_)}


def _further(path: Path, rows: list[dict[str, Any]]) -> NamedArrays:
    """Scores, and variances or deviations, such as bbox_var, translation_std or yaw_var.

    A score may be missing; variances are there for every object or for none.
    """
    found: NamedArrays = {}
    score = _first(rows, ("score", "detection_score", "tracking_score"))
    if score is not None:
        found["score"] = np.array([row.get(score) for row in rows], np.float64)
    for field, dimensions in _SPREADS.items():
        for kind in ("var", "std"):
            name = f"{field}_{kind}"
            if _first(rows, (name,)) is not None:
                given = [row.get(name, "missing") for row in rows]
                listed = [{name: one if isinstance(one, list) else [one]} for one in given]
                values = _vectors(path, listed, name, len(dimensions))
                heads = [f"{kind}_{dimension}" for dimension in dimensions]
                found |= dict(zip(heads, values.T, strict=True))
    read = {f"{field}_{kind}" for field in _SPREADS for kind in ("var", "std")}
    looks = {name for row in rows for name in row if LOOKS_LIKE_SPREAD.search(name)}
    return found | {
        name: np.array([str(row.get(name, "")) for row in rows], np.str_)
        for name in sorted(looks - read)
    }


_READERS: Mapping[Format, Callable[[Path, str], NamedArrays]] = {
    Format.KITTI: _kitti,
    Format.MOT: _mot,
    Format.COCO: _coco,
    Format.NUSCENES: _nuscenes,
}
