"""Records as a run makes them, and as no run would."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from monitor.promotion.records import Evidence, Factor, Happened, Record

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
