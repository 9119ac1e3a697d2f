from monitor.v1 import frame_pb2 as _frame_pb2
from monitor.v1 import ledger_pb2 as _ledger_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BinDefinition(_message.Message):
    __slots__ = ("hash", "lowest_deviation", "deviations_per_octave", "deviation_octaves", "lowest_nees", "nees_per_octave", "nees_octaves", "tau", "exponent")
    HASH_FIELD_NUMBER: _ClassVar[int]
    LOWEST_DEVIATION_FIELD_NUMBER: _ClassVar[int]
    DEVIATIONS_PER_OCTAVE_FIELD_NUMBER: _ClassVar[int]
    DEVIATION_OCTAVES_FIELD_NUMBER: _ClassVar[int]
    LOWEST_NEES_FIELD_NUMBER: _ClassVar[int]
    NEES_PER_OCTAVE_FIELD_NUMBER: _ClassVar[int]
    NEES_OCTAVES_FIELD_NUMBER: _ClassVar[int]
    TAU_FIELD_NUMBER: _ClassVar[int]
    EXPONENT_FIELD_NUMBER: _ClassVar[int]
    hash: str
    lowest_deviation: float
    deviations_per_octave: int
    deviation_octaves: int
    lowest_nees: float
    nees_per_octave: int
    nees_octaves: int
    tau: _containers.RepeatedScalarFieldContainer[float]
    exponent: int
    def __init__(self, hash: _Optional[str] = ..., lowest_deviation: _Optional[float] = ..., deviations_per_octave: _Optional[int] = ..., deviation_octaves: _Optional[int] = ..., lowest_nees: _Optional[float] = ..., nees_per_octave: _Optional[int] = ..., nees_octaves: _Optional[int] = ..., tau: _Optional[_Iterable[float]] = ..., exponent: _Optional[int] = ...) -> None: ...

class WindowDefinition(_message.Message):
    __slots__ = ("lengths_ns", "panes")
    LENGTHS_NS_FIELD_NUMBER: _ClassVar[int]
    PANES_FIELD_NUMBER: _ClassVar[int]
    lengths_ns: _containers.RepeatedScalarFieldContainer[int]
    panes: int
    def __init__(self, lengths_ns: _Optional[_Iterable[int]] = ..., panes: _Optional[int] = ...) -> None: ...

class SliceDefinition(_message.Message):
    __slots__ = ("by", "range_edges", "range_dimensions")
    BY_FIELD_NUMBER: _ClassVar[int]
    RANGE_EDGES_FIELD_NUMBER: _ClassVar[int]
    RANGE_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    by: _containers.RepeatedScalarFieldContainer[str]
    range_edges: _containers.RepeatedScalarFieldContainer[float]
    range_dimensions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, by: _Optional[_Iterable[str]] = ..., range_edges: _Optional[_Iterable[float]] = ..., range_dimensions: _Optional[_Iterable[str]] = ...) -> None: ...

class SparseSums(_message.Message):
    __slots__ = ("key_steps", "width", "values", "spill_keys", "spill")
    KEY_STEPS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    SPILL_KEYS_FIELD_NUMBER: _ClassVar[int]
    SPILL_FIELD_NUMBER: _ClassVar[int]
    key_steps: _containers.RepeatedScalarFieldContainer[int]
    width: int
    values: _containers.RepeatedScalarFieldContainer[int]
    spill_keys: _containers.RepeatedScalarFieldContainer[int]
    spill: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, key_steps: _Optional[_Iterable[int]] = ..., width: _Optional[int] = ..., values: _Optional[_Iterable[int]] = ..., spill_keys: _Optional[_Iterable[int]] = ..., spill: _Optional[_Iterable[int]] = ...) -> None: ...

class ExactSums(_message.Message):
    __slots__ = ("low", "high")
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    low: _containers.RepeatedScalarFieldContainer[int]
    high: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, low: _Optional[_Iterable[int]] = ..., high: _Optional[_Iterable[int]] = ...) -> None: ...

class StageState(_message.Message):
    __slots__ = ("n", "cells", "nees", "companions", "squares", "crps")
    N_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    NEES_FIELD_NUMBER: _ClassVar[int]
    COMPANIONS_FIELD_NUMBER: _ClassVar[int]
    SQUARES_FIELD_NUMBER: _ClassVar[int]
    CRPS_FIELD_NUMBER: _ClassVar[int]
    n: int
    cells: SparseSums
    nees: SparseSums
    companions: ExactSums
    squares: SparseSums
    crps: ExactSums
    def __init__(self, n: _Optional[int] = ..., cells: _Optional[_Union[SparseSums, _Mapping]] = ..., nees: _Optional[_Union[SparseSums, _Mapping]] = ..., companions: _Optional[_Union[ExactSums, _Mapping]] = ..., squares: _Optional[_Union[SparseSums, _Mapping]] = ..., crps: _Optional[_Union[ExactSums, _Mapping]] = ...) -> None: ...

