"""A state of the register comes back to the last bit; whatever else is read is refused in words."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.promotion.register_json import (
    InvalidRegister,
    OtherRegister,
    RegisterState,
    register_from_json,
    register_to_json,
)
from tests.promotion.random_states import state

SEEDS = st.integers(0, 2**32 - 1)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def content_of(seed: int) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(register_to_json(state(seed)))
    return content


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place inside a JSON value, as keys and indices."""
    found = [path] if path else []
    inside: list[tuple[Any, Any]] = []
    if isinstance(value, dict | list):
        inside = list(value.items() if isinstance(value, dict) else enumerate(value))
    for key, one in inside:
        found += places(one, (*path, key))
    return found


def with_value(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = json.loads(json.dumps(content))
    inside = changed
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return changed


@given(SEEDS, st.integers(0, 2**62))
def test_a_state_comes_back_to_the_last_bit(seed, entry):
    kept = replace(state(seed), entry=entry)
    text = register_to_json(kept)
    again = register_from_json(text)
    assert register_to_json(again) == text
    # The factor that is no number is NaN, which equals nothing; the text compares it.
    if "null" not in text:
        assert again == kept


def test_a_state_of_a_first_start_comes_back():
    bare = RegisterState("identity-1", "class-identity-1")
    assert register_from_json(register_to_json(bare)) == bare


@given(SEEDS)
def test_a_state_of_before_there_was_a_ledger_is_read_and_its_entry_is_not_known(seed):
    content = content_of(seed)
    assert content.pop("entry") is None
    again = register_from_json(json.dumps(content))
    assert again.entry is None
    assert json.loads(register_to_json(again)) == {**content, "entry": None}


@given(SEEDS, st.data())
def test_whatever_stands_in_any_place_is_read_or_refused_with_words(seed, data):
    content = content_of(seed)
    path = data.draw(st.sampled_from(places(content)))
    text = json.dumps(with_value(content, path, data.draw(ANYTHING)))
    try:
        again = register_from_json(text)
    except InvalidRegister as error:
        assert "'" in str(error)
    else:
        assert register_from_json(register_to_json(again)) is not None


@given(SEEDS, st.data())
def test_a_text_that_ends_early_is_refused(seed, data):
    text = register_to_json(state(seed))
    length = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(InvalidRegister):
        register_from_json(text[:length])


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("selection",), None, "'selection' is None"),
        (("previous",), [1], "'previous' is .1."),
        (("pinned",), 1, "'pinned' is 1"),
        (("sequence",), -1, "'sequence' is -1"),
        (("entry",), -1, "'entry' is -1"),
        (("entry",), 1.5, "'entry' is 1.5"),
        (("entry",), True, "'entry' is True"),
        (("entry",), "7", "'entry' is '7'"),
        (("spent", "car"), 0.5, "'car' is 0.5"),
        (("configured", "recalibrator"), 5, "'recalibrator' is 5"),
        (("trials",), {}, "'trials' is an object"),
        (("trials", 0, "recalibrator", "method"), "magic", "'recalibrator.method' is 'magic'"),
        (("trials", 0, "number"), 0, "'number' is 0"),
        (("trials", 0, "clip", "loss"), 2.0, "'loss' is 2.0"),
        (("trials", 0, "bets", "better"), [0.0], "'better' is .0.0."),
        (("trials", 0, "bets", "total"), float("nan"), "'total' is nan"),
        (("trials", 0, "proven"), "yes", "'proven' is 'yes'"),
        (("trials", 0, "clip", "rows"), 0.5, "'rows' is 0.5"),
        (("guards", 0, "clip", "rows"), None, "'rows' is None"),
        (("guards", 0, "runs"), [], "'runs' is "),
        (("trials", 0, "unsound"), True, "'unsound' is True"),
        (("trials", 0, "late"), 1.5, "'late' is 1.5"),
        (("guards", 0, "runs", 0, "cumulative"), -1.0, "'cumulative' is -1.0"),
        (("befores", 0, "slice"), 7, "'slice' is 7"),
        (("sent",), "a", "'sent' is 'a'"),
        (("followers", "bike", "late"), -0.5, "'late' is -0.5"),
        (("followers", "bike", "full"), 0.0, "'full' is 0.0"),
        (("followers", "bike", "too_late"), None, "'too_late' is None"),
        (("followers", "bike", "scaling", "method"), "identity", "must be 'adaptive-scaling'"),
        (("followers", "bike", "approved"), [1.0], "have 3 and 1 factors"),
        (("followers", "bike", "in_force"), [0.0, 1.0, 1.0], "'in_force' holds 0.0"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(path, value, named):
    seed = next(s for s in range(9) if content_of(s)["trials"])
    text = json.dumps(with_value(content_of(seed), path, value))
    with pytest.raises(InvalidRegister, match=named) as refused:
        register_from_json(text)
    if path[0] in ("trials", "guards", "befores", "followers") and len(path) > 1:
        assert f"in '{path[0]}" in str(refused.value)


def test_a_state_of_another_format_says_who_can_read_it():
    text = register_to_json(state(1)).replace("register/1", "register/2")
    with pytest.raises(OtherRegister, match=r"register/2.*use the monitor that wrote it"):
        register_from_json(text)


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", "[" * 100_000, b"\xff", '{"format":1}'])
def test_what_is_no_state_at_all_is_refused(text):
    with pytest.raises(InvalidRegister):
        register_from_json(text)
