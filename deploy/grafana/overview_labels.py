"""Of the overview: labels, without which nothing can be said."""

from __future__ import annotations

from deploy.grafana.charts import bars, graph
from deploy.grafana.looks import (
    Values,
    below,
)
from deploy.grafana.panels import Panel
from deploy.grafana.queries import BY_SLICE, Query, of, quantile, rate


def labels() -> list[Panel]:
    tried = "~matched|unusable|orphan|too_late|refused"
    found = rate("ground_truth_total", "job", "5m", outcome="matched")
    return [
        graph(
            "Labels by outcome",
            """Labels a second by what came of them. Healthy: almost all matched. orphan: they name
            other ids, frames or streams than the detector; too_late: frames have left the store;
            refused, unusable: the answer to the label says which field.
            docs/runbook.md#calibrationmatchratiolow""",
            Query(rate("ground_truth_total", "outcome"), "{{outcome}}"),
            values=Values("suffix:/s", least=0),
            span=8,
            stacked=True,
        ),
        graph(
            "Delay of labels",
            """How much later than their frames labels come, in event time. Healthy: steady, and
            well below what frames are kept for (`[pending] keep_hours`); beyond
            `[statistics] live_seconds` they are in the windows but in no counter. Estimated from
            buckets. docs/runbook.md#calibrationmatchratiolow""",
            *(
                Query(quantile(share, "ground_truth_delay_seconds"), name)
                for share, name in ((0.5, "half within"), (0.95, "95 % within"))
            ),
            values=Values("s", least=0),
            span=8,
        ),
        graph(
            "Labels that find their detection",
            """Of the labels of the last five minutes; repeated ones, and those that say to ignore
            a detection, are left out. Healthy: above a half.
            docs/runbook.md#calibrationmatchratiolow""",
            Query(
                f"sum({found}) / sum({rate('ground_truth_total', 'job', '5m', outcome=tried)})",
                "matched",
            ),
            values=Values("percentunit", below(0.5), least=0, most=1),
            marks="dashed",
            span=8,
        ),
        bars(
            "Labelled share by slice",
            """Share of a slice's detections of which labels told anything, since the start.
            Healthy: alike for all. A slice far below the others is not labelled like them: its
            measures may be of the easy ones. docs/runbook.md#calibrationlabelledsharelow""",
            Query(f"max by ({BY_SLICE}) ({of('labelled_ratio')})", "{{slice}}"),
            values=Values("percentunit", below(0.01, 0.05), least=0, most=1, decimals=1),
        ),
        bars(
            "What became of detections",
            """All detections since the ledger began. Healthy: matched, or waiting for their truth;
            unmatched had labels in their frame, but none of their own; unlabelled had none at all;
            dropped_… says why. docs/runbook.md#calibrationmatchratiolow""",
            Query(f"sum by (fate) ({of('detection_fates')})", "{{fate}}"),
            values=Values("locale", least=0),
        ),
        graph(
            "Detections that wait for truth",
            """In memory and on disk. Healthy: level, at the rate of detections times the delay of
            their labels. It grows without end where no labels come; then the oldest are dropped.
            docs/runbook.md#calibrationnolabels""",
            Query(f"sum by (instance) ({of('pending_detections')})", "{{instance}}"),
            values=Values("locale", least=0),
            span=8,
        ),
    ]
