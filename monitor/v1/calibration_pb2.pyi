from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Stage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STAGE_UNSPECIFIED: _ClassVar[Stage]
    STAGE_RAW: _ClassVar[Stage]
    STAGE_RECALIBRATED: _ClassVar[Stage]
STAGE_UNSPECIFIED: Stage
STAGE_RAW: Stage
STAGE_RECALIBRATED: Stage

class Bin(_message.Message):
    __slots__ = ("lower", "upper", "n", "variance", "squared_error", "nees", "within")
    LOWER_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    VARIANCE_FIELD_NUMBER: _ClassVar[int]
    SQUARED_ERROR_FIELD_NUMBER: _ClassVar[int]
    NEES_FIELD_NUMBER: _ClassVar[int]
    WITHIN_FIELD_NUMBER: _ClassVar[int]
    lower: float
    upper: float
    n: int
    variance: float
    squared_error: float
    nees: float
    within: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lower: _Optional[float] = ..., upper: _Optional[float] = ..., n: _Optional[int] = ..., variance: _Optional[float] = ..., squared_error: _Optional[float] = ..., nees: _Optional[float] = ..., within: _Optional[_Iterable[int]] = ...) -> None: ...

class DimensionCalibration(_message.Message):
    __slots__ = ("name", "unit", "ence", "ence_noise_floor", "uce", "qce", "qce_by_tau", "nees_mean", "nll", "bias", "bins", "ence_noise_floor_gaussian", "n_eff", "kurtosis", "sharpness", "c_v", "pinball", "calibration_area", "ucs", "crps", "ause", "ause_relative", "rejection", "bias_interval", "rmse")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    ENCE_FIELD_NUMBER: _ClassVar[int]
    ENCE_NOISE_FLOOR_FIELD_NUMBER: _ClassVar[int]
    UCE_FIELD_NUMBER: _ClassVar[int]
    QCE_FIELD_NUMBER: _ClassVar[int]
    QCE_BY_TAU_FIELD_NUMBER: _ClassVar[int]
    NEES_MEAN_FIELD_NUMBER: _ClassVar[int]
    NLL_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    ENCE_NOISE_FLOOR_GAUSSIAN_FIELD_NUMBER: _ClassVar[int]
    N_EFF_FIELD_NUMBER: _ClassVar[int]
    KURTOSIS_FIELD_NUMBER: _ClassVar[int]
    SHARPNESS_FIELD_NUMBER: _ClassVar[int]
    C_V_FIELD_NUMBER: _ClassVar[int]
    PINBALL_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_AREA_FIELD_NUMBER: _ClassVar[int]
    UCS_FIELD_NUMBER: _ClassVar[int]
    CRPS_FIELD_NUMBER: _ClassVar[int]
    AUSE_FIELD_NUMBER: _ClassVar[int]
    AUSE_RELATIVE_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    BIAS_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    RMSE_FIELD_NUMBER: _ClassVar[int]
    name: str
    unit: str
    ence: float
    ence_noise_floor: float
    uce: float
    qce: float
    qce_by_tau: _containers.RepeatedScalarFieldContainer[float]
    nees_mean: float
    nll: float
    bias: float
    bins: _containers.RepeatedCompositeFieldContainer[Bin]
    ence_noise_floor_gaussian: float
    n_eff: float
    kurtosis: float
    sharpness: float
    c_v: float
    pinball: float
    calibration_area: float
    ucs: float
    crps: float
    ause: float
    ause_relative: float
    rejection: Rejection
    bias_interval: _containers.RepeatedScalarFieldContainer[float]
    rmse: float
    def __init__(self, name: _Optional[str] = ..., unit: _Optional[str] = ..., ence: _Optional[float] = ..., ence_noise_floor: _Optional[float] = ..., uce: _Optional[float] = ..., qce: _Optional[float] = ..., qce_by_tau: _Optional[_Iterable[float]] = ..., nees_mean: _Optional[float] = ..., nll: _Optional[float] = ..., bias: _Optional[float] = ..., bins: _Optional[_Iterable[_Union[Bin, _Mapping]]] = ..., ence_noise_floor_gaussian: _Optional[float] = ..., n_eff: _Optional[float] = ..., kurtosis: _Optional[float] = ..., sharpness: _Optional[float] = ..., c_v: _Optional[float] = ..., pinball: _Optional[float] = ..., calibration_area: _Optional[float] = ..., ucs: _Optional[float] = ..., crps: _Optional[float] = ..., ause: _Optional[float] = ..., ause_relative: _Optional[float] = ..., rejection: _Optional[_Union[Rejection, _Mapping]] = ..., bias_interval: _Optional[_Iterable[float]] = ..., rmse: _Optional[float] = ...) -> None: ...

