from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DimensionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIMENSION_KIND_UNSPECIFIED: _ClassVar[DimensionKind]
    DIMENSION_KIND_LENGTH: _ClassVar[DimensionKind]
    DIMENSION_KIND_ANGLE: _ClassVar[DimensionKind]
    DIMENSION_KIND_ANGLE_MODULO_PI: _ClassVar[DimensionKind]

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATUS_UNSPECIFIED: _ClassVar[Status]
    STATUS_RECALIBRATED: _ClassVar[Status]
    STATUS_PASSED_THROUGH: _ClassVar[Status]
    STATUS_REFUSED: _ClassVar[Status]

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_UNSPECIFIED: _ClassVar[Reason]
    REASON_NONE: _ClassVar[Reason]
    REASON_MISSING_COVARIANCE: _ClassVar[Reason]
    REASON_OBSERVE_MODE: _ClassVar[Reason]
    REASON_RECALIBRATOR_MISMATCH: _ClassVar[Reason]
    REASON_RECALIBRATOR_FAILED: _ClassVar[Reason]
    REASON_INTERNAL: _ClassVar[Reason]
    REASON_UNKNOWN_CLASS: _ClassVar[Reason]
    REASON_MEAN_LENGTH: _ClassVar[Reason]
    REASON_MEAN_VALUE: _ClassVar[Reason]
    REASON_COVARIANCE_LENGTH: _ClassVar[Reason]
    REASON_COVARIANCE_NOT_FINITE: _ClassVar[Reason]
    REASON_COVARIANCE_ASYMMETRIC: _ClassVar[Reason]
    REASON_COVARIANCE_NOT_POSITIVE_DEFINITE: _ClassVar[Reason]
    REASON_COVARIANCE_SCALE: _ClassVar[Reason]
    REASON_MISSING_ID: _ClassVar[Reason]
    REASON_DUPLICATE_ID: _ClassVar[Reason]
    REASON_GROUND_TRUTH_INVALID: _ClassVar[Reason]
    REASON_MALFORMED: _ClassVar[Reason]
    REASON_TOO_LARGE: _ClassVar[Reason]
    REASON_TOO_MANY_DETECTIONS: _ClassVar[Reason]
    REASON_NO_HEADER: _ClassVar[Reason]
    REASON_INVALID_HEADER: _ClassVar[Reason]
    REASON_MISSING_FRAME_KEY: _ClassVar[Reason]
    REASON_DUPLICATE_FRAME: _ClassVar[Reason]
    REASON_EGO_MOTION_INVALID: _ClassVar[Reason]
    REASON_MISSING_STAMP: _ClassVar[Reason]
    REASON_NOT_TRACKED: _ClassVar[Reason]
    REASON_CLASS_PROBABILITIES_INVALID: _ClassVar[Reason]
    REASON_STALE: _ClassVar[Reason]
    REASON_OVERLOAD: _ClassVar[Reason]
    REASON_COORDINATE_FRAME: _ClassVar[Reason]
    REASON_TRUTH_STAMP: _ClassVar[Reason]
    REASON_COVARIANCE_ESTIMATED: _ClassVar[Reason]

