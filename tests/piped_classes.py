"""Detections with class probabilities, and what a pipeline makes of them; no tests."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from monitor.config import Config
from monitor.frames.frame import FrameAnswer, Header
from monitor.frames.slices import TOTAL
from monitor.frames.space import plain_space
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.recalibrators import Recalibrators
from monitor.pipeline.streams import Stream
from monitor.recalibration.class_scaling import Temperature
from monitor.recalibration.rejection import RejectedBy, Rejection
from monitor.recalibration.selection import IDENTITY, ClassSelection
from monitor.statistics.class_evaluation import read_classes
from monitor.statistics.class_statistics import ClassStatistics, observe_classes
from monitor.statistics.observations import finished
from monitor.statistics.state import StatisticsState
from tests.journals import unkept
from tests.piped import SECOND, statistics_of
from tests.received import Sent, frame

XY = plain_space(("x", "y"), "m")
CLASSES = ("car", "truck", "bus")
HEADER = Header("lidar", XY, CLASSES)
GOOD_TRUTH = (1.0, 2.0)
HOUR = 3600 * SECOND
WARM = ClassSelection(CLASSES, Temperature(2.0))


def opened(pipeline: Pipeline, header: Header = HEADER) -> Stream:
    stream = pipeline.register(header)
    assert isinstance(stream, Stream)
    return stream


def rejection(by: RejectedBy, threshold: float) -> Rejection:
    return Rejection(by, threshold, 0.05, 0.04, 0.1, 1000)


def recalibrating(classes=WARM, selection=IDENTITY, **sections) -> Pipeline:
    config = Config.model_validate(sections)
    return Pipeline(config, unkept(), recalibrators=Recalibrators(selection, classes))


def answered(pipeline: Pipeline, rows, header: Header = HEADER) -> FrameAnswer:
    answer = pipeline.process(opened(pipeline, header), frame(rows))
    assert answer.extras is not None
    return answer


def extras(pipeline: Pipeline, rows, header: Header = HEADER) -> Any:
    """What goes back with the estimates; nothing of ours has failed."""
    found = answered(pipeline, rows, header).extras
    assert pipeline.counters.internal_errors == 0
    return found


def probabilities(seed, opinions=1, classes=3) -> tuple[float, ...]:
    random = np.random.default_rng(seed)
    return tuple(random.dirichlet(np.full(classes, 0.5), size=opinions).ravel().tolist())


def sent(id, true_class=None, *, truth=(), opinions=1, classes=3) -> Sent:
    return Sent(
        id,
        (0.5, -0.5),
        (1.0, 2.0),
        0,
        truth,
        class_probabilities=probabilities(id, opinions, classes) if opinions else (),
        true_class=true_class,
    )


BAD = replace(sent(90, 1), covariance=(1.0, 2.0, 2.0, 1.0))  # indefinite


def counted(pipeline: Pipeline, level=None) -> dict[str, ClassStatistics]:
    """As sent."""
    return {label: held.raw for label, _, held in finished(pipeline.live.classes_in_steps(level))}


def assert_same_measures(one: Pipeline, other: Pipeline, within: float) -> None:
    """Of every slice, of as many detections."""
    ours, theirs = counted(one), counted(other)
    assert set(ours) == set(theirs)
    for name, held in ours.items():
        found, expected = read_classes(held), read_classes(theirs[name])
        assert found.n == expected.n
        for measure in ("nll", "ece"):
            wanted = pytest.approx(getattr(expected, measure), abs=within, nan_ok=True)
            assert getattr(found, measure) == wanted, (name, measure)


def total_of(pipeline: Pipeline) -> ClassStatistics:
    return counted(pipeline)[TOTAL]


def gaussians(pipeline: Pipeline) -> int:
    found = dict(statistics_of(pipeline))
    return found[TOTAL].raw.n if found else 0


def observed(rows, true_class, classes=3) -> ClassStatistics:
    opinions = np.array([row.class_probabilities for row in rows]).reshape(len(rows), -1, classes)
    mean = sum((opinions[:, i] for i in range(1, opinions.shape[1])), opinions[:, 0])
    several = opinions if opinions.shape[1] > 1 else None
    return observe_classes(mean / opinions.shape[1], np.array(true_class), several)


def state_of(pipeline: Pipeline) -> StatisticsState:
    return finished(pipeline.live.state_in_steps())
