"""Writes what a fit estimates as a table of R by class and range, to be pasted into the settings of
a tracker that takes one covariance for many detections.

R of a cell is the mean of the covariances that the fit gives to the labelled rows in it: what a
tracker loses that knows class and range alone is how these differ inside the cell.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

import numpy as np

from monitor.commands.apply import recalibrate_gaussians
from monitor.commands.fit.filling import without_covariances
from monitor.commands.recordings import (
    numbered_tracks,
    parts_of,
    ranges_of,
)
from monitor.commands.soundness import usable_truth
from monitor.frames.space import IntArray
from monitor.frames.words import Axes, SliceBy
from monitor.recalibration.estimated.covariates import Layout
from monitor.recalibration.recalibrator import UnfitData
from monitor.recalibration.selection import Selection
from monitor.store.recordings import Recording

# The bucket of all ranges together.
_ANY = "any"

_HEAD = """\
# R: covariances of measurement errors, estimated from the errors of labelled detections.
# covariance: rows and columns in the order of dimensions, in unit × unit; deviation: the roots of
# its diagonal, in the unit of the dimension. Axes are those of the file.
# Autoware multi_object_tracker: measurement_covariance pos_x and pos_y of an object model are the
# squares of along and across, in the axes of the object, and its yaw that of yaw; r_stddev_x,
# r_stddev_y and r_stddev_yaw of older versions are these deviations themselves.
# robot_localization: covariance of a geometry_msgs/PoseWithCovariance, 6 × 6 row by row in the
# order x, y, z, roll, pitch, yaw, as pose0 takes it: put 0 where this table has no dimension.
"""


def r_table(selection: Selection, recording: Recording, options: argparse.Namespace) -> str:
    """Writes the table as YAML, by class, and there by range; `any` is all ranges together.

    selection  as fitted, with the names that fill
    recording  that it was fitted on, as it was read
    """
    bare = without_covariances(recording, options.assume_std)
    usable = np.flatnonzero(usable_truth(bare).rows)
    made = recalibrate_gaussians(selection, bare).recording
    estimated = usable[~made.assumed[usable]]
    space, tracks = bare.space, numbered_tracks(bare)
    parts = parts_of(bare, ranges_of(space, options.range_edges))
    by_class, by_range = (parts.index[part] for part in (SliceBy.CLASS, SliceBy.RANGE))
    lines = [
        f"recalibrator: {_text(selection.version)}",
        f"method: {selection.method}",
        f"dimensions: {_text(list(space.names))}",
        f"units: {_text([one.unit or 'of the file' for one in space.dimensions])}",
        "classes:",
    ]
    for c, name in enumerate(bare.classes):
        of_class = estimated[by_class[estimated] == c]
        if not of_class.size:
            continue
        lines.append(f"  {_text(name)}:")
        lines += _cell(_ANY, made, of_class, tracks)
        for b, bucket in enumerate(parts.names[SliceBy.RANGE]):
            some = of_class[by_range[of_class] == b]
            if bucket and some.size:
                lines += _cell(bucket, made, some, tracks)
    return _HEAD + "\n".join(lines) + "\n"


def _cell(name: str, made: Recording, rows: IntArray, tracks: IntArray | None) -> Iterator[str]:
    covariance = made.covariance[rows].mean(axis=0)
    deviation = dict(zip(made.space.names, np.sqrt(covariance.diagonal()), strict=True))
    deviation |= _along(made, rows)
    yield f"    {_text(name)}:"
    yield f"      rows: {rows.size}"
    if tracks is not None:
        known = tracks[rows]
        yield f"      tracks: {np.unique(known[known >= 0]).size + np.count_nonzero(known < 0)}"
    told = ", ".join(f"{_text(key)}: {_number(value)}" for key, value in deviation.items())
    yield f"      deviation: {{{told}}}"
    yield "      covariance:"
    for row in covariance.tolist():
        yield f"        - [{', '.join(map(_number, row))}]"


def _along(made: Recording, rows: IntArray) -> dict[str, float]:
    """Deviations along and across the heading, of rows with one; empty where there is none."""
    try:
        layout = Layout.of(made.space, Axes.OBJECT)
    except UnfitData:
        return {}
    (c, s), (i, j) = layout.direction(made.mean[rows]), layout.position
    if {made.space.names[place] for place in (i, j)} != {*made.box[:2]}:
        return {}  # x and y are not the ground
    covariance = made.covariance[rows]
    x, y, both = covariance[:, i, i], covariance[:, j, j], covariance[:, i, j]
    along = c * c * x + 2 * c * s * both + s * s * y
    across = s * s * x - 2 * c * s * both + c * c * y
    if made.box[2:4] == ("w", "l"):
        along, across = across, along  # the yaw of KITTI points along the width
    return {"along": float(np.sqrt(along.mean())), "across": float(np.sqrt(across.mean()))}


def _number(value: float) -> str:
    """Writes four digits; YAML takes a number with an exponent for text unless it has a point."""
    text = f"{value:.4g}"
    return text if "e" not in text or "." in text else text.replace("e", ".0e")


def _text(value: object) -> str:
    """Writes text and lists of text as in JSON, which YAML reads."""
    return json.dumps(value, ensure_ascii=False)
