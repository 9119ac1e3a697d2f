"""Records and states of the register come back to the last bit; whatever else is read is refused in
words.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.promotion.betting import Bets, Clip, Watch
from monitor.promotion.records import Evidence, Factor, Happened, Record
from monitor.promotion.register import Follower
from monitor.promotion.trial import AwaitingGuard, Candidate, Guard, Trial
from monitor.recalibration.adaptive_scaling import AdaptiveScaling
from monitor.recalibration.recalibrator import Identity, Recalibrator, as_matrix
from monitor.recalibration.scaling import CovarianceScaling, VarianceScaling
from monitor.store.codec import InvalidDocument, OtherDocument
from monitor.store.recalibrator_documents import (
    RECORD_CODEC,
    REGISTER_CODEC,
    ConfiguredVersions,
    RegisterState,
)

# ---- records
WORDS = st.text(max_size=20)
TIMES = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=64)
COUNTS = st.integers(0, 2**63 - 1)
EVIDENCE = st.builds(Evidence, COUNTS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
FACTORS = st.lists(st.builds(Factor, WORDS, NUMBERS, NUMBERS, NUMBERS), max_size=4).map(tuple)
RECORDS = st.builds(
    Record,
    sequence=st.integers(1, 2**63 - 1),
    time_ns=TIMES,
    what=st.sampled_from(Happened),
    slice=WORDS,
    version=WORDS,
    before=WORDS,
    after=WORDS,
    actor=WORDS,
    reason=WORDS,
    event_ns=st.none() | TIMES,
    evidence=st.none() | EVIDENCE,
    factors=FACTORS,
)


def record(sequence: int, what: Happened = Happened.BEGAN, version: str = "") -> Record:
    """One of a run, that is about a version if there is one."""
    return Record(
        sequence,
        1_750_000_000_000_000_000 + sequence,
        what,
        "car",
        version,
        version,
        version,
        "policy",
        f"reason {sequence}",
        sequence * 100_000_000,
        Evidence(40 + sequence, 0.1 / sequence, math.pi, -1.5, 2.0),
        (Factor("x", 0.5, 1 / 3, 2.0),),
    )


def without_infinities(value: Any) -> Any:
    """What is no finite number as one token, all else as it is."""
    if isinstance(value, dict):
        return {name: without_infinities(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return [without_infinities(one) for one in value]
    if isinstance(value, float):
        return value.hex() if math.isfinite(value) else "none"
    return value


@given(RECORDS)
def test_a_record_is_a_line_of_json_that_comes_back_and_what_is_not_finite_as_nan(one):
    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    line = RECORD_CODEC.write(one)
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert json.loads(line, parse_constant=refused)["what"] == one.what
    assert without_infinities(asdict(RECORD_CODEC.read(line))) == without_infinities(asdict(one))


def test_what_only_newer_code_knows_is_left_out():
    content = {**json.loads(RECORD_CODEC.write(record(3))), "signature": {"by": "somebody"}}
    assert RECORD_CODEC.read(json.dumps(content)) == record(3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sequence", 0),
        ("sequence", 1.5),
        ("sequence", True),
        ("sequence", 2**63),
        ("time_ns", "now"),
        ("what", "vanished"),
        ("what", None),
        ("slice", None),
        ("actor", 7),
        ("event_ns", 0.5),
        ("evidence", []),
        ("evidence", {"tracks": 1}),
        ("evidence", {"tracks": -1}),
        ("factors", {}),
        ("factors", [1]),
        ("factors", [{"dimension": "x", "lowest": "a", "typical": 1, "highest": 1}]),
        ("factors", None),
    ],
)
def test_a_wrong_value_is_refused_with_its_field(field, value):
    content = {**json.loads(RECORD_CODEC.write(record(1))), field: value}
    named = rf"record\.{field}.*"
    with pytest.raises(InvalidDocument, match=f"'({named})'"):
        RECORD_CODEC.read(json.dumps(content))


@pytest.mark.parametrize("name", list(json.loads(RECORD_CODEC.write(record(1)))))
def test_a_record_without_one_of_its_fields_is_refused_or_lacks_what_it_may_lack(name):
    content = json.loads(RECORD_CODEC.write(record(1)))
    del content[name]
    if name in ("event_ns", "evidence", "factors"):
        assert not getattr(RECORD_CODEC.read(json.dumps(content)), name)
        return
    with pytest.raises(InvalidDocument, match=name):
        RECORD_CODEC.read(json.dumps(content))


# ---- states of the register
SEEDS = st.integers(0, 2**32 - 1)
SLICES = ("car", "car, 0-30 m", "bus (u,v)", "Straße")


def variance_scaling(random: np.random.Generator) -> VarianceScaling:
    return VarianceScaling(tuple(np.exp(random.normal(size=3)).tolist()))


def adaptive_scaling(random: np.random.Generator) -> AdaptiveScaling:
    scale, nees = np.exp(random.normal(size=(2, 3))).tolist()
    return AdaptiveScaling(
        scale=tuple(scale),
        time_constant_s=60.0,
        delay_s=3.0,
        ended_s=float(random.uniform(0, 1e9)),
        tracks=float(random.uniform(1, 30)),
        nees=tuple(nees),
        prior_scale=(1.0, 1.0, 1.0),
        prior_tracks=3.0,
    )


def recalibrator(random: np.random.Generator) -> Recalibrator:
    matrix = random.normal(size=(3, 3))
    symmetric = as_matrix(matrix @ matrix.T + np.eye(3))
    pick: tuple[Recalibrator, ...] = (
        Identity(),
        variance_scaling(random),
        adaptive_scaling(random),
        CovarianceScaling((1.0, 2.0, 0.5), as_matrix(np.eye(3)), symmetric, (2, 0, 1)),
    )
    return pick[int(random.integers(len(pick)))]


def state(
    seed: int,
    selection: str = "identity",
    class_selection: str = "class-identity",
    previous: tuple[str, ...] = (),
    sequence: int = 7,
) -> RegisterState:
    """With these versions; all else is drawn."""
    random = np.random.default_rng(seed)
    loss, gain = random.uniform(0.01, 1, 2).tolist()
    clip = Clip(1.0, loss, gain, float(random.uniform(1, 32)))
    trials, guards = [], []
    for slice in SLICES[: int(random.integers(5))]:
        trial = Trial(
            slice,
            recalibrator(random),
            int(random.integers(1, 9)),
            clip,
            Bets().taken(random.normal(size=50), np.ones(50, np.int64), clip),
            ("", "fails: ValueError")[int(random.integers(2))],
        )
        lowest, typical, highest = np.sort(np.exp(random.normal(size=3))).tolist()
        found = (Factor("x", lowest, typical, highest), Factor("y", 1.0, 1.0, float("nan")))
        trials.append(
            Candidate(
                trial,
                found[: int(random.integers(2))],
                bool(random.integers(2)),
                proven=True,
                late=float(random.uniform(0, 1)),
            )
        )
        watch = Watch().taken(random.normal(size=9), np.ones(9, np.int64), clip)
        guards.append(Guard(slice, recalibrator(random), clip, watch))
    follower = replace(
        Follower.of(
            adaptive_scaling(random), float(random.uniform(1, 32)), float(random.uniform(0, 1))
        ),
        scaling=adaptive_scaling(random),
        too_late=("", "labels come 60 s late")[int(random.integers(2))],
    )
    return RegisterState(
        selection,
        class_selection,
        previous,
        (),
        (),
        ConfiguredVersions("variance-scaling-0123456789ab", ""),
        bool(random.integers(2)),
        sequence,
        {name: int(random.integers(9)) for name in SLICES},
        tuple(trials),
        tuple(guards),
        (AwaitingGuard("tram", recalibrator(random), 12.5),),
        {"bike": follower},
    )


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
def test_a_wrong_value_of_a_state_is_refused_with_its_place(path, value, named):
    seed = next(s for s in range(9) if content_of(s)["trials"])
    text = json.dumps(with_value(content_of(seed), path, value))
    with pytest.raises(InvalidDocument, match=named):
        REGISTER_CODEC.read(text)


def test_a_state_of_another_format_says_who_can_read_it():
    text = REGISTER_CODEC.write(state(1)).replace(b"register/3", b"register/4")
    with pytest.raises(OtherDocument, match=r"register/4.*use the monitor that wrote it"):
        REGISTER_CODEC.read(text)


@pytest.mark.parametrize("codec", [REGISTER_CODEC, RECORD_CODEC])
def test_what_is_no_document_at_all_is_refused(codec):
    whole = REGISTER_CODEC.write(state(1))
    ends = [whole[: len(whole) * i // 7] for i in range(1, 7)]
    digits = '{"sequence":' + "9" * 5000 + "}"
    for text in ("", "{", "null", "[]", "{}", "7", "[" * 100_000, digits, b"\xff", *ends):
        with pytest.raises(InvalidDocument):
            codec.read(text)


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
