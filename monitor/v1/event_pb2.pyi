from google.protobuf import timestamp_pb2 as _timestamp_pb2
from monitor.v1 import drift_pb2 as _drift_pb2
from monitor.v1 import recalibration_record_pb2 as _recalibration_record_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HealthEvent(_message.Message):
    __slots__ = ("serving", "message")
    SERVING_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    serving: bool
    message: str
    def __init__(self, serving: bool = ..., message: _Optional[str] = ...) -> None: ...

class VersionEvent(_message.Message):
    __slots__ = ("before", "after", "actor", "record")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    before: str
    after: str
    actor: str
    record: _recalibration_record_pb2.RecalibrationRecord
    def __init__(self, before: _Optional[str] = ..., after: _Optional[str] = ..., actor: _Optional[str] = ..., record: _Optional[_Union[_recalibration_record_pb2.RecalibrationRecord, _Mapping]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("sequence", "time", "health", "version", "recalibration", "drift")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RECALIBRATION_FIELD_NUMBER: _ClassVar[int]
    DRIFT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    time: _timestamp_pb2.Timestamp
    health: HealthEvent
    version: VersionEvent
    recalibration: _recalibration_record_pb2.RecalibrationRecord
    drift: _drift_pb2.DriftEvent
    def __init__(self, sequence: _Optional[int] = ..., time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., health: _Optional[_Union[HealthEvent, _Mapping]] = ..., version: _Optional[_Union[VersionEvent, _Mapping]] = ..., recalibration: _Optional[_Union[_recalibration_record_pb2.RecalibrationRecord, _Mapping]] = ..., drift: _Optional[_Union[_drift_pb2.DriftEvent, _Mapping]] = ...) -> None: ...
