"""The class recalibrator that is promoted: what serves which class names, and its document.

It knows its own version: the method and a hash of everything that makes it up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from monitor.calibration.space import FloatArray
from monitor.recalibration.classes.auxiliary_scaling import AuxiliaryScaling
from monitor.recalibration.classes.class_identity import ClassIdentity
from monitor.recalibration.classes.class_recalibrator import ClassRecalibrator
from monitor.recalibration.classes.classwise_isotonic import ClasswiseIsotonic
from monitor.recalibration.classes.temperature import Temperature
from monitor.recalibration.classes.vector_scaling import VectorScaling
from monitor.recalibration.recalibrator import Document, InvalidRecalibrator
from monitor.recalibration.rejection import RejectedBy, Rejection

FORMAT = "calibration-monitor/class-recalibrator/1"

CLASS_METHODS: Mapping[str, Callable[[Document], ClassRecalibrator]] = {
    ClassIdentity.method: ClassIdentity.from_parameters,
    Temperature.method: Temperature.from_parameters,
    VectorScaling.method: VectorScaling.from_parameters,
    AuxiliaryScaling.method: AuxiliaryScaling.from_parameters,
    ClasswiseIsotonic.method: ClasswiseIsotonic.from_parameters,
}


@dataclass(frozen=True)
class ClassSelection:
    """A class recalibrator, with the names of the classes it is for.

    classes    names in the order of the probabilities; empty: any, of as many as it was fitted on
    rejection  of detections whose entropy stays high after recalibration; None: none
    fitted_on  rows, source and the like, for people; not part of the version
    """

    classes: tuple[str, ...]
    recalibrator: ClassRecalibrator
    rejection: Rejection | None = None
    fitted_on: Document = field(default_factory=dict)

    @property
    def method(self) -> str:
        """Of the recalibrator."""
        return self.recalibrator.method

    @cached_property
    def version(self) -> str:
        """The method and the first 12 digits of the content's SHA-256."""
        text = json.dumps(self._content(), sort_keys=True, separators=(",", ":"))
        return f"{self.method}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def _content(self) -> Document:
        content: Document = {
            "format": FORMAT,
            "classes": list(self.classes),
            "recalibrator": {"method": self.method, "parameters": self.recalibrator.parameters()},
        }
        if self.rejection is not None:
            content["rejection"] = self.rejection.parameters()
        return content

    def to_json(self) -> str:
        """The document as text; floats keep every bit."""
        content = {**self._content(), "fitted_on": self.fitted_on, "version": self.version}
        return json.dumps(content, indent=1, sort_keys=True) + "\n"

    def fits(self, class_names: tuple[str, ...]) -> bool:
        """Whether it can be applied to probabilities of these classes."""
        if self.classes:
            return self.classes == class_names
        return self.recalibrator.classes in (None, len(class_names))

    def apply(self, log_probabilities: FloatArray) -> FloatArray:
        """Recalibrated probabilities of each opinion, (n, M, C); see ClassRecalibrator."""
        return self.recalibrator.apply(log_probabilities)

    @property
    def changes_probabilities(self) -> bool:
        """Whether it is more than the identity."""
        return self.method != ClassIdentity.method


CLASS_IDENTITY = ClassSelection((), ClassIdentity())


def class_selection_from_json(text: str | bytes) -> ClassSelection:
    """The inverse of to_json. Raises InvalidRecalibrator for anything else."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRecalibrator(f"not a JSON document: {error}.") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise InvalidRecalibrator(
            f"'format' is {found!r}, expected {FORMAT!r}: give a file that "
            "`calibration-monitor fit --output` wrote for class probabilities."
        )
    classes = _names(content.get("classes"))
    fitted_on = content.get("fitted_on", {})
    selection = ClassSelection(
        classes,
        _recalibrator(content.get("recalibrator"), len(classes)),
        _rejection(content.get("rejection")),
        fitted_on if isinstance(fitted_on, dict) else {},
    )
    claimed = content.get("version", "")
    if claimed and claimed != selection.version:
        raise InvalidRecalibrator(
            f"'version' is {claimed!r} but the content makes {selection.version!r}: "
            "the document was changed after it was fitted. Fit again, or remove 'version'."
        )
    return selection


def _names(values: object) -> tuple[str, ...]:
    if (
        not isinstance(values, list)
        or not all(isinstance(name, str) and name.isprintable() for name in values)
        or len(set(values)) < len(values)
        or len(values) == 1
    ):
        raise InvalidRecalibrator(
            f"'classes' is {values!r}: it must be a list of at least two different names of "
            "printable characters, or empty for any."
        )
    return tuple(values)


def _recalibrator(content: object, classes: int) -> ClassRecalibrator:
    found = content.get("method") if isinstance(content, dict) else content
    if not isinstance(content, dict) or not isinstance(found, str) or found not in CLASS_METHODS:
        raise InvalidRecalibrator(
            f"'recalibrator.method' is {found!r}: it must be one of {', '.join(CLASS_METHODS)}."
        )
    parameters = content.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRecalibrator("'recalibrator.parameters' must be an object.")
    try:
        recalibrator = CLASS_METHODS[found](parameters)
    except InvalidRecalibrator as error:
        raise InvalidRecalibrator(f"in 'recalibrator': {error}") from None
    if classes and recalibrator.classes not in (None, classes):
        raise InvalidRecalibrator(
            f"'recalibrator' has {recalibrator.classes} classes but 'classes' names {classes}."
        )
    return recalibrator


def _rejection(content: object) -> Rejection | None:
    if content is None:
        return None
    if not isinstance(content, dict):
        raise InvalidRecalibrator(f"'rejection' is {content!r}: it must be an object.")
    try:
        rejection = Rejection.from_parameters(content)
    except InvalidRecalibrator as error:
        raise InvalidRecalibrator(f"in 'rejection': {error}") from None
    if rejection.by is not RejectedBy.ENTROPY:
        raise InvalidRecalibrator(
            f"in 'rejection': 'by' is '{rejection.by}': of class probabilities only the entropy "
            "is known."
        )
    return rejection