class Output(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTPUT_UNSPECIFIED: _ClassVar[Output]
    OUTPUT_GAUSSIAN: _ClassVar[Output]
    OUTPUT_MOMENTS: _ClassVar[Output]
    OUTPUT_SURROGATE: _ClassVar[Output]
    OUTPUT_ESTIMATED: _ClassVar[Output]

class RejectedBy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REJECTED_BY_UNSPECIFIED: _ClassVar[RejectedBy]
    REJECTED_BY_ENTROPY: _ClassVar[RejectedBy]
    REJECTED_BY_DEVIATION: _ClassVar[RejectedBy]
    REJECTED_BY_BOTH: _ClassVar[RejectedBy]

class TrackStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRACK_STATUS_UNSPECIFIED: _ClassVar[TrackStatus]
    TRACK_STATUS_TENTATIVE: _ClassVar[TrackStatus]
    TRACK_STATUS_CONFIRMED: _ClassVar[TrackStatus]
    TRACK_STATUS_COASTING: _ClassVar[TrackStatus]
DIMENSION_KIND_UNSPECIFIED: DimensionKind
DIMENSION_KIND_LENGTH: DimensionKind
DIMENSION_KIND_ANGLE: DimensionKind
DIMENSION_KIND_ANGLE_MODULO_PI: DimensionKind
STATUS_UNSPECIFIED: Status
STATUS_RECALIBRATED: Status
STATUS_PASSED_THROUGH: Status
STATUS_REFUSED: Status
REASON_UNSPECIFIED: Reason
REASON_NONE: Reason
REASON_MISSING_COVARIANCE: Reason
REASON_OBSERVE_MODE: Reason
REASON_RECALIBRATOR_MISMATCH: Reason
REASON_RECALIBRATOR_FAILED: Reason
REASON_INTERNAL: Reason
REASON_UNKNOWN_CLASS: Reason
REASON_MEAN_LENGTH: Reason
REASON_MEAN_VALUE: Reason
REASON_COVARIANCE_LENGTH: Reason
REASON_COVARIANCE_NOT_FINITE: Reason
REASON_COVARIANCE_ASYMMETRIC: Reason
REASON_COVARIANCE_NOT_POSITIVE_DEFINITE: Reason
REASON_COVARIANCE_SCALE: Reason
REASON_MISSING_ID: Reason
REASON_DUPLICATE_ID: Reason
REASON_GROUND_TRUTH_INVALID: Reason
REASON_MALFORMED: Reason
REASON_TOO_LARGE: Reason
REASON_TOO_MANY_DETECTIONS: Reason
REASON_NO_HEADER: Reason
REASON_INVALID_HEADER: Reason
REASON_MISSING_FRAME_KEY: Reason
REASON_DUPLICATE_FRAME: Reason
REASON_EGO_MOTION_INVALID: Reason
REASON_MISSING_STAMP: Reason
REASON_NOT_TRACKED: Reason
REASON_CLASS_PROBABILITIES_INVALID: Reason
REASON_STALE: Reason
REASON_OVERLOAD: Reason
REASON_COORDINATE_FRAME: Reason
REASON_TRUTH_STAMP: Reason
REASON_COVARIANCE_ESTIMATED: Reason
OUTPUT_UNSPECIFIED: Output
OUTPUT_GAUSSIAN: Output
OUTPUT_MOMENTS: Output
OUTPUT_SURROGATE: Output
OUTPUT_ESTIMATED: Output
REJECTED_BY_UNSPECIFIED: RejectedBy
REJECTED_BY_ENTROPY: RejectedBy
REJECTED_BY_DEVIATION: RejectedBy
REJECTED_BY_BOTH: RejectedBy
TRACK_STATUS_UNSPECIFIED: TrackStatus
TRACK_STATUS_TENTATIVE: TrackStatus
TRACK_STATUS_CONFIRMED: TrackStatus
TRACK_STATUS_COASTING: TrackStatus

class Dimension(_message.Message):
    __slots__ = ("name", "unit", "kind")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    name: str
    unit: str
    kind: DimensionKind
    def __init__(self, name: _Optional[str] = ..., unit: _Optional[str] = ..., kind: _Optional[_Union[DimensionKind, str]] = ...) -> None: ...

class StreamHeader(_message.Message):
    __slots__ = ("stream", "dimensions", "class_names", "coordinate_frame", "return_tracks", "quantile_levels")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAMES_FIELD_NUMBER: _ClassVar[int]
    COORDINATE_FRAME_FIELD_NUMBER: _ClassVar[int]
    RETURN_TRACKS_FIELD_NUMBER: _ClassVar[int]
    QUANTILE_LEVELS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    dimensions: _containers.RepeatedCompositeFieldContainer[Dimension]
    class_names: _containers.RepeatedScalarFieldContainer[str]
    coordinate_frame: str
    return_tracks: bool
    quantile_levels: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, stream: _Optional[str] = ..., dimensions: _Optional[_Iterable[_Union[Dimension, _Mapping]]] = ..., class_names: _Optional[_Iterable[str]] = ..., coordinate_frame: _Optional[str] = ..., return_tracks: bool = ..., quantile_levels: _Optional[_Iterable[float]] = ...) -> None: ...

