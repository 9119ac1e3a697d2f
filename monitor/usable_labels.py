"""What of the labels of a frame can be used, before anything is known of their detections.

A label whose ground truth cannot be used is refused whole, so that a better one may come. A
class beyond the header's names is set aside, and refuses only a label that says nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.calibration.detections import Limits, Reason
from monitor.calibration.notices import Notice, numbers
from monitor.calibration.space import BoolArray, FloatArray, Space
from monitor.frames import ReceivedTruth


@dataclass(frozen=True, slots=True)
class UsableLabels:
    """Of n labels.

    usable         (n,) which can be used at all; an ignored one needs nothing but an id
    truth          (n, K), and which have it in full, has_truth (n,)
    has_class      (n,) which have a class of the header
    truth_invalid  (n,) refused for their ground truth, or for want of an id
    class_invalid  (n,) whose class is beyond the header's names
    """

    usable: BoolArray
    truth: FloatArray
    has_truth: BoolArray
    has_class: BoolArray
    truth_invalid: BoolArray
    class_invalid: BoolArray


def usable_labels(
    labels: ReceivedTruth, space: Space, classes: int, limits: Limits
) -> UsableLabels:
    """Sort out labels for a frame of this space and so many classes."""
    truth = np.full((labels.named, space.k), np.nan)
    truth[:, : labels.truth.shape[1]] = labels.truth[:, : space.k]
    plausible = (np.abs(truth) <= limits.largest_mean).all(axis=1)
    has_truth = (labels.truth_length == space.k) & plausible
    told = has_truth | (labels.truth_length == 0)
    has_class = (labels.class_index >= 0) & (labels.class_index < classes)
    usable = labels.has_id & (has_truth | (told & has_class) | labels.ignore)
    beyond = labels.class_index >= classes
    class_invalid = beyond & told & labels.has_id & ~labels.ignore
    return UsableLabels(
        usable, truth, has_truth, has_class, ~usable & ~class_invalid, class_invalid
    )


def label_notices(
    labels: ReceivedTruth, sorted_out: UsableLabels, space: Space, classes: int, limits: Limits
) -> tuple[Notice, ...]:
    """What is wrong with labels, in words; at most one notice for each reason."""
    found: list[Notice] = []
    invalid = np.flatnonzero(sorted_out.truth_invalid)
    if invalid.size:
        first = int(invalid[0])
        if labels.has_id[first]:
            field, sent = "ground_truth", int(labels.truth_length[first])
            message = (
                f"{numbers(labels.truth[first], sent)}: send {space.k} values "
                f"({', '.join(space.names)}), finite and within ±{limits.largest_mean:g} "
                "([limits] largest_mean)."
            )
        else:
            field, message = "detection_id", "absent: name the detection that the label belongs to."
        found.append(Notice(Reason.GROUND_TRUTH_INVALID, field, message, invalid.size, first))
    invalid = np.flatnonzero(sorted_out.class_invalid)
    if invalid.size:
        first = int(invalid[0])
        message = f"{labels.class_index[first]}: the header names {classes} classes, from 0."
        reason = Reason.CLASS_PROBABILITIES_INVALID
        found.append(Notice(reason, "class_index", message, invalid.size, first))
    return tuple(found)
