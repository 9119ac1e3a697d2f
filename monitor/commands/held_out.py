"""Tells whether a fit is worth it: before and after, on tracks that it was not fitted on.

The tracks are dealt into parts. Each part is recalibrated by a fit on the others, so that every row
is judged by a fit that has not seen its track.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from monitor.commands.apply import recalibrate_gaussians
from monitor.commands.output import table
from monitor.commands.recordings import numbered_tracks
from monitor.frames.cholesky import factorise, log_determinant, whiten
from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.recalibration.recalibrator import InvalidRecalibrator, UnfitData
from monitor.recalibration.selection import Selection
from monitor.statistics.exact_engine import evaluate_rows
from monitor.statistics.verdicts import FEWEST_TO_JUDGE, mean_interval
from monitor.store.recordings import Recording

# Parts that tracks are dealt into; a slow fit is judged on one of them only.
PARTS = 5


@dataclass(frozen=True, slots=True)
class Score:
    """Measures of some rows under one set of covariances.

    nees_over_k  1 is calibrated
    ence         mean over dimensions
    nll          nats a detection
    """

    nees_over_k: float
    ence: float
    nll: float


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Compares a slice before and after a fit, on rows that it has not seen.

    slice     name; "all" for all rows
    factors   by dimension, the median factor on σ
    gain      nats a detection that the fit gains, and its 95 % interval by tracks (NaN: unknown)
    unused    verdict of the fit that was made and is not used; '' where it is used
    """

    slice: str
    rows: int
    tracks: int
    before: Score
    after: Score
    factors: Mapping[str, float]
    gain: float
    interval: tuple[float, float]
    unused: str = ""

    @property
    def worth_it(self) -> bool:
        """Tells if the fit surely gains, on enough tracks."""
        return self.tracks >= FEWEST_TO_JUDGE and self.interval[0] > 0

    @property
    def verdict(self) -> str:
        """Says whether the fit is worth it."""
        if self.unused:
            return f"left as the detector reports it (the fit: {self.unused})"
        lower, upper = self.interval
        if self.tracks < FEWEST_TO_JUDGE or not np.isfinite([lower, upper]).all():
            return f"too little data to say ({self.tracks} tracks, {FEWEST_TO_JUDGE} are needed)"
        if self.worth_it:
            return f"worth it: gains {self.gain:.3g} nats a detection ({lower:.2g} to {upper:.2g})"
        if upper < 0:
            return f"harmful: loses {-self.gain:.3g} nats a detection"
        return "no proven gain"

    def as_json(self) -> dict[str, object]:
        """Builds the object for JSON."""
        known = np.isfinite(self.interval).all()
        return {
            "slice": self.slice,
            "rows": self.rows,
            "tracks": self.tracks,
            "before": asdict(self.before),
            "after": asdict(self.after),
            "sigma_factors": dict(self.factors),
            "nll_gain": self.gain,
            "nll_gain_interval": list(self.interval) if known else None,
            "used": not self.unused,
            "verdict": self.verdict,
        }


@dataclass(frozen=True, slots=True)
class Unseen:
    """Gaussians before and after fits that have not seen their tracks.

    kept     (n,) numbers of the usable rows
    cluster  (N,) number of the track of each row, −1 where nothing is judged
    left     (N,) rows that stay as they are although a fit was made
    """

    before: Recording
    after: Recording
    kept: IntArray
    cluster: IntArray
    left: BoolArray

    def without(self, left: BoolArray) -> Unseen:
        """Leaves rows as the detector reports them, (N,)."""
        mean = np.where(left[:, None], self.before.mean, self.after.mean)
        covariance = np.where(left[:, None, None], self.before.covariance, self.after.covariance)
        after = replace(self.after, mean=mean, covariance=covariance)
        return replace(self, after=after, left=self.left | left)

    def judged(
        self,
        slices: Mapping[str, IntArray],
        fits: Collection[HeldOut] = (),
        done: Callable[[float], object] = lambda rows: None,
    ) -> tuple[HeldOut, ...]:
        """Compares both for all rows together, and by slice.

        slices  name → numbers of usable rows
        fits    the same where no row is left
        done    is told, as the work goes on, of how many further rows are judged
        """
        verdicts = {one.slice: one.verdict for one in fits}
        found = []
        for name, rows in {"all": self.kept, **slices}.items():
            rows = rows[self.cluster[rows] >= 0]
            if rows.size:
                unused = verdicts[name] if self.left[rows].all() else ""
                found.append(self._judged(name, rows, unused, done))
        return tuple(found)

    def _judged(
        self, name: str, rows: IntArray, unused: str, done: Callable[[float], object]
    ) -> HeldOut:
        _, clusters = np.unique(self.cluster[rows], return_inverse=True)
        nll_before, nll_after = (_nll(one, rows) for one in (self.before, self.after))
        step = np.arange(self.before.space.k)
        before, after = (one.covariance[rows][:, step, step] for one in (self.before, self.after))
        factors = np.median(np.sqrt(after / before), axis=0).tolist()
        gain = nll_before - nll_after
        return HeldOut(
            slice=name,
            rows=rows.size,
            tracks=int(clusters.max()) + 1,
            before=_score(self.before, rows, nll_before, done),
            after=_score(self.after, rows, nll_after, done),
            factors=dict(zip(self.before.space.names, factors, strict=True)),
            gain=float(gain.mean()),
            interval=mean_interval(gain, clusters),
            unused=unused,
        )


