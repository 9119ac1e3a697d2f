from monitor.v1 import calibration_pb2 as _calibration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DriftSeverity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRIFT_SEVERITY_UNSPECIFIED: _ClassVar[DriftSeverity]
    DRIFT_SEVERITY_PAGE: _ClassVar[DriftSeverity]
    DRIFT_SEVERITY_TICKET: _ClassVar[DriftSeverity]

class DriftDirection(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRIFT_DIRECTION_UNSPECIFIED: _ClassVar[DriftDirection]
    DRIFT_DIRECTION_OVER: _ClassVar[DriftDirection]
    DRIFT_DIRECTION_UNDER: _ClassVar[DriftDirection]

class DriftDetector(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRIFT_DETECTOR_UNSPECIFIED: _ClassVar[DriftDetector]
    DRIFT_DETECTOR_ABSOLUTE: _ClassVar[DriftDetector]
    DRIFT_DETECTOR_RELATIVE: _ClassVar[DriftDetector]
    DRIFT_DETECTOR_TRACK: _ClassVar[DriftDetector]
    DRIFT_DETECTOR_TAIL: _ClassVar[DriftDetector]
    DRIFT_DETECTOR_DIMENSION: _ClassVar[DriftDetector]
    DRIFT_DETECTOR_BIAS: _ClassVar[DriftDetector]
    DRIFT_DETECTOR_CORRELATION: _ClassVar[DriftDetector]
    DRIFT_DETECTOR_CONFIDENCE: _ClassVar[DriftDetector]
    DRIFT_DETECTOR_SHIPPED: _ClassVar[DriftDetector]

class DriftQuantity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRIFT_QUANTITY_UNSPECIFIED: _ClassVar[DriftQuantity]
    DRIFT_QUANTITY_SCALE: _ClassVar[DriftQuantity]
    DRIFT_QUANTITY_BIAS: _ClassVar[DriftQuantity]
    DRIFT_QUANTITY_CORRELATION: _ClassVar[DriftQuantity]
    DRIFT_QUANTITY_TAIL: _ClassVar[DriftQuantity]
    DRIFT_QUANTITY_CONFIDENCE: _ClassVar[DriftQuantity]

class DriftChange(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRIFT_CHANGE_UNSPECIFIED: _ClassVar[DriftChange]
    DRIFT_CHANGE_RAISED: _ClassVar[DriftChange]
    DRIFT_CHANGE_ACKNOWLEDGED: _ClassVar[DriftChange]
    DRIFT_CHANGE_NEW_EPOCH: _ClassVar[DriftChange]
    DRIFT_CHANGE_CALM: _ClassVar[DriftChange]

class DriftState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRIFT_STATE_UNSPECIFIED: _ClassVar[DriftState]
    DRIFT_STATE_OK: _ClassVar[DriftState]
    DRIFT_STATE_WARNING: _ClassVar[DriftState]
    DRIFT_STATE_ALARM: _ClassVar[DriftState]
    DRIFT_STATE_TOO_FEW: _ClassVar[DriftState]

class DriftOrigin(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRIFT_ORIGIN_UNSPECIFIED: _ClassVar[DriftOrigin]
    DRIFT_ORIGIN_LEARNED: _ClassVar[DriftOrigin]
    DRIFT_ORIGIN_FILE: _ClassVar[DriftOrigin]
    DRIFT_ORIGIN_SHIPPED: _ClassVar[DriftOrigin]

class DriftUnit(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRIFT_UNIT_UNSPECIFIED: _ClassVar[DriftUnit]
    DRIFT_UNIT_TRACK_SECOND: _ClassVar[DriftUnit]
    DRIFT_UNIT_DETECTION: _ClassVar[DriftUnit]
    DRIFT_UNIT_TRACK: _ClassVar[DriftUnit]
    DRIFT_UNIT_FRAME: _ClassVar[DriftUnit]
DRIFT_SEVERITY_UNSPECIFIED: DriftSeverity
DRIFT_SEVERITY_PAGE: DriftSeverity
DRIFT_SEVERITY_TICKET: DriftSeverity
DRIFT_DIRECTION_UNSPECIFIED: DriftDirection
DRIFT_DIRECTION_OVER: DriftDirection
DRIFT_DIRECTION_UNDER: DriftDirection
DRIFT_DETECTOR_UNSPECIFIED: DriftDetector
DRIFT_DETECTOR_ABSOLUTE: DriftDetector
DRIFT_DETECTOR_RELATIVE: DriftDetector
DRIFT_DETECTOR_TRACK: DriftDetector
DRIFT_DETECTOR_TAIL: DriftDetector
DRIFT_DETECTOR_DIMENSION: DriftDetector
DRIFT_DETECTOR_BIAS: DriftDetector
DRIFT_DETECTOR_CORRELATION: DriftDetector
DRIFT_DETECTOR_CONFIDENCE: DriftDetector
DRIFT_DETECTOR_SHIPPED: DriftDetector
DRIFT_QUANTITY_UNSPECIFIED: DriftQuantity
DRIFT_QUANTITY_SCALE: DriftQuantity
DRIFT_QUANTITY_BIAS: DriftQuantity
DRIFT_QUANTITY_CORRELATION: DriftQuantity
DRIFT_QUANTITY_TAIL: DriftQuantity
DRIFT_QUANTITY_CONFIDENCE: DriftQuantity
DRIFT_CHANGE_UNSPECIFIED: DriftChange
DRIFT_CHANGE_RAISED: DriftChange
DRIFT_CHANGE_ACKNOWLEDGED: DriftChange
DRIFT_CHANGE_NEW_EPOCH: DriftChange
DRIFT_CHANGE_CALM: DriftChange
DRIFT_STATE_UNSPECIFIED: DriftState
DRIFT_STATE_OK: DriftState
DRIFT_STATE_WARNING: DriftState
DRIFT_STATE_ALARM: DriftState
DRIFT_STATE_TOO_FEW: DriftState
DRIFT_ORIGIN_UNSPECIFIED: DriftOrigin
DRIFT_ORIGIN_LEARNED: DriftOrigin
DRIFT_ORIGIN_FILE: DriftOrigin
DRIFT_ORIGIN_SHIPPED: DriftOrigin
DRIFT_UNIT_UNSPECIFIED: DriftUnit
DRIFT_UNIT_TRACK_SECOND: DriftUnit
DRIFT_UNIT_DETECTION: DriftUnit
DRIFT_UNIT_TRACK: DriftUnit
DRIFT_UNIT_FRAME: DriftUnit

class DriftScale(_message.Message):
    __slots__ = ("estimate", "lower", "upper")
    ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    LOWER_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    estimate: float
    lower: float
    upper: float
    def __init__(self, estimate: _Optional[float] = ..., lower: _Optional[float] = ..., upper: _Optional[float] = ...) -> None: ...

class DriftAlarm(_message.Message):
    __slots__ = ("slice", "severity", "stage", "detector", "direction", "evidence_hours", "threshold_hours", "event_ns", "since_ns", "detections", "tracks", "labelled", "scale", "epoch", "driven_hours", "dimension", "quantity", "size", "unit")
    SLICE_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    DETECTOR_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_HOURS_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_HOURS_FIELD_NUMBER: _ClassVar[int]
    EVENT_NS_FIELD_NUMBER: _ClassVar[int]
    SINCE_NS_FIELD_NUMBER: _ClassVar[int]
    DETECTIONS_FIELD_NUMBER: _ClassVar[int]
    TRACKS_FIELD_NUMBER: _ClassVar[int]
    LABELLED_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DRIVEN_HOURS_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    QUANTITY_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    slice: str
    severity: DriftSeverity
    stage: _calibration_pb2.Stage
    detector: DriftDetector
    direction: DriftDirection
    evidence_hours: float
    threshold_hours: float
    event_ns: int
    since_ns: int
    detections: int
    tracks: int
    labelled: int
    scale: DriftScale
    epoch: int
    driven_hours: float
    dimension: str
    quantity: DriftQuantity
    size: float
    unit: str
    def __init__(self, slice: _Optional[str] = ..., severity: _Optional[_Union[DriftSeverity, str]] = ..., stage: _Optional[_Union[_calibration_pb2.Stage, str]] = ..., detector: _Optional[_Union[DriftDetector, str]] = ..., direction: _Optional[_Union[DriftDirection, str]] = ..., evidence_hours: _Optional[float] = ..., threshold_hours: _Optional[float] = ..., event_ns: _Optional[int] = ..., since_ns: _Optional[int] = ..., detections: _Optional[int] = ..., tracks: _Optional[int] = ..., labelled: _Optional[int] = ..., scale: _Optional[_Union[DriftScale, _Mapping]] = ..., epoch: _Optional[int] = ..., driven_hours: _Optional[float] = ..., dimension: _Optional[str] = ..., quantity: _Optional[_Union[DriftQuantity, str]] = ..., size: _Optional[float] = ..., unit: _Optional[str] = ...) -> None: ...

class DriftEvent(_message.Message):
    __slots__ = ("change", "alarm", "concerned", "actor")
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    ALARM_FIELD_NUMBER: _ClassVar[int]
    CONCERNED_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    change: DriftChange
    alarm: DriftAlarm
    concerned: _containers.RepeatedScalarFieldContainer[str]
    actor: str
    def __init__(self, change: _Optional[_Union[DriftChange, str]] = ..., alarm: _Optional[_Union[DriftAlarm, _Mapping]] = ..., concerned: _Optional[_Iterable[str]] = ..., actor: _Optional[str] = ...) -> None: ...

class DriftStanding(_message.Message):
    __slots__ = ("slice", "severity", "state", "evidence_hours", "peak_hours", "threshold_hours", "alarm")
    SLICE_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_HOURS_FIELD_NUMBER: _ClassVar[int]
    PEAK_HOURS_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_HOURS_FIELD_NUMBER: _ClassVar[int]
    ALARM_FIELD_NUMBER: _ClassVar[int]
    slice: str
    severity: DriftSeverity
    state: DriftState
    evidence_hours: float
    peak_hours: float
    threshold_hours: float
    alarm: DriftAlarm
    def __init__(self, slice: _Optional[str] = ..., severity: _Optional[_Union[DriftSeverity, str]] = ..., state: _Optional[_Union[DriftState, str]] = ..., evidence_hours: _Optional[float] = ..., peak_hours: _Optional[float] = ..., threshold_hours: _Optional[float] = ..., alarm: _Optional[_Union[DriftAlarm, _Mapping]] = ...) -> None: ...

class DriftStageStanding(_message.Message):
    __slots__ = ("slice", "stage", "scale", "effective_ratio", "reference", "reference_tracks", "reference_detections", "unit")
    SLICE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_RATIO_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_TRACKS_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_DETECTIONS_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    slice: str
    stage: _calibration_pb2.Stage
    scale: DriftScale
    effective_ratio: float
    reference: DriftOrigin
    reference_tracks: int
    reference_detections: int
    unit: DriftUnit
    def __init__(self, slice: _Optional[str] = ..., stage: _Optional[_Union[_calibration_pb2.Stage, str]] = ..., scale: _Optional[_Union[DriftScale, _Mapping]] = ..., effective_ratio: _Optional[float] = ..., reference: _Optional[_Union[DriftOrigin, str]] = ..., reference_tracks: _Optional[int] = ..., reference_detections: _Optional[int] = ..., unit: _Optional[_Union[DriftUnit, str]] = ...) -> None: ...

class DriftLeftOut(_message.Message):
    __slots__ = ("reason", "detections")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETECTIONS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    detections: int
    def __init__(self, reason: _Optional[str] = ..., detections: _Optional[int] = ...) -> None: ...
