from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Happened(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HAPPENED_UNSPECIFIED: _ClassVar[Happened]
    HAPPENED_FIT_FAILED: _ClassVar[Happened]
    HAPPENED_BEGAN: _ClassVar[Happened]
    HAPPENED_PROVEN: _ClassVar[Happened]
    HAPPENED_DISCARDED: _ClassVar[Happened]
    HAPPENED_PROMOTED: _ClassVar[Happened]
    HAPPENED_ROLLED_BACK: _ClassVar[Happened]
    HAPPENED_ADAPTED: _ClassVar[Happened]
    HAPPENED_HELD: _ClassVar[Happened]
    HAPPENED_PINNED: _ClassVar[Happened]
    HAPPENED_UNPINNED: _ClassVar[Happened]
HAPPENED_UNSPECIFIED: Happened
HAPPENED_FIT_FAILED: Happened
HAPPENED_BEGAN: Happened
HAPPENED_PROVEN: Happened
HAPPENED_DISCARDED: Happened
HAPPENED_PROMOTED: Happened
HAPPENED_ROLLED_BACK: Happened
HAPPENED_ADAPTED: Happened
HAPPENED_HELD: Happened
HAPPENED_PINNED: Happened
HAPPENED_UNPINNED: Happened

class Evidence(_message.Message):
    __slots__ = ("tracks", "gain", "log10_better", "log10_worse", "log10_threshold")
    TRACKS_FIELD_NUMBER: _ClassVar[int]
    GAIN_FIELD_NUMBER: _ClassVar[int]
    LOG10_BETTER_FIELD_NUMBER: _ClassVar[int]
    LOG10_WORSE_FIELD_NUMBER: _ClassVar[int]
    LOG10_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    tracks: int
    gain: float
    log10_better: float
    log10_worse: float
    log10_threshold: float
    def __init__(self, tracks: _Optional[int] = ..., gain: _Optional[float] = ..., log10_better: _Optional[float] = ..., log10_worse: _Optional[float] = ..., log10_threshold: _Optional[float] = ...) -> None: ...

class VarianceFactor(_message.Message):
    __slots__ = ("dimension", "lowest", "typical", "highest")
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    LOWEST_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_FIELD_NUMBER: _ClassVar[int]
    dimension: str
    lowest: float
    typical: float
    highest: float
    def __init__(self, dimension: _Optional[str] = ..., lowest: _Optional[float] = ..., typical: _Optional[float] = ..., highest: _Optional[float] = ...) -> None: ...

class RecalibrationRecord(_message.Message):
    __slots__ = ("sequence", "time", "what", "slice", "version", "before", "after", "actor", "reason", "event_ns", "evidence", "factors")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    SLICE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EVENT_NS_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    FACTORS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    time: _timestamp_pb2.Timestamp
    what: Happened
    slice: str
    version: str
    before: str
    after: str
    actor: str
    reason: str
    event_ns: int
    evidence: Evidence
    factors: _containers.RepeatedCompositeFieldContainer[VarianceFactor]
    def __init__(self, sequence: _Optional[int] = ..., time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., what: _Optional[_Union[Happened, str]] = ..., slice: _Optional[str] = ..., version: _Optional[str] = ..., before: _Optional[str] = ..., after: _Optional[str] = ..., actor: _Optional[str] = ..., reason: _Optional[str] = ..., event_ns: _Optional[int] = ..., evidence: _Optional[_Union[Evidence, _Mapping]] = ..., factors: _Optional[_Iterable[_Union[VarianceFactor, _Mapping]]] = ...) -> None: ...
