from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DetectionTruth(_message.Message):
    __slots__ = ("detection_id", "ground_truth", "ignore", "class_index", "object_id")
    DETECTION_ID_FIELD_NUMBER: _ClassVar[int]
    GROUND_TRUTH_FIELD_NUMBER: _ClassVar[int]
    IGNORE_FIELD_NUMBER: _ClassVar[int]
    CLASS_INDEX_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    detection_id: int
    ground_truth: _containers.RepeatedScalarFieldContainer[float]
    ignore: bool
    class_index: int
    object_id: int
    def __init__(self, detection_id: _Optional[int] = ..., ground_truth: _Optional[_Iterable[float]] = ..., ignore: bool = ..., class_index: _Optional[int] = ..., object_id: _Optional[int] = ...) -> None: ...

class FrameTruth(_message.Message):
    __slots__ = ("stream", "frame_id", "complete", "detections")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FRAME_ID_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    DETECTIONS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    frame_id: int
    complete: bool
    detections: _containers.RepeatedCompositeFieldContainer[DetectionTruth]
    def __init__(self, stream: _Optional[str] = ..., frame_id: _Optional[int] = ..., complete: bool = ..., detections: _Optional[_Iterable[_Union[DetectionTruth, _Mapping]]] = ...) -> None: ...

class TruthAccount(_message.Message):
    __slots__ = ("matched", "unusable", "orphan", "duplicate", "too_late", "ignored", "refused")
    MATCHED_FIELD_NUMBER: _ClassVar[int]
    UNUSABLE_FIELD_NUMBER: _ClassVar[int]
    ORPHAN_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    TOO_LATE_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    matched: int
    unusable: int
    orphan: int
    duplicate: int
    too_late: int
    ignored: int
    refused: int
    def __init__(self, matched: _Optional[int] = ..., unusable: _Optional[int] = ..., orphan: _Optional[int] = ..., duplicate: _Optional[int] = ..., too_late: _Optional[int] = ..., ignored: _Optional[int] = ..., refused: _Optional[int] = ...) -> None: ...
