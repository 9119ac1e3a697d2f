from monitor.v1 import frame_pb2 as _frame_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KeptSlice(_message.Message):
    __slots__ = ("name", "overflow", "assumed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OVERFLOW_FIELD_NUMBER: _ClassVar[int]
    ASSUMED_FIELD_NUMBER: _ClassVar[int]
    name: str
    overflow: bool
    assumed: bool
    def __init__(self, name: _Optional[str] = ..., overflow: bool = ..., assumed: bool = ...) -> None: ...

class KeptTracks(_message.Message):
    __slots__ = ("id", "known")
    ID_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    known: bytes
    def __init__(self, id: _Optional[bytes] = ..., known: _Optional[bytes] = ...) -> None: ...

class KeptEstimates(_message.Message):
    __slots__ = ("mean", "packed", "diagonal", "score")
    MEAN_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
    DIAGONAL_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    mean: bytes
    packed: bytes
    diagonal: bytes
    score: bytes
    def __init__(self, mean: _Optional[bytes] = ..., packed: _Optional[bytes] = ..., diagonal: _Optional[bytes] = ..., score: _Optional[bytes] = ...) -> None: ...

class KeptOpinions(_message.Message):
    __slots__ = ("slice", "rows", "values", "opinions", "made")
    SLICE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    OPINIONS_FIELD_NUMBER: _ClassVar[int]
    MADE_FIELD_NUMBER: _ClassVar[int]
    slice: KeptSlice
    rows: bytes
    values: bytes
    opinions: int
    made: bytes
    def __init__(self, slice: _Optional[_Union[KeptSlice, _Mapping]] = ..., rows: _Optional[bytes] = ..., values: _Optional[bytes] = ..., opinions: _Optional[int] = ..., made: _Optional[bytes] = ...) -> None: ...

class KeptFrame(_message.Message):
    __slots__ = ("header", "frame_id", "stamp_ns", "received", "id", "class_index", "slices", "slice", "sent", "made", "version", "unusable", "tracks", "source", "opinions", "inline", "epoch", "bare")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FRAME_ID_FIELD_NUMBER: _ClassVar[int]
    STAMP_NS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    CLASS_INDEX_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    SLICE_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    MADE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UNUSABLE_FIELD_NUMBER: _ClassVar[int]
    TRACKS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    OPINIONS_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BARE_FIELD_NUMBER: _ClassVar[int]
    header: _frame_pb2.StreamHeader
    frame_id: int
    stamp_ns: int
    received: int
    id: bytes
    class_index: bytes
    slices: _containers.RepeatedCompositeFieldContainer[KeptSlice]
    slice: bytes
    sent: KeptEstimates
    made: KeptEstimates
    version: str
    unusable: bytes
    tracks: KeptTracks
    source: int
    opinions: KeptOpinions
    inline: KeptLabels
    epoch: int
    bare: int
    def __init__(self, header: _Optional[_Union[_frame_pb2.StreamHeader, _Mapping]] = ..., frame_id: _Optional[int] = ..., stamp_ns: _Optional[int] = ..., received: _Optional[int] = ..., id: _Optional[bytes] = ..., class_index: _Optional[bytes] = ..., slices: _Optional[_Iterable[_Union[KeptSlice, _Mapping]]] = ..., slice: _Optional[bytes] = ..., sent: _Optional[_Union[KeptEstimates, _Mapping]] = ..., made: _Optional[_Union[KeptEstimates, _Mapping]] = ..., version: _Optional[str] = ..., unusable: _Optional[bytes] = ..., tracks: _Optional[_Union[KeptTracks, _Mapping]] = ..., source: _Optional[int] = ..., opinions: _Optional[_Union[KeptOpinions, _Mapping]] = ..., inline: _Optional[_Union[KeptLabels, _Mapping]] = ..., epoch: _Optional[int] = ..., bare: _Optional[int] = ...) -> None: ...

class KeptLabels(_message.Message):
    __slots__ = ("revision", "replaces", "settled", "outcome", "rows", "truth", "truth_covariance", "objects", "class_rows", "true_class", "counted_stamp_ns", "clock_ns", "generation", "delay_ns", "live", "account", "objects_told", "gate")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TRUTH_FIELD_NUMBER: _ClassVar[int]
    TRUTH_COVARIANCE_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    CLASS_ROWS_FIELD_NUMBER: _ClassVar[int]
    TRUE_CLASS_FIELD_NUMBER: _ClassVar[int]
    COUNTED_STAMP_NS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_NS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DELAY_NS_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_TOLD_FIELD_NUMBER: _ClassVar[int]
    GATE_FIELD_NUMBER: _ClassVar[int]
    revision: int
    replaces: bool
    settled: bytes
    outcome: bytes
    rows: bytes
    truth: bytes
    truth_covariance: bytes
    objects: KeptTracks
    class_rows: bytes
    true_class: bytes
    counted_stamp_ns: int
    clock_ns: int
    generation: int
    delay_ns: int
    live: bool
    account: _containers.RepeatedScalarFieldContainer[int]
    objects_told: bool
    gate: bytes
    def __init__(self, revision: _Optional[int] = ..., replaces: bool = ..., settled: _Optional[bytes] = ..., outcome: _Optional[bytes] = ..., rows: _Optional[bytes] = ..., truth: _Optional[bytes] = ..., truth_covariance: _Optional[bytes] = ..., objects: _Optional[_Union[KeptTracks, _Mapping]] = ..., class_rows: _Optional[bytes] = ..., true_class: _Optional[bytes] = ..., counted_stamp_ns: _Optional[int] = ..., clock_ns: _Optional[int] = ..., generation: _Optional[int] = ..., delay_ns: _Optional[int] = ..., live: bool = ..., account: _Optional[_Iterable[int]] = ..., objects_told: bool = ..., gate: _Optional[bytes] = ...) -> None: ...

class KeptProgress(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...
