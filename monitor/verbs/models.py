"""Recalibrators and recordings together: reading a model, applying it, statistics of a file;
and the files that come out of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from monitor.calibration.binning import Binning
from monitor.calibration.cholesky import factorise
from monitor.calibration.detections import Limits
from monitor.calibration.space import BoolArray, Space
from monitor.calibration.statistics import StageStatistics, observe
from monitor.edges.files import Recording
from monitor.recalibration.recalibrator import Estimates, InvalidRecalibrator
from monitor.recalibration.selection import Selection, from_json


def read_model(path: str) -> Selection:
    """A recalibrator that `fit` wrote. Raises InvalidRecalibrator."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRecalibrator(f"cannot read the recalibrator {path}: {error}.") from None
    try:
        return from_json(text)
    except InvalidRecalibrator as error:
        raise InvalidRecalibrator(f"{path}: {error}") from None


def estimates_of(recording: Recording) -> Estimates:
    """The Gaussians of a recording."""
    diagonal = np.full(recording.mean.shape[0], recording.diagonal)
    return Estimates(recording.mean, recording.covariance, diagonal)


def check_dimensions(selection: Selection, space: Space) -> None:
    """Raises InvalidRecalibrator unless it was fitted on the dimensions a file is read with."""
    if not selection.fits(space):
        raise InvalidRecalibrator(
            f"the recalibrator was fitted on dimensions {','.join(selection.dimensions)} but the "
            f"file is read with {','.join(space.names)}: give --dimensions "
            f"{','.join(selection.dimensions)}."
        )


def apply_model(selection: Selection, recording: Recording) -> Recording:
    """The recording with recalibrated Gaussians; unusable rows stay as they are.

    Raises InvalidRecalibrator when it was fitted on other dimensions.
    """
    check_dimensions(selection, recording.space)
    usable = np.flatnonzero(sound_rows(recording))
    sent = estimates_of(recording)
    made = selection.apply(
        Estimates(sent.mean[usable], sent.covariance[usable], sent.diagonal[usable]),
        recording.class_index[usable],
        recording.classes,
    )
    mean, covariance = recording.mean.copy(), recording.covariance.copy()
    mean[usable], covariance[usable] = made.mean, made.covariance
    # Without a usable row nothing was made, and a file of covariances stays one.
    diagonal = recording.diagonal and bool(made.diagonal.all())
    return replace(recording, mean=mean, covariance=covariance, diagonal=diagonal)


def sound_rows(recording: Recording) -> BoolArray:
    """(N,) rows with a finite mean and a positive definite covariance."""
    factor = factorise(recording.covariance)
    sound: BoolArray = np.isfinite(factor[-1, -1]) & np.isfinite(recording.mean).all(axis=1)
    return sound


def sound_statistics(
    recording: Recording, binning: Binning, limits: Limits
) -> tuple[StageStatistics, int, int]:
    """Statistics of the rows with truth; how many were refused, and how many have no truth."""
    labelled = np.isfinite(recording.truth).all(axis=1)
    usable = labelled & sound_rows(recording)
    for values in (recording.mean, recording.truth):
        usable &= (np.abs(values) <= limits.largest_mean).all(axis=1)
    kept = np.flatnonzero(usable)
    error = recording.space.error(recording.truth[kept], recording.mean[kept])
    statistics = observe(recording.space, binning, error, recording.covariance[kept])
    refused = int(np.count_nonzero(labelled & ~usable))
    return statistics, refused, int(np.count_nonzero(~labelled))


class CannotWrite(OSError):
    """An output file is not to be had."""


@contextlib.contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """Where to write; it takes the place of `path` at the end, and never stays behind.

    Raises CannotWrite.
    """
    target = path.resolve()  # through links, so that they stay
    if target.exists() and not target.is_file():
        raise CannotWrite(
            f"--output {path}: cannot be written (not a regular file). Name a file, or a new one."
        )
    temporary = target.with_name(f".{os.getpid()}.{target.name}")  # the ending tells the format
    try:
        yield temporary
        temporary.replace(target)
    except OSError as error:
        raise CannotWrite(
            f"--output {path}: cannot be written ({error.strerror or error}). "
            "Name a file in a folder that exists and that you may write to."
        ) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
