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

class TruthObject(_message.Message):
    __slots__ = ("object_id", "class_index", "ground_truth", "covariance", "ignore", "stamp_ns")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    CLASS_INDEX_FIELD_NUMBER: _ClassVar[int]
    GROUND_TRUTH_FIELD_NUMBER: _ClassVar[int]
    COVARIANCE_FIELD_NUMBER: _ClassVar[int]
    IGNORE_FIELD_NUMBER: _ClassVar[int]
    STAMP_NS_FIELD_NUMBER: _ClassVar[int]
    object_id: int
    class_index: int
    ground_truth: _containers.RepeatedScalarFieldContainer[float]
    covariance: _containers.RepeatedScalarFieldContainer[float]
    ignore: bool
    stamp_ns: int
    def __init__(self, object_id: _Optional[int] = ..., class_index: _Optional[int] = ..., ground_truth: _Optional[_Iterable[float]] = ..., covariance: _Optional[_Iterable[float]] = ..., ignore: bool = ..., stamp_ns: _Optional[int] = ...) -> None: ...

class IgnoreRegion(_message.Message):
    __slots__ = ("class_index", "dimensions", "lower", "upper")
    CLASS_INDEX_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    LOWER_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    class_index: int
    dimensions: _containers.RepeatedScalarFieldContainer[str]
    lower: _containers.RepeatedScalarFieldContainer[float]
    upper: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, class_index: _Optional[int] = ..., dimensions: _Optional[_Iterable[str]] = ..., lower: _Optional[_Iterable[float]] = ..., upper: _Optional[_Iterable[float]] = ...) -> None: ...

class FrameTruth(_message.Message):
    __slots__ = ("stream", "frame_id", "complete", "revision", "coordinate_frame", "class_names", "objects", "ignore_regions", "stamp_ns", "detections")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FRAME_ID_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    COORDINATE_FRAME_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAMES_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_REGIONS_FIELD_NUMBER: _ClassVar[int]
    STAMP_NS_FIELD_NUMBER: _ClassVar[int]
    DETECTIONS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    frame_id: int
    complete: bool
    revision: int
    coordinate_frame: str
    class_names: _containers.RepeatedScalarFieldContainer[str]
    objects: _containers.RepeatedCompositeFieldContainer[TruthObject]
    ignore_regions: _containers.RepeatedCompositeFieldContainer[IgnoreRegion]
    stamp_ns: int
    detections: _containers.RepeatedCompositeFieldContainer[DetectionTruth]
    def __init__(self, stream: _Optional[str] = ..., frame_id: _Optional[int] = ..., complete: bool = ..., revision: _Optional[int] = ..., coordinate_frame: _Optional[str] = ..., class_names: _Optional[_Iterable[str]] = ..., objects: _Optional[_Iterable[_Union[TruthObject, _Mapping]]] = ..., ignore_regions: _Optional[_Iterable[_Union[IgnoreRegion, _Mapping]]] = ..., stamp_ns: _Optional[int] = ..., detections: _Optional[_Iterable[_Union[DetectionTruth, _Mapping]]] = ...) -> None: ...

class TruthAccount(_message.Message):
    __slots__ = ("matched", "unusable", "orphan", "duplicate", "too_late", "ignored", "refused", "missed", "unassigned")
    MATCHED_FIELD_NUMBER: _ClassVar[int]
    UNUSABLE_FIELD_NUMBER: _ClassVar[int]
    ORPHAN_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    TOO_LATE_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    UNASSIGNED_FIELD_NUMBER: _ClassVar[int]
    matched: int
    unusable: int
    orphan: int
    duplicate: int
    too_late: int
    ignored: int
    refused: int
    missed: int
    unassigned: int
    def __init__(self, matched: _Optional[int] = ..., unusable: _Optional[int] = ..., orphan: _Optional[int] = ..., duplicate: _Optional[int] = ..., too_late: _Optional[int] = ..., ignored: _Optional[int] = ..., refused: _Optional[int] = ..., missed: _Optional[int] = ..., unassigned: _Optional[int] = ...) -> None: ...
