from monitor.v1 import frame_pb2 as _frame_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UpdateRequest(_message.Message):
    __slots__ = ("stream", "deadline_ns", "sequence", "header", "frame")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_NS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    stream: str
    deadline_ns: int
    sequence: int
    header: _frame_pb2.StreamHeader
    frame: _frame_pb2.Frame
    def __init__(self, stream: _Optional[str] = ..., deadline_ns: _Optional[int] = ..., sequence: _Optional[int] = ..., header: _Optional[_Union[_frame_pb2.StreamHeader, _Mapping]] = ..., frame: _Optional[_Union[_frame_pb2.Frame, _Mapping]] = ...) -> None: ...

class UpdateResponse(_message.Message):
    __slots__ = ("sequence", "tracks")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TRACKS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    tracks: _containers.RepeatedCompositeFieldContainer[_frame_pb2.Track]
    def __init__(self, sequence: _Optional[int] = ..., tracks: _Optional[_Iterable[_Union[_frame_pb2.Track, _Mapping]]] = ...) -> None: ...
