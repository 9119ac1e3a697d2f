"""Families as JSON: nothing that is not whole and sound is believed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.drift.evidence import Unit
from monitor.drift.family import family_reading
from monitor.drift.state import MOST_KEPT, family_state, restored_family
from monitor.drift.state_json import (
    InvalidFamily,
    OtherFamily,
    family_from_json,
    family_text,
    family_to_json,
    learner_from_json,
    learner_to_json,
)
from monitor.drift.usual import ReferenceLearner
from monitor.statistics.observations import finished
from tests.calibration.drift.kept_families import (
    LONG,
    NAMES,
    SHORT,
    K,
    empty,
    family_of,
    feed,
    text_of,
)
from tests.calibration.drift.watched_rows import watched

ODD: st.SearchStrategy[object] = st.sampled_from([None, True, [], {}, -0.0, 1e-300])
JUNK = ODD | st.integers() | st.floats() | st.text()
WHOLE: Any = json.loads(text_of(family_of(1, factor=8.0, frames=300)))
# Of the first slice.
EVIDENCE = ("slices", 0, "evidence")
BLOCKS, HISTORIES = ("slices", 0, "blocks", 0), ("slices", 0, "histories", 0)
STRICT: Any = json.loads(text_of(family_of(1, replace(LONG, unit=Unit.TRACK))))
TRACKS = ("slices", 0, "tracks", 0)
ALARM = ("latched", 0, "alarm")


def changed(path, new, whole=WHOLE) -> str:
    """The document with another value at one place."""
    copy = json.loads(json.dumps(whole))
    inner = copy
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = new
    return json.dumps(copy)


@pytest.mark.parametrize(
    ("path", "new", "said"),
    [
        (("entry",), -1, "drift.entry"),
        (("entry",), 2**53 + 1, "drift.entry"),
        (("entry",), 7.5, "drift.entry"),
        (("entry",), True, "drift.entry"),
        (("entry",), "7", "drift.entry"),
        (("driven",), -1.0, "drift.driven"),
        (("driven",), float("nan"), "drift.driven"),
        (("peak",), [0.0], "drift.peak"),
        (("latched",), [1] * 10**5, "drift.latched"),
        (("latched", 0, "since"), True, "drift.latched[0].since"),
        ((*ALARM, "slice"), "", "drift.latched[0].alarm.slice"),
        ((*ALARM, "severity"), "Page", "drift.latched[0].alarm.severity"),
        ((*ALARM, "stage"), ["raw"], "drift.latched[0].alarm.stage"),
        ((*ALARM, "event_ns"), 2**63, "drift.latched[0].alarm.event_ns"),
        ((*ALARM, "scale", "lower"), -1, "drift.latched[0].alarm.scale.lower"),
        (("counts", 0, "alarms"), 1.5, "drift.counts[0].alarms"),
        (("slices",), [{}] * (MOST_KEPT + 1), "drift.slices"),
        (("slices", 0, "k"), 10**9, "drift.slices[0].k"),
        (("slices", 0, "k"), 4, "drift.slices[0]"),
        (("slices", 1, "name"), "car", "drift.slices[1].name"),
        (("slices", 0, "name"), "n" * 5000, "drift.slices[0].name"),
        ((*EVIDENCE, "sums", 3), -1e-9, "drift.slices[0].evidence.sums[3]"),
        ((*EVIDENCE, "sums", 3), float("inf"), "drift.slices[0].evidence.sums[3]"),
        ((*EVIDENCE, "sums", 3), float("nan"), "drift.slices[0].evidence.sums[3]"),
        ((*EVIDENCE, "sums"), [], "drift.slices[0].evidence.sums"),
        ((*EVIDENCE, "shares"), [1.0] * 12, "drift.slices[0].evidence.shares"),
        ((*EVIDENCE, "since", 0), 2**70, "drift.slices[0].evidence.since[0]"),
        ((*EVIDENCE, "fresh", 0), -1, "drift.slices[0].evidence.fresh[0]"),
        (("slices", 0, "references"), [None], "drift.slices[0].references"),
        (("slices", 0, "references", 0), {}, "drift.slices[0].references[0]"),
        (("gathered", "unit"), "hour", "drift.gathered.unit"),
        (("gathered", "page_tolerance"), 0.5, "drift.gathered.page_tolerance"),
        (("gathered", "selection"), None, "drift.gathered.selection"),
        (("format",), 1, "drift.format"),
        (("goes_on", "frames"), -1, "drift.goes_on.frames"),
        (("goes_on", "clock", "waiting", 0), float("nan"), "drift.goes_on.clock.waiting[0]"),
        (("goes_on", "clock", "latest_ns"), [], "drift.goes_on.clock.latest_ns"),
        (("goes_on", "clock", "latest_ns", 0), 1.5, "drift.goes_on.clock.latest_ns[0]"),
        (("goes_on", "clock", "source"), [1, 1], "drift.goes_on.clock.source"),
        (("goes_on", "times", "time_ns", 0), 2**63, "drift.goes_on.times.time_ns[0]"),
        (("goes_on", "times", "life", 0), 0, "drift.goes_on.times.life[0]"),
        (("goes_on", "times", "elapsed"), 0, "drift.goes_on.times.heard"),
        (("order", "given", "source"), [77], "drift.order.given"),
        (("order", "newest", "ns"), [2**70], "drift.order.newest.ns"),
        (("slices", 0, "lately", "index"), -1, "drift.slices[0].lately.index"),
        (("slices", 0, "lately", "began"), [1.0], "drift.slices[0].lately.began"),
        (("slices", 0, "lately", "began"), [1.0, -1], "drift.slices[0].lately.began[1]"),
        (("slices", 0, "lately", "supporters"), [], "drift.slices[0].lately.supporters"),
        (("slices", 0, "lately"), None, "drift.slices[0].blocks"),
        (("goes_on",), None, "drift.slices[0].blocks[0].turn"),
        ((*BLOCKS, "key", 0), 2**64, "drift.slices[0].blocks[0].key[0]"),
        (BLOCKS[:-1], [WHOLE["slices"][0]["blocks"][0]] * 2, "drift.slices[0].blocks"),
        ((*BLOCKS, "turn", 0), 10**6, "drift.slices[0].blocks[0].turn"),
        ((*BLOCKS, "opened", 0), 2**62, "drift.slices[0].blocks[0].opened"),
        ((*BLOCKS, "count", 0), 0, "drift.slices[0].blocks[0].count[0]"),
        ((*BLOCKS, "changed", 0), 2, "drift.slices[0].blocks[0].changed[0]"),
        ((*BLOCKS, "sums", 0), float("inf"), "drift.slices[0].blocks[0].sums[0]"),
        ((*HISTORIES, "life", 0), 10**6, "drift.slices[0].histories[0].life"),
        ((*HISTORIES, "before", 0), -1, "drift.slices[0].histories[0].before[0]"),
        ((*HISTORIES, "key"), [1] * 5000, "drift.slices[0].histories[0].key"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_name(path, new, said):
    with pytest.raises(InvalidFamily) as refused:
        family_from_json(changed(path, new))
    assert said in str(refused.value)
    assert "remove it" in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("path", "new", "said"),
    [
        (("goes_on", "whole"), None, "tracks[0].life"),
        ((*TRACKS, "life", 0), 10**6, "tracks[0].life"),
        ((*TRACKS, "used", 0), -1, "tracks[0].used[0]"),
        ((*TRACKS, "sums"), [], "tracks[0].sums"),
        ((*TRACKS, "sums", 0), -1.0, "tracks[0].sums[0]"),
    ],
)
def test_a_whole_track_that_cannot_be_is_refused_by_its_name(path, new, said):
    with pytest.raises(InvalidFamily, match=f"{re.escape(said)}.*remove it"):
        family_from_json(changed(path, new, STRICT))


@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("frame", [3, 2]),
        ("frame", [0] * 512),
        ("track", [1, -1]),
        ("nees", [1.0]),
        ("nees", [1.0, -1.0]),
    ],
)
def test_rows_that_wait_to_be_learned_from_come_back_or_are_refused(name, new):
    learner = ReferenceLearner(K)
    learner.add(np.array([1.5, 2.5]), np.array([7, 0], np.uint64), np.array([4, 9]))
    document: Any = learner_to_json(learner)
    assert learner_to_json(learner_from_json(document)) == document
    assert document["waiting"]["nees"] == [1.5, 2.5]
    document["waiting"][name] = new
    with pytest.raises(ValueError, match=r"learner\.waiting"):
        learner_from_json(document)


def test_thousands_of_tracks_take_a_few_megabytes_and_no_part_is_long():
    family = empty(LONG)
    rows = [(i + 1, i % 3, 2.0 + i / 7, 3.0 + i / 7) for i in range(4000)]
    for at in range(3):
        finished(family.learn(family.take(K, watched([(0, at * 10**9, True, rows)]))))
    state = family_state(family, "identity")
    parts = list(family_text(finished(family_to_json(state))))
    document = json.loads(b"".join(parts))
    for one in document["slices"]:
        one["learners"] = []
    assert len(json.dumps(document, separators=(",", ":"))) < 3 * 10**6
    assert max(map(len, parts)) < 5 * 10**5
    assert family.seconds.tracks == 4000


@pytest.mark.parametrize("entry", [None, 0, 7, 2**53])
def test_the_entry_of_the_ledger_that_it_goes_up_to_comes_back(entry):
    state = replace(family_from_json(json.dumps(WHOLE)), entry=entry)
    text = b"".join(family_text(finished(family_to_json(state))))
    again = family_from_json(text)
    assert again.entry == entry
    assert b"".join(family_text(finished(family_to_json(again)))) == text


def test_a_document_of_before_there_was_a_ledger_is_read_and_its_entry_is_not_known():
    older = {name: value for name, value in WHOLE.items() if name != "entry"}
    state = family_from_json(json.dumps(older))
    assert state.entry is None
    assert json.loads(b"".join(family_text(finished(family_to_json(state))))) == WHOLE


def test_what_is_no_document_at_all_is_refused():
    for text in (b"", b"\xff", b"{", b"[]", b"1", b"{}", b"[" * 10**5, b"null"):
        with pytest.raises(InvalidFamily):
            family_from_json(text)


def test_a_later_format_is_told_apart_whatever_else_it_holds():
    with pytest.raises(OtherFamily, match="use the monitor that wrote it"):
        family_from_json(b'{"format": "calibration-monitor/drift/9", "more": 1}')


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_family_that_goes_on_from_a_damaged_document_is_sound_or_the_document_is_refused(data):
    path: list[Any] = []
    inner: Any = WHOLE
    while isinstance(inner, dict | list) and inner and (not path or data.draw(st.booleans())):
        keys = sorted(inner) if isinstance(inner, dict) else range(len(inner))
        path.append(data.draw(st.sampled_from(list(keys))))
        inner = inner[path[-1]]
    try:
        state = family_from_json(changed(path, data.draw(JUNK)))
    except InvalidFamily:
        return
    family, _ = restored_family(state, SHORT, {}, "identity")
    for name in NAMES:
        family.grow(name, K)
    feed(family, 3, 20)
    for one in family_reading(family, (), 0).standings:
        assert np.isfinite(one.evidence)
        assert one.evidence >= 0
        assert one.peak >= 0
    assert family_from_json(text_of(family))
