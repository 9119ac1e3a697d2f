"""Labels in ids of the labeller's own: each object in one count, each detection in one fate."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.config import MatchingConfig
from monitor.frames.counters import TruthAccount
from monitor.frames.detections import Estimates, Limits, Reason
from monitor.frames.frame import Header, ReceivedObjects, ReceivedRegion, ReceivedTruth
from monitor.frames.space import BoolArray, Dimension, DimensionKind, FloatArray, Space, plain_space
from monitor.frames.stored import SliceKey, StoredFrame, stored_estimates
from monitor.matching import labels as matching
from monitor.matching.distances import DistanceKind
from monitor.matching.objects import objects_told
from monitor.matching.record import GateVerdict, LabelRecord, Outcome
from tests.received import labels

SPACE = plain_space(("x", "y"))
HEADER = Header("lidar", SPACE, ("Car", "Pedestrian"), "base_link")
CONFIG = MatchingConfig(
    gates={"Car": 3.0, "Pedestrian": 1.5},
    class_map={"human": "Pedestrian"},
    neighbours={"Car": ("Van",)},
)
NAMES = ("Car", "human", "Van", "tree")
CAR, HUMAN, VAN, TREE = range(4)
SECOND = 10**9
LIMITS = Limits()


@dataclass(frozen=True)
class Told:
    """One sample of an object."""

    id: int | None
    class_index: int | None
    truth: tuple[float, ...]
    ignore: bool = False
    stamp: int | None = None
    covariance: tuple[float, ...] = ()


def invalid(found: LabelRecord) -> Counter[Reason]:
    return sum((Counter({one.reason: one.count}) for one in found.notices), Counter())


def padded(rows):
    values = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for i, row in enumerate(rows):
        values[i, : len(row)] = row
    return values, np.array([len(row) for row in rows], np.int64)


def objects(*rows: Told) -> ReceivedObjects:
    truth, truth_length = padded([row.truth for row in rows])
    covariance, covariance_length = padded([row.covariance for row in rows])
    return ReceivedObjects(
        id=np.array([row.id or 0 for row in rows], np.uint64),
        has_id=np.array([row.id is not None for row in rows], bool),
        class_index=np.array(
            [-1 if row.class_index is None else row.class_index for row in rows], np.int64
        ),
        truth=truth,
        truth_length=truth_length,
        covariance=covariance,
        covariance_length=covariance_length,
        ignore=np.array([row.ignore for row in rows], bool),
        stamp_ns=np.array([row.stamp or 0 for row in rows], np.int64),
        has_stamp=np.array([row.stamp is not None for row in rows], bool),
    )


def message(*rows: Told, complete=True, regions=(), names=NAMES) -> ReceivedTruth:
    return replace(
        labels([], complete=complete),
        class_names=names,
        foreign=objects(*rows),
        regions=tuple(regions),
    )


@dataclass(frozen=True)
class Where:
    """Detections of a frame, and which of them have no label yet."""

    class_index: list[int]
    mean: FloatArray
    free: BoolArray
    stamp: int | None = 0

    def stored(self, header: Header) -> StoredFrame:
        n, k = self.mean.shape
        unit = Estimates(self.mean, np.tile(np.eye(k), (n, 1, 1)), np.ones(n, bool))
        return StoredFrame(
            header=header,
            frame_id=1,
            stamp_ns=self.stamp,
            received=n,
            id=np.arange(n, dtype=np.uint64),
            class_index=np.array(self.class_index, np.int64),
            slices=(SliceKey("all"),),
            slice=np.zeros(n, np.uint16),
            sent=stored_estimates(unit),
            made=None,
            version=None,
            unusable=np.zeros(0, np.uint64),
        )


def frame(*places: tuple[int, float, float], free=None, stamp: int | None = 0) -> Where:
    """Detections by class, x and y; of unit covariance."""
    n = len(places)
    mean = np.array([place[1:] for place in places], float).reshape(n, 2)
    waits = np.ones(n, bool) if free is None else np.array(free, bool)
    return Where([place[0] for place in places], mean, waits, stamp)


def at(mean: list[list[float]]) -> Where:
    """Cars."""
    return Where([0] * len(mean), np.array(mean), np.ones(len(mean), bool))


def match(
    told: ReceivedTruth, where: Where, config=CONFIG, header=HEADER, limits=LIMITS
) -> LabelRecord:
    return matching.match(told, where.stored(header), where.free, config, limits)


def ignored(found: LabelRecord) -> list[int]:
    rows: list[int] = found.settled[found.outcome == Outcome.IGNORED].tolist()
    return rows


def near_gate(found: LabelRecord) -> list[bool]:
    assert found.gate is not None
    near: list[bool] = (found.gate == GateVerdict.NEAR).tolist()
    return near


def counts(account: TruthAccount) -> dict[str, int]:
    values = {name: getattr(account, name) for name in account.__dataclass_fields__}
    return {name: value for name, value in values.items() if value}


# ---- which belong together


def test_objects_find_the_detections_of_their_class_and_the_rest_are_missed():
    where = frame((0, 0, 0), (1, 5, 0), (0, 20, 0))
    found = match(
        message(
            Told(7, HUMAN, (5.0, 1.0)),
            Told(8, CAR, (1.0, 0.0)),
            Told(9, CAR, (50.0, 0.0)),
            Told(10, CAR, (5.0, 0.0)),
        ),
        where,
    )
    assert counts(found.account) == {"matched": 2, "missed": 2}
    assert found.rows.tolist() == [0, 1]
    assert found.truth.tolist() == [[1, 0], [5, 1]]
    assert found.objects is not None
    assert found.objects.id.tolist() == [8, 7]
    assert found.truth_covariance is None
    assert ignored(found) == []
    assert found.notices == ()
    assert found.settled.tolist() == [0, 1, 2]


def test_objects_of_an_incomplete_frame_without_a_detection_are_unassigned():
    found = match(message(Told(1, CAR, (9.0, 9.0)), complete=False), frame((0, 0, 0)))
    assert counts(found.account) == {"unassigned": 1}


def test_without_names_of_the_labellers_own_classes_are_those_of_the_header():
    told = message(Told(1, 1, (0.0, 0.0)), names=())
    assert match(told, frame((1, 0, 0))).rows.tolist() == [0]


def test_matches_beyond_the_near_share_of_the_gate_are_marked():
    told = message(Told(1, CAR, (2.3, 0.0)), Told(2, CAR, (12.5, 0.0)))
    found = match(told, frame((0, 0, 0), (0, 10, 0)))
    assert near_gate(found) == [False, True]


def test_an_object_whose_detection_was_labelled_before_is_a_duplicate():
    told = message(Told(1, CAR, (0.1, 0.0)), Told(2, CAR, (4.0, 0.0)))
    found = match(told, frame((0, 0, 0), (0, 4, 0), free=[False, True]))
    assert counts(found.account) == {"matched": 1, "duplicate": 1}
    assert found.rows.tolist() == [1]


def test_of_two_objects_of_one_id_the_first_stands():
    told = message(Told(1, CAR, (0.1, 0.0)), Told(1, CAR, (10.0, 0.0)))
    found = match(told, frame((0, 0, 0), (0, 10, 0)))
    assert counts(found.account) == {"matched": 1, "duplicate": 1}
    assert found.rows.tolist() == [0]


def test_objects_without_ids_are_all_of_their_own():
    told = message(Told(None, CAR, (0.1, 0.0)), Told(None, CAR, (10.0, 0.0)))
    found = match(told, frame((0, 0, 0), (0, 10, 0)))
    assert counts(found.account) == {"matched": 2}
    assert found.objects is None


# ---- neither right nor wrong


def test_detections_near_ignored_objects_neighbours_and_in_regions_are_ignored():
    where = frame((0, 0, 0), (0, 10, 0), (0, 20, 0), (1, 20, 0), (0, 30, 0), (0, 40, 0), (1, 0, 0))
    region = ReceivedRegion(CAR, ("x",), np.array([29.0]), np.array([31.0]))
    found = match(
        message(
            Told(1, CAR, (0.0, 1.0), ignore=True),
            Told(2, CAR, (10.0, 0.0)),
            Told(3, VAN, (20.0, 2.0)),
            Told(4, TREE, (40.0, 0.0)),
            regions=[region],
        ),
        where,
    )
    assert found.rows.tolist() == [1]
    assert ignored(found) == [0, 2, 4]
    assert counts(found.account) == {"matched": 1, "ignored": 3}


def test_a_real_object_is_matched_also_where_an_ignored_one_is_nearer():
    told = message(Told(1, CAR, (0.1, 0.0), ignore=True), Told(2, CAR, (1.0, 0.0)))
    found = match(told, frame((0, 0, 0)))
    assert found.rows.tolist() == [0]
    assert ignored(found) == []


def test_an_ignored_object_of_no_class_ignores_those_of_every_class():
    told = message(Told(1, None, (0.0, 0.0), ignore=True))
    found = match(told, frame((0, 0, 0), (1, 0, 0), (1, 9, 0)))
    assert ignored(found) == [0, 1]
    assert counts(found.account) == {"ignored": 1}


def test_detections_that_were_labelled_before_are_not_ignored():
    told = message(Told(1, CAR, (0.0, 0.0), ignore=True))
    assert ignored(match(told, frame((0, 0, 0), free=[False]))) == []


def test_regions_alone_need_no_objects():
    region = ReceivedRegion(-1, ("x", "y"), np.array([-1.0, -1.0]), np.array([1.0, np.inf]))
    told = replace(message(regions=[region]), foreign=None)
    found = match(told, frame((0, 0, 0), (1, 0, 9), (0, 2, 0)))
    assert ignored(found) == [0, 1]
    assert counts(found.account) == {}


@pytest.mark.parametrize(
    ("region", "words"),
    [
        (ReceivedRegion(4, ("x",), np.zeros(1), np.ones(1)), "there are 4 class names"),
        (ReceivedRegion(-1, (), np.zeros(0), np.zeros(0)), "at least one"),
        (ReceivedRegion(-1, ("x", "x"), np.zeros(2), np.ones(2)), "each once"),
        (ReceivedRegion(-1, ("z",), np.zeros(1), np.ones(1)), "dimension 'z'"),
        (ReceivedRegion(-1, ("x",), np.zeros(2), np.ones(1)), "2 lower and 1 upper"),
        (ReceivedRegion(-1, ("x",), np.ones(1), np.zeros(1)), "the lower bound first"),
        (ReceivedRegion(-1, ("x",), np.full(1, np.nan), np.ones(1)), "numbers both"),
    ],
)
def test_a_region_that_cannot_be_used_is_named_and_the_others_go_on(region, words):
    good = ReceivedRegion(-1, ("x",), np.zeros(1), np.ones(1))
    found = match(message(regions=[region, good]), frame((0, 0.5, 0)))
    assert ignored(found) == [0]
    assert invalid(found) == {Reason.GROUND_TRUTH_INVALID: 1}
    assert words in found.notices[0].message


def test_the_bounds_of_an_angle_are_finite():
    space = Space((Dimension("x"), Dimension("yaw", "rad", DimensionKind.ANGLE)))
    region = ReceivedRegion(-1, ("yaw",), np.array([-np.inf]), np.ones(1))
    config = MatchingConfig(dimensions=("x",))
    found = match(message(regions=[region]), frame((0, 0, 0)), config, replace(HEADER, space=space))
    assert "numbers both" in found.notices[0].message


# ---- what cannot be used


@pytest.mark.parametrize(
    ("told", "field"),
    [
        (Told(1, CAR, (0.0,)), "objects.ground_truth"),
        (Told(1, CAR, (0.0, 0.0, 0.0)), "objects.ground_truth"),
        (Told(1, CAR, (0.0, float("nan"))), "objects.ground_truth"),
        (Told(1, CAR, (0.0, 2e8)), "objects.ground_truth"),
        (Told(1, CAR, (), ignore=True), "objects.ground_truth"),
        (Told(1, None, (0.0, 0.0)), "objects.class_index"),
        (Told(1, 4, (0.0, 0.0)), "objects.class_index"),
        (Told(1, 4, (0.0, 0.0), ignore=True), "objects.class_index"),
        (Told(1, CAR, (0.0, 0.0), covariance=(1.0,)), "objects.covariance"),
        (Told(1, CAR, (0.0, 0.0), covariance=(1.0, -1.0)), "objects.covariance"),
        (Told(1, CAR, (0.0, 0.0), covariance=(1.0, float("inf"))), "objects.covariance"),
        (Told(1, CAR, (0.0, 0.0), covariance=(1.0, float("nan"))), "objects.covariance"),
        (Told(1, CAR, (0.0, 0.0), covariance=(1.0, 1e11)), "objects.covariance"),
        (Told(1, CAR, (0.0, 0.0), covariance=(1.0, 2.0, 1.0)), "objects.covariance"),
        (Told(1, CAR, (0.0, 0.0), covariance=(1.0, 0.5, 0.1, 1.0)), "objects.covariance"),
        (Told(1, CAR, (0.0, 0.0), covariance=(1.0, 2.0, 2.0, 1.0)), "objects.covariance"),
    ],
)
def test_an_object_that_cannot_be_used_is_refused_and_its_neighbours_count(told, field):
    found = match(message(Told(5, CAR, (10.0, 0.0)), told), frame((0, 0, 0), (0, 10, 0)))
    assert counts(found.account) == {"matched": 1, "refused": 1}
    # The other detection may belong to it: it is no false positive.
    assert found.rows.tolist() == found.settled.tolist() == [1]
    (notice,) = found.notices
    assert (notice.reason, notice.field) == (Reason.GROUND_TRUTH_INVALID, field)
    assert (notice.count, notice.first_index) == (1, 1)
    assert invalid(found) == {Reason.GROUND_TRUTH_INVALID: 1}


@pytest.mark.parametrize("largest_deviation", [1e5, 1e154])
@pytest.mark.parametrize("beside", [2.0, 1e200, 1.7e308])
def test_a_covariance_with_huge_values_beside_its_diagonal_is_refused(beside, largest_deviation):
    header = replace(HEADER, space=plain_space(("x", "y", "z")))
    told = message(Told(1, CAR, (0.0,) * 3, covariance=(1.0, beside, 1.0, beside, beside, 1.0)))
    limits = Limits(largest_deviation=largest_deviation)
    found = match(told, at([[0.0] * 3]), CONFIG, header, limits)
    assert counts(found.account) == {"refused": 1}
    assert found.notices[0].field == "objects.covariance"


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (MatchingConfig(dimensions=("u", "v")), "dimensions"),
        (MatchingConfig(distance=DistanceKind.BEV_IOU, gate=0.5), "box"),
    ],
)
def test_a_stream_that_cannot_be_measured_so_has_its_objects_refused(config, word):
    found = match(message(Told(1, CAR, (0.0, 0.0))), frame((0, 0, 0)), config)
    assert counts(found.account) == {"refused": 1}
    assert f"[matching] {word}" in found.notices[0].message


# ---- time and covariance


def track(*stamps_s: float) -> list[Told]:
    """Samples of a car that moves along x by 1 unit/s, through 0 at 0 s."""
    return [Told(3, CAR, (t, 0.0), stamp=round(t * SECOND)) for t in stamps_s]


def test_an_object_is_where_it_was_between_two_samples_and_is_one_object():
    told = message(*track(-2, -0.5, 0.4, 1.3))
    found = match(told, frame((0, 0.1, 0)))
    assert counts(found.account) == {"matched": 1}
    assert found.truth[0].tolist() == pytest.approx([0, 0], abs=1e-12)
    assert objects_told(told.foreign) == 1


@pytest.mark.parametrize(
    ("stamps", "stamp"), [((-2, -0.5), 0), ((-0.6, 0.6), 0), ((0.026,), 0), ((0,), None)]
)
def test_an_object_too_far_from_the_frame_in_time_is_refused(stamps, stamp):
    found = match(message(*track(*stamps)), frame((0, 0, 0), stamp=stamp))
    assert counts(found.account) == {"refused": 1}
    assert found.notices[0].reason is Reason.TRUTH_STAMP
    assert invalid(found) == {Reason.TRUTH_STAMP: 1}


def test_a_sample_near_the_frame_is_taken_as_it_is():
    found = match(message(*track(0.02)), frame((0, 0, 0)))
    assert found.truth.tolist() == [[0.02, 0]]


def test_a_track_with_one_bad_sample_is_told_of_by_the_others():
    bad = Told(3, CAR, (float("nan"), 0.0), stamp=0)
    found = match(message(bad, *track(-0.4, 0.4)), frame((0, 0, 0)))
    assert counts(found.account) == {"matched": 1}
    assert invalid(found) == {Reason.GROUND_TRUTH_INVALID: 1}


def test_the_covariance_of_the_truth_comes_with_it_in_each_form_and_is_zero_where_none_came():
    full = [[4.0, 1.0], [1.0, 2.0]]
    forms = [(4.0, 2.0), (4.0, 1.0, 2.0), (4.0, 1.0, 1.0, 2.0), (), (0.0, 0.0), (1.0, 0.0)]
    rows = [Told(i, CAR, (10.0 * i, 0.0), covariance=form) for i, form in enumerate(forms)]
    found = match(message(*rows), frame(*[(0, 10 * i, 0) for i in range(6)]))
    assert counts(found.account) == {"matched": 6}
    assert found.truth_covariance is not None
    assert found.truth_covariance.tolist() == [
        [[4, 0], [0, 2]],
        full,
        full,
        [[0, 0], [0, 0]],
        [[0, 0], [0, 0]],
        [[1, 0], [0, 0]],
    ]


def test_mahalanobis_distance_weighs_the_covariances_of_both_sides():
    config = MatchingConfig(distance=DistanceKind.MAHALANOBIS, gate=3.0)
    told = message(
        Told(1, CAR, (0.0, 3.1)), Told(2, CAR, (20.0, 4.2), covariance=(1.0, 1.0)), complete=False
    )
    found = match(told, frame((0, 0, 0), (0, 20, 0)), config)
    assert counts(found.account) == {"matched": 1, "unassigned": 1}
    assert found.rows.tolist() == [1]
    assert near_gate(found) == [True]


def test_overlap_seen_from_above_decides_where_it_is_configured():
    space = Space(
        (
            *plain_space(("x", "y", "l", "w")).dimensions,
            Dimension("yaw", "rad", DimensionKind.ANGLE),
        )
    )
    config = MatchingConfig(distance=DistanceKind.BEV_IOU, gate=0.5)
    where = at([[0, 0, 4, 2, 0], [10, 0, 4, 2, np.pi / 2]])
    told = message(Told(1, CAR, (0.5, 0, 4, 2, np.pi)), Told(2, CAR, (10, 0, 4, 2, 0)))
    found = match(told, where, config, replace(HEADER, space=space))
    assert counts(found.account) == {"matched": 1, "missed": 1}
    assert found.rows.tolist() == [0]


# ---- the identity


coordinates = st.floats(-6, 6)
told_objects = st.builds(
    Told,
    id=st.none() | st.integers(0, 5),
    class_index=st.none() | st.integers(0, 5),
    truth=st.tuples(coordinates, coordinates)
    | st.sampled_from([(), (1.0,), (float("nan"), 0.0), (0.0, 1e9)]),
    ignore=st.sampled_from([False, False, True]),
    stamp=st.none() | st.integers(-SECOND, SECOND),
    covariance=st.sampled_from([(), (1.0, 2.0), (1.0, 2.0, 1.0), (1.0,)]),
)
detections = st.tuples(st.integers(0, 1), coordinates, coordinates)


@given(
    st.lists(told_objects, max_size=10),
    st.lists(st.tuples(detections, st.booleans()), max_size=8),
    st.booleans(),
    st.none() | st.just(0),
)
def test_every_object_is_in_one_count_and_every_detection_has_one_fate(
    rows, places, complete, stamp
):
    told = message(*rows, complete=complete)
    where = frame(*[place for place, _ in places], free=[free for _, free in places], stamp=stamp)
    found = match(told, where)
    account = counts(found.account)
    assert sum(account.values()) == objects_told(told.foreign) <= len(rows)
    assert account.get("matched", 0) == found.rows.size
    assert not account.get("unassigned" if complete else "missed", 0)
    unmatched = int(np.count_nonzero(found.outcome == Outcome.UNMATCHED))
    waits = int(where.free.sum()) - found.settled.size
    assert unmatched == 0 if "refused" in account or not complete else waits == 0
    assert found.truth.shape == (found.rows.size, 2)
    assert np.isfinite(found.truth).all()
    settled = found.settled
    assert np.unique(settled).size == settled.size
    assert where.free[settled].all()
    if found.truth_covariance is not None:
        assert (np.linalg.eigvalsh(found.truth_covariance) >= -1e-9).all()


@given(st.integers(0, 2**32 - 1), st.integers(0, 10), st.integers(0, 10))
def test_the_order_of_objects_changes_nothing_that_is_matched_or_ignored(seed, m, n):
    random = np.random.default_rng(seed)
    rows = [
        Told(
            i, int(random.integers(4)), tuple(random.uniform(-6, 6, 2)), bool(random.random() < 0.2)
        )
        for i in range(m)
    ]
    where = frame(*[(int(random.integers(2)), *random.uniform(-6, 6, 2)) for _ in range(n)])
    found = match(message(*rows), where)
    other = match(message(*[rows[i] for i in random.permutation(m)]), where)
    assert found.account == other.account
    assert found.rows.tolist() == other.rows.tolist()
    assert found.truth.tolist() == other.truth.tolist()
    assert ignored(found) == ignored(other)


# ---- the configuration


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"distance": "bev-iou"}, "gate 2 with distance bev-iou"),
        ({"distance": "bev-iou", "gate": 0.5, "gates": {"Car": 1.0}}, "Car 1 with distance"),
        ({"distance": "image-iou", "gate": 0.5}, "name 4 different dimensions"),
        ({"distance": "bev-iou", "gate": 0.5, "box": ["x", "y", "l", "w", "w"]}, "5 different"),
        ({"dimensions": []}, "at least one"),
        ({"dimensions": ["x", "x"]}, "each once"),
    ],
)
def test_a_section_that_measures_nothing_is_refused_with_the_remedy(section, words):
    with pytest.raises(ValueError, match=words):
        MatchingConfig.model_validate(section)


def test_overlap_in_the_image_takes_four_names():
    box = ("left", "top", "right", "bottom")
    config = MatchingConfig(distance=DistanceKind.IMAGE_IOU, gate=0.5, box=box)
    header = replace(HEADER, space=plain_space(box))
    where = at([[0.0, 0, 10, 10], [20, 0, 30, 10]])
    found = match(message(Told(1, CAR, (21.0, 0, 31, 10))), where, config, header)
    assert found.rows.tolist() == [1]