def dealt(
    recording: Recording,
    kept: IntArray,
    fit: Callable[[IntArray], Selection],
    *,
    parts: int = PARTS,
) -> Unseen | None:
    """Recalibrates each part of the tracks by a fit on the others.

    kept     (n,) numbers of the usable rows
    fit      fits to some rows, by number
    parts    how many of the PARTS are judged, the others only fitted on
    returns  nothing where the rows have too few tracks, or a part cannot be fitted
    """
    cluster = _clusters(recording, kept)
    if cluster.size == 0 or cluster.max() + 1 < PARTS:
        return None
    mean, covariance = recording.mean.copy(), recording.covariance.copy()
    number = np.full(recording.mean.shape[0], -1)
    for part in range(parts):
        out = cluster % PARTS == part
        try:
            made = recalibrate_gaussians(fit(kept[~out]), recording).recording
        except (UnfitData, InvalidRecalibrator):
            return None
        rows = kept[out]
        mean[rows], covariance[rows] = made.mean[rows], made.covariance[rows]
        number[rows] = cluster[out]
    after = replace(recording, mean=mean, covariance=covariance)
    return Unseen(recording, after, kept, number, np.zeros(number.size, bool))


def compared(
    before: Recording, after: Recording, kept: IntArray, slices: Mapping[str, IntArray]
) -> tuple[HeldOut, ...]:
    """Compares two sets of Gaussians of the same rows, for all usable rows (n,) and by slice."""
    number = np.full(before.mean.shape[0], -1)
    number[kept] = _clusters(before, kept)
    return Unseen(before, after, kept, number, np.zeros(number.size, bool)).judged(slices)


def _clusters(recording: Recording, kept: IntArray) -> IntArray:
    """Numbers the tracks of some rows (n,) from 0 on; a row without a track is one of its own."""
    tracks = numbered_tracks(recording, kept)
    cluster = kept
    if tracks is not None:
        cluster = np.where(tracks >= 0, tracks, tracks.max(initial=-1) + 1 + kept)
    found: IntArray = np.unique(cluster, return_inverse=True)[1].reshape(-1)
    return found


def score_of(recording: Recording, rows: IntArray) -> Score:
    """Measures usable rows, by number."""
    return _score(recording, rows, _nll(recording, rows), lambda rows: None)


def _score(
    recording: Recording, rows: IntArray, nll: FloatArray, done: Callable[[float], object]
) -> Score:
    found = evaluate_rows(
        recording.space,
        recording.mean[rows],
        recording.covariance[rows],
        recording.truth[rows],
        done=done,
    )
    ence = float(np.mean([one.ence for one in found.dimensions.values()]))
    return Score(found.joint.nees_over_k, ence, float(nll.mean()))


def _nll(recording: Recording, rows: IntArray) -> FloatArray:
    """(n,) −ln N(truth | mean, covariance) over all dimensions, in nats."""
    error = recording.space.error(recording.truth[rows], recording.mean[rows])
    factor = factorise(recording.covariance[rows])
    nees = np.square(whiten(factor, error)).sum(axis=0)
    k = recording.space.k
    found: FloatArray = 0.5 * (k * np.log(2 * np.pi) + log_determinant(factor, k) + nees)
    return found


def told(found: tuple[HeldOut, ...], of: str = "held out") -> str:
    """Writes what a fit does to rows, by default to those that it has not seen.

    returns  why nothing is known, where it is so
    """
    if not found:
        return (
            f"not judged on held-out tracks: there are fewer than {PARTS} tracks, or a fit without "
            "some of them fails"
        )
    whole, *slices = found
    rows = [
        (
            one.slice,
            f"{one.rows:,}",
            f"{one.tracks:,}",
            f"{one.before.nees_over_k:.3f} → {one.after.nees_over_k:.3f}",
            f"{one.before.ence:.3f} → {one.after.ence:.3f}",
            f"{one.before.nll:.3f} → {one.after.nll:.3f}",
            # Of several slices together no factor is typical.
            " ".join(f"{name} {factor:.3g}" for name, factor in one.factors.items())
            if not slices or one is not whole
            else "",
        )
        for one in found
    ]
    heads = (of, "rows", "tracks", "NEES/K", "ENCE", "NLL", "factor on σ")
    verdicts = [f"{one.slice}: {one.verdict}" for one in found]
    if len(slices) > 1:
        # Their mean may be 1 where none of them is.
        low, high = (pick(slices, key=lambda one: one.after.nees_over_k) for pick in (min, max))
        verdicts[0] += (
            f"; NEES/K by slice: {low.after.nees_over_k:.3f} ({low.slice}) to "
            f"{high.after.nees_over_k:.3f} ({high.slice})"
        )
    left = any(one.unused for one in found)
    if of == "held out" and not left and not all(one.worth_it for one in found):
        verdicts.append("--proven-only leaves alone what does not surely gain.")
    return "\n".join([table(heads, rows), "", *verdicts])
