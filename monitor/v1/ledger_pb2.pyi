from monitor.v1 import frame_pb2 as _frame_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KeptSlice(_message.Message):
    __slots__ = ("name", "overflow")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OVERFLOW_FIELD_NUMBER: _ClassVar[int]
    name: str
    overflow: bool
    def __init__(self, name: _Optional[str] = ..., overflow: bool = ...) -> None: ...

class KeptTracks(_message.Message):
    __slots__ = ("id", "known")
    ID_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    known: bytes
    def __init__(self, id: _Optional[bytes] = ..., known: _Optional[bytes] = ...) -> None: ...

class KeptEstimates(_message.Message):
    __slots__ = ("mean", "packed", "diagonal")
    MEAN_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
    DIAGONAL_FIELD_NUMBER: _ClassVar[int]
    mean: bytes
    packed: bytes
    diagonal: bytes
    def __init__(self, mean: _Optional[bytes] = ..., packed: _Optional[bytes] = ..., diagonal: _Optional[bytes] = ...) -> None: ...

class KeptOpinions(_message.Message):
    __slots__ = ("slice", "rows", "values", "opinions")
    SLICE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    OPINIONS_FIELD_NUMBER: _ClassVar[int]
    slice: KeptSlice
    rows: bytes
    values: bytes
    opinions: int
    def __init__(self, slice: _Optional[_Union[KeptSlice, _Mapping]] = ..., rows: _Optional[bytes] = ..., values: _Optional[bytes] = ..., opinions: _Optional[int] = ...) -> None: ...

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

class KeptClusters(_message.Message):
    __slots__ = ("dimensions", "angles_in_joint", "axes", "counted", "id", "last", "rows", "sums")
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    ANGLES_IN_JOINT_FIELD_NUMBER: _ClassVar[int]
    AXES_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    dimensions: _containers.RepeatedCompositeFieldContainer[_frame_pb2.Dimension]
    angles_in_joint: bool
    axes: int
    counted: int
    id: bytes
    last: bytes
    rows: bytes
    sums: bytes
    def __init__(self, dimensions: _Optional[_Iterable[_Union[_frame_pb2.Dimension, _Mapping]]] = ..., angles_in_joint: bool = ..., axes: _Optional[int] = ..., counted: _Optional[int] = ..., id: _Optional[bytes] = ..., last: _Optional[bytes] = ..., rows: _Optional[bytes] = ..., sums: _Optional[bytes] = ...) -> None: ...

class KeptStream(_message.Message):
    __slots__ = ("header", "number", "watermark_ns", "latest_ns")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_NS_FIELD_NUMBER: _ClassVar[int]
    LATEST_NS_FIELD_NUMBER: _ClassVar[int]
    header: _frame_pb2.StreamHeader
    number: int
    watermark_ns: int
    latest_ns: int
    def __init__(self, header: _Optional[_Union[_frame_pb2.StreamHeader, _Mapping]] = ..., number: _Optional[int] = ..., watermark_ns: _Optional[int] = ..., latest_ns: _Optional[int] = ...) -> None: ...

class KeptShare(_message.Message):
    __slots__ = ("slice", "dimensions", "angles_in_joint", "predicted", "labelled", "gated", "near_gate")
    SLICE_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    ANGLES_IN_JOINT_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    LABELLED_FIELD_NUMBER: _ClassVar[int]
    GATED_FIELD_NUMBER: _ClassVar[int]
    NEAR_GATE_FIELD_NUMBER: _ClassVar[int]
    slice: KeptSlice
    dimensions: _containers.RepeatedCompositeFieldContainer[_frame_pb2.Dimension]
    angles_in_joint: bool
    predicted: int
    labelled: int
    gated: int
    near_gate: int
    def __init__(self, slice: _Optional[_Union[KeptSlice, _Mapping]] = ..., dimensions: _Optional[_Iterable[_Union[_frame_pb2.Dimension, _Mapping]]] = ..., angles_in_joint: bool = ..., predicted: _Optional[int] = ..., labelled: _Optional[int] = ..., gated: _Optional[int] = ..., near_gate: _Optional[int] = ...) -> None: ...

class KeptProgress(_message.Message):
    __slots__ = ("sequence", "now_ns", "votes", "other_ns", "jumps", "generation", "clusters", "streams", "numbered", "detections", "labels", "shares", "epoch", "waiting")
    class DetectionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NOW_NS_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    OTHER_NS_FIELD_NUMBER: _ClassVar[int]
    JUMPS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CLUSTERS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    NUMBERED_FIELD_NUMBER: _ClassVar[int]
    DETECTIONS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    now_ns: int
    votes: int
    other_ns: int
    jumps: int
    generation: int
    clusters: _containers.RepeatedCompositeFieldContainer[KeptClusters]
    streams: _containers.RepeatedCompositeFieldContainer[KeptStream]
    numbered: int
    detections: _containers.ScalarMap[str, int]
    labels: _containers.ScalarMap[str, int]
    shares: _containers.RepeatedCompositeFieldContainer[KeptShare]
    epoch: int
    waiting: int
    def __init__(self, sequence: _Optional[int] = ..., now_ns: _Optional[int] = ..., votes: _Optional[int] = ..., other_ns: _Optional[int] = ..., jumps: _Optional[int] = ..., generation: _Optional[int] = ..., clusters: _Optional[_Iterable[_Union[KeptClusters, _Mapping]]] = ..., streams: _Optional[_Iterable[_Union[KeptStream, _Mapping]]] = ..., numbered: _Optional[int] = ..., detections: _Optional[_Mapping[str, int]] = ..., labels: _Optional[_Mapping[str, int]] = ..., shares: _Optional[_Iterable[_Union[KeptShare, _Mapping]]] = ..., epoch: _Optional[int] = ..., waiting: _Optional[int] = ...) -> None: ...
