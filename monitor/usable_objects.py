"""What of the objects and regions of a message can be used, before anything is known of their
detections: those that can be placed, and those whose class means something here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.calibration.covariance_forms import absent, full_matrices, symmetric
from monitor.calibration.detections import Limits, Reason
from monitor.calibration.notices import Notice, numbers
from monitor.calibration.space import BoolArray, DimensionKind, FloatArray, Space
from monitor.calibration.truth_matching.at_time import ObjectsAtTime
from monitor.calibration.truth_matching.class_names import ClassTable
from monitor.calibration.truth_matching.placed import Placed
from monitor.calibration.truth_matching.regions import IgnoreRegion
from monitor.calibration.truth_matching.settings import MatchingSettings
from monitor.frames import ReceivedObjects, ReceivedRegion

# An eigenvalue this far below zero, against the largest one, is rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False, slots=True)
class UsableObjects:
    """Of m samples.

    usable   (m,) which can be placed, and are of a class that was named
    placed   (m, K) and covariances, zero where none came; None where none came at all
    """

    usable: BoolArray
    placed: Placed
    truth_invalid: BoolArray
    covariance_invalid: BoolArray
    class_invalid: BoolArray


def usable_objects(
    objects: ReceivedObjects, space: Space, classes: int, limits: Limits
) -> UsableObjects:
    """Sort out samples for a stream of this space.

    classes  names that the labeller has
    """
    truth = np.full((objects.n, space.k), np.nan)
    truth[:, : objects.truth.shape[1]] = objects.truth[:, : space.k]
    truth_invalid = (objects.truth_length != space.k) | ~(np.abs(truth) <= limits.largest_mean).all(
        axis=1
    )
    covariance, covariance_invalid = _covariances(objects, space.k, limits)
    # What is ignored may be so for every class.
    named = (objects.class_index >= 0) | objects.ignore
    class_invalid = ~named | (objects.class_index >= classes)
    usable = ~(truth_invalid | covariance_invalid | class_invalid)
    placed = Placed(np.where(truth_invalid[:, None], 0.0, truth), covariance)
    return UsableObjects(usable, placed, truth_invalid, covariance_invalid, class_invalid)


def _covariances(
    objects: ReceivedObjects, k: int, limits: Limits
) -> tuple[FloatArray | None, BoolArray]:
    """(m, K, K), zero where none came or an unusable one; None where all are; and the unusable.

    A labeller may know some dimensions exactly: zeros on the diagonal are no fault.
    """
    length = objects.covariance_length
    invalid = np.zeros(objects.n, bool)
    if not length.any():
        return None, invalid
    forms = (k, k * (k + 1) // 2, k * k)
    fits = np.isin(length, forms)
    values = objects.covariance[:, : k * k]
    nothing = absent(values, length, fits)
    known = fits if nothing is None else fits & ~nothing
    invalid = ~fits & (length > 0)
    matrices = full_matrices(values, np.where(known, length, 0), forms)
    with np.errstate(invalid="ignore", over="ignore"):
        variance = np.diagonal(matrices, axis1=1, axis2=2)
        # No covariance is larger than the largest variance. Beyond the limit the eigenvalues
        # could overflow.
        plausible = np.abs(matrices) <= limits.largest_deviation**2
        finite = plausible.all(axis=(1, 2)) & (variance >= 0).all(axis=1)
    matrices = np.where((known & finite)[:, None, None], matrices, 0.0)
    matrices, asymmetric = symmetric(matrices, known & (length == forms[2]))
    invalid |= known & ~finite
    if asymmetric is not None:
        invalid |= asymmetric
    eigenvalues = np.linalg.eigvalsh(matrices)
    # So said that NaN is invalid, too.
    invalid |= ~(eigenvalues[:, 0] >= -_ROUNDING * np.maximum(eigenvalues[:, -1], 0))
    matrices = np.where(invalid[:, None, None], 0.0, matrices)
    return (matrices if known.any() else None), invalid


def object_notice(
    objects: ReceivedObjects, found: UsableObjects, space: Space, classes: int, limits: Limits
) -> Notice | None:
    """What is wrong with samples, in words of the first of them; None where nothing is."""
    invalid = np.flatnonzero(~found.usable)
    if invalid.size == 0:
        return None
    first = int(invalid[0])
    if found.truth_invalid[first]:
        sent = int(objects.truth_length[first])
        field = "objects.ground_truth"
        message = (
            f"{numbers(objects.truth[first], sent)}: send {space.k} values "
            f"({', '.join(space.names)}), finite and within ±{limits.largest_mean:g} "
            "([limits] largest_mean)."
        )
    elif found.class_invalid[first]:
        index = int(objects.class_index[first])
        field = "objects.class_index"
        message = (
            "absent: an object that is not ignored needs its class."
            if index < 0
            else f"{index}: there are {classes} class names, from 0."
        )
    else:
        sent, k = int(objects.covariance_length[first]), space.k
        field = "objects.covariance"
        message = (
            f"{numbers(objects.covariance[first], sent)}, {sent} values: send {k} variances, "
            f"{k * (k + 1) // 2} of the lower triangle or all {k * k}, symmetric, without "
            f"negative eigenvalues and with deviations of at most {limits.largest_deviation:g} "
            "([limits] largest_deviation), or none."
        )
    return Notice(Reason.GROUND_TRUTH_INVALID, field, message, int(invalid.size), first)


def untimely_notice(
    objects: ReceivedObjects, at: ObjectsAtTime, stamp_ns: int | None, config: MatchingSettings
) -> Notice | None:
    """Why objects could not be placed at the frame's time; None where all could be."""
    if not at.untimely:
        return None
    message = (
        f"{objects.stamp_ns[at.first]}: the frame has no stamp to compare it with. Send objects "
        "without one."
        if stamp_ns is None
        else f"{objects.stamp_ns[at.first]} and a frame of {stamp_ns}: send two samples around "
        f"the frame, at most {config.max_gap_seconds:g} s apart ([matching] max_gap_seconds), or "
        f"one within {config.max_offset_seconds:g} s of it (max_offset_seconds)."
    )
    return Notice(Reason.TRUTH_STAMP, "objects.stamp_ns", message, at.untimely, at.first)


