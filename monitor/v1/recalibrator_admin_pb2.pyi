from monitor.v1 import recalibration_record_pb2 as _recalibration_record_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RecalibratorKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECALIBRATOR_KIND_UNSPECIFIED: _ClassVar[RecalibratorKind]
    RECALIBRATOR_KIND_ESTIMATES: _ClassVar[RecalibratorKind]
    RECALIBRATOR_KIND_CLASS_PROBABILITIES: _ClassVar[RecalibratorKind]

class TrialState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRIAL_STATE_UNSPECIFIED: _ClassVar[TrialState]
    TRIAL_STATE_RUNNING: _ClassVar[TrialState]
    TRIAL_STATE_PROVEN: _ClassVar[TrialState]
    TRIAL_STATE_GUARD: _ClassVar[TrialState]
RECALIBRATOR_KIND_UNSPECIFIED: RecalibratorKind
RECALIBRATOR_KIND_ESTIMATES: RecalibratorKind
RECALIBRATOR_KIND_CLASS_PROBABILITIES: RecalibratorKind
TRIAL_STATE_UNSPECIFIED: TrialState
TRIAL_STATE_RUNNING: TrialState
TRIAL_STATE_PROVEN: TrialState
TRIAL_STATE_GUARD: TrialState

class RecalibratorSummary(_message.Message):
    __slots__ = ("version", "method", "dimensions", "slices", "promoted", "class_names", "kind")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAMES_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    version: str
    method: str
    dimensions: _containers.RepeatedScalarFieldContainer[str]
    slices: _containers.RepeatedScalarFieldContainer[str]
    promoted: bool
    class_names: _containers.RepeatedScalarFieldContainer[str]
    kind: RecalibratorKind
    def __init__(self, version: _Optional[str] = ..., method: _Optional[str] = ..., dimensions: _Optional[_Iterable[str]] = ..., slices: _Optional[_Iterable[str]] = ..., promoted: bool = ..., class_names: _Optional[_Iterable[str]] = ..., kind: _Optional[_Union[RecalibratorKind, str]] = ...) -> None: ...

class Trial(_message.Message):
    __slots__ = ("slice", "version", "state", "evidence", "factors")
    SLICE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    FACTORS_FIELD_NUMBER: _ClassVar[int]
    slice: str
    version: str
    state: TrialState
    evidence: _recalibration_record_pb2.Evidence
    factors: _containers.RepeatedCompositeFieldContainer[_recalibration_record_pb2.VarianceFactor]
    def __init__(self, slice: _Optional[str] = ..., version: _Optional[str] = ..., state: _Optional[_Union[TrialState, str]] = ..., evidence: _Optional[_Union[_recalibration_record_pb2.Evidence, _Mapping]] = ..., factors: _Optional[_Iterable[_Union[_recalibration_record_pb2.VarianceFactor, _Mapping]]] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: int
    def __init__(self, records: _Optional[int] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("recalibrators", "trials", "records", "pinned", "promotion")
    RECALIBRATORS_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    PROMOTION_FIELD_NUMBER: _ClassVar[int]
    recalibrators: _containers.RepeatedCompositeFieldContainer[RecalibratorSummary]
    trials: _containers.RepeatedCompositeFieldContainer[Trial]
    records: _containers.RepeatedCompositeFieldContainer[_recalibration_record_pb2.RecalibrationRecord]
    pinned: bool
    promotion: str
    def __init__(self, recalibrators: _Optional[_Iterable[_Union[RecalibratorSummary, _Mapping]]] = ..., trials: _Optional[_Iterable[_Union[Trial, _Mapping]]] = ..., records: _Optional[_Iterable[_Union[_recalibration_record_pb2.RecalibrationRecord, _Mapping]]] = ..., pinned: bool = ..., promotion: _Optional[str] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: str
    def __init__(self, version: _Optional[str] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("summary", "document", "records")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    summary: RecalibratorSummary
    document: str
    records: _containers.RepeatedCompositeFieldContainer[_recalibration_record_pb2.RecalibrationRecord]
    def __init__(self, summary: _Optional[_Union[RecalibratorSummary, _Mapping]] = ..., document: _Optional[str] = ..., records: _Optional[_Iterable[_Union[_recalibration_record_pb2.RecalibrationRecord, _Mapping]]] = ...) -> None: ...

class PromoteRequest(_message.Message):
    __slots__ = ("version", "document", "actor")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    version: str
    document: str
    actor: str
    def __init__(self, version: _Optional[str] = ..., document: _Optional[str] = ..., actor: _Optional[str] = ...) -> None: ...

class PromoteResponse(_message.Message):
    __slots__ = ("before", "after")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    before: str
    after: str
    def __init__(self, before: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class FitRequest(_message.Message):
    __slots__ = ("slices", "method", "actor")
    SLICES_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    slices: _containers.RepeatedScalarFieldContainer[str]
    method: str
    actor: str
    def __init__(self, slices: _Optional[_Iterable[str]] = ..., method: _Optional[str] = ..., actor: _Optional[str] = ...) -> None: ...

class SliceFit(_message.Message):
    __slots__ = ("slice", "version", "reason", "tracks", "detections", "factors")
    SLICE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TRACKS_FIELD_NUMBER: _ClassVar[int]
    DETECTIONS_FIELD_NUMBER: _ClassVar[int]
    FACTORS_FIELD_NUMBER: _ClassVar[int]
    slice: str
    version: str
    reason: str
    tracks: int
    detections: int
    factors: _containers.RepeatedCompositeFieldContainer[_recalibration_record_pb2.VarianceFactor]
    def __init__(self, slice: _Optional[str] = ..., version: _Optional[str] = ..., reason: _Optional[str] = ..., tracks: _Optional[int] = ..., detections: _Optional[int] = ..., factors: _Optional[_Iterable[_Union[_recalibration_record_pb2.VarianceFactor, _Mapping]]] = ...) -> None: ...

class FitResponse(_message.Message):
    __slots__ = ("fits",)
    FITS_FIELD_NUMBER: _ClassVar[int]
    fits: _containers.RepeatedCompositeFieldContainer[SliceFit]
    def __init__(self, fits: _Optional[_Iterable[_Union[SliceFit, _Mapping]]] = ...) -> None: ...

class RollbackRequest(_message.Message):
    __slots__ = ("kind", "slice", "actor")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SLICE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    kind: RecalibratorKind
    slice: str
    actor: str
    def __init__(self, kind: _Optional[_Union[RecalibratorKind, str]] = ..., slice: _Optional[str] = ..., actor: _Optional[str] = ...) -> None: ...

class RollbackResponse(_message.Message):
    __slots__ = ("before", "after")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    before: str
    after: str
    def __init__(self, before: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("pinned", "actor")
    PINNED_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    pinned: bool
    actor: str
    def __init__(self, pinned: bool = ..., actor: _Optional[str] = ...) -> None: ...

class PinResponse(_message.Message):
    __slots__ = ("was_pinned",)
    WAS_PINNED_FIELD_NUMBER: _ClassVar[int]
    was_pinned: bool
    def __init__(self, was_pinned: bool = ...) -> None: ...
