"""Alert rules under promtool: samples go in, and which alerts fire when; no tests."""

import json
import re
from pathlib import Path

from tests.deploy.scraping import ROOT, promtool

FOLDER = ROOT / "deploy" / "prometheus"
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


def firing(
    folder: Path, rules: Path, samples: list[dict[str, str]], at: dict[str, list[str]]
) -> str:
    """What promtool says: at each time these and no other alerts of the file fire.

    at  alerts by time, each as `name severity label=value …`; on the van, unless instance= says
        otherwise
    """
    tests = [
        {
            "eval_time": time,
            "alertname": name,
            "exp_alerts": [
                {"exp_labels": labels}
                for labels in (expected(alert) for alert in alerts)
                if labels.pop("alertname") == name
            ],
        }
        for time, alerts in at.items()
        for name in names(rules)
    ]
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
        "tests": [{"interval": "1m", "input_series": samples, "alert_rule_test": tests}],
    }
    file.write_text(json.dumps(content))
    return promtool("test", "rules", str(file))


def expected(alert: str) -> dict[str, str]:
    """The labels of an alert that is given in words."""
    name, severity, *others = alert.split()
    further = dict(pair.split("=") for pair in others)
    labels = {"alertname": name, "severity": severity, "instance": "van", **further}
    return {label: value for label, value in labels.items() if value}