def usable_regions(
    regions: tuple[ReceivedRegion, ...], space: Space, classes: int, table: ClassTable
) -> tuple[list[IgnoreRegion], Notice | None]:
    """Those that can be used, and what is wrong with the others.

    classes  of the detector
    table    how the labeller's are called here
    """
    used, faults = [], []
    for i, region in enumerate(regions):
        fault = _region_fault(region, space, table.own.size)
        if fault is not None:
            faults.append((i, fault))
            continue
        of = np.ones(classes, bool)
        if region.class_index >= 0:
            of = table.beside[region.class_index].copy()
            if table.own[region.class_index] >= 0:
                of[table.own[region.class_index]] = True
        columns = tuple(space.names.index(name) for name in region.dimensions)
        used.append(IgnoreRegion(columns, region.lower, region.upper, of))
    if not faults:
        return used, None
    first, message = faults[0]
    reason = Reason.GROUND_TRUTH_INVALID
    return used, Notice(reason, "ignore_regions", message, len(faults), first)


def _region_fault(region: ReceivedRegion, space: Space, labelled: int) -> str | None:
    """In words; None where the region can be used."""
    names = region.dimensions
    if region.class_index >= labelled:
        return f"class_index {region.class_index}: there are {labelled} class names, from 0."
    if not 1 <= len(names) <= space.k or len(set(names)) < len(names):
        return f"{len(names)} dimensions: name at least one, each once, of {space.names}."
    for name in names:
        if name not in space.names:
            return f"dimension '{name[:64]}': name some of {', '.join(space.names)}."
    if not region.lower.size == region.upper.size == len(names):
        return (
            f"{region.lower.size} lower and {region.upper.size} upper bounds of {len(names)} "
            "dimensions: send one of each for every dimension."
        )
    for i, name in enumerate(names):
        low, high = float(region.lower[i]), float(region.upper[i])
        angle = space.dimensions[space.names.index(name)].kind is not DimensionKind.LENGTH
        if not low <= high or (angle and not np.isfinite([low, high]).all()):
            return f"{low:g} to {high:g} of '{name}': the lower bound first, numbers both."
    return None
