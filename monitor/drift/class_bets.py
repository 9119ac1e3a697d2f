"""Bets on class probabilities: is the likeliest class right as often as its probability says?

A detection of confidence p, the probability of its likeliest class, is right (I = 1) or wrong. A
detector is calibrated if P(I = 1 | p) = p (top-label calibration: Gupta & Ramdas, ICLR 2022), and
overconfident beyond the tolerance o0, a factor on the odds, if it is right less often than

    a0 = min(σ(logit p − ln o0), 1 − ν),    ν the share of labels that may be wrong themselves.

A bet is that it is right with probability q < a0 only, which multiplies the evidence by

    L = q/a0 if it is right, else (1 − q)/(1 − a0).

L falls in I, so that its mean a q/a0 + (1 − a)(1 − q)/(1 − a0) falls in the accuracy a. It is 1 at
a = a0, thus at most 1 at every accuracy from a0 to 1: within the band, and beyond its other end.
q is off by a factor on the odds, by a temperature, or by a share of detections that are wrong
whatever the detector says. Underconfidence is that errors are rarer than stated: the same with
1 − I and 1 − p in place of I and p.

Whether a class is right hangs on the object, for as long as it is seen. So a track is one vote: the
mean of ln L over the labels of its first ten seconds. e to that is at most the mean of L (Jensen),
whose mean is at most 1, whatever the labels of a track have in common. A vote counts when it is
complete, and nothing is learned: the budget is proved, at any rate of labels, if the votes of
different tracks are independent but for the detector.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.special import expit, logit

from monitor.drift.bets import ABSOLUTE, BETS
from monitor.drift.charts import CHARTS, CHARTS_OF, Direction, Stage
from monitor.drift.usual import WatchedRows
from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.statistics.clusters import ALONE, ClusterArray, cluster_id

# Beyond the band, side by side: factors on the odds, temperatures, shares of detections.
FACTORS = (1.5, 2.5, 5.0, 10.0)
TEMPERATURES = (1.5, 2.0, 3.0, 5.0)
SHARES = (0.03, 0.1, 0.25, 0.6)
assert len(FACTORS + TEMPERATURES + SHARES) == ABSOLUTE, "they have the place of coverage"

# ν: nobody who is sure to 0.9999 is held to it by labels that people and matching have made.
WRONG_LABELS = 0.01

# Confidence is cut there, and at 1 less that.
LEAST = 1e-6

# ns of event time after which the vote of a track is complete; without tracks, all labels of a
# slice and source in so long are one vote.
VOTE_NS = 10_000_000_000


def judged(
    opinions: FloatArray, made: FloatArray | None, label: IntArray
) -> tuple[FloatArray, BoolArray]:
    """Finds the probability of the likeliest class, and if it is right, of n detections.

    opinions  (n, M, C) whose mean is what the detector says
    made      (n, C) as recalibrated, NaN where it could not be; None: as sent
    label     (n,) true class
    returns   (2, n) each, by Stage; NaN where nothing was made
    """
    sent = opinions.mean(axis=1)
    both = np.stack([sent, sent if made is None else made])
    likeliest = both.argmax(axis=2)
    confidence = np.take_along_axis(both, likeliest[:, :, None], axis=2)[:, :, 0]
    return confidence, likeliest == label


def log_likelihoods(
    confidence: FloatArray, right: BoolArray, direction: Direction, tolerance: float
) -> FloatArray:
    """Returns ln L of n detections for each bet, (n, ABSOLUTE).

    tolerance  o0, finite and ≥ 1
    """
    p, as_stated = np.clip(confidence, LEAST, 1 - LEAST)[:, None], right[:, None]
    over = direction is Direction.OVER
    if not over:
        p, as_stated = 1 - p, ~as_stated
    stated = logit(p)
    edge = np.minimum(stated - np.log(tolerance), logit(1 - WRONG_LABELS))
    temperatures = np.array(TEMPERATURES) ** (-1 if over else 1)
    allowed = expit(edge)
    bets = (
        expit(edge - np.log(FACTORS)),
        expit(np.minimum(edge, stated * temperatures)),
        allowed * (1 - np.array(SHARES)),
    )
    q = np.concatenate(bets, axis=1)
    found: FloatArray = np.log(np.where(as_stated, q / allowed, (1 - q) / (1 - allowed)))
    return found


def in_cells(votes: FloatArray, cell: IntArray, count: int) -> FloatArray:
    """Adds up the bets of votes (n, charts, ABSOLUTE) by cell, a slice in a frame.

    returns  (count, charts, BETS); 0 in an empty cell, and of bets on other things
    """
    found = np.zeros((count, votes.shape[1], BETS))
    np.add.at(found[..., :ABSOLUTE], cell, votes)
    return found


@dataclass(frozen=True, eq=False, slots=True)
class ClassLabels:
    """n labelled detections with class probabilities, in the order in which they count.

    slices             (n,) of the family
    confidence, right  (2, n) as `judged` has them, finite
    track              (n,) as in WatchedRows
    source, stamp_ns   (n,) of their frames
    changed            (n,) whether a recalibrator has changed their probabilities
    """

    slices: IntArray
    confidence: FloatArray
    right: BoolArray
    track: ClusterArray
    source: IntArray
    stamp_ns: IntArray
    changed: BoolArray


@dataclass(slots=True)
class _Vote:
    """The vote of a track, as far as it has come; sums over its labels.

    given  whether it was given out
    doubt  (2,) Σ p − I, by Stage
    said   (4, ABSOLUTE) Σ ln L, by chart
    """

    slice: int
    source: int
    track: int
    began_ns: int
    last_ns: int
    given: bool = False
    labels: int = 0
    changed: bool = False
    doubt: FloatArray = field(default_factory=lambda: np.zeros(len(Stage)))
    said: FloatArray = field(default_factory=lambda: np.zeros((len(CHARTS), ABSOLUTE)))


@dataclass(slots=True)
class TrackVotes:
    """Gathers the votes of tracks, and gives out those that are complete.

    A vote is complete after ten seconds of its track, or when the track is over. What is gathered
    is lost in a restart: a track that goes on votes by its later labels alone.

    tolerance  o0
    idle_ns    without labels that end a track
    most       tracks at a time; the longest unseen goes first, without a vote
    """

    tolerance: float
    idle_ns: int
    most: int
    _open: dict[int, _Vote] = field(default_factory=dict)

    def forget(self) -> None:
        """Begins anew with all tracks."""
        self._open.clear()

    def take(self, labels: ClassLabels) -> WatchedRows | None:
        """Takes in labels of one second of each source; returns the votes that are complete by now.

        returns  votes as rows of frames, one of each source, of the time of its last label; their
                 `nees` are 1 + p − I, of mean 1 if calibrated, as if of one degree of freedom
        """
        if labels.slices.size:
            self._gather(labels)
        order = np.argsort(labels.stamp_ns, kind="stable")
        now = dict(zip(labels.source[order].tolist(), labels.stamp_ns[order].tolist(), strict=True))
        votes = self._complete(now)
        while len(self._open) > self.most:
            del self._open[next(iter(self._open))]
        return _rows(votes, now) if votes else None

    def _gather(self, labels: ClassLabels) -> None:
        alike = cluster_id((labels.slices, labels.source, labels.stamp_ns // VOTE_NS, 2))
        key = np.where(labels.track == ALONE, alike, labels.track)
        order = np.argsort(key, kind="stable")
        start = np.flatnonzero(np.append(True, np.diff(key[order]) != 0))
        made = self._said(labels, Stage.RECALIBRATED)
        sent = self._said(labels, Stage.RAW) if labels.changed.any() else made
        of_tracks = np.add.reduceat(np.concatenate([made, sent], axis=1)[order], start)
        doubt = np.add.reduceat((labels.confidence - labels.right).T[order], start)
        changed = np.logical_or.reduceat(labels.changed[order], start)
        count, first = np.diff(start, append=key.size), order[start]
        last = np.maximum.reduceat(labels.stamp_ns[order], start)
        # By their first label: who is forgotten must not hang on the value of a key.
        for at in np.argsort(first).tolist():
            row, name = first[at], int(key[first[at]])
            stamp = int(labels.stamp_ns[row])
            vote = self._open.pop(name, None) or _Vote(
                int(labels.slices[row]), int(labels.source[row]), int(labels.track[row]), stamp, 0
            )
            self._open[name] = vote
            vote.last_ns = max(vote.last_ns, int(last[at]))
            if not vote.given:
                vote.labels += int(count[at])
                vote.changed |= bool(changed[at])
                vote.doubt += doubt[at]
                vote.said += of_tracks[at]

    def _said(self, labels: ClassLabels, stage: Stage) -> FloatArray:
        """Returns ln L of labels for the bets of the charts of a stage, (n, 2, ABSOLUTE)."""
        charts, of_stage = CHARTS[CHARTS_OF[stage]], (labels.confidence[stage], labels.right[stage])
        bets = [log_likelihoods(*of_stage, chart.direction, self.tolerance) for chart in charts]
        return np.stack(bets, axis=1)

    def _complete(self, now: dict[int, int]) -> list[_Vote]:
        """Gives out votes, and ends tracks, of the sources whose time is known."""
        votes = []
        for name, vote in list(self._open.items()):
            if vote.source not in now:
                continue
            time_ns = now[vote.source]
            idle = time_ns - vote.last_ns > self.idle_ns
            if not vote.given and (idle or time_ns - vote.began_ns >= VOTE_NS):
                votes.append(vote)
                vote.given = True
            # Behind its own end where time was set back.
            if idle or vote.last_ns - time_ns > VOTE_NS:
                del self._open[name]
        return votes


def _rows(votes: list[_Vote], now: dict[int, int]) -> WatchedRows:
    """Makes rows of complete votes, and a frame of each source that has any."""
    sources = list(dict.fromkeys(vote.source for vote in votes))
    votes = sorted(votes, key=lambda vote: sources.index(vote.source))
    labels = np.array([vote.labels for vote in votes])
    frame = np.array([sources.index(vote.source) for vote in votes])
    said = np.stack([vote.said for vote in votes]) / labels[:, None, None]
    changed = np.zeros(len(sources), bool)
    np.logical_or.at(changed, frame, [vote.changed for vote in votes])
    none = np.zeros((len(Stage), 0, len(votes)))
    return WatchedRows(
        slices=np.array([vote.slice for vote in votes]),
        nees=1 + np.stack([vote.doubt for vote in votes], axis=1) / labels,
        z=none,
        u=none,
        error=none,
        track=np.array([vote.track for vote in votes], np.uint64),
        frame=frame,
        stamp_ns=np.array([now[source] for source in sources]),
        source=np.array(sources),
        changed=changed,
        votes=np.stack([said[:, CHARTS_OF[stage]] for stage in Stage]),
    )
