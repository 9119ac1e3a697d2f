"""The verb `recalibrators` against a server: what it asks for, what it prints, how it fails."""

from __future__ import annotations

import json
import re

import pytest

from monitor.options.values import this_person
from monitor.pipeline.recalibrators import NothingToRollBack
from monitor.promotion.fits import FitFailed
from monitor.promotion.records import Evidence, Happened
from monitor.recalibration.selection import CLASS_IDENTITY, IDENTITY, ClassSelection, Selection
from tests.administered import FITTED, TRIALS, administration, record, served
from tests.piped import BY_SLICE, DOUBLE, pipeline_of
from tests.piped_classes import WARM


@pytest.fixture
def pipeline():
    return pipeline_of()


@pytest.fixture
def told(pipeline):
    """What reaches who acts; the address of the server is in `told.address`."""
    admin, told = administration(pipeline)
    with served(pipeline, admin) as address:
        told.address = address
        yield told


@pytest.fixture
def asked(run, told):
    def done(*words):
        return run("recalibrators", *words, "--address", told.address)

    return done


@pytest.fixture
def denied(refused, told):
    def line(*words):
        return refused("recalibrators", *words, "--address", told.address)

    return line


def test_list_shows_what_is_known_in_force_and_on_trial(pipeline, asked):
    for selection in (DOUBLE, BY_SLICE, WARM):
        pipeline.recalibrators.learn(selection.to_json())
    pipeline.activate(BY_SLICE.version)
    lines = asked("list").splitlines()
    starred = [line.split()[1] for line in lines if line.startswith("* ") and "method" not in line]
    assert starred == [CLASS_IDENTITY.version, BY_SLICE.version]
    of_it = next(line for line in lines if DOUBLE.version in line)
    assert re.search(r"variance-scaling +estimates +x, y, z +-$", of_it)
    assert any(re.search(rf"{BY_SLICE.version}.* truck$", line) for line in lines)
    assert f"car: {TRIALS[0].version} is proven better, and waits for approval" in lines
    assert "  variance x ×4, y ×0.75 (0.5 to 1)" in lines
    assert f"to make it active: recalibrators promote {TRIALS[0].version}" in lines
    assert lines[-1] == "promotion: advise, not pinned"
    assert all(len(line) <= 120 for line in lines)


def test_show_prints_the_document_and_what_happened_to_it(pipeline, asked, told):
    pipeline.recalibrators.learn(DOUBLE.to_json())
    told.happened = (
        record(Happened.PROMOTED, IDENTITY.version, DOUBLE.version, reason="they said so"),
        record(Happened.PINNED),
    )
    said = asked("show", DOUBLE.version)
    assert DOUBLE.to_json().rstrip() in said
    assert f"{IDENTITY.version} → {DOUBLE.version}" in said
    assert "by anna@van: they said so" in said
    assert "pinned" not in said


def test_promote_says_what_is_in_force_in_place_of_what(pipeline, asked, told):
    pipeline.recalibrators.learn(DOUBLE.to_json())
    said = asked("promote", DOUBLE.version)
    assert said == f"{DOUBLE.version} is active, in place of {IDENTITY.version}\n"
    assert told.asked == [("promote", DOUBLE.version, this_person())]
    assert asked("promote", DOUBLE.version) == f"{DOUBLE.version} is active, as before\n"


def test_rollback_is_of_all_slices_of_one_or_of_class_probabilities(asked, told):
    for words in ((), ("--slice", "car"), ("--classes",)):
        said = asked("rollback", *words, "--actor", "anna")
        assert said == "a-0 is active, in place of b-1\n"
    assert told.asked == [
        ("rollback", Selection, "", "anna"),
        ("rollback", Selection, "car", "anna"),
        ("rollback", ClassSelection, "", "anna"),
    ]


def test_fit_prints_what_came_of_each_slice(asked, told):
    said = asked("fit", "--slice", "car", "--slice", "truck", "--method", "isotonic-std")
    assert told.asked == [("fit", ("car", "truck"), "isotonic-std", this_person())]
    assert said.splitlines() == [
        f"car: {FITTED[0].version} is on trial (31 tracks, 620 detections)",
        "  variance x ×4, y ×0.75 (0.5 to 1)",
        f"truck: {FITTED[1].reason} (12 tracks, 240 detections)",
    ]


def test_pin_and_unpin_say_how_it_is_and_whether_it_was(asked):
    said = [asked(action) for action in ("pin", "pin", "unpin", "unpin")]
    assert said == ["pinned\n", "already pinned\n", "not pinned\n", "already not pinned\n"]
    asked("pin")
    assert asked("list").endswith("promotion: advise, pinned: nothing happens by itself\n")


def test_history_tells_the_latest_records_with_their_evidence(asked, told):
    assert asked("history") == "nothing has happened yet\n"
    told.happened = tuple(record(what, sequence=i) for i, what in enumerate(Happened, 1))
    lines = asked("history", "-n", 2).splitlines()
    assert lines[0] == "    9  2025-06-15 15:06:40  pinned       car variance-scaling-0123456789ab"
    assert lines[1].strip() == "by anna@van: 31 tracks say so"
    assert "31 tracks, gain +0.25 nats; log10 evidence for 1.75, against -2.50" in lines[2]
    assert lines[3].strip() == "variance x ×4, y ×0.75 (0.5 to 1)"
    assert sum("2025-06-15" in line for line in lines) == 2
    assert sum("2025-06-15" in line for line in asked("history").splitlines()) == len(Happened)


def test_what_the_sidecar_refuses_is_a_line_with_its_words(denied, told):
    assert "no recalibrator 'gp-0'" in denied("promote", "gp-0")
    assert "no recalibrator 'gp-0'" in denied("show", "gp-0")
    assert "gone.json" in denied("promote", "--file", "gone.json")
    told.failure = NothingToRollBack("nothing was active before. Promote a version.")
    assert "nothing was active before. Promote a version." in denied("rollback")
    told.failure = FitFailed("the fit was ended after 120 s.")
    assert "the fit was ended after 120 s." in denied("fit")


def test_a_document_goes_to_a_file_and_comes_from_it(pipeline, asked, told, tmp_path, monkeypatch):
    pipeline.recalibrators.learn(DOUBLE.to_json())
    file = tmp_path / "double.json"
    said = asked("show", DOUBLE.version, "--output", file)
    assert file.read_text("utf-8") == DOUBLE.to_json()
    assert f"document written to {file}" in said
    shown = json.loads(asked("show", DOUBLE.version, "--json"))
    assert shown["document"] == json.loads(DOUBLE.to_json())
    monkeypatch.setattr("monitor.commands.recalibrators.MOST_SHOWN", 10)
    assert "characters: give --output F to write it to a file" in asked("show", DOUBLE.version)
    asked("promote", "--file", file, "--actor", "anna")
    assert told.asked == [("promote", DOUBLE.version, "anna")]


def test_programs_read_what_happened_and_null_for_what_is_no_number(asked, told):
    nothing = Evidence(0, float("nan"), 0.0, float("-inf"), 2.0)
    told.happened = (record(Happened.BEGAN, evidence=nothing, event_ns=None),)
    (found,) = json.loads(asked("history", "--json"))["records"]
    assert (found["what"], found["event_ns"]) == ("began", None)
    assert found["evidence"]["gain"] is found["evidence"]["log10_worse"] is None
    assert json.loads(asked("list", "--json"))["promotion"] == "advise"


def test_who_has_no_name_asks_as_the_command_line(monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: dict[str, str]()["uid"])
    assert this_person() == "command line"
