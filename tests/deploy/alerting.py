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
    without = re.sub(
        r"        annotations:\n(          .*\n|            .*\n)+", "", rules.read_text("utf-8")
    )
    tests: list[dict[str, object]] = [
        {
            "name": case.name,
            "interval": "1m",
            "input_series": case.samples,
            "alert_rule_test": expectations(case, names(rules)),
        }
        for case in cases
    ]
    return _tested(folder, without, tests)


def says(
    folder: Path,
    rules: Path,
    annotation: str,
    samples: Sequence[dict[str, str]],
    at: Mapping[str, Mapping[str, str]],
) -> bool:
    """Whether this annotation of the alerts that fire is that, by promtool.

    at  at each time, by alert, as in a case, what it says
    """
    # The label severity is the only other word there.
    others = rf"^ {{10}}(?!severity:|{annotation}:)\w+: .*\n(?: {{12}}.*\n)*"
    alone = re.sub(others, "", rules.read_text("utf-8"), flags=re.MULTILINE)
    told = []
    for time, texts in at.items():
        for alert, text in texts.items():
            labels = expected(alert)
            name = labels.pop("alertname")
            one = {"exp_labels": labels, "exp_annotations": {annotation: text}}
            told.append({"eval_time": time, "alertname": name, "exp_alerts": [one]})
    test: dict[str, object] = {"interval": "1m", "input_series": samples, "alert_rule_test": told}
    return _tested(folder, alone, [test])


def _tested(folder: Path, rules: str, tests: Sequence[dict[str, object]]) -> bool:
    (folder / "alerts.yml").write_text(rules)
    file = folder / "alerts_test.yml"
    content = {
        "rule_files": [str(folder / "alerts.yml")],
        "evaluation_interval": "1m",
        "tests": tests,
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
