from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("version", "started_ns", "now_ns", "streams", "tracker", "configuration", "waiting_keys", "configuration_refused")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_NS_FIELD_NUMBER: _ClassVar[int]
    NOW_NS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    TRACKER_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    WAITING_KEYS_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_REFUSED_FIELD_NUMBER: _ClassVar[int]
    version: str
    started_ns: int
    now_ns: int
    streams: _containers.RepeatedCompositeFieldContainer[StreamStatus]
    tracker: TrackerStatus
    configuration: str
    waiting_keys: _containers.RepeatedScalarFieldContainer[str]
    configuration_refused: str
    def __init__(self, version: _Optional[str] = ..., started_ns: _Optional[int] = ..., now_ns: _Optional[int] = ..., streams: _Optional[_Iterable[_Union[StreamStatus, _Mapping]]] = ..., tracker: _Optional[_Union[TrackerStatus, _Mapping]] = ..., configuration: _Optional[str] = ..., waiting_keys: _Optional[_Iterable[str]] = ..., configuration_refused: _Optional[str] = ...) -> None: ...

class StreamStatus(_message.Message):
    __slots__ = ("stream", "frames", "detections", "stamp_ns", "stamped_received_ns", "received_ns", "matched", "matched_received_ns")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    DETECTIONS_FIELD_NUMBER: _ClassVar[int]
    STAMP_NS_FIELD_NUMBER: _ClassVar[int]
    STAMPED_RECEIVED_NS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_NS_FIELD_NUMBER: _ClassVar[int]
    MATCHED_FIELD_NUMBER: _ClassVar[int]
    MATCHED_RECEIVED_NS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    frames: int
    detections: int
    stamp_ns: int
    stamped_received_ns: int
    received_ns: int
    matched: int
    matched_received_ns: int
    def __init__(self, stream: _Optional[str] = ..., frames: _Optional[int] = ..., detections: _Optional[int] = ..., stamp_ns: _Optional[int] = ..., stamped_received_ns: _Optional[int] = ..., received_ns: _Optional[int] = ..., matched: _Optional[int] = ..., matched_received_ns: _Optional[int] = ...) -> None: ...

class TrackerStatus(_message.Message):
    __slots__ = ("address", "up", "trouble")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    UP_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    address: str
    up: bool
    trouble: str
    def __init__(self, address: _Optional[str] = ..., up: bool = ..., trouble: _Optional[str] = ...) -> None: ...
