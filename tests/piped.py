"""A pipeline without edges and what is sent to it, for the tests of its stages; no tests."""

from typing import Any, cast

import numpy as np

from monitor.config import Config
from monitor.frames.frame import FrameAnswer, Header, ReceivedTruth, TruthAnswer
from monitor.frames.space import plain_space
from monitor.frames.status import TruthAccount
from monitor.frames.words import FullInput
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.live_statistics import SlicesRead
from monitor.pipeline.pending import Fates
from monitor.pipeline.recalibrators import Recalibrators
from monitor.pipeline.streams import Stream
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.scaling import CovarianceScaling, VarianceScaling
from monitor.recalibration.selection import IDENTITY, Selection
from monitor.statistics.observations import finished
from monitor.statistics.state import SliceStatistics
from monitor.store.journal import Journal
from tests import laws
from tests.journals import ListJournal, unkept
from tests.received import FULL, VARIANCES, Sent, in_form

XYZ = plain_space(("x", "y", "z"), "m")
CLASSES = ("car", "truck", "bus", "tram")
HEADER = Header("lidar", XYZ, CLASSES)
DOUBLE = Selection(XYZ.names, VarianceScaling((2.0, 2.0, 2.0)))
EYE = tuple(map(tuple, np.eye(3).tolist()))
MOMENT = ((1.2, 0.4, 0.0), (0.4, 1.0, 0.1), (0.0, 0.1, 0.7))
WHITEN = CovarianceScaling((1.5, 0.5, 2.0), EYE, MOMENT, (2, 0, 1), FullInput.WHITEN)
BY_SLICE = Selection(XYZ.names, WHITEN, {"truck": VarianceScaling((3.0, 2.0, 1.0))})
SOME = Selection(XYZ.names, Identity(), {"truck": WHITEN, "bus": Identity()})
SELECTIONS = {"identity": IDENTITY, "double": DOUBLE, "by slice": BY_SLICE, "some": SOME}
SECOND = 10**9
GOOD_TRUTH = (1.0, 2.0, 3.0)


def pipeline_of(
    selection: Selection = IDENTITY,
    *,
    journal: ListJournal | None = None,
    **sections: dict[str, Any],
) -> Pipeline:
    """A pipeline whose entries are written to a journal, if there is one."""
    config = Config.model_validate(sections)
    writes = unkept() if journal is None else cast(Journal, journal)
    return Pipeline(config, writes, recalibrators=Recalibrators(selection))


def opened(pipeline: Pipeline, header: Header = HEADER) -> Stream:
    stream = pipeline.register(header)
    assert isinstance(stream, Stream)
    return stream


def sent(id, seed=None, form=FULL, *, truth=False, k=3, classes=4) -> Sent:
    """A simulated detection; its truth, if it is to come along, errs by about σ."""
    random = np.random.default_rng(id if seed is None else seed)
    root = random.normal(size=(k, k)) + 2 * np.eye(k)
    mean = random.normal(size=k)
    answer = mean + random.normal(size=k)
    return Sent(
        id,
        tuple(mean.tolist()),
        in_form(root @ root.T, form),
        int(random.integers(classes)),
        tuple(answer.tolist()) if truth else (),
    )


def truth_of(row: Sent, seed=0) -> tuple[float, ...]:
    random = np.random.default_rng([seed, row.id or 0])
    return tuple((np.array(row.mean) + random.normal(size=len(row.mean))).tolist())


BAD = Sent(90, (0.0, 0.0, 0.0), (1.0, 2.0, 2.0, 1.0, 0.0, 0.0))  # indefinite
MISSING = Sent(91, (0.0, 0.0, 0.0), ())


def outgoing(answer: FrameAnswer) -> list[tuple[list[float], list[float]]]:
    """Mean and covariance of every row as the client gets them, its own where unchanged."""
    received = answer.received.detections
    found = [
        (
            received.mean[i, : received.mean_length[i]].tolist(),
            received.covariance[i, : received.covariance_length[i]].tolist(),
        )
        for i in range(received.n)
    ]
    if answer.forwarded is not None:
        for position, row in enumerate(answer.rows.tolist()):
            covariance = answer.forwarded.covariance[position]
            form = VARIANCES if answer.forwarded.diagonal[position] else FULL
            found[row] = (
                answer.forwarded.mean[position].tolist(),
                list(in_form(covariance, form)),
            )
    return found


def reported(pipeline: Pipeline, labels: ReceivedTruth) -> TruthAnswer:
    """What became of labels; nothing is on any disk, so that there is nothing to search for."""
    answer = pipeline.report(labels)
    assert isinstance(answer, TruthAnswer)
    return answer


def raw(rows) -> list[tuple[list[float], list[float]]]:
    return [(list(row.mean), list(row.covariance)) for row in rows]


def statistics_of(pipeline: Pipeline) -> SlicesRead:
    """Every slice with its statistics, then a total of each space; folded up to now."""
    return finished(pipeline.live.in_steps())


def counted(pipeline: Pipeline) -> dict[str, SliceStatistics]:
    return dict(statistics_of(pipeline))


def assert_same_statistics(one: Pipeline, other: Pipeline) -> None:
    ours, theirs = counted(one), counted(other)
    assert set(ours) == set(theirs)
    for name, statistics in ours.items():
        laws.assert_same(statistics, theirs[name])


def fateless(fates: Fates) -> int:
    """Counts the detections without a fate, by the account."""
    account = fates.account
    known = (count for name, count in account.items() if name not in ("predicted", "retracted"))
    return account["predicted"] - sum(known)


def account_of(account: TruthAccount) -> dict[str, int]:
    found = {name: getattr(account, name) for name in TruthAccount.__dataclass_fields__}
    return {name: count for name, count in found.items() if count}
