"""The sidecar without its ports: what of its parts reaches the metrics."""

import asyncio

from monitor.config import Config, SnapshotConfig
from monitor.config_promotion import PromotionConfig
from monitor.sidecar import Sidecar


def test_what_was_given_up_counts_as_a_failure_of_the_store_and_what_was_not_learned_is_told():
    nowhere = PromotionConfig(folder="")
    sidecar = Sidecar(Config(snapshot=SnapshotConfig(path=""), promotion=nowhere))
    store, learning = sidecar.kept.keeper, sidecar.pipeline.learning
    store.failures, store.refused = 2, 3
    learning._open.left_out = 7
    asyncio.run(sidecar._refresh_if_possible())
    assert sidecar.pipeline.counters.internal_errors == 0
    lines = sidecar.endpoint.published.metrics.decode().splitlines()
    assert "calibration_recalibrator_store_failures_total 5.0" in lines
    assert "calibration_learning_left_out_total 7.0" in lines
