"""A state of the register comes back to the last bit; whatever else is read is refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.store.codec import InvalidDocument, OtherDocument
from monitor.store.recalibrator_documents import REGISTER_CODEC, RegisterState
from tests.promotion.random_states import state

SEEDS = st.integers(0, 2**32 - 1)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def content_of(seed: int) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(REGISTER_CODEC.write(state(seed)))
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


@given(SEEDS)
def test_a_state_comes_back_to_the_last_bit(seed):
    kept = state(seed)
    text = REGISTER_CODEC.write(kept)
    again = REGISTER_CODEC.read(text)
    assert REGISTER_CODEC.write(again) == text
    # The factor that is no number is NaN, which equals nothing; the text compares it.
    if b"null" not in text:
        assert again == kept


def test_a_state_of_a_first_start_comes_back():
    bare = RegisterState("identity-1", "class-identity-1")
    assert REGISTER_CODEC.read(REGISTER_CODEC.write(bare)) == bare


@given(SEEDS, st.data())
def test_whatever_stands_in_any_place_is_read_or_refused_with_words(seed, data):
    content = content_of(seed)
    path = data.draw(st.sampled_from(places(content)))
    text = json.dumps(with_value(content, path, data.draw(ANYTHING)))
    try:
        again = REGISTER_CODEC.read(text)
    except InvalidDocument as error:
        assert "'" in str(error)
    else:
        assert REGISTER_CODEC.read(REGISTER_CODEC.write(again)) is not None


@given(SEEDS, st.data())
def test_a_text_that_ends_early_is_refused(seed, data):
    text = REGISTER_CODEC.write(state(seed))
    length = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(InvalidDocument):
        REGISTER_CODEC.read(text[:length])


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("selection",), None, "'register.selection' is None"),
        (("previous",), [1], r"'register.previous\[0\]' is 1"),
        (("pinned",), 1, "'register.pinned' is 1"),
        (("sequence",), -1, "'register.sequence' is -1"),
        (("spent", "car"), 0.5, "'register.spent.car' is 0.5"),
        (("configured", "recalibrator"), 5, "'register.configured.recalibrator' is 5"),
        (("trials",), {}, "'register.trials' is an object"),
        (("trials", 0, "trial", "recalibrator", "method"), "magic", "method' is 'magic'"),
        (("trials", 0, "trial", "number"), 0, r"'register.trials\[0\].trial.number' is 0"),
        (("trials", 0, "trial", "clip", "loss"), 2.0, "trial.clip': 'loss' is 2.0"),
        (("trials", 0, "trial", "bets", "better"), [0.0], r"bets.better' has 1 entries"),
        (("trials", 0, "trial", "bets", "total"), float("nan"), "bets.total' is nan"),
        (("trials", 0, "proven"), "yes", "proven' is 'yes'"),
        (("trials", 0, "trial", "clip", "rows"), 0.5, "rows' is 0.5"),
        (("guards", 0, "clip", "rows"), None, "rows' is None"),
        (("guards", 0, "watch", "runs"), [], r"runs' has 0 entries"),
        (("trials", 0, "trial", "unsound"), True, "unsound' is True"),
        (("trials", 0, "late"), 1.5, "late' is 1.5"),
        (("guards", 0, "watch", "runs", 0, "cumulative"), -1.0, "cumulative' is -1.0"),
        (("befores", 0, "slice"), 7, "slice' is 7"),
        (("sent",), "a", "'register.sent' is 'a'"),
        (("followers", "bike", "late"), -0.5, "followers.bike.late' is -0.5"),
        (("followers", "bike", "full"), 0.0, "full' is 0.0"),
        (("followers", "bike", "too_late"), None, "too_late' is None"),
        (
            ("followers", "bike", "scaling"),
            {"method": "identity", "parameters": {}},
            "must be 'adaptive-scaling'",
        ),
        (("followers", "bike", "approved"), [1.0], "have 3 and 1 factors"),
        (("followers", "bike", "active"), [0.0, 1.0, 1.0], r"active\[0\]' is 0.0"),
        (("more",), 1, "'register.more' is unknown"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(path, value, named):
    seed = next(s for s in range(9) if content_of(s)["trials"])
    text = json.dumps(with_value(content_of(seed), path, value))
    with pytest.raises(InvalidDocument, match=named):
        REGISTER_CODEC.read(text)


def test_a_state_of_another_format_says_who_can_read_it():
    text = REGISTER_CODEC.write(state(1)).replace(b"register/3", b"register/4")
    with pytest.raises(OtherDocument, match=r"register/4.*use the monitor that wrote it"):
        REGISTER_CODEC.read(text)


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", "[" * 100_000, b"\xff", '{"format":1}'])
def test_what_is_no_state_at_all_is_refused(text):
    with pytest.raises(InvalidDocument):
        REGISTER_CODEC.read(text)


def test_states_of_older_formats_are_read_but_for_the_position_of_their_tracks():
    first, second = (
        (Path(__file__).parent / f"register_{number}.json").read_bytes() for number in (1, 2)
    )
    again = REGISTER_CODEC.write(REGISTER_CODEC.read(second))
    content = json.loads(second)
    assert content.pop("entry") == 7
    assert json.loads(again) == {**content, "format": "calibration-monitor/register/3"}
    assert json.loads(first)["format"].endswith("register/1")
    assert REGISTER_CODEC.write(REGISTER_CODEC.read(first)) == again
