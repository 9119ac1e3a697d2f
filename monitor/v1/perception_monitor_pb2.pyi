from monitor.v1 import calibration_pb2 as _calibration_pb2
from monitor.v1 import drift_pb2 as _drift_pb2
from monitor.v1 import event_pb2 as _event_pb2
from monitor.v1 import frame_pb2 as _frame_pb2
from monitor.v1 import statistics_state_pb2 as _statistics_state_pb2
from monitor.v1 import status_pb2 as _status_pb2
from monitor.v1 import truth_pb2 as _truth_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProcessRequest(_message.Message):
    __slots__ = ("header", "frame")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    header: _frame_pb2.StreamHeader
    frame: _frame_pb2.Frame
    def __init__(self, header: _Optional[_Union[_frame_pb2.StreamHeader, _Mapping]] = ..., frame: _Optional[_Union[_frame_pb2.Frame, _Mapping]] = ...) -> None: ...

class ProcessResponse(_message.Message):
    __slots__ = ("header", "frame")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    header: HeaderResult
    frame: _frame_pb2.FrameResult
    def __init__(self, header: _Optional[_Union[HeaderResult, _Mapping]] = ..., frame: _Optional[_Union[_frame_pb2.FrameResult, _Mapping]] = ...) -> None: ...

class HeaderResult(_message.Message):
    __slots__ = ("stream", "accepted", "notice", "track_dimensions")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    TRACK_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    accepted: bool
    notice: _frame_pb2.Notice
    track_dimensions: _containers.RepeatedCompositeFieldContainer[_frame_pb2.Dimension]
    def __init__(self, stream: _Optional[str] = ..., accepted: bool = ..., notice: _Optional[_Union[_frame_pb2.Notice, _Mapping]] = ..., track_dimensions: _Optional[_Iterable[_Union[_frame_pb2.Dimension, _Mapping]]] = ...) -> None: ...

class ProcessFrameRequest(_message.Message):
    __slots__ = ("stream", "header", "frame")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    stream: str
    header: _frame_pb2.StreamHeader
    frame: _frame_pb2.Frame
    def __init__(self, stream: _Optional[str] = ..., header: _Optional[_Union[_frame_pb2.StreamHeader, _Mapping]] = ..., frame: _Optional[_Union[_frame_pb2.Frame, _Mapping]] = ...) -> None: ...

class ProcessFrameResponse(_message.Message):
    __slots__ = ("frame",)
    FRAME_FIELD_NUMBER: _ClassVar[int]
    frame: _frame_pb2.FrameResult
    def __init__(self, frame: _Optional[_Union[_frame_pb2.FrameResult, _Mapping]] = ...) -> None: ...

class ReportGroundTruthRequest(_message.Message):
    __slots__ = ("truth",)
    TRUTH_FIELD_NUMBER: _ClassVar[int]
    truth: _truth_pb2.FrameTruth
    def __init__(self, truth: _Optional[_Union[_truth_pb2.FrameTruth, _Mapping]] = ...) -> None: ...

class ReportGroundTruthResponse(_message.Message):
    __slots__ = ("stream", "frame_id", "account", "notices", "durable", "retracted")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FRAME_ID_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    RETRACTED_FIELD_NUMBER: _ClassVar[int]
    stream: str
    frame_id: int
    account: _truth_pb2.TruthAccount
    notices: _containers.RepeatedCompositeFieldContainer[_frame_pb2.Notice]
    durable: bool
    retracted: int
    def __init__(self, stream: _Optional[str] = ..., frame_id: _Optional[int] = ..., account: _Optional[_Union[_truth_pb2.TruthAccount, _Mapping]] = ..., notices: _Optional[_Iterable[_Union[_frame_pb2.Notice, _Mapping]]] = ..., durable: bool = ..., retracted: _Optional[int] = ...) -> None: ...

class GetCalibrationRequest(_message.Message):
    __slots__ = ("slices", "bins", "include_bins", "window")
    SLICES_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_BINS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    slices: _containers.RepeatedScalarFieldContainer[str]
    bins: int
    include_bins: bool
    window: str
    def __init__(self, slices: _Optional[_Iterable[str]] = ..., bins: _Optional[int] = ..., include_bins: bool = ..., window: _Optional[str] = ...) -> None: ...

