"""Lists the words that options, settings and files share, so that a parser can offer them.

Only the standard library is imported here: help and completion come without NumPy.
"""

from __future__ import annotations

from enum import StrEnum


class SliceBy(StrEnum):
    """Properties that tell slices apart."""

    CLASS = "class"
    STREAM = "stream"
    RANGE = "range"


class DistanceKind(StrEnum):
    """Ways to measure the distance between a detection and an object; keys of [matching]."""

    CENTRE = "centre"  # of the means, over `dimensions`; gate in the unit of the stream
    BEV_IOU = "bev-iou"  # 1 - overlap of the boxes seen from above, rotated; gate on that
    IMAGE_IOU = "image-iou"  # 1 - overlap of boxes in the image, upright; gate on that
    MAHALANOBIS = "mahalanobis"  # of the errors, over `dimensions`; gate in deviations


class Finding(StrEnum):
    """Says how σ and the errors agree in one dimension."""

    OVERCONFIDENT = "overconfident"  # errors are larger than σ says
    UNDERCONFIDENT = "underconfident"
    CALIBRATED = "calibrated"
    UNKNOWN = "too little data"


class MeasurementNoise(StrEnum):
    """The source of R, the measurement noise of a detection."""

    DETECTION = "detection"  # the covariance that is forwarded
    UNIT = "unit"  # the identity, as trackers use that are left at their defaults


class Objective(StrEnum):
    """Conditions that a scale can be fitted to satisfy."""

    MEAN = "mean"  # mean NEES = 1: maximum likelihood
    WINSORISED_MEAN = "winsorised-mean"  # mean of NEES cut at its 99 % point, as if calibrated
    QUANTILE = "quantile"  # 68 % of errors within one σ


class FullInput(StrEnum):
    """Ways to recalibrate a full covariance."""

    SCALE = "scale"  # S Σ S: the detector's correlations stay as they are
    WHITEN = "whiten"  # L A Lᵀ, Σ = L Lᵀ: errors that still correlate after whitening are corrected


class Axes(StrEnum):
    """Directions in which errors of x and y are described."""

    PLAIN = "plain"  # as the means are sent
    SENSOR = "sensor"  # radial and lateral, as seen from the sensor, which is at the origin
    OBJECT = "object"  # longitudinal and lateral, by the heading


class Format(StrEnum):
    """Formats of recorded files, for `--format`."""

    TABLE = "table"  # .csv, .csv.gz, .parquet, .npz
    KITTI = "kitti"
    MOT = "mot"
    COCO = "coco"
    NUSCENES = "nuscenes"


class Mode(StrEnum):
    """The estimates that are forwarded."""

    APPLY = "apply"  # what the promoted recalibrator makes of the estimate
    OBSERVE = "observe"  # the raw estimate, with the recalibrated one beside it


class LogLevel(StrEnum):
    """The least weight of a line that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