class PaneState(_message.Message):
    __slots__ = ("level", "number", "raw", "recalibrated")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    RECALIBRATED_FIELD_NUMBER: _ClassVar[int]
    level: int
    number: int
    raw: StageState
    recalibrated: StageState
    def __init__(self, level: _Optional[int] = ..., number: _Optional[int] = ..., raw: _Optional[_Union[StageState, _Mapping]] = ..., recalibrated: _Optional[_Union[StageState, _Mapping]] = ...) -> None: ...

class SliceState(_message.Message):
    __slots__ = ("name", "overflow", "dimensions", "angles_in_joint", "assumed", "panes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OVERFLOW_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    ANGLES_IN_JOINT_FIELD_NUMBER: _ClassVar[int]
    ASSUMED_FIELD_NUMBER: _ClassVar[int]
    PANES_FIELD_NUMBER: _ClassVar[int]
    name: str
    overflow: bool
    dimensions: _containers.RepeatedCompositeFieldContainer[_frame_pb2.Dimension]
    angles_in_joint: bool
    assumed: bool
    panes: _containers.RepeatedCompositeFieldContainer[PaneState]
    def __init__(self, name: _Optional[str] = ..., overflow: bool = ..., dimensions: _Optional[_Iterable[_Union[_frame_pb2.Dimension, _Mapping]]] = ..., angles_in_joint: bool = ..., assumed: bool = ..., panes: _Optional[_Iterable[_Union[PaneState, _Mapping]]] = ...) -> None: ...

class ClassChange(_message.Message):
    __slots__ = ("tables", "companions", "moments")
    TABLES_FIELD_NUMBER: _ClassVar[int]
    COMPANIONS_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[SparseSums]
    companions: ExactSums
    moments: ExactSums
    def __init__(self, tables: _Optional[_Iterable[_Union[SparseSums, _Mapping]]] = ..., companions: _Optional[_Union[ExactSums, _Mapping]] = ..., moments: _Optional[_Union[ExactSums, _Mapping]] = ...) -> None: ...

class ClassPaneState(_message.Message):
    __slots__ = ("level", "number", "n", "tables", "companions", "change", "moments")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    COMPANIONS_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    level: int
    number: int
    n: int
    tables: _containers.RepeatedCompositeFieldContainer[SparseSums]
    companions: ExactSums
    change: ClassChange
    moments: ExactSums
    def __init__(self, level: _Optional[int] = ..., number: _Optional[int] = ..., n: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[SparseSums, _Mapping]]] = ..., companions: _Optional[_Union[ExactSums, _Mapping]] = ..., change: _Optional[_Union[ClassChange, _Mapping]] = ..., moments: _Optional[_Union[ExactSums, _Mapping]] = ...) -> None: ...

class ClassSliceState(_message.Message):
    __slots__ = ("name", "class_names", "bin_hash", "panes", "overflow")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAMES_FIELD_NUMBER: _ClassVar[int]
    BIN_HASH_FIELD_NUMBER: _ClassVar[int]
    PANES_FIELD_NUMBER: _ClassVar[int]
    OVERFLOW_FIELD_NUMBER: _ClassVar[int]
    name: str
    class_names: _containers.RepeatedScalarFieldContainer[str]
    bin_hash: str
    panes: _containers.RepeatedCompositeFieldContainer[ClassPaneState]
    overflow: bool
    def __init__(self, name: _Optional[str] = ..., class_names: _Optional[_Iterable[str]] = ..., bin_hash: _Optional[str] = ..., panes: _Optional[_Iterable[_Union[ClassPaneState, _Mapping]]] = ..., overflow: bool = ...) -> None: ...

class PredictedPaneState(_message.Message):
    __slots__ = ("level", "number", "n", "deviations", "entropies", "companions")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    DEVIATIONS_FIELD_NUMBER: _ClassVar[int]
    ENTROPIES_FIELD_NUMBER: _ClassVar[int]
    COMPANIONS_FIELD_NUMBER: _ClassVar[int]
    level: int
    number: int
    n: int
    deviations: SparseSums
    entropies: SparseSums
    companions: ExactSums
    def __init__(self, level: _Optional[int] = ..., number: _Optional[int] = ..., n: _Optional[int] = ..., deviations: _Optional[_Union[SparseSums, _Mapping]] = ..., entropies: _Optional[_Union[SparseSums, _Mapping]] = ..., companions: _Optional[_Union[ExactSums, _Mapping]] = ...) -> None: ...

class PredictedSliceState(_message.Message):
    __slots__ = ("name", "overflow", "dimensions", "angles_in_joint", "assumed", "bin_hash", "panes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OVERFLOW_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    ANGLES_IN_JOINT_FIELD_NUMBER: _ClassVar[int]
    ASSUMED_FIELD_NUMBER: _ClassVar[int]
    BIN_HASH_FIELD_NUMBER: _ClassVar[int]
    PANES_FIELD_NUMBER: _ClassVar[int]
    name: str
    overflow: bool
    dimensions: _containers.RepeatedCompositeFieldContainer[_frame_pb2.Dimension]
    angles_in_joint: bool
    assumed: bool
    bin_hash: str
    panes: _containers.RepeatedCompositeFieldContainer[PredictedPaneState]
    def __init__(self, name: _Optional[str] = ..., overflow: bool = ..., dimensions: _Optional[_Iterable[_Union[_frame_pb2.Dimension, _Mapping]]] = ..., angles_in_joint: bool = ..., assumed: bool = ..., bin_hash: _Optional[str] = ..., panes: _Optional[_Iterable[_Union[PredictedPaneState, _Mapping]]] = ...) -> None: ...

class Holding(_message.Message):
    __slots__ = ("vehicle", "epoch", "first", "last")
    VEHICLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    vehicle: str
    epoch: str
    first: _containers.RepeatedScalarFieldContainer[int]
    last: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, vehicle: _Optional[str] = ..., epoch: _Optional[str] = ..., first: _Optional[_Iterable[int]] = ..., last: _Optional[_Iterable[int]] = ...) -> None: ...

