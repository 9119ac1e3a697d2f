"""Every metric that a diagnosis asks for by name is one that a sidecar exports: a renamed one would
leave it blind, and nobody would notice.
"""

import ast
from pathlib import Path

from monitor.service.exposition import process
from tests.deploy.panel_names import families
from tests.golden.test_golden import exposition

DIAGNOSIS = Path(__file__).parents[2] / "monitor" / "commands" / "doctor"
ASKING = {"value", "by", "rows", "increase", "increases", "words"}
# Which arguments of a shape of rules are names.
SHAPES = {"counter": (1,), "part_of": (1, 3)}
# Of a tracker elsewhere, whose families are there with it alone: tests/edges has them.
TRACKER = {"calibration_tracker_up", "calibration_tracker_forwarded_total"}


def asked(source: str) -> set[str]:
    """Names that are the first argument of such a call, or arguments of a shape of rules."""
    named = []
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        if isinstance(call.func, ast.Attribute) and call.func.attr in ASKING:
            named += call.args[:1]
        elif isinstance(call.func, ast.Name) and call.func.id in SHAPES:
            named += [call.args[number] for number in SHAPES[call.func.id]]
    constants = [each.value for each in named if isinstance(each, ast.Constant)]
    return {name for name in constants if isinstance(name, str)}


def test_every_metric_that_is_asked_for_exists():
    named = set().union(*(asked(path.read_text("utf-8")) for path in DIAGNOSIS.glob("*.py")))
    full = {name if name.startswith("process_") else f"calibration_{name}" for name in named}
    exported = set().union(*families(exposition() + process().decode()).values())
    assert len(full) > 25
    assert full - exported - TRACKER == set()


def test_a_name_that_is_asked_for_is_found():
    assert asked('found = change.last.value("frames_totl", of="x")') == {"frames_totl"}
    assert asked('counter("an-anchor", "steps_totl", "{}", "step")') == {"steps_totl"}
    shared = asked('part_of(seen, "late_totl", "outcome", "frames_totl", ["answered"])')
    assert shared == {"late_totl", "frames_totl"}
