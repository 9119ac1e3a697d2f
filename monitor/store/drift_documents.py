"""The documents of drift: files of references, and the state of a family in a checkpoint.

`calibration-monitor reference` writes a file of references for people and sidecars to read. The
state of a family is written slice by slice, so that no step holds up the event loop.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Interval, Len

from monitor.drift.bets import CHARTS, Stage
from monitor.drift.correlation import OPEN_TRACK, PARTS
from monitor.drift.family import SliceState
from monitor.drift.reference import Reference
from monitor.drift.state import FamilyState
from monitor.drift.track_evidence import STATES
from monitor.drift.usual import WAITING
from monitor.frames.marks import PLACED, ArrayForm
from monitor.frames.space import MOST_SLICES
from monitor.store.codec import Codec, Content, InvalidDocument

# ---- references

# Above what as many slices as there may be need.
_LARGEST = 64 * 2**20  # bytes
_REMEDY = (
    "Give a file that `calibration-monitor reference --output` wrote, or learn the reference again "
    "with it."
)


@dataclass(frozen=True, slots=True)
class ReferenceDocument:
    """References by slice name and stage, under a head that tells what the file is."""

    kind: Literal["calibration-monitor drift reference"]
    version: Annotated[int, Interval(ge=1, le=1)]
    slices: Annotated[
        Mapping[Annotated[str, Len(1, 256)], Annotated[Mapping[Stage, Reference], Len(1)]],
        Len(0, MOST_SLICES + 1),
    ]


_REFERENCES = Codec(ReferenceDocument, "reference", _REMEDY)


def reference_text(references: Mapping[str, Mapping[Stage, Reference]]) -> str:
    """Returns the text of the file: one line of JSON."""
    document = ReferenceDocument("calibration-monitor drift reference", 1, references)
    # Blanks after commas and colons: people read the file.
    return f"{json.dumps(json.loads(_REFERENCES.write(document)))}\n"


def read_references(path: str | Path) -> Mapping[str, Mapping[Stage, Reference]]:
    """Reads references by slice name. Raises InvalidDocument, which names file and fault."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise InvalidDocument(
            f"cannot read the reference {path}: {error.strerror or error}. {_REMEDY}"
        ) from None
    if len(data) > _LARGEST:
        raise InvalidDocument(f"{path} is larger than {_LARGEST} bytes. {_REMEDY}")
    try:
        return _REFERENCES.read(data).slices
    except InvalidDocument as error:
        raise InvalidDocument(f"{path}: {error}") from None


# ---- the state of a family


def prepare_writing() -> None:
    """Makes the schemas before an event loop runs."""
    for codec in (_FAMILY, _SLICE):
        codec.prepare()


def family_text(state: FamilyState) -> Generator[None, None, list[bytes]]:
    """Returns the document in parts, in short steps.

    Each slice is written as it stands in its own step: learning goes on in between.
    """
    parts = [_FAMILY.write(replace(state, slices=())).removesuffix(b"]}")]
    for number, one in enumerate(state.slices):
        yield
        parts += (b",\n" if number else b"\n", _SLICE.write(one))
    return [*parts, b"]}"]


def read_family(text: str | bytes) -> FamilyState:
    """Inverts `family_text`. Raises OtherDocument, InvalidDocument."""
    return _FAMILY.read(text)


# Sources of a drift/2, and how they stood.
_TIMES = np.dtype([(name, np.int64) for name in ("source", "time_ns", "life", "turn", "elapsed")])


def _known_of_2(content: Content) -> Content:
    """Makes the content of a drift/3 of a drift/2; what was open at its moment is lost."""
    names = ("driven", "peak", "latched", "counts", "numbers", "begins")
    goes_on = content.get("goes_on") or {"frames": 0, "times": {"sources": ""}}
    times = ArrayForm(_TIMES, (None,)).read(goes_on["times"]["sources"])
    return {
        **{name: content[name] for name in names if name in content},
        **_gathered(content),
        "frames": goes_on["frames"],
        "latest_ns": dict(zip(times["source"].tolist(), times["time_ns"].tolist(), strict=True)),
        "slices": [_slice_of_2(one) for one in content["slices"]],
    }


def _gathered(content: Content) -> Content:
    """Returns how evidence was gathered; that of whole tracks is evidence of detections."""
    gathered = content["gathered"]
    return {"gathered": gathered | ({"unit": "detection"} if gathered["unit"] == "track" else {})}


def _slice_of_2(content: Content) -> Content:
    began = (content.get("open") or {"began": (None, None)})["began"]
    learners = zip(content["learners"], began, strict=True)
    return {
        **{name: one for name, one in content.items() if name != "open"},
        "learners": [one and {**one, "began": since} for one, since in learners],
    }


def _known_of_1(content: Content) -> Content:
    """Makes the content of a drift/3 of a drift/1; what was open at its moment is lost."""
    goes_on = content.get("goes_on") or {"frames": 0, "times": {"source": (), "time_ns": ()}}
    times = goes_on["times"]
    return {
        **{name: content[name] for name in ("driven", "peak", "counts")},
        **_gathered(content),
        "latched": [{"alarm": one["alarm"], "since_s": one["since"]} for one in content["latched"]],
        "frames": goes_on["frames"],
        "latest_ns": dict(zip(times["source"], times["time_ns"], strict=True)),
        **content.get("epochs", {}),
        "slices": [_slice_of_1(one) for one in content["slices"]],
    }


def _slice_of_1(content: Content) -> Content:
    # The first of them knew nothing of common levels, nor which tracks there were.
    none = {"chain": [0.0] * (len(Stage) * STATES), "begun": [0] * len(CHARTS)}
    left_out = ("lately", "blocks", "histories", "tracks")
    return {
        **{name: one for name, one in content.items() if name not in left_out},
        "evidence": none | {n: one for n, one in content["evidence"].items() if n != "tracks"},
        "learners": [one and _learner_with_tables(one) for one in content["learners"]],
    }


def _learner_with_tables(content: Content) -> Content:
    tracks, waiting = content["tracks"], content.get("waiting", {})
    parts = np.reshape(tracks["parts"], (-1, PARTS))
    open = {"key": "ids", "arrived": "seen", "last": "last"}
    return {
        **{name: content[name] for name in ("k", "detections", "total", "seconds")},
        "histogram": {"counts": _table(PLACED, place=content["bins"], count=content["counts"])},
        "along_tracks": {
            **{name: tracks[name] for name in ("tracks", "rows", "totals", "products")},
            "going_on": _table(
                OPEN_TRACK, parts=parts, **{name: tracks[old] for name, old in open.items()}
            ),
        },
        "along_frames": content["frames"],
        "waiting": _table(WAITING, **waiting) if waiting else "",
    }


def _table(kind: np.dtype[Any], **columns: Any) -> str | list[Any]:
    table = np.zeros(len(next(iter(columns.values()))), kind)
    for name, column in columns.items():
        table[name] = np.array(column, kind[name].base)
    return ArrayForm(kind, (None,)).write(table)


_ANEW = "Use a file that this monitor wrote, or remove it: what drifts is then watched anew."
_FAMILY = Codec(
    FamilyState,
    "drift",
    _ANEW,
    "calibration-monitor/drift/3",
    {"calibration-monitor/drift/1": _known_of_1, "calibration-monitor/drift/2": _known_of_2},
)
_SLICE = Codec(SliceState, "slice", _ANEW)
