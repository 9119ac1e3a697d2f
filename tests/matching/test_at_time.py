"""Samples of labelled tracks: how many labels they are, and where their objects were."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.frames.frame import ReceivedObjects
from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.matching.distances import Placed, objects_at_time, placed_at_time, samples_told
from tests.matching.told import Told, objects

GAP, OFFSET = 100, 5
SPACE = Space((Dimension("x"), Dimension("yaw", "rad", DimensionKind.ANGLE)))


@dataclass(frozen=True)
class Sample:
    id: int | None = None
    stamp: int | None = None
    usable: bool = True


def samples(rows: list[Sample]) -> ReceivedObjects:
    return objects(*[Told(row.id, 0, (), stamp=row.stamp) for row in rows])


def found(rows: list[Sample], stamp: int | None = 1000):
    usable = np.array([row.usable for row in rows], bool)
    return objects_at_time(samples(rows), usable, stamp, GAP, OFFSET)


def slowly(rows: list[Sample], stamp: int | None):
    """(told, standing as {(sample, other)}, duplicates, untimely), by the meaning of the words."""
    told = duplicate = untimely = 0
    standing = {}
    seen: set[int | None] = set()
    for i, row in enumerate(rows):
        same = (
            [j for j, other in enumerate(rows) if other.id == row.id] if row.id is not None else [i]
        )
        if row.stamp is None:
            told += 1
            if row.usable and row.id is not None and row.id in seen:
                duplicate += 1
            elif row.usable:
                seen.add(row.id)
                standing[i] = (i, 0.0)
            continue
        if any(rows[j].stamp is None for j in same) or same[0] != i:
            continue
        told += 1
        usable = [j for j in same if rows[j].usable]
        if not usable:
            continue
        if stamp is None:
            untimely += 1
            continue
        when = {j: rows[j].stamp or 0 for j in usable}
        last = max((j for j in usable if when[j] <= stamp), key=lambda j: (when[j], -j), default=-1)
        first = min((j for j in usable if when[j] >= stamp), key=lambda j: (when[j], j), default=-1)
        away = {j: abs(when[j] - stamp) for j in (last, first) if j >= 0}
        near = min(away, key=lambda j: away[j])
        if len(away) == 2 and sum(away.values()) <= GAP:
            standing[near] = (last + first - near, away[near] / sum(away.values()))
        elif away[near] <= OFFSET or (last == first):
            standing[near] = (near, 0.0)
        else:
            untimely += 1
    return told, standing, duplicate, untimely


ends = st.sampled_from([-(2**63), 2**63 - 1])
stamps = st.none() | st.integers(880, 1120) | st.integers(994, 1006) | ends
rows_of_samples = st.lists(
    st.builds(
        Sample,
        id=st.none() | st.integers(0, 3),
        stamp=stamps,
        usable=st.sampled_from([True, True, True, False]),
    ),
    max_size=12,
)


@given(rows_of_samples, st.sampled_from([1000, 1000, 1000, None, -(2**63), 2**63 - 1]))
@example([Sample(7, 1000), Sample(7), Sample(7, 1001)], 1000)  # one without a stamp stands
@example([Sample(1, 940), Sample(1, 1040)], 1000)  # just near enough to each other
@example([Sample(1, 940), Sample(1, 1041)], 1000)
@example([Sample(1, 995)], 1000)
@example([Sample(1, 994)], 1000)
@example([Sample(1, 998), Sample(1, 1008)], 1000)  # two around are better than a near one
@example([Sample(1, 999), Sample(1, 999), Sample(1, 1001), Sample(1, 1001)], 1000)
@example([Sample(1), Sample(1), Sample(2, 10), Sample(None), Sample(None)], None)
@example([Sample(1, 1000), Sample(2, 7, False), Sample(2, 5), Sample(2, 6)], 1000)
@example([Sample(1, -(2**63)), Sample(1, 2**63 - 1)], 1000)
@example([Sample(1, 1100, False), Sample(1, 2**63 - 1)], -(2**63))
def test_objects_are_found_as_a_slow_search_finds_them(rows, stamp):
    at = found(rows, stamp)
    told, standing, duplicate, untimely = slowly(rows, stamp)
    assert (at.told, at.duplicate, at.untimely) == (told, duplicate, untimely)
    expected = np.array([(i, *standing[i]) for i in at.sample.tolist()]).reshape(-1, 3)
    assert at.sample.size == len(standing)
    assert np.stack([at.sample, at.other, at.share], axis=1) == pytest.approx(expected)
    assert (np.diff(at.label) > 0).all()
    assert at.told == samples_told(samples(rows))[0] <= len(rows)
    assert at.told - at.label.size - at.duplicate >= at.untimely
    first = at.first
    assert rows[first].stamp is not None and rows[first].usable if untimely else first == -1
    # What is unusable changes no count of labels.
    broken = found([replace(row, usable=False) for row in rows], stamp)
    assert (broken.told, broken.label.size) == (told, 0)


# ---- where they are


@given(st.floats(-10, 10), st.floats(-3, 3), st.integers(901, 999), st.integers(1001, 1099))
def test_a_steady_motion_is_met_exactly_and_angles_go_the_shortest_way(x, turn, first, last):
    last = min(last, first + GAP)
    if last <= 1000:
        return
    speed = 0.3
    times = np.array([first, last]) - 1000
    mean = np.stack([x + speed * times, 3.0 + turn * times / GAP], axis=1)
    SPACE.wrap(mean)
    at = found([Sample(1, first), Sample(1, last)])
    placed = placed_at_time(Placed(mean), at, SPACE)
    assert placed.mean[0, 0] == pytest.approx(x, abs=1e-9)
    off = SPACE.error(placed.mean, np.array([[x, 3.0]]))
    assert off[0, 1] == pytest.approx(0, abs=1e-9)


def test_the_covariance_is_that_of_a_weighted_sum_of_two_samples():
    random = np.random.default_rng(3)
    root = random.normal(size=(2, 2, 2))
    covariance = root @ root.transpose(0, 2, 1)
    at = found([Sample(1, 980), Sample(1, 1060)])
    placed = placed_at_time(Placed(np.zeros((2, 2)), covariance), at, SPACE)
    assert placed.covariance is not None
    expected = 0.75**2 * covariance[0] + 0.25**2 * covariance[1]
    np.testing.assert_allclose(placed.covariance[0], expected)
