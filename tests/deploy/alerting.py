"""Alert rules under promtool: samples go in, and which alerts fire when; no tests."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.scraping import FOLDER, promtool

RECALIBRATORS = FOLDER / "alert_rules.yml"
DRIFT = FOLDER / "drift_alert_rules.yml"
SERVICE = FOLDER / "service_alert_rules.yml"
FILES = (RECALIBRATORS, DRIFT, SERVICE)


def names(rules: Path) -> list[str]:
    """Of the alerts of a file."""
    return re.findall(r"- alert: (\w+)", rules.read_text("utf-8"))


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    """Samples of every minute, in the notation of promtool: 0+1x5 counts to 5, _x5 is a gap."""
    pairs = ",".join(f'{key}="{value}"' for key, value in {"instance": "van", **labels}.items())
    return {"series": f"calibration_{name}{{{pairs}}}", "values": values}


@dataclass(frozen=True, slots=True)
class Case:
    """Samples, and what fires of them: at each time these and no other alerts of the file.

    at    alerts by time, each as `name severity label=value …`; on the van, unless instance= says
          otherwise
    name  which of many
    """

    samples: Sequence[dict[str, str]]
    at: Mapping[str, Sequence[str]]
    name: str = "the only one"


def fires(folder: Path, rules: Path, *cases: Case) -> bool:
    """Whether promtool finds it so, of all of them in one run."""
    # Words of an alert are compared too: the rules under test are the same without.
    without = folder / "alerts.yml"
    text = re.sub(
        r"        annotations:\n(          .*\n|            .*\n)+", "", rules.read_text("utf-8")
    )
    without.write_text(text)
    file = folder / "alerts_test.yml"
    content = {
        "rule_files": [str(without)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "name": case.name,
                "interval": "1m",
                "input_series": case.samples,
                "alert_rule_test": expectations(case, names(rules)),
            }
            for case in cases
        ],
    }
    file.write_text(json.dumps(content))
    return "SUCCESS" in promtool("test", "rules", str(file))


def expectations(case: Case, names: Sequence[str]) -> list[dict[str, object]]:
    """Of every alert of a file at every time of a case."""
    return [
        {
            "eval_time": time,
            "alertname": name,
            "exp_alerts": [
                {"exp_labels": labels}
                for labels in (expected(alert) for alert in alerts)
                if labels.pop("alertname") == name
            ],
        }
        for time, alerts in case.at.items()
        for name in names
    ]


def expected(alert: str) -> dict[str, str]:
    """The labels of an alert that is given in words."""
    name, severity, *others = alert.split()
    further = dict(pair.split("=") for pair in others)
    labels = {"alertname": name, "severity": severity, "instance": "van", **further}
    return {label: value for label, value in labels.items() if value}
