"""An alarm of drift on its way to people: exposition, a real Prometheus, a real Alertmanager, and a
webhook.
"""

import json
from dataclasses import replace

import pytest

from monitor.calibration.drift.alarm import (
    DriftReading,
    DriftState,
    Scale,
    SliceStanding,
    StageStanding,
)
from monitor.calibration.drift.charts import SEVERITIES, Stage
from monitor.edges.exporter import CONTENT_TYPE
from monitor.edges.page import Endpoint
from tests.deploy.alert_chain import Chain, with_alertmanager
from tests.exported import snapshot, text_of

pytestmark = with_alertmanager
# As `slice_by` may make it: what an alert asks Prometheus for must be quoted well.
SLICE = 'a "quoted" \\ one'


def reading(page: DriftState) -> DriftReading:
    """One slice, and how it stands under the budget of pages; σ is 2.2 times too small."""
    standings = tuple(
        SliceStanding(SLICE, severity, DriftState.OK, 5.0, 5.0, 1000.0, None)
        for severity in SEVERITIES
    )
    stages = tuple(
        StageStanding(SLICE, stage, Scale(2.2, 1.9, 2.6), 0.2, "learned", 30, 2000, "track-second")
        for stage in Stage
    )
    return DriftReading((replace(standings[0], state=page), *standings[1:]), stages)


@pytest.fixture
def endpoint():
    serving = Endpoint()
    serving.published.content_type = CONTENT_TYPE
    yield serving
    serving.stop()


def publish(endpoint: Endpoint, page: DriftState) -> None:
    text = text_of(snapshot((), None, drift=reading(page), checkpoint_age=1.0))
    endpoint.published.metrics = text.encode()


def test_a_page_reaches_the_webhook_with_what_is_wrong_and_what_to_do_and_so_does_its_end(
    tmp_path, endpoint
):
    publish(endpoint, DriftState.OK)
    chain = Chain(tmp_path, endpoint.start("127.0.0.1", 0))
    try:
        publish(endpoint, DriftState.ALARM)
        told = chain.told("/page", "firing")
        publish(endpoint, DriftState.OK)
        over = chain.told("/page", "resolved")
    finally:
        chain.stop()
    print(json.dumps(told, indent=2, ensure_ascii=False))
    (alert,) = told["alerts"]
    assert alert["labels"] == {
        "alertname": "CalibrationDriftPage",
        "severity": "page",
        "slice": SLICE,
        "instance": "van",
        "job": "calibration_monitor",
    }
    assert alert["annotations"]["summary"].startswith(f"Covariances of {SLICE} that van forwards")
    assert alert["annotations"]["scale"] == "standard deviations are 2.20 times too small"
    assert "calibration-monitor alarms list" in alert["annotations"]["runbook"]
    assert over["alerts"][0]["labels"] == alert["labels"]
    # Nothing else was wrong, and an alarm is told once.
    assert [to for to, _ in chain.webhook.received] == ["/page", "/page"]
