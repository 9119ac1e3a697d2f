"""Collects the labelled tracks that decide trials; the newest are kept for the next fit.

Fits themselves run elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from monitor.frames.detections import Limits
from monitor.frames.slices import SliceTable
from monitor.frames.space import Space
from monitor.pipeline.recalibrators import Recalibrators
from monitor.promotion.fits import (
    FitJob,
    FrameSample,
    Reservoir,
    fit_rows,
    latest_alike,
    looks_healthy,
)
from monitor.promotion.records import Decision, FitSettings, PolicySettings, PromotionSettings
from monitor.promotion.register import Register
from monitor.promotion.tracks import LabelledRows, OpenTracks, WholeTrack
from monitor.recalibration.recalibrator import Identity, Recalibrator
from monitor.recalibration.selection import Chain

TracksBySlice = dict[int, list[WholeTrack]]


@dataclass(frozen=True, slots=True)
class TracksToFit:
    """Tracks of one slice for a fit, oldest first.

    until     event time by source of the latest ground truth that the fit uses
    champion  the active recalibrator of the slice
    """

    chain: Chain
    tracks: Sequence[WholeTrack]
    until: Mapping[int, int]
    champion: Recalibrator


@dataclass(slots=True)
class LabelledTracks:
    """The labelled tracks of one pipeline.

    latest_ns  event time of the latest ground truth in a whole track
    """

    settings: PromotionSettings
    limits: Limits
    slices: SliceTable
    recalibrators: Recalibrators
    register: Register = field(init=False)
    reservoir: Reservoir = field(init=False)
    latest_ns: int | None = None
    _open: OpenTracks = field(init=False)
    _sample: FrameSample = field(init=False)
    # By slice name: ground truth up to here went into the candidate or the guard and cannot judge.
    _until: dict[str, Mapping[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.register = Register(self.settings, self.limits)
        self.reservoir = Reservoir(self.settings.tracks)
        self._open = OpenTracks(self.settings.tracks)
        self._sample = FrameSample(self.settings.tracks.sample_ns)

    def adjust(self, fits: FitSettings, policy: PolicySettings) -> None:
        """Replaces the settings of fits and decisions; trials keep the rules they began with."""
        self.settings = replace(self.settings, fits=fits, policy=policy)
        self.register.settings = self.settings

    @property
    def left_out(self) -> int:
        """Counts open tracks and frames for which there was no room."""
        return self._open.left_out

    # ---- tracks

    def take(self, rows: LabelledRows) -> None:
        """Adds detections of a frame with their ground truth; cheap."""
        if self._sample.takes(rows.source, rows.stamp_ns):
            self._open.add(rows)

    def whole(self) -> Generator[None, None, TracksBySlice]:
        """Returns the tracks that have become whole and keeps them for the next fit."""
        found = yield from self._open.closed()
        by_slice: TracksBySlice = defaultdict(list)
        for track in found:
            by_slice[track.slice].append(track)
            self.latest_ns = max(track.ended_ns, self.latest_ns or track.ended_ns)
        for slice, of_slice in by_slice.items():
            if self.chain(slice) is not None:
                self.reservoir.add(of_slice)
        return dict(by_slice)

    def decide(self, tracks: TracksBySlice) -> Generator[None, None, list[Decision]]:
        """Decides trials by whole tracks, slice by slice, and takes them out.

        Returns at the first slice with a decision, so that the caller can promote before the
        remaining tracks are judged. An empty list: no decision, and no tracks remain.
        """
        while tracks:
            slice, of_slice = tracks.popitem()
            chain = self.chain(slice)
            if chain is None:
                continue
            champion, later = partial(self.champion, chain), partial(self._later, chain)
            decisions, rest = yield from self.register.take(chain, champion, of_slice, later)
            if rest:
                tracks[slice] = rest
            if decisions:
                return decisions
        return []

    def _later(self, chain: Chain, tracks: Sequence[WholeTrack]) -> list[WholeTrack]:
        """Returns the tracks, or their parts, that are later than the candidate's or guard's."""
        until = self._until.get(chain[0], {})
        later = (track.since(self._cut(until, track.source)) for track in tracks)
        return [track for track in later if track is not None]

    def _cut(self, until: Mapping[int, int], source: int) -> int | None:
        """Returns the event time that tracks must exceed; None: none, or the source's clock was set
        back to before it.
        """
        cut, now = until.get(source), self._open.time(source)
        return None if cut is None or (now is not None and now < cut) else cut

    # ---- slices

    def chain(self, slice: int) -> Chain | None:
        """Returns the names by which a slice has recalibrators; None if it cannot have its own.

        Three kinds cannot: the overflow slice, a slice that shares its name with a slice of other
        dimensions, and a slice whose dimensions the active selection does not fit.
        """
        entry, chain = self.slices.slices[slice], self.slices.chains[slice]
        alone = bool(chain) and not entry.overflow and entry.name == chain[0]
        return chain if alone and self.recalibrators.selection.fits(entry.space) else None

    def chains(self) -> dict[str, Chain]:
        """Returns by name the chains of all slices that can have a recalibrator of their own."""
        return {chain[0]: chain for chain in self.spaces()}

    def spaces(self) -> dict[Chain, Space]:
        """Returns by chain the spaces of all slices that can have a recalibrator of their own."""
        found = ((self.chain(i), entry.space) for i, entry in enumerate(self.slices.slices))
        return {chain: space for chain, space in found if chain is not None}

    def champion(self, chain: Chain) -> Recalibrator:
        """Returns the active recalibrator of a slice."""
        return self.recalibrators.selection.of(chain)

    # ---- fits

    def is_due(self) -> bool:
        """True if any slice needs a fit."""
        return any(self._wants_fit(slice, chain) for slice, chain in self._kept())

    def may_be_due(self) -> bool:
        """True if any slice will need a fit, once it has tracks enough."""
        return any(self.register.wants_fit(chain) for _, chain in self._kept())

    def due(self) -> list[TracksToFit]:
        """Returns the slices that need a fit."""
        kept = self._kept()
        return [self._to_fit(*entry) for entry in kept if self._wants_fit(*entry)]

    def _wants_fit(self, slice: int, chain: Chain) -> bool:
        enough = self.reservoir.new(slice) >= self.settings.fits.tracks
        return enough and self.register.wants_fit(chain)

    def asked(self, names: Collection[str]) -> list[TracksToFit]:
        """Returns the slices of these names that have tracks; without names, all that have."""
        kept = self._kept()
        return [self._to_fit(*entry) for entry in kept if not names or entry[1][0] in names]

    def forget(self, chain: Chain, keep: int) -> None:
        """Forgets all tracks of a slice but the newest `keep`."""
        self.reservoir.keep_newest(self.slices.chains.index(chain), keep)

    def count_from(self, chain: Chain, until: Mapping[int, int] | None = None) -> None:
        """Excludes ground truth up to a time from the decisions of a slice.

        until  event time by source; None: the latest of the tracks kept now
        """
        tracks = self.reservoir.tracks(self.slices.chains.index(chain))
        self._until[chain[0]] = _latest_by_source(tracks) if until is None else until

    def _kept(self) -> list[tuple[int, Chain]]:
        found = ((slice, self.chain(slice)) for slice in self.reservoir.slices())
        return [(slice, chain) for slice, chain in found if chain is not None]

    def _to_fit(self, slice: int, chain: Chain) -> TracksToFit:
        tracks = self.reservoir.tracks(slice)
        self.reservoir.taken(slice)
        return TracksToFit(chain, tracks, _latest_by_source(tracks), self.champion(chain))


def _latest_by_source(tracks: Sequence[WholeTrack]) -> dict[int, int]:
    found: dict[int, int] = {}
    for track in tracks:
        found[track.source] = max(track.ended_ns, found.get(track.source, track.ended_ns))
    return found


def job_of(
    slices: Sequence[TracksToFit],
    settings: FitSettings,
    limits: Limits,
    band: tuple[float, float] | None = None,
) -> tuple[FitJob, tuple[TracksToFit, ...]]:
    """Makes the job of a fit, and returns the slices with the tracks that it uses: the newest ones
    that are alike. Takes some milliseconds a slice, in any thread.

    band  slices that look healthy by it and have no recalibrator are left out; None: none are
    """
    fitted, rows = [], {}
    for entry in slices:
        tracks = entry.tracks[-latest_alike(entry.tracks, settings.tracks) :]
        found = fit_rows(tracks)
        idle = isinstance(entry.champion, Identity)
        if band is None or not (idle and looks_healthy(found, settings, band)):
            rows[entry.chain[0]] = found
            fitted.append(replace(entry, tracks=tracks))
    return FitJob(settings, rows, limits), tuple(fitted)
