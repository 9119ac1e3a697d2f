"""Which method is fitted how: of class recalibrators, by name. Not for serving."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from monitor.recalibration.classes import (
    auxiliary_scaling,
    classwise_isotonic,
    temperature,
    vector_scaling,
)
from monitor.recalibration.classes.class_identity import ClassIdentity
from monitor.recalibration.classes.class_recalibrator import ClassRecalibrator
from monitor.recalibration.classes.class_rows import ClassRows
from monitor.recalibration.recalibrator import UnfitData

CLASS_FITS: Mapping[str, Callable[[ClassRows], ClassRecalibrator]] = {
    ClassIdentity.method: lambda rows: ClassIdentity(),
    temperature.Temperature.method: temperature.fit,
    vector_scaling.VectorScaling.method: vector_scaling.fit,
    auxiliary_scaling.AuxiliaryScaling.method: auxiliary_scaling.fit,
    classwise_isotonic.ClasswiseIsotonic.method: classwise_isotonic.fit,
}


def fit_classes(method: str, rows: ClassRows) -> ClassRecalibrator:
    """A method of CLASS_FITS fitted to the rows, with its defaults. Raises UnfitData."""
    if method not in CLASS_FITS:
        raise UnfitData(f"method {method!r} is unknown: use one of {', '.join(CLASS_FITS)}.")
    return CLASS_FITS[method](rows)
