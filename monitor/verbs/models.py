"""Recalibrators as files: reading one, telling its kind, and the files that verbs write."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from monitor.calibration.space import Space
from monitor.edges.recorded_classes import ClassRecording
from monitor.recalibration.classes import class_selection
from monitor.recalibration.classes.class_selection import ClassSelection, class_selection_from_json
from monitor.recalibration.recalibrator import InvalidRecalibrator
from monitor.recalibration.selection import Selection, from_json


def read_any_model(path: str) -> Selection | ClassSelection:
    """A recalibrator that `fit` wrote, of Gaussians or of class probabilities.

    Raises InvalidRecalibrator.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRecalibrator(f"cannot read the recalibrator {path}: {error}.") from None
    try:
        return class_selection_from_json(text) if _is_of_classes(text) else from_json(text)
    except InvalidRecalibrator as error:
        raise InvalidRecalibrator(f"{path}: {error}") from None


def _is_of_classes(text: str) -> bool:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("format") == class_selection.FORMAT


def read_model(path: str) -> Selection:
    """A recalibrator of Gaussians. Raises InvalidRecalibrator."""
    model = read_any_model(path)
    if isinstance(model, ClassSelection):
        raise InvalidRecalibrator(
            f"{path} recalibrates class probabilities ({model.method}), not Gaussians: give a "
            "model that was fitted by a method of Gaussians, such as variance-scaling."
        )
    return model


def check_kind(
    model: Selection | ClassSelection, path: str, file: str, recording: ClassRecording | None
) -> None:
    """Refuses a model that finds nothing in a file to recalibrate.

    path, file  of the model and of the recording, as they were given
    recording   the file's class probabilities, None where there are none to look at
    raises      InvalidRecalibrator
    """
    if isinstance(model, ClassSelection) and recording is None:
        raise InvalidRecalibrator(
            f"{path} recalibrates class probabilities ({model.method}), and none of {file} are "
            "looked at. Give a file with prob or logits, without --class and --where, or a model "
            "of Gaussians."
        )
    if isinstance(model, Selection) and recording is not None and not recording.gaussians:
        raise InvalidRecalibrator(
            f"{path} recalibrates Gaussians ({model.method}), and {file} has class probabilities "
            "only. Give a model of class probabilities."
        )


def check_dimensions(selection: Selection, space: Space) -> None:
    """Raises InvalidRecalibrator unless it was fitted on the dimensions a file is read with."""
    if not selection.fits(space):
        raise InvalidRecalibrator(
            f"the recalibrator was fitted on dimensions {','.join(selection.dimensions)} but the "
            f"file is read with {','.join(space.names)}: give --dimensions "
            f"{','.join(selection.dimensions)}."
        )


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