class Detection(_message.Message):
    __slots__ = ("id", "class_index", "score", "mean", "covariance", "ground_truth", "upstream_track_id", "class_probabilities", "ground_truth_class", "class_logits")
    ID_FIELD_NUMBER: _ClassVar[int]
    CLASS_INDEX_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    COVARIANCE_FIELD_NUMBER: _ClassVar[int]
    GROUND_TRUTH_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_TRACK_ID_FIELD_NUMBER: _ClassVar[int]
    CLASS_PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    GROUND_TRUTH_CLASS_FIELD_NUMBER: _ClassVar[int]
    CLASS_LOGITS_FIELD_NUMBER: _ClassVar[int]
    id: int
    class_index: int
    score: float
    mean: _containers.RepeatedScalarFieldContainer[float]
    covariance: _containers.RepeatedScalarFieldContainer[float]
    ground_truth: _containers.RepeatedScalarFieldContainer[float]
    upstream_track_id: int
    class_probabilities: _containers.RepeatedScalarFieldContainer[float]
    ground_truth_class: int
    class_logits: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, id: _Optional[int] = ..., class_index: _Optional[int] = ..., score: _Optional[float] = ..., mean: _Optional[_Iterable[float]] = ..., covariance: _Optional[_Iterable[float]] = ..., ground_truth: _Optional[_Iterable[float]] = ..., upstream_track_id: _Optional[int] = ..., class_probabilities: _Optional[_Iterable[float]] = ..., ground_truth_class: _Optional[int] = ..., class_logits: _Optional[_Iterable[float]] = ...) -> None: ...

class Pose(_message.Message):
    __slots__ = ("position", "orientation")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ORIENTATION_FIELD_NUMBER: _ClassVar[int]
    position: _containers.RepeatedScalarFieldContainer[float]
    orientation: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, position: _Optional[_Iterable[float]] = ..., orientation: _Optional[_Iterable[float]] = ...) -> None: ...

