"""Statistics whose progress cannot be: none of it is taken, and the generation before is."""

from __future__ import annotations

import pytest

from monitor.config import SnapshotConfig
from monitor.pipeline.checkpoints import StatisticsCheckpoints
from monitor.statistics.observations import finished
from monitor.store.progress import Progress
from monitor.store.snapshot import STATISTICS, SnapshotFile
from monitor.store.statistics_state import NewerFields, StoredState, serialised
from tests.piped import assert_same_statistics, opened, pipeline_of, sent
from tests.received import frame


def counted_pipeline(frames):
    pipeline = pipeline_of()
    stream = opened(pipeline)
    for number in range(1, frames + 1):
        rows = [sent(number * 10 + row, truth=True) for row in range(5)]
        pipeline.process(stream, frame(rows, number, number * 10**9))
    return pipeline


def written(pipeline, path, progress):
    state = finished(pipeline.live.state_in_steps())
    SnapshotFile(path, STATISTICS).write(serialised(StoredState(state, progress=progress)))


@pytest.mark.parametrize(
    "detections", [{"waiting_in_": 1}, {"waiting_in_x": 1}, {"waiting_in_1.5": 1}]
)
def test_a_snapshot_that_says_what_cannot_be_adds_nothing_to_the_one_before(tmp_path, detections):
    path = tmp_path / "kept.state"
    good = counted_pipeline(2)
    written(good, path, Progress(sequence=2, detections={"waiting_in_-3": 7}))
    written(counted_pipeline(4), path, Progress(sequence=4, detections=detections))
    pipeline = pipeline_of()
    keeper = StatisticsCheckpoints(pipeline, NewerFields(), SnapshotConfig(path=str(path)))
    keeper.load()
    keeper.file.close()
    assert (keeper.entry, keeper.file.refused) == (2, 1)
    assert pipeline.ledger.fates.waiting == {-3: 7}
    assert_same_statistics(pipeline, good)
