"""Recalibrators as files: how one is read, of which kind it is, to which recordings it fits."""

from __future__ import annotations

from pathlib import Path

from monitor.frames.space import Space
from monitor.recalibration.classes.class_selection import (
    AnySelection,
    ClassSelection,
)
from monitor.recalibration.recalibrator import InvalidRecalibrator, UnfitData
from monitor.recalibration.selection import Selection
from monitor.store.class_recordings import ClassRecording
from monitor.store.recalibrator_documents import any_selection_from_json


def read_any_model(path: str) -> AnySelection:
    """Reads a recalibrator that `fit` wrote, of Gaussians or of class probabilities.

    Raises InvalidRecalibrator.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRecalibrator(f"cannot read the recalibrator {path}: {error}.") from None
    try:
        return any_selection_from_json(text)
    except InvalidRecalibrator as error:
        raise InvalidRecalibrator(f"{path}: {error}") from None


def document_of(model: AnySelection) -> str:
    """Writes the text that a file of the model holds.

    Raises UnfitData where nobody could read it: names or values that came of the data.
    """
    text = model.to_json()
    try:
        any_selection_from_json(text)
    except InvalidRecalibrator as error:
        raise UnfitData(
            f"what was fitted makes no model that can be read again: {error} Correct the names in "
            "the file, or use more or other rows."
        ) from None
    return text


def read_model(path: str) -> Selection:
    """Reads a recalibrator of Gaussians. Raises InvalidRecalibrator."""
    model = read_any_model(path)
    if isinstance(model, ClassSelection):
        raise InvalidRecalibrator(
            f"{path} recalibrates class probabilities ({model.method}), not Gaussians: give a "
            "model that was fitted by a method of Gaussians, such as variance-scaling."
        )
    return model


def check_kind(model: AnySelection, path: str, file: str, recording: ClassRecording | None) -> None:
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
