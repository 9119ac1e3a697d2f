"""The class recalibrator that is promoted: which classes it serves, how it is fitted.

It knows its own version: the method and a hash of everything that makes it up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from monitor.frames.space import FloatArray
from monitor.recalibration import class_probabilities, class_scaling
from monitor.recalibration.class_probabilities import (
    ClassIdentity,
    ClassRecalibrator,
    ClassRows,
    ClasswiseIsotonic,
)
from monitor.recalibration.class_scaling import AuxiliaryScaling, Temperature, VectorScaling
from monitor.recalibration.recalibrator import Document
from monitor.recalibration.rejection import Rejection
from monitor.recalibration.selection import Selection, text_of, version_of

FORMAT = "calibration-monitor/class-recalibrator/1"

CLASS_METHODS: Mapping[str, type[ClassRecalibrator]] = {
    ClassIdentity.method: ClassIdentity,
    Temperature.method: Temperature,
    VectorScaling.method: VectorScaling,
    AuxiliaryScaling.method: AuxiliaryScaling,
    ClasswiseIsotonic.method: ClasswiseIsotonic,
}

CLASS_FITS: Mapping[str, Callable[[ClassRows], ClassRecalibrator]] = {
    ClassIdentity.method: lambda rows: ClassIdentity(),
    class_scaling.Temperature.method: class_scaling.fit_temperature,
    class_scaling.VectorScaling.method: class_scaling.fit_vector_scaling,
    class_scaling.AuxiliaryScaling.method: class_scaling.fit_auxiliary_scaling,
    class_probabilities.ClasswiseIsotonic.method: class_probabilities.fit_classwise_isotonic,
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
        """Method of the recalibrator."""
        return self.recalibrator.method

    @cached_property
    def version(self) -> str:
        """The method and the first 12 digits of the content's SHA-256."""
        return version_of(self.method, self._content())

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
        return text_of(self._content(), self.fitted_on, self.version)

    def fits(self, class_names: tuple[str, ...]) -> bool:
        """Tells whether it can be applied to probabilities of these classes."""
        if self.classes:
            return self.classes == class_names
        return self.recalibrator.classes in (None, len(class_names))

    def apply(self, log_probabilities: FloatArray) -> FloatArray:
        """Recalibrated probabilities of each opinion, (n, M, C); see ClassRecalibrator."""
        return self.recalibrator.apply(log_probabilities)

    @property
    def changes_probabilities(self) -> bool:
        """Tells whether it is more than the identity."""
        return self.method != ClassIdentity.method


CLASS_IDENTITY = ClassSelection((), ClassIdentity())

AnySelection = Selection | ClassSelection
