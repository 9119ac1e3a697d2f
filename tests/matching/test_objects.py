"""Labels by id of detections or of the labeller's objects: each in one count, each detection in one
fate, and nothing counted by mistake where a part of a message cannot be used."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.config import MatchingConfig
from monitor.frames.detections import Estimates, Limits, Reason
from monitor.frames.frame import (
    Header,
    ReceivedRegion,
    ReceivedTruth,
    SliceKey,
    StoredFrame,
    TrackIds,
    stored_estimates,
)
from monitor.frames.space import BoolArray, Dimension, DimensionKind, FloatArray, Space, plain_space
from monitor.frames.status import TruthAccount
from monitor.frames.words import DistanceKind
from monitor.matching import labels as matching
from monitor.matching.objects import GateVerdict, LabelRecord, Outcome, objects_told
from tests import laws, piped, received
from tests.matching.told import Told, objects
from tests.received import Label, Sent, labels

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
NAN, INF = float("nan"), float("inf")


def region(kind: int, dimensions: str, lower: list[float], upper: list[float]) -> ReceivedRegion:
    bounds = np.array(lower, float), np.array(upper, float)
    return ReceivedRegion(kind, tuple(dimensions.split()), *bounds)


def message(*rows: Told, complete=True, regions=(), names=NAMES) -> ReceivedTruth:
    told = replace(labels([], complete=complete), regions=tuple(regions))
    return replace(told, class_names=names, foreign=objects(*rows))


Where = tuple[StoredFrame, BoolArray]


def stored(class_index: list[int], mean: FloatArray, stamp: int | None = 0) -> StoredFrame:
    """Detections of unit covariance."""
    n, k = mean.shape
    unit = Estimates(mean, np.tile(np.eye(k), (n, 1, 1)), np.ones(n, bool))
    of, slices = np.array(class_index, np.int64), (SliceKey("all"),)
    return StoredFrame(
        *(HEADER, 1, stamp, n, np.arange(n, dtype=np.uint64), of, slices, np.zeros(n, np.uint16)),
        *(stored_estimates(unit), None, None, np.zeros(0, np.uint64)),
    )


def frame(*places: tuple[int, float, float], free=None, stamp: int | None = 0) -> Where:
    """Detections by class, x and y, and which of them have no label yet."""
    mean = np.array([place[1:] for place in places], float).reshape(len(places), 2)
    waits = np.ones(len(places), bool) if free is None else np.array(free, bool)
    return stored([place[0] for place in places], mean, stamp), waits


def match(told: ReceivedTruth, where: Where, config=CONFIG, header=HEADER) -> LabelRecord:
    return matching.match(told, replace(where[0], header=header), where[1], config, Limits())


def counts(account: TruthAccount) -> dict[str, int]:
    values = {name: getattr(account, name) for name in account.__dataclass_fields__}
    return {name: value for name, value in values.items() if value}


def ignored(found: LabelRecord) -> list[int]:
    rows: list[int] = found.settled[found.outcome == Outcome.IGNORED].tolist()
    return rows


# ---- which belong together


def test_objects_find_the_detections_of_their_class_and_the_rest_are_missed_or_unassigned():
    where = frame((0, 0, 0), (1, 5, 0), (0, 20, 0))
    cars = [Told(id, CAR, (x, 0.0)) for id, x in ((8, 2.5), (9, 50.0), (10, 5.0))]
    told = message(Told(7, HUMAN, (5.0, 1.0)), *cars)
    found = match(told, where)
    assert counts(found.account) == {"matched": 2, "missed": 2}
    assert (found.rows.tolist(), found.truth.tolist()) == ([0, 1], [[2.5, 0], [5, 1]])
    assert found.objects is not None and found.gate is not None
    assert found.objects.id.tolist() == [8, 7]
    assert found.gate.tolist() == [GateVerdict.NEAR, GateVerdict.WITHIN]
    assert (found.truth_covariance, ignored(found), found.notices) == (None, [], ())
    assert found.settled.tolist() == [0, 1, 2]
    part = match(replace(told, complete=False), where)
    assert counts(part.account) == {"matched": 2, "unassigned": 2}
    assert part.settled.tolist() == [0, 1]
    # Without names of the labeller's own, classes are those of the header.
    assert match(message(Told(1, 1, (0.0, 0.0)), names=()), frame((1, 0, 0))).rows.tolist() == [0]


IGNORED, ANYTHING = (Told(1, kind, (0.1, 0), ignore=True) for kind in (CAR, None))


@pytest.mark.parametrize(
    ("told", "where", "account", "rows", "passed"),
    [
        # Objects whose detection was labelled before, and those of one id, are duplicates,
        ([(1, 0.1), (2, 9)], frame((0, 0, 0), (0, 10, 0), free=[False, True]), [1, 1], [1], []),
        ([(1, 0.1), (1, 10)], frame((0, 0, 0), (0, 10, 0)), [1, 1], [0], []),
        # but not those without an id.
        ([(None, 0.1), (None, 10)], frame((0, 0, 0), (0, 10, 0)), [2, 0], [0, 1], []),
        # A real object is matched also where an ignored one is nearer.
        ([IGNORED, (2, 1)], frame((0, 0, 0)), [1, 0], [0], []),
        # One of no class ignores those of every class, but none that was labelled before.
        ([ANYTHING], frame((0, 0, 0), (1, 0, 0), (1, 9, 0)), [0, 0], [], [0, 1]),
        ([IGNORED], frame((0, 0, 0), free=[False]), [0, 0], [], []),
    ],
)
def test_an_object_is_matched_ignored_or_a_duplicate(told, where, account, rows, passed):
    made = [one if isinstance(one, Told) else Told(one[0], CAR, (one[1], 0)) for one in told]
    found = match(message(*made), where)
    assert [found.account.matched, found.account.duplicate] == account
    assert sum(counts(found.account).values()) == len(told)
    assert (found.rows.tolist(), ignored(found)) == (rows, passed)


def test_detections_near_ignored_objects_neighbours_and_in_regions_are_ignored():
    where = frame((0, 0, 0), (0, 10, 0), (0, 20, 0), (1, 20, 0), (0, 30, 0), (0, 40, 0), (1, 0, 0))
    told = [Told(2, CAR, (10.0, 0.0)), Told(3, VAN, (20.0, 2.0)), Told(4, TREE, (40.0, 0.0))]
    found = match(message(IGNORED, *told, regions=[region(CAR, "x", [29], [31])]), where)
    assert found.rows.tolist() == [1]
    assert ignored(found) == [0, 2, 4]
    assert counts(found.account) == {"matched": 1, "ignored": 3}


YAWING = Space((Dimension("x"), Dimension("yaw", "rad", DimensionKind.ANGLE)))


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ((4, "x", [0], [1]), "there are 4 class names"),
        ((-1, "x x", [0, 0], [1, 1]), "each once"),
        ((-1, "z", [0], [1]), "dimension 'z'"),
        ((-1, "x", [0, 0], [1]), "2 lower and 1 upper"),
        ((-1, "x", [1], [0]), "the lower bound first"),
        ((-1, "yaw", [-INF], [1]), "numbers both"),
    ],
)
def test_a_region_that_cannot_be_used_is_named_and_the_others_go_on_without_objects(bounds, words):
    both = region(*bounds), region(-1, "x", [0], [INF])
    told = replace(message(regions=both), foreign=None)
    header = replace(HEADER, space=YAWING)
    config = MatchingConfig(dimensions=("x",))
    found = match(told, frame((0, 0.5, 0), (1, 9, 9), (0, -1, 0)), config, header)
    assert ignored(found) == [0, 1]
    assert counts(found.account) == {}
    (notice,) = found.notices
    assert (notice.reason, notice.count) == (Reason.GROUND_TRUTH_INVALID, 1)
    assert words in notice.message
    # The third may lie in the region that cannot be used: it is no false positive.
    assert found.settled.tolist() == [0, 1]


# ---- what cannot be used


@pytest.mark.parametrize(
    ("told", "field"),
    [
        *(
            (Told(1, CAR, truth, ignore), "objects.ground_truth")
            for truth, ignore in (((0.0,), False), ((0.0, NAN), True), ((0.0, 2e8), False))
        ),
        (Told(1, None, (0.0, 0.0)), "objects.class_index"),
        (Told(1, 4, (0.0, 0.0), ignore=True), "objects.class_index"),
        *(
            (Told(1, CAR, (0.0, 0.0), covariance=values), "objects.covariance")
            for values in (
                *((1.0,), (1.0, -1.0), (1.0, INF), (1.0, NAN), (1.0, 1e11), (1.0, 2.0, 1.0)),
                *((1.0, 0.5, 0.1, 1.0), (1.0, 1.7e308, 1.0)),
            )
        ),
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


def test_an_object_is_where_it_was_between_two_samples_and_a_near_one_is_taken_as_it_is():
    told = message(*track(-2, -0.5, 0.4, 1.3))
    found = match(told, frame((0, 0.1, 0)))
    assert counts(found.account) == {"matched": 1}
    assert found.truth[0].tolist() == pytest.approx([0, 0], abs=1e-12)
    assert objects_told(told.foreign) == 1
    assert match(message(*track(0.02)), frame((0, 0, 0))).truth.tolist() == [[0.02, 0]]


@pytest.mark.parametrize(
    ("stamps", "stamp"), [((-2, -0.5), 0), ((-0.6, 0.6), 0), ((0.026,), 0), ((0,), None)]
)
def test_an_object_too_far_from_the_frame_in_time_is_refused(stamps, stamp):
    found = match(message(*track(*stamps)), frame((0, 0, 0), stamp=stamp))
    assert counts(found.account) == {"refused": 1}
    assert found.notices[0].reason is Reason.TRUTH_STAMP
    assert len(found.notices) == found.notices[0].count == 1


def test_the_covariance_of_the_truth_comes_with_it_in_each_form_and_is_zero_where_none_came():
    full = [[4.0, 1.0], [1.0, 2.0]]
    forms = [(4.0, 2.0), (4.0, 1.0, 2.0), (4.0, 1.0, 1.0, 2.0), (), (0.0, 0.0), (1.0, 0.0)]
    rows = [Told(i, CAR, (10.0 * i, 0.0), covariance=form) for i, form in enumerate(forms)]
    found = match(message(*rows), frame(*[(0, 10 * i, 0) for i in range(6)]))
    assert counts(found.account) == {"matched": 6}
    assert found.truth_covariance is not None
    variances, none, one = ([[x, 0], [0, y]] for x, y in ((4, 2), (0, 0), (1, 0)))
    assert found.truth_covariance.tolist() == [variances, full, full, none, none, one]


def test_mahalanobis_distance_weighs_the_covariances_of_both_sides():
    config = MatchingConfig(distance=DistanceKind.MAHALANOBIS, gate=3.0)
    sure, unsure = Told(1, CAR, (0.0, 3.1)), Told(2, CAR, (20.0, 4.2), covariance=(1.0, 1.0))
    found = match(message(sure, unsure), frame((0, 0, 0), (0, 20, 0)), config)
    assert (counts(found.account), found.rows.tolist()) == ({"matched": 1, "missed": 1}, [1])
    assert found.gate is not None and found.gate.tolist() == [GateVerdict.NEAR]


@pytest.mark.parametrize(
    ("kind", "names", "boxes", "told"),
    [
        (
            *(DistanceKind.BEV_IOU, "x y l w yaw", [[0, 0, 4, 2, 0], [10, 0, 4, 2, np.pi / 2]]),
            [(0.5, 0, 4, 2, np.pi), (10, 0, 4, 2, 0)],
        ),
        (
            *(DistanceKind.IMAGE_IOU, "left top right bottom", [[0, 0, 10, 10], [20, 0, 30, 10]]),
            [(1, 0, 11, 10), (26, 0, 36, 10)],
        ),
    ],
)
def test_overlap_decides_where_it_is_configured(kind, names, boxes, told):
    config = MatchingConfig(distance=kind, gate=0.5, box=tuple(names.split()))
    rows = [Told(i, CAR, tuple(map(float, box))) for i, box in enumerate(told)]
    where = stored([0, 0], np.array(boxes, float)), np.ones(2, bool)
    header = replace(HEADER, space=plain_space(config.box))
    found = match(message(*rows), where, config, header)
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
    free = where[1]
    found = match(told, where)
    account = counts(found.account)
    assert sum(account.values()) == objects_told(told.foreign) <= len(rows)
    assert account.get("matched", 0) == found.rows.size
    assert not account.get("unassigned" if complete else "missed", 0)
    if complete and "refused" not in account:
        assert found.settled.size == free.sum()
    else:
        assert not (found.outcome == Outcome.UNMATCHED).any()
    assert found.truth.shape == (found.rows.size, 2)
    assert np.isfinite(found.truth).all()
    assert np.unique(found.settled).size == found.settled.size and free[found.settled].all()
    if found.truth_covariance is not None:
        assert (np.linalg.eigvalsh(found.truth_covariance) >= -1e-9).all()


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"distance": "bev-iou", "gate": 0.5, "gates": {"Car": 1.0}}, "Car 1 with distance"),
        ({"distance": "bev-iou", "gate": 0.5, "box": ["x", "y", "l", "w", "w"]}, "5 different"),
        ({"dimensions": ["x", "x"]}, "each once"),
    ],
)
def test_a_section_that_measures_nothing_is_refused_with_the_remedy(section, words):
    with pytest.raises(ValueError, match=words):
        MatchingConfig.model_validate(section)


# ---- labels by detection id, in whatever order

IDS = st.integers(0, 2**64 - 1)


def known(*ids: int | None) -> TrackIds:
    numbers = np.array([id or 0 for id in ids], np.uint64)
    return TrackIds(numbers, np.array([id is not None for id in ids]))


@given(st.permutations(range(5)), st.lists(st.none() | IDS, min_size=5, max_size=5), st.data())
def test_each_matched_detection_has_the_object_of_its_own_first_label(order, ids, data):
    where = frame(*[(0, float(4 - i), 0) for i in range(5)])
    useless = data.draw(st.sets(st.integers(0, 4)))
    rows = [Label(id, () if id in useless else (4.0 - id, 1.0)) for id in order]
    again = [Label(order[0], (9.0, 9.0))]
    objects = known(*ids, 77)
    found = match(replace(labels([*rows, *again]), objects=objects), where)
    of_detection = dict(zip(order, ids, strict=True))
    if order[0] in useless:
        useless = useless - {order[0]}
        of_detection[order[0]] = 77
    assert set(found.rows.tolist()) == set(range(5)) - useless
    laws.assert_same(found.objects, known(*(of_detection[row] for row in found.rows.tolist())))
    without = match(labels(rows), where)
    assert without.objects is None
    assert without.truth.tolist() == [[4.0 - row, 1.0] for row in without.rows.tolist()]


# ---- messages that cannot be used, or not all of them, through a pipeline


def test_messages_in_another_coordinate_frame_are_refused_and_every_detection_stays_open():
    pipeline = piped.pipeline_of()
    rows = [Sent(i, (10.0 * i, 0.0, 0.0), (1.0, 1.0, 1.0)) for i in range(3)]
    own = replace(piped.HEADER, coordinate_frame="base")
    pipeline.process(piped.opened(pipeline, own), received.frame(rows, 1))
    # A label by id; two samples of one object, and another object that is ignored.
    told = Told(7, 0, (10.0, 0.1, 0.0))
    by_object = objects(told, told, Told(8, 0, (20.0, 0.0, 0.0), ignore=True))
    sent = labels([Label(0, (0.1, 0.0, 0.0))], 1, complete=True)
    sent = replace(sent, class_names=piped.CLASSES, foreign=by_object, coordinate_frame="map")
    answer = piped.reported(pipeline, sent)
    assert piped.account_of(answer.account) == {"refused": 4}
    (notice,) = answer.notices
    assert (notice.reason, notice.field) == (Reason.COORDINATE_FRAME, "coordinate_frame")
    assert notice.count == 4
    assert "'map'" in notice.message and "'base'" in notice.message
    # Where a region cannot be used, no detection is a false positive.
    everywhere = replace(labels([], 1, complete=True), regions=(region(-1, "x", [-9], [9]),))
    elsewhere = replace(everywhere, coordinate_frame="map")
    for bad in (elsewhere, replace(everywhere, regions=(region(-1, "X", [-9], [9]),))):
        assert len(piped.reported(pipeline, bad).notices) == 1
        assert (pipeline.counters.unmatched, pipeline.ledger.fates.pending) == (0, 3)
    again = piped.reported(pipeline, replace(sent, coordinate_frame="base"))
    assert piped.account_of(again.account) == {"matched": 2, "duplicate": 1, "ignored": 1}