class Twist(_message.Message):
    __slots__ = ("linear", "angular")
    LINEAR_FIELD_NUMBER: _ClassVar[int]
    ANGULAR_FIELD_NUMBER: _ClassVar[int]
    linear: _containers.RepeatedScalarFieldContainer[float]
    angular: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, linear: _Optional[_Iterable[float]] = ..., angular: _Optional[_Iterable[float]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("frame_id", "stamp_ns", "ego_pose", "ego_twist", "detections")
    FRAME_ID_FIELD_NUMBER: _ClassVar[int]
    STAMP_NS_FIELD_NUMBER: _ClassVar[int]
    EGO_POSE_FIELD_NUMBER: _ClassVar[int]
    EGO_TWIST_FIELD_NUMBER: _ClassVar[int]
    DETECTIONS_FIELD_NUMBER: _ClassVar[int]
    frame_id: int
    stamp_ns: int
    ego_pose: Pose
    ego_twist: Twist
    detections: _containers.RepeatedCompositeFieldContainer[Detection]
    def __init__(self, frame_id: _Optional[int] = ..., stamp_ns: _Optional[int] = ..., ego_pose: _Optional[_Union[Pose, _Mapping]] = ..., ego_twist: _Optional[_Union[Twist, _Mapping]] = ..., detections: _Optional[_Iterable[_Union[Detection, _Mapping]]] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("reason", "count", "first_index", "field", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: Reason
    count: int
    first_index: int
    field: str
    message: str
    def __init__(self, reason: _Optional[_Union[Reason, str]] = ..., count: _Optional[int] = ..., first_index: _Optional[int] = ..., field: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class DetectionResult(_message.Message):
    __slots__ = ("id", "status", "reason", "recalibrator_index", "mean", "covariance", "shadow_mean", "shadow_covariance", "track_id", "output", "quantiles", "class_probabilities", "rejected_by")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RECALIBRATOR_INDEX_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    COVARIANCE_FIELD_NUMBER: _ClassVar[int]
    SHADOW_MEAN_FIELD_NUMBER: _ClassVar[int]
    SHADOW_COVARIANCE_FIELD_NUMBER: _ClassVar[int]
    TRACK_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    QUANTILES_FIELD_NUMBER: _ClassVar[int]
    CLASS_PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    REJECTED_BY_FIELD_NUMBER: _ClassVar[int]
    id: int
    status: Status
    reason: Reason
    recalibrator_index: int
    mean: _containers.RepeatedScalarFieldContainer[float]
    covariance: _containers.RepeatedScalarFieldContainer[float]
    shadow_mean: _containers.RepeatedScalarFieldContainer[float]
    shadow_covariance: _containers.RepeatedScalarFieldContainer[float]
    track_id: int
    output: Output
    quantiles: _containers.RepeatedScalarFieldContainer[float]
    class_probabilities: _containers.RepeatedScalarFieldContainer[float]
    rejected_by: RejectedBy
    def __init__(self, id: _Optional[int] = ..., status: _Optional[_Union[Status, str]] = ..., reason: _Optional[_Union[Reason, str]] = ..., recalibrator_index: _Optional[int] = ..., mean: _Optional[_Iterable[float]] = ..., covariance: _Optional[_Iterable[float]] = ..., shadow_mean: _Optional[_Iterable[float]] = ..., shadow_covariance: _Optional[_Iterable[float]] = ..., track_id: _Optional[int] = ..., output: _Optional[_Union[Output, str]] = ..., quantiles: _Optional[_Iterable[float]] = ..., class_probabilities: _Optional[_Iterable[float]] = ..., rejected_by: _Optional[_Union[RejectedBy, str]] = ...) -> None: ...

class Track(_message.Message):
    __slots__ = ("id", "class_index", "status", "detections", "detection_id", "nis", "state", "covariance")
    ID_FIELD_NUMBER: _ClassVar[int]
    CLASS_INDEX_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETECTIONS_FIELD_NUMBER: _ClassVar[int]
    DETECTION_ID_FIELD_NUMBER: _ClassVar[int]
    NIS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    COVARIANCE_FIELD_NUMBER: _ClassVar[int]
    id: int
    class_index: int
    status: TrackStatus
    detections: int
    detection_id: int
    nis: float
    state: _containers.RepeatedScalarFieldContainer[float]
    covariance: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, id: _Optional[int] = ..., class_index: _Optional[int] = ..., status: _Optional[_Union[TrackStatus, str]] = ..., detections: _Optional[int] = ..., detection_id: _Optional[int] = ..., nis: _Optional[float] = ..., state: _Optional[_Iterable[float]] = ..., covariance: _Optional[_Iterable[float]] = ...) -> None: ...

class FrameResult(_message.Message):
    __slots__ = ("frame_id", "stamp_ns", "message_index", "status", "reason", "recalibrator_versions", "notices", "tracks", "class_recalibrator_version", "detections")
    FRAME_ID_FIELD_NUMBER: _ClassVar[int]
    STAMP_NS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RECALIBRATOR_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    TRACKS_FIELD_NUMBER: _ClassVar[int]
    CLASS_RECALIBRATOR_VERSION_FIELD_NUMBER: _ClassVar[int]
    DETECTIONS_FIELD_NUMBER: _ClassVar[int]
    frame_id: int
    stamp_ns: int
    message_index: int
    status: Status
    reason: Reason
    recalibrator_versions: _containers.RepeatedScalarFieldContainer[str]
    notices: _containers.RepeatedCompositeFieldContainer[Notice]
    tracks: _containers.RepeatedCompositeFieldContainer[Track]
    class_recalibrator_version: str
    detections: _containers.RepeatedCompositeFieldContainer[DetectionResult]
    def __init__(self, frame_id: _Optional[int] = ..., stamp_ns: _Optional[int] = ..., message_index: _Optional[int] = ..., status: _Optional[_Union[Status, str]] = ..., reason: _Optional[_Union[Reason, str]] = ..., recalibrator_versions: _Optional[_Iterable[str]] = ..., notices: _Optional[_Iterable[_Union[Notice, _Mapping]]] = ..., tracks: _Optional[_Iterable[_Union[Track, _Mapping]]] = ..., class_recalibrator_version: _Optional[str] = ..., detections: _Optional[_Iterable[_Union[DetectionResult, _Mapping]]] = ...) -> None: ...