class Rejection(_message.Message):
    __slots__ = ("fraction", "mean_squared_error", "oracle")
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    MEAN_SQUARED_ERROR_FIELD_NUMBER: _ClassVar[int]
    ORACLE_FIELD_NUMBER: _ClassVar[int]
    fraction: _containers.RepeatedScalarFieldContainer[float]
    mean_squared_error: _containers.RepeatedScalarFieldContainer[float]
    oracle: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, fraction: _Optional[_Iterable[float]] = ..., mean_squared_error: _Optional[_Iterable[float]] = ..., oracle: _Optional[_Iterable[float]] = ...) -> None: ...

class JointCalibration(_message.Message):
    __slots__ = ("k", "nees_over_k", "nees_median_ratio", "qce", "qce_by_tau", "coverage_by_tau", "nll", "bins", "n_eff", "nees_interval", "nees_interval_n_eff", "calibration_area", "ucs", "ause", "ause_relative", "rejection")
    K_FIELD_NUMBER: _ClassVar[int]
    NEES_OVER_K_FIELD_NUMBER: _ClassVar[int]
    NEES_MEDIAN_RATIO_FIELD_NUMBER: _ClassVar[int]
    QCE_FIELD_NUMBER: _ClassVar[int]
    QCE_BY_TAU_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_BY_TAU_FIELD_NUMBER: _ClassVar[int]
    NLL_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    N_EFF_FIELD_NUMBER: _ClassVar[int]
    NEES_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    NEES_INTERVAL_N_EFF_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_AREA_FIELD_NUMBER: _ClassVar[int]
    UCS_FIELD_NUMBER: _ClassVar[int]
    AUSE_FIELD_NUMBER: _ClassVar[int]
    AUSE_RELATIVE_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    k: int
    nees_over_k: float
    nees_median_ratio: float
    qce: float
    qce_by_tau: _containers.RepeatedScalarFieldContainer[float]
    coverage_by_tau: _containers.RepeatedScalarFieldContainer[float]
    nll: float
    bins: _containers.RepeatedCompositeFieldContainer[Bin]
    n_eff: float
    nees_interval: _containers.RepeatedScalarFieldContainer[float]
    nees_interval_n_eff: _containers.RepeatedScalarFieldContainer[float]
    calibration_area: float
    ucs: float
    ause: float
    ause_relative: float
    rejection: Rejection
    def __init__(self, k: _Optional[int] = ..., nees_over_k: _Optional[float] = ..., nees_median_ratio: _Optional[float] = ..., qce: _Optional[float] = ..., qce_by_tau: _Optional[_Iterable[float]] = ..., coverage_by_tau: _Optional[_Iterable[float]] = ..., nll: _Optional[float] = ..., bins: _Optional[_Iterable[_Union[Bin, _Mapping]]] = ..., n_eff: _Optional[float] = ..., nees_interval: _Optional[_Iterable[float]] = ..., nees_interval_n_eff: _Optional[_Iterable[float]] = ..., calibration_area: _Optional[float] = ..., ucs: _Optional[float] = ..., ause: _Optional[float] = ..., ause_relative: _Optional[float] = ..., rejection: _Optional[_Union[Rejection, _Mapping]] = ...) -> None: ...

class StageCalibration(_message.Message):
    __slots__ = ("stage", "n", "dimensions", "joint")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    JOINT_FIELD_NUMBER: _ClassVar[int]
    stage: Stage
    n: int
    dimensions: _containers.RepeatedCompositeFieldContainer[DimensionCalibration]
    joint: JointCalibration
    def __init__(self, stage: _Optional[_Union[Stage, str]] = ..., n: _Optional[int] = ..., dimensions: _Optional[_Iterable[_Union[DimensionCalibration, _Mapping]]] = ..., joint: _Optional[_Union[JointCalibration, _Mapping]] = ...) -> None: ...

class SliceCalibration(_message.Message):
    __slots__ = ("slice", "stages")
    SLICE_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    slice: str
    stages: _containers.RepeatedCompositeFieldContainer[StageCalibration]
    def __init__(self, slice: _Optional[str] = ..., stages: _Optional[_Iterable[_Union[StageCalibration, _Mapping]]] = ...) -> None: ...

