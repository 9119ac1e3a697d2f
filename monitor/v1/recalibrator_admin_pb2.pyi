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
RECALIBRATOR_KIND_UNSPECIFIED: RecalibratorKind
RECALIBRATOR_KIND_ESTIMATES: RecalibratorKind
RECALIBRATOR_KIND_CLASS_PROBABILITIES: RecalibratorKind

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

class ListRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("recalibrators",)
    RECALIBRATORS_FIELD_NUMBER: _ClassVar[int]
    recalibrators: _containers.RepeatedCompositeFieldContainer[RecalibratorSummary]
    def __init__(self, recalibrators: _Optional[_Iterable[_Union[RecalibratorSummary, _Mapping]]] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: str
    def __init__(self, version: _Optional[str] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("summary", "document")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    summary: RecalibratorSummary
    document: str
    def __init__(self, summary: _Optional[_Union[RecalibratorSummary, _Mapping]] = ..., document: _Optional[str] = ...) -> None: ...

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
