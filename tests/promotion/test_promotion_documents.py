"""Records and states of the register come back to the last bit; whatever else is read is refused in
words.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.promotion.records import Evidence, Factor, Happened, PromotionMode, Record
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.selection import Chain
from monitor.store.codec import InvalidDocument, OtherDocument
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
NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=64)
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


def changed(content: Any, path: tuple[Any, ...], value: Any) -> str:
    """The document with another value at one place."""
    copy = inside = json.loads(json.dumps(content))
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return json.dumps(copy)


def without_infinities(value: Any) -> Any:
    """What is no finite number as one token, all else as it is."""
    if isinstance(value, dict):
        return {name: without_infinities(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return [without_infinities(one) for one in value]
    if isinstance(value, float):
        return value.hex() if math.isfinite(value) else "none"
    return value


@given(
    st.builds(
        Record,
        *(st.integers(1, 2**63 - 1), TIMES, st.sampled_from(Happened), *[WORDS] * 6),
        *(st.none() | TIMES, st.none() | EVIDENCE, FACTORS),
    )
)
def test_a_record_is_a_line_of_json_that_comes_back_and_what_is_not_finite_as_nan(one):
    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    line = RECORD_CODEC.write(one)
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert json.loads(line, parse_constant=refused)["what"] == one.what
    assert without_infinities(asdict(RECORD_CODEC.read(line))) == without_infinities(asdict(one))


def test_a_state_comes_back_to_the_last_bit():
    assert STATE.trials and STATE.guards and STATE.befores and STATE.followers
    assert REGISTER_CODEC.read(REGISTER_CODEC.write(STATE)) == STATE


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("previous",), [1], r"'register.previous\[0\]' is 1"),
        (("trials", 0, "trial", "recalibrator", "method"), "magic", "method' is 'magic'"),
        (("trials", 0, "trial", "number"), 0, r"'register.trials\[0\].trial.number' is 0"),
        (("trials", 0, "trial", "clip", "loss"), 2.0, "trial.clip': 'loss' is 2.0"),
        (("trials", 0, "trial", "bets", "better"), [0.0], r"bets.better' has 1 entries"),
        (("trials", 0, "trial", "bets", "total"), float("nan"), "bets.total' is nan"),
        (("guards", 0, "watch", "runs", 0, "cumulative"), -1.0, "cumulative' is -1.0"),
        (("followers", "bike", "scaling", "method"), "identity", "must be 'adaptive-scaling'"),
        (("followers", "bike", "approved"), [1.0], "have 3 and 1 factors"),
        (("followers", "bike", "active"), [0.0, 1.0, 1.0], r"active\[0\]' is 0.0"),
        (("more",), 1, "'register.more' is unknown"),
    ],
)
def test_a_wrong_value_of_a_state_is_refused_with_its_place(path, value, named):
    with pytest.raises(InvalidDocument, match=named):
        REGISTER_CODEC.read(changed(CONTENT, path, value))


@given(st.data())
def test_whatever_stands_in_any_place_of_a_state_is_read_or_refused_with_words(data):
    path: tuple[Any, ...] = ()
    inside = CONTENT
    while isinstance(inside, dict | list) and inside and (not path or data.draw(st.booleans())):
        keys = list(inside) if isinstance(inside, dict) else range(len(inside))
        path = (*path, data.draw(st.sampled_from(keys)))
        inside = inside[path[-1]]
    try:
        again = REGISTER_CODEC.read(changed(CONTENT, path, data.draw(ANYTHING)))
    except InvalidDocument as error:
        assert "'" in str(error)
    else:
        assert REGISTER_CODEC.read(REGISTER_CODEC.write(again)) is not None


def test_a_state_of_another_format_says_who_can_read_it_and_older_ones_are_read():
    text = REGISTER_CODEC.write(STATE).replace(b"register/3", b"register/4")
    with pytest.raises(OtherDocument, match=r"register/4.*use the monitor that wrote it"):
        REGISTER_CODEC.read(text)
    first, second = (
        (Path(__file__).parent / f"register_{number}.json").read_bytes() for number in (1, 2)
    )
    again = REGISTER_CODEC.write(REGISTER_CODEC.read(second))
    content = json.loads(second)
    assert content.pop("entry") == 7
    assert json.loads(again) == {**content, "format": "calibration-monitor/register/3"}
    assert json.loads(first)["format"].endswith("register/1")
    assert REGISTER_CODEC.write(REGISTER_CODEC.read(first)) == again