class ClassCalibration(_message.Message):
    __slots__ = ("slice", "class_names", "n", "accuracy", "ece", "ece2", "mce", "ace", "cece", "uce_entropy", "cuce", "nll", "brier", "sharpness", "overconfidence", "underconfidence", "ause", "ause_entropy", "ccqs", "ucqs", "aleatoric", "epistemic", "stage", "entropy", "confidence_skewness", "entropy_skewness")
    SLICE_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAMES_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    ECE_FIELD_NUMBER: _ClassVar[int]
    ECE2_FIELD_NUMBER: _ClassVar[int]
    MCE_FIELD_NUMBER: _ClassVar[int]
    ACE_FIELD_NUMBER: _ClassVar[int]
    CECE_FIELD_NUMBER: _ClassVar[int]
    UCE_ENTROPY_FIELD_NUMBER: _ClassVar[int]
    CUCE_FIELD_NUMBER: _ClassVar[int]
    NLL_FIELD_NUMBER: _ClassVar[int]
    BRIER_FIELD_NUMBER: _ClassVar[int]
    SHARPNESS_FIELD_NUMBER: _ClassVar[int]
    OVERCONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    UNDERCONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    AUSE_FIELD_NUMBER: _ClassVar[int]
    AUSE_ENTROPY_FIELD_NUMBER: _ClassVar[int]
    CCQS_FIELD_NUMBER: _ClassVar[int]
    UCQS_FIELD_NUMBER: _ClassVar[int]
    ALEATORIC_FIELD_NUMBER: _ClassVar[int]
    EPISTEMIC_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_SKEWNESS_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_SKEWNESS_FIELD_NUMBER: _ClassVar[int]
    slice: str
    class_names: _containers.RepeatedScalarFieldContainer[str]
    n: int
    accuracy: float
    ece: float
    ece2: float
    mce: float
    ace: float
    cece: float
    uce_entropy: float
    cuce: float
    nll: float
    brier: float
    sharpness: float
    overconfidence: float
    underconfidence: float
    ause: float
    ause_entropy: float
    ccqs: float
    ucqs: float
    aleatoric: float
    epistemic: float
    stage: Stage
    entropy: float
    confidence_skewness: float
    entropy_skewness: float
    def __init__(self, slice: _Optional[str] = ..., class_names: _Optional[_Iterable[str]] = ..., n: _Optional[int] = ..., accuracy: _Optional[float] = ..., ece: _Optional[float] = ..., ece2: _Optional[float] = ..., mce: _Optional[float] = ..., ace: _Optional[float] = ..., cece: _Optional[float] = ..., uce_entropy: _Optional[float] = ..., cuce: _Optional[float] = ..., nll: _Optional[float] = ..., brier: _Optional[float] = ..., sharpness: _Optional[float] = ..., overconfidence: _Optional[float] = ..., underconfidence: _Optional[float] = ..., ause: _Optional[float] = ..., ause_entropy: _Optional[float] = ..., ccqs: _Optional[float] = ..., ucqs: _Optional[float] = ..., aleatoric: _Optional[float] = ..., epistemic: _Optional[float] = ..., stage: _Optional[_Union[Stage, str]] = ..., entropy: _Optional[float] = ..., confidence_skewness: _Optional[float] = ..., entropy_skewness: _Optional[float] = ...) -> None: ...

class PredictedCalibration(_message.Message):
    __slots__ = ("slice", "n", "deviation_mean", "deviation_q50", "deviation_q95", "deviation_above_before", "classified", "entropy_mean", "entropy_q50", "entropy_q95", "entropy_above_before", "opinions", "aleatoric", "epistemic")
    SLICE_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    DEVIATION_MEAN_FIELD_NUMBER: _ClassVar[int]
    DEVIATION_Q50_FIELD_NUMBER: _ClassVar[int]
    DEVIATION_Q95_FIELD_NUMBER: _ClassVar[int]
    DEVIATION_ABOVE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    CLASSIFIED_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_MEAN_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_Q50_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_Q95_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_ABOVE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    OPINIONS_FIELD_NUMBER: _ClassVar[int]
    ALEATORIC_FIELD_NUMBER: _ClassVar[int]
    EPISTEMIC_FIELD_NUMBER: _ClassVar[int]
    slice: str
    n: int
    deviation_mean: float
    deviation_q50: float
    deviation_q95: float
    deviation_above_before: float
    classified: int
    entropy_mean: float
    entropy_q50: float
    entropy_q95: float
    entropy_above_before: float
    opinions: int
    aleatoric: float
    epistemic: float
    def __init__(self, slice: _Optional[str] = ..., n: _Optional[int] = ..., deviation_mean: _Optional[float] = ..., deviation_q50: _Optional[float] = ..., deviation_q95: _Optional[float] = ..., deviation_above_before: _Optional[float] = ..., classified: _Optional[int] = ..., entropy_mean: _Optional[float] = ..., entropy_q50: _Optional[float] = ..., entropy_q95: _Optional[float] = ..., entropy_above_before: _Optional[float] = ..., opinions: _Optional[int] = ..., aleatoric: _Optional[float] = ..., epistemic: _Optional[float] = ...) -> None: ...

class ServiceCounts(_message.Message):
    __slots__ = ("frames", "detections", "recalibrated", "passed_through", "refused", "matched", "pending", "dropped")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    DETECTIONS_FIELD_NUMBER: _ClassVar[int]
    RECALIBRATED_FIELD_NUMBER: _ClassVar[int]
    PASSED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    MATCHED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    frames: int
    detections: int
    recalibrated: int
    passed_through: int
    refused: int
    matched: int
    pending: int
    dropped: int
    def __init__(self, frames: _Optional[int] = ..., detections: _Optional[int] = ..., recalibrated: _Optional[int] = ..., passed_through: _Optional[int] = ..., refused: _Optional[int] = ..., matched: _Optional[int] = ..., pending: _Optional[int] = ..., dropped: _Optional[int] = ...) -> None: ...