class VehicleRow(_message.Message):
    __slots__ = ("name", "overflow", "dimensions", "angles_in_joint", "assumed", "vehicles", "raw", "change")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OVERFLOW_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    ANGLES_IN_JOINT_FIELD_NUMBER: _ClassVar[int]
    ASSUMED_FIELD_NUMBER: _ClassVar[int]
    VEHICLES_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    overflow: bool
    dimensions: _containers.RepeatedCompositeFieldContainer[_frame_pb2.Dimension]
    angles_in_joint: bool
    assumed: bool
    vehicles: _containers.RepeatedScalarFieldContainer[str]
    raw: ExactSums
    change: ExactSums
    def __init__(self, name: _Optional[str] = ..., overflow: bool = ..., dimensions: _Optional[_Iterable[_Union[_frame_pb2.Dimension, _Mapping]]] = ..., angles_in_joint: bool = ..., assumed: bool = ..., vehicles: _Optional[_Iterable[str]] = ..., raw: _Optional[_Union[ExactSums, _Mapping]] = ..., change: _Optional[_Union[ExactSums, _Mapping]] = ...) -> None: ...

class SampledSlice(_message.Message):
    __slots__ = ("name", "overflow", "dimensions", "angles_in_joint", "assumed", "most", "key", "revision", "value", "track")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OVERFLOW_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    ANGLES_IN_JOINT_FIELD_NUMBER: _ClassVar[int]
    ASSUMED_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TRACK_FIELD_NUMBER: _ClassVar[int]
    name: str
    overflow: bool
    dimensions: _containers.RepeatedCompositeFieldContainer[_frame_pb2.Dimension]
    angles_in_joint: bool
    assumed: bool
    most: int
    key: _containers.RepeatedScalarFieldContainer[int]
    revision: _containers.RepeatedScalarFieldContainer[int]
    value: _containers.RepeatedScalarFieldContainer[float]
    track: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., overflow: bool = ..., dimensions: _Optional[_Iterable[_Union[_frame_pb2.Dimension, _Mapping]]] = ..., angles_in_joint: bool = ..., assumed: bool = ..., most: _Optional[int] = ..., key: _Optional[_Iterable[int]] = ..., revision: _Optional[_Iterable[int]] = ..., value: _Optional[_Iterable[float]] = ..., track: _Optional[_Iterable[int]] = ...) -> None: ...

class StatisticsState(_message.Message):
    __slots__ = ("version", "bins", "windows", "clock_ns", "slices", "class_slices", "slicing", "progress", "predicted", "holds", "vehicles", "sample")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_NS_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    CLASS_SLICES_FIELD_NUMBER: _ClassVar[int]
    SLICING_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    VEHICLES_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    version: int
    bins: BinDefinition
    windows: WindowDefinition
    clock_ns: int
    slices: _containers.RepeatedCompositeFieldContainer[SliceState]
    class_slices: _containers.RepeatedCompositeFieldContainer[ClassSliceState]
    slicing: SliceDefinition
    progress: _ledger_pb2.KeptProgress
    predicted: _containers.RepeatedCompositeFieldContainer[PredictedSliceState]
    holds: _containers.RepeatedCompositeFieldContainer[Holding]
    vehicles: _containers.RepeatedCompositeFieldContainer[VehicleRow]
    sample: _containers.RepeatedCompositeFieldContainer[SampledSlice]
    def __init__(self, version: _Optional[int] = ..., bins: _Optional[_Union[BinDefinition, _Mapping]] = ..., windows: _Optional[_Union[WindowDefinition, _Mapping]] = ..., clock_ns: _Optional[int] = ..., slices: _Optional[_Iterable[_Union[SliceState, _Mapping]]] = ..., class_slices: _Optional[_Iterable[_Union[ClassSliceState, _Mapping]]] = ..., slicing: _Optional[_Union[SliceDefinition, _Mapping]] = ..., progress: _Optional[_Union[_ledger_pb2.KeptProgress, _Mapping]] = ..., predicted: _Optional[_Iterable[_Union[PredictedSliceState, _Mapping]]] = ..., holds: _Optional[_Iterable[_Union[Holding, _Mapping]]] = ..., vehicles: _Optional[_Iterable[_Union[VehicleRow, _Mapping]]] = ..., sample: _Optional[_Iterable[_Union[SampledSlice, _Mapping]]] = ...) -> None: ...
