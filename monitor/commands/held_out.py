"""Tells whether a fit is worth it: before and after, on tracks that it was not fitted on.

The tracks are dealt into parts. Each part is recalibrated by a fit on the others, so that every row
is judged by a fit that has not seen its track.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from monitor.commands.apply import recalibrate_gaussians
from monitor.commands.options import table
from monitor.commands.recordings import numbered_tracks
from monitor.frames.cholesky import factorise, log_determinant, whiten
from monitor.frames.space import FloatArray, IntArray
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
    """

    slice: str
    rows: int
    tracks: int
    before: Score
    after: Score
    factors: Mapping[str, float]
    gain: float
    interval: tuple[float, float]

    @property
    def worth_it(self) -> bool:
        """Tells if the fit surely gains, on enough tracks."""
        return self.tracks >= FEWEST_TO_JUDGE and self.interval[0] > 0

    @property
    def verdict(self) -> str:
        """Says whether the fit is worth it."""
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
        scores = {
            when: {"nees_over_k": one.nees_over_k, "ence": one.ence, "nll": one.nll}
            for when, one in (("before", self.before), ("after", self.after))
        }
        known = np.isfinite(self.interval).all()
        return {
            "slice": self.slice,
            "rows": self.rows,
            "tracks": self.tracks,
            **scores,
            "sigma_factors": dict(self.factors),
            "nll_gain": self.gain,
            "nll_gain_interval": list(self.interval) if known else None,
            "verdict": self.verdict,
        }


def held_out(
    recording: Recording,
    kept: IntArray,
    fit: Callable[[IntArray], Selection],
    slices: Mapping[str, IntArray],
    *,
    parts: int = PARTS,
    done: Callable[[float], object] = lambda rows: None,
) -> tuple[HeldOut, ...]:
    """Judges a way to fit, for all rows together and by slice.

    kept     (n,) numbers of the usable rows
    fit      fits to some rows, by number
    slices   name → numbers of usable rows
    parts    how many of the PARTS are judged, the others only fitted on
    done     is told, as the work goes on, of how many further rows are judged
    returns  nothing where the rows have too few tracks, or a part cannot be fitted
    """
    tracks = numbered_tracks(recording.sequence_index, recording.track)
    cluster = kept.copy()
    if tracks is not None:
        cluster = np.where(tracks[kept] >= 0, tracks[kept], tracks.max(initial=-1) + 1 + kept)
    _, cluster = np.unique(cluster, return_inverse=True)
    if cluster.size == 0 or cluster.max() + 1 < PARTS:
        return ()
    mean, covariance = recording.mean.copy(), recording.covariance.copy()
    judged = np.zeros(kept.size, bool)
    for part in range(parts):
        out = cluster % PARTS == part
        try:
            made = recalibrate_gaussians(fit(kept[~out]), recording).recording
        except (UnfitData, InvalidRecalibrator):
            return ()
        rows = kept[out]
        mean[rows], covariance[rows] = made.mean[rows], made.covariance[rows]
        judged |= out
    after = replace(recording, mean=mean, covariance=covariance)
    number = np.full(recording.mean.shape[0], -1)
    number[kept[judged]] = cluster[judged]
    named = {"all": kept, **slices}
    return tuple(_judged(recording, after, number, named, done))


def _judged(
    before: Recording,
    after: Recording,
    cluster: IntArray,
    named: Mapping[str, IntArray],
    done: Callable[[float], object],
) -> Iterator[HeldOut]:
    """Compares two sets of Gaussians by slice; cluster (N,) is −1 where nothing is judged."""
    for name, rows in named.items():
        rows = rows[cluster[rows] >= 0]
        if rows.size == 0:
            continue
        _, clusters = np.unique(cluster[rows], return_inverse=True)
        nll_before, nll_after = (_nll(one, rows) for one in (before, after))
        gain = nll_before - nll_after
        step = np.arange(before.space.k)
        ratio = np.sqrt(
            after.covariance[rows][:, step, step] / before.covariance[rows][:, step, step]
        )
        yield HeldOut(
            slice=name,
            rows=rows.size,
            tracks=int(clusters.max()) + 1,
            before=_score(before, rows, nll_before, done),
            after=_score(after, rows, nll_after, done),
            factors=dict(zip(before.space.names, np.median(ratio, axis=0).tolist(), strict=True)),
            gain=float(gain.mean()),
            interval=mean_interval(gain, clusters),
        )


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


def told(found: tuple[HeldOut, ...], proven_only: bool) -> str:
    """Writes what a fit does to rows that it has not seen; why nothing is known, where it is so.

    proven_only  whether slices that do not gain are left as they are
    """
    if not found:
        return (
            f"not judged on held-out tracks: there are fewer than {PARTS} tracks, or a fit without "
            "some of them fails"
        )
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
            if len(found) == 1 or one.slice != "all"
            else "",
        )
        for one in found
    ]
    heads = ("held out", "rows", "tracks", "NEES/K", "ENCE", "NLL", "factor on σ")
    verdicts = [f"{one.slice}: {one.verdict}" for one in found]
    if not proven_only and not all(one.worth_it for one in found):
        verdicts.append("--proven-only leaves alone what does not surely gain.")
    return "\n".join([table(heads, rows), "", *verdicts])
