"""Finds which metrics an expression or a text names, and which there are; no tests."""

import re
from collections.abc import Mapping

import promql_parser as promql

# What is put in for Grafana's own variables: the step of a graph, and four scrapes of the example.
OWN = {
    "__interval": "5s",
    "__interval_ms": "5000",
    "__rate_interval": "20s",
    "__range": "60s",
    "__range_s": "60",
}


def substituted(text: str, values: Mapping[str, str] | None = None) -> str:
    """Puts in what is chosen for the variables of a text, and any word for the others."""
    chosen = OWN | dict(values or {})
    return re.sub(r"\$\{?([a-z_]\w+)\}?", lambda found: chosen.get(found[1], "any"), text)


def metrics(expression: str) -> set[str]:
    """Lists the metrics that a PromQL expression names. Raises ValueError of its mistakes."""
    found: set[str] = set()

    def visit(node: promql.Expr) -> bool:
        if isinstance(node, promql.VectorSelector):
            assert node.name, expression
            found.add(node.name)
        return True

    promql.walk(promql.parse(expression), visit)
    return found


def families(exposition: str) -> dict[str, set[str]]:
    """Lists the series of each family by its name."""
    found = {}
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", exposition, flags=re.MULTILINE):
        parts = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found[name] = {f"{name}{part}" for part in parts}
    return found


def mentioned(text: str) -> set[str]:
    """Finds the words of a text that look like metrics of a sidecar."""
    return set(re.findall(r"(?<![\w:])calibration_[a-z0-9_]*[a-z0-9](?!\w)", text))
