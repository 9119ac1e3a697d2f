"""Records and states of the register come back to the last bit; whatever else is read is refused in
words.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.promotion.records import Evidence, Factor, Happened, PromotionMode, Record
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.selection import Chain
from monitor.store.codec import InvalidDocument
from monitor.store.recalibrator_documents import (
    RECORD_CODEC,
    REGISTER_CODEC,
    ConfiguredVersions,
    RegisterState,
)
from tests.promotion.owned_registers import BUS, Owner, adaptive, scaled, settings
from tests.promotion.simulated_tracks import tracks

WORDS = st.text(max_size=20)
TIMES = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.floats(allow_infinity=False)
EVIDENCE = st.builds(Evidence, st.integers(0, 2**63 - 1), *[NUMBERS] * 4)
FACTORS = st.lists(st.builds(Factor, WORDS, *[NUMBERS] * 3), max_size=4).map(tuple)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
RECORD = Record(
    *(3, 1_750_000_000_000_000_003, Happened.BEGAN, "car", "v", "v", "v", "policy", "why", 10**8),
    Evidence(40, 0.1 / 3, math.pi, -1.5, 2.0),
    (Factor("x", 0.5, 1 / 3, 2.0),),
)


def some_state() -> RegisterState:
    """With a candidate that waits, guards, a follower, and what no track has made a guard of."""
    owner = Owner(settings(PromotionMode.ADVISE))
    owner.begin(scaled(4.0))
    owner.take(tracks(0, 60, scale=4.0))
    actives: dict[Chain, Recalibrator] = {BUS: scaled(9.0), ("bike",): adaptive(4.0)}
    for chain, active in actives.items():
        owner.activate(active, chain)
        owner.take(tracks(1, 8), chain)
    owner.activate(scaled(2.0), ("Straße, 0-30 m",))
    register = owner.register
    return RegisterState(
        "identity",
        "class-identity",
        ("before",),
        configured=ConfiguredVersions("variance-scaling-0123456789ab", ""),
        pinned=True,
        sequence=7,
        spent=register.spent,
        trials=tuple(register.on_trial.values()),
        guards=tuple(register.guards.values()),
        befores=tuple(register.befores.values()),
        followers=register.followers,
    )


STATE = some_state()
CONTENT: Any = json.loads(REGISTER_CODEC.write(STATE))


def changed(path: tuple[Any, ...], value: Any) -> str:
    """The state with another value at one place."""
    copy = inside = json.loads(json.dumps(CONTENT))
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return json.dumps(copy)


@given(
    st.builds(
        Record,
        *(st.integers(1, 2**63 - 1), TIMES, st.sampled_from(Happened), *[WORDS] * 6),
        *(st.none() | TIMES, st.none() | EVIDENCE, FACTORS),
    )
)
def test_a_record_is_a_line_of_json_that_comes_back(one):
    line = RECORD_CODEC.write(one)
    assert line.isascii() and len(line.splitlines()) == 1
    assert repr(RECORD_CODEC.read(line)) == repr(one)


def test_a_number_of_a_record_that_is_not_finite_comes_back_as_nan():
    line = RECORD_CODEC.write(replace(RECORD, evidence=Evidence(40, math.inf, math.pi, -1.5, 2.0)))
    found = RECORD_CODEC.read(line).evidence
    assert found is not None and math.isnan(found.gain) and found.log10_better == math.pi


def test_a_state_comes_back_to_the_last_bit():
    assert STATE.trials and STATE.guards and STATE.befores and STATE.followers
    assert REGISTER_CODEC.read(REGISTER_CODEC.write(STATE)) == STATE


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("trials", 0, "trial", "recalibrator", "method"), "magic", "method' is 'magic'"),
        (("trials", 0, "trial", "clip", "loss"), 2.0, "trial.clip': 'loss' is 2.0"),
        (("trials", 0, "trial", "bets", "better"), [0.0], r"bets.better' has 1 entries"),
        (("guards", 0, "watch", "runs", 0, "cumulative"), -1.0, "cumulative' is -1.0"),
        (("followers", "bike", "scaling", "method"), "identity", "must be 'adaptive-scaling'"),
        (("followers", "bike", "approved"), [1.0], "have 3 and 1 factors"),
    ],
)
def test_a_wrong_value_of_a_state_is_refused_with_its_place(path, value, named):
    with pytest.raises(InvalidDocument, match=named):
        REGISTER_CODEC.read(changed(path, value))


@given(st.data())
def test_whatever_stands_in_any_place_of_a_state_is_read_or_refused_with_words(data):
    path: tuple[Any, ...] = ()
    inside = CONTENT
    while isinstance(inside, dict | list) and inside and (not path or data.draw(st.booleans())):
        keys = list(inside) if isinstance(inside, dict) else range(len(inside))
        path = (*path, data.draw(st.sampled_from(keys)))
        inside = inside[path[-1]]
    try:
        again = REGISTER_CODEC.read(changed(path, data.draw(ANYTHING)))
    except InvalidDocument as error:
        assert "'" in str(error)
    else:
        assert REGISTER_CODEC.read(REGISTER_CODEC.write(again)) is not None


def test_states_of_older_formats_are_read():
    first, second = (
        (Path(__file__).parent / f"register_{number}.json").read_bytes() for number in (1, 2)
    )
    again = REGISTER_CODEC.write(REGISTER_CODEC.read(second))
    content = json.loads(second)
    assert content.pop("entry") == 7
    assert json.loads(again) == {**content, "format": "calibration-monitor/register/3"}
    assert json.loads(first)["format"].endswith("register/1")
    assert REGISTER_CODEC.write(REGISTER_CODEC.read(first)) == again