class GetCalibrationResponse(_message.Message):
    __slots__ = ("tau", "slices", "counts", "recalibrator_version", "classes", "drift", "drift_stages", "predicted", "drift_left_out")
    TAU_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    RECALIBRATOR_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    DRIFT_FIELD_NUMBER: _ClassVar[int]
    DRIFT_STAGES_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    DRIFT_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    tau: _containers.RepeatedScalarFieldContainer[float]
    slices: _containers.RepeatedCompositeFieldContainer[_calibration_pb2.SliceCalibration]
    counts: _calibration_pb2.ServiceCounts
    recalibrator_version: str
    classes: _containers.RepeatedCompositeFieldContainer[_calibration_pb2.ClassCalibration]
    drift: _containers.RepeatedCompositeFieldContainer[_drift_pb2.DriftStanding]
    drift_stages: _containers.RepeatedCompositeFieldContainer[_drift_pb2.DriftStageStanding]
    predicted: _containers.RepeatedCompositeFieldContainer[_calibration_pb2.PredictedCalibration]
    drift_left_out: _containers.RepeatedCompositeFieldContainer[_drift_pb2.DriftLeftOut]
    def __init__(self, tau: _Optional[_Iterable[float]] = ..., slices: _Optional[_Iterable[_Union[_calibration_pb2.SliceCalibration, _Mapping]]] = ..., counts: _Optional[_Union[_calibration_pb2.ServiceCounts, _Mapping]] = ..., recalibrator_version: _Optional[str] = ..., classes: _Optional[_Iterable[_Union[_calibration_pb2.ClassCalibration, _Mapping]]] = ..., drift: _Optional[_Iterable[_Union[_drift_pb2.DriftStanding, _Mapping]]] = ..., drift_stages: _Optional[_Iterable[_Union[_drift_pb2.DriftStageStanding, _Mapping]]] = ..., predicted: _Optional[_Iterable[_Union[_calibration_pb2.PredictedCalibration, _Mapping]]] = ..., drift_left_out: _Optional[_Iterable[_Union[_drift_pb2.DriftLeftOut, _Mapping]]] = ...) -> None: ...

class AcknowledgeDriftRequest(_message.Message):
    __slots__ = ("slices", "actor")
    SLICES_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    slices: _containers.RepeatedScalarFieldContainer[str]
    actor: str
    def __init__(self, slices: _Optional[_Iterable[str]] = ..., actor: _Optional[str] = ...) -> None: ...

class AcknowledgeDriftResponse(_message.Message):
    __slots__ = ("acknowledged",)
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    acknowledged: _containers.RepeatedCompositeFieldContainer[_drift_pb2.DriftAlarm]
    def __init__(self, acknowledged: _Optional[_Iterable[_Union[_drift_pb2.DriftAlarm, _Mapping]]] = ...) -> None: ...

class ExportStatisticsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExportStatisticsResponse(_message.Message):
    __slots__ = ("part",)
    PART_FIELD_NUMBER: _ClassVar[int]
    part: _statistics_state_pb2.StatisticsState
    def __init__(self, part: _Optional[_Union[_statistics_state_pb2.StatisticsState, _Mapping]] = ...) -> None: ...

class ImportStatisticsRequest(_message.Message):
    __slots__ = ("part",)
    PART_FIELD_NUMBER: _ClassVar[int]
    part: _statistics_state_pb2.StatisticsState
    def __init__(self, part: _Optional[_Union[_statistics_state_pb2.StatisticsState, _Mapping]] = ...) -> None: ...

class ImportStatisticsResponse(_message.Message):
    __slots__ = ("detections", "new_slices")
    DETECTIONS_FIELD_NUMBER: _ClassVar[int]
    NEW_SLICES_FIELD_NUMBER: _ClassVar[int]
    detections: int
    new_slices: int
    def __init__(self, detections: _Optional[int] = ..., new_slices: _Optional[int] = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchEventsResponse(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: _event_pb2.Event
    def __init__(self, event: _Optional[_Union[_event_pb2.Event, _Mapping]] = ...) -> None: ...
