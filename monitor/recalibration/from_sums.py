"""Fits from a state of statistics, of one sidecar or of a fleet: from its sums, or from its sample.

Slices of the state are put together to those asked for, as rows are to slices, and fitted on the
same path. What a method reads off the sums of rows, it reads off these, so that the fits are equal;
other methods are fitted on the sample, if there is one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from monitor.frames.cholesky import factorise, positive_definite
from monitor.frames.detections import Estimates
from monitor.frames.slices import ALL, RangeBuckets, unmarked
from monitor.frames.space import BoolArray, IntArray, Space, unpacked_covariances
from monitor.frames.words import SliceBy
from monitor.recalibration.estimated.regression import CovarianceRegression
from monitor.recalibration.fit_rows import Evidence, FitRows, FitSums
from monitor.recalibration.fitting import FITTINGS
from monitor.recalibration.parts import FitSlice, Parts
from monitor.recalibration.recalibrator import UnfitData
from monitor.recalibration.scaling import AdaptiveScaling
from monitor.statistics.clusters import ALONE
from monitor.statistics.sample import SampledRows, fair, width
from monitor.statistics.state import SliceState, Slicing, StatisticsState

# Stream, class and range bucket of a slice; '' where it has none.
_Names = tuple[str, str, str]


@dataclass(frozen=True)
class StateEvidence:
    """All slices of one space in a state, as sent by the detectors.

    space   its covariances are assumed where a method estimates some, and all others were sent
    slices  those in which detections were labelled
    ranges  the buckets, if range tells slices apart
    """

    state: StatisticsState
    space: Space
    slices: tuple[SliceState, ...]
    ranges: RangeBuckets | None

    @classmethod
    def of(
        cls, state: StatisticsState, method: str, dimensions: Sequence[str] | None = None
    ) -> StateEvidence:
        """Chooses the slices of some dimensions; without these, the only ones that there are.

        Covariances that were sent never meet assumed ones: a method that estimates is fitted on
        the detections without a covariance, if there are any, and all others on those with one.

        Raises UnfitData unless the state has labelled detections of one such space.
        """
        labelled = [entry for entry in state.slices if entry.n]
        spaces = list(dict.fromkeys(entry.space.with_sent for entry in labelled))
        wanted = [one for one in spaces if dimensions is None or one.names == tuple(dimensions)]
        if len(wanted) != 1:
            there = " and ".join(",".join(one.names) for one in spaces) or "no labelled detections"
            raise UnfitData(
                f"the state has {there}: a fit is of one set of dimensions, as it was counted. "
                "Choose one by --dimensions, or merge only states of streams with equal headers."
            )
        (space,) = wanted
        estimates, held = FITTINGS[method].estimates, {entry.space for entry in labelled}
        if not estimates and space not in held:
            raise UnfitData(
                f"no labelled detection of the state has a covariance, which {method} corrects. "
                f"Give --method {CovarianceRegression.method}, which estimates one."
            )
        if estimates and space.with_assumed in held:
            space = space.with_assumed
        slicing, ranges = state.slicing, None
        if slicing.range_edges:
            ranges = RangeBuckets(slicing.range_edges, slicing.range_dimensions)
        slices = tuple(entry for entry in labelled if entry.space == space)
        return cls(state, space, slices, ranges)

    def divided(self, by: Collection[SliceBy]) -> tuple[FitSlice, ...]:
        """Lists the slices asked for; their rows are numbers of slices of the state.

        Detections that found no slice of their own are in the fit of all alone.

        Raises UnfitData where the state does not tell them apart.
        """
        if not by:
            return ()
        known = self.state.slicing
        if not set(by) <= set(known.by):
            raise UnfitData(
                f"the state has {known.describe()}, and slices by {', '.join(sorted(by))} were "
                "asked for: its sums tell no others apart. Set [statistics] slice_by in the "
                "sidecars that are to come, or fit the raw logs."
            )
        named = [self._names(entry, known) for entry in self.slices]
        parts = (SliceBy.STREAM, SliceBy.CLASS, SliceBy.RANGE)
        names, index = {}, {}
        for part, column in zip(parts, zip(*named, strict=True), strict=True):
            found, index[part] = np.unique(np.array(column), return_inverse=True)
            names[part] = tuple(found.tolist())
        return Parts(names, index).slices(by)

    def _names(self, entry: SliceState, slicing: Slicing) -> _Names:
        """Tells the parts of a slice from its name, which joins them by slashes."""
        by, rest, bucket = set(slicing.by), unmarked(entry.name), ""
        if entry.overflow or rest == ALL:
            return "", "", ""
        if self.ranges is not None and self.ranges.measures(self.space):
            # A label of a range has no slash in it.
            rest, _, bucket = rest.rpartition("/")
        if not {SliceBy.STREAM, SliceBy.CLASS} <= by:
            return (rest, "", bucket) if SliceBy.STREAM in by else ("", rest, bucket)
        stream, _, of_class = rest.partition("/")
        if not of_class or "/" in of_class:
            raise UnfitData(
                f"slice '{entry.name}' does not tell where the name of the stream ends: one of "
                "both has a slash in it. Fit all of the state, without --by."
            )
        return stream, of_class, bucket

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, if they tell slices apart."""
        if SliceBy.CLASS not in self.state.slicing.by:
            return ()
        named = {self._names(entry, self.state.slicing)[1] for entry in self.slices}
        return tuple(sorted(named - {""}))

    def taken(self, method: str, numbers: IntArray | None = None) -> Evidence:
        """Puts slices together, by number, as a method is fitted on them; without numbers, all.

        Raises UnfitData where the state has not what it needs.
        """
        slices = self.slices if numbers is None else [self.slices[i] for i in numbers.tolist()]
        if FITTINGS[method].sums:
            panes = (pane.raw for entry in slices for pane in entry.panes.values())
            return FitSums.of(self.space, self.state.binning, panes)
        if method == AdaptiveScaling.method:
            raise UnfitData(
                f"{method} needs all rows of every track, in the order of time: fit the raw logs."
            )
        if not self.state.sample:
            raise UnfitData(
                f"{method} needs rows, and the state has sums alone: set [fleet] sample in the "
                "sidecars that are to come, or fit the raw logs. From sums: "
                f"{', '.join(name for name, one in FITTINGS.items() if one.sums)}."
            )
        of_slices = {entry.key for entry in slices}
        return rows_of(self.space, [one.rows for one in self.state.sample if one.key in of_slices])


def rows_of(space: Space, samples: Sequence[SampledRows]) -> FitRows:
    """Makes a fair draw of some samples rows to fit on.

    A covariance without a correlation is taken for variances alone.
    """
    parts = [(one.values, one.track) for one in fair(samples)]
    values = np.concatenate([np.zeros((0, width(space.k))), *(part[0] for part in parts)])
    tracks = np.concatenate([np.zeros(0, np.uint64), *(part[1] for part in parts)])
    mean, packed, error = np.split(values, (space.k, -space.k), axis=1)
    covariance = unpacked_covariances(packed, space.k)
    sound = positive_definite(factorise(covariance))
    mean, covariance, error, tracks = (
        column[sound] for column in (mean, covariance, error, tracks)
    )
    apart = ~np.eye(space.k, dtype=bool)
    diagonal: BoolArray = (covariance[:, apart] == 0).all(axis=1)
    _, number = np.unique(tracks, return_inverse=True)
    track = np.where(tracks == ALONE, -1, number)
    return FitRows(space, Estimates(mean, covariance, diagonal), error, track)
