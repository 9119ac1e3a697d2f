"""MOTA, IDF1 and the matches behind them, by motmetrics, which is imported only when asked for.

It needs pandas, which has no place in a sidecar: the `tracking` extra installs both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from monitor.tracking.quality import Pairs, Scene

HOW_TO_INSTALL = (
    "motmetrics is not installed: install it with pip install 'calibration-monitor[tracking]'."
)
_METRICS = ("mota", "idf1", "num_switches", "num_false_positives", "num_misses")


class NoMotmetrics(ImportError):
    """The package that matches tracks is not there."""


@dataclass(frozen=True, slots=True)
class MotScores:
    """CLEAR-MOT and identity scores.

    mota             1 − (misses + false positives + switches) / labels; NaN without labels
    idf1             share of labels and tracks that agree on who is who; NaN without either
    id_switches      matches of an object with another track than the last
    false_positives  tracks in a frame that were matched with nothing
    misses           labels that were matched with nothing
    """

    mota: float
    idf1: float
    id_switches: int
    false_positives: int
    misses: int


@dataclass(frozen=True, slots=True)
class Matched:
    """A sequence of scenes, matched.

    pairs     the matches
    partials  what motmetrics needs of it to score it together with others
    """

    pairs: Pairs
    partials: Mapping[str, Any]


def match(scenes: Sequence[Scene]) -> Matched:
    """Match objects and tracks frame by frame: a pair stays together while it can.

    scenes  of frames 0, 1, 2 and so on
    raises  NoMotmetrics
    """
    motmetrics = _motmetrics()
    accumulator = motmetrics.MOTAccumulator(auto_id=False)
    # It keeps ids as floating-point numbers, which do not hold 64 bits: it gets small ones.
    objects, object_id = _numbered([scene.objects for scene in scenes])
    tracks, track_id = _numbered([scene.tracks for scene in scenes])
    with motmetrics.lap.set_default_solver("scipy"):  # whichever others are installed
        for frame, scene in enumerate(scenes):
            accumulator.update(objects[frame], tracks[frame], scene.distance, frameid=frame)
        partials = motmetrics.metrics.create().compute(
            accumulator, metrics=list(_METRICS), return_dataframe=False, return_cached=True
        )
    events = accumulator.mot_events  # filtered anew each time it is read
    events = events[events["Type"].isin(["MATCH", "SWITCH"])]
    pairs = Pairs(
        frame=events.index.get_level_values("FrameId").to_numpy(dtype=np.int64),
        object=object_id[events["OId"].to_numpy(dtype=np.int64)],
        track=track_id[events["HId"].to_numpy(dtype=np.int64)],
    )
    return Matched(pairs, partials)


def scores(matched: Sequence[Matched]) -> MotScores:
    """Scores of sequences together: counts are added up before anything is divided."""
    # What compute_many(…, generate_overall=True) puts into its last row.
    found = (
        _motmetrics()
        .metrics.create()
        .compute_overall(
            [one.partials for one in matched], metrics=list(_METRICS), return_dataframe=False
        )
    )
    return MotScores(
        mota=float(found["mota"]),
        idf1=float(found["idf1"]),
        id_switches=int(found["num_switches"]),
        false_positives=int(found["num_false_positives"]),
        misses=int(found["num_misses"]),
    )


Ids = TypeVar("Ids", bound=np.integer[Any])


def _numbered(
    ids: Sequence[npt.NDArray[Ids]],
) -> tuple[list[npt.NDArray[np.int64]], npt.NDArray[Ids]]:
    """The ids of each frame as positions in the array of all different ones, which comes second."""
    different, position = np.unique(np.concatenate(ids), return_inverse=True)
    ends = np.cumsum([part.size for part in ids])[:-1]
    return np.split(position.astype(np.int64), ends), different


def _motmetrics() -> ModuleType:
    try:
        import motmetrics
    except ImportError as error:
        raise NoMotmetrics(HOW_TO_INSTALL) from error
    module: ModuleType = motmetrics
    return module
