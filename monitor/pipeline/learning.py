"""Collects the labelled tracks that decide trials; the newest are kept for the next fit.

Fits themselves run elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from monitor.frames.detections import Limits
from monitor.frames.slices import CLASS_PROBABILITIES, Chain, SliceTable
from monitor.pipeline.recalibrators import Recalibrators
from monitor.promotion.decisions import Decision
from monitor.promotion.fits import (
    FitJob,
    FrameSample,
    Reservoir,
    fit_rows,
    latest_alike,
    looks_healthy,
)
from monitor.promotion.records import FitSettings, PolicySettings, PromotionSettings, TrackSettings
from monitor.promotion.register import Register
from monitor.promotion.tracks import (
    MOST_WAITING,
    AnyLabelled,
    AnyTrack,
    ClassKind,
    LabelledClasses,
    OpenTracks,
    row_layout,
)
from monitor.recalibration.class_probabilities import ClassIdentity
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.selection import AnyMethod, AnySelection

TracksBySlice = dict[int, list[AnyTrack]]

# Class recalibrators are not by slice: all class tracks have this index, and this chain.
CLASS_SLICE = -1
CLASS_CHAIN: Chain = (CLASS_PROBABILITIES,)

# Bytes of rows of class probabilities that wait at most, and in open tracks, and in those kept for
# fits; and what a packed row takes beside its numbers.
_MOST_CLASS_BYTES, _PER_ROW = 64 * 2**20, 48

# There are so many open tracks at least; rows of each are left out for it, down to two.
_FEWEST, _FEWEST_ROWS = 16, 2


@dataclass(frozen=True, slots=True)
class TracksToFit:
    """Tracks of one slice for a fit, oldest first.

    until     event time by source of the latest ground truth that the fit uses
    champion  the active recalibrator of the slice
    """

    chain: Chain
    tracks: Sequence[AnyTrack]
    until: Mapping[int, int]
    champion: AnyMethod


class _Units:
    """Makes whole tracks of the labelled rows of one kind of recalibrators, from some frames."""

    def __init__(self, settings: TrackSettings, most_waiting: int = MOST_WAITING) -> None:
        self.open = OpenTracks(settings, most_waiting=most_waiting)
        self.sample = FrameSample(settings.sample_ns)

    def take(self, rows: AnyLabelled) -> None:
        if self.sample.takes(rows.source, rows.stamp_ns):
            self.open.add(rows)


def _class_units(settings: PromotionSettings, kind: ClassKind) -> _Units | None:
    """Bounds units of class probabilities by bytes; None: a row of this kind has too many.

    Twice as many tracks are kept as open: one that is open may have twice as many rows.
    """
    rows = _MOST_CLASS_BYTES // (row_layout(kind).itemsize + _PER_ROW)
    fewest = max(_FEWEST, -(-settings.fits.tracks // 2))
    of_each = min(settings.tracks.rows_per_track, rows // (2 * fewest))
    if of_each < _FEWEST_ROWS:
        return None
    most = rows // (2 * of_each)
    tracks = replace(
        settings.tracks,
        rows_per_track=of_each,
        most_open=min(settings.tracks.most_open, most),
        most_tracks=min(settings.tracks.most_tracks, 2 * most),
    )
    return _Units(tracks, min(MOST_WAITING, rows))


@dataclass(slots=True)
class LabelledTracks:
    """The labelled tracks of one pipeline.

    latest_ns   event time of the latest ground truth in a whole track
    class_kind  the classes, and the number of opinions, that class recalibrators are fitted and
                tried on: the first list the active one can be applied to. None: none yet
    """

    settings: PromotionSettings
    limits: Limits
    slices: SliceTable
    recalibrators: Recalibrators
    register: Register = field(init=False)
    reservoir: Reservoir = field(init=False)
    latest_ns: int | None = None
    class_kind: ClassKind | None = None
    _estimates: _Units = field(init=False)
    _classes: _Units | None = None
    # Of units that were dropped, and frames with rows of too many bytes.
    _left_out: int = 0
    # By slice name: ground truth up to here went into the candidate or the guard and cannot judge.
    _until: dict[str, Mapping[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.register = Register(self.settings, self.limits)
        self.reservoir = Reservoir(self.settings.tracks)
        self._estimates = _Units(self.settings.tracks)

    def adjust(self, fits: FitSettings, policy: PolicySettings) -> None:
        """Replaces the settings of fits and decisions; trials keep the rules they began with."""
        self.settings = replace(self.settings, fits=fits, policy=policy)
        self.register.settings = self.settings

    @property
    def left_out(self) -> int:
        """Counts open tracks and frames for which there was no room."""
        return self._left_out + sum(units.open.left_out for units in self._units)

    @property
    def _units(self) -> tuple[_Units, ...]:
        return (self._estimates,) if self._classes is None else (self._estimates, self._classes)

    # ---- tracks

    def take(self, rows: AnyLabelled) -> None:
        """Adds detections of a frame with their ground truth; cheap."""
        if not isinstance(rows, LabelledClasses):
            self._estimates.take(rows)
            return
        if self.class_kind is None and self.recalibrators.class_selection.fits(rows.kind.names):
            self.learn_classes(rows.kind)
            self._left_out += self._classes is None
        if self._classes is not None and rows.kind == self.class_kind:
            self._classes.take(rows)

    def learn_classes(self, kind: ClassKind | None) -> None:
        """Learns from class probabilities of this kind alone; None: of the next that comes.

        Rows of a kind may have too many bytes: then of the next, too.
        """
        if kind == self.class_kind:
            return
        if self._classes is not None:
            self._left_out += self._classes.open.left_out
        self._classes = None if kind is None else _class_units(self.settings, kind)
        self.class_kind = None if self._classes is None else kind
        self.reservoir.keep_newest(CLASS_SLICE, 0)

    def whole(self) -> Generator[None, None, TracksBySlice]:
        """Returns the tracks that have become whole and keeps them for the next fit."""
        by_slice: TracksBySlice = defaultdict(list)
        for units in self._units:
            found = yield from units.open.closed()
            if units not in self._units:
                continue  # dropped meanwhile, with their kind
            for track in found:
                by_slice[track.slice].append(track)
                self.latest_ns = max(track.ended_ns, self.latest_ns or track.ended_ns)
        for slice, of_slice in by_slice.items():
            if self.chain(slice) is not None:
                self.reservoir.add(of_slice)
        if self._classes is not None:
            self.reservoir.keep_newest(CLASS_SLICE, self._classes.open.settings.most_tracks)
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

    def _later(self, chain: Chain, tracks: Sequence[AnyTrack]) -> list[AnyTrack]:
        """Returns the tracks, or their parts, that are later than the candidate's or guard's."""
        until = self._until.get(chain[0], {})
        units = (self._classes if chain == CLASS_CHAIN else None) or self._estimates
        later = (track.since(_cut(until, track.source, units)) for track in tracks)
        return [track for track in later if track is not None]

    # ---- slices

    def chain(self, slice: int) -> Chain | None:
        """Returns the names by which a slice has recalibrators; None if it cannot have its own.

        Three kinds cannot: the overflow slice, a slice that shares its name with a slice of other
        dimensions, and a slice whose dimensions the active selection does not fit.
        """
        if slice == CLASS_SLICE:
            return CLASS_CHAIN if self.class_kind is not None else None
        entry, chain = self.slices.slices[slice], self.slices.chains[slice]
        alone = bool(chain) and not entry.overflow and entry.name == chain[0]
        return chain if alone and self.recalibrators.selection.fits(entry.space) else None

    def chains(self) -> dict[str, Chain]:
        """Returns by name the chains of all slices that can have a recalibrator of their own."""
        return {chain[0]: chain for chain in self.names()}

    def names(self) -> dict[Chain, tuple[str, ...]]:
        """Returns by chain the dimensions of all slices that can have a recalibrator of their own.

        Under CLASS_CHAIN the classes, once there are some.
        """
        entries = enumerate(self.slices.slices)
        found = {chain: entry.space.names for i, entry in entries if (chain := self.chain(i))}
        return found if self.class_kind is None else found | {CLASS_CHAIN: self.class_kind.names}

    def selection(self, chain: Chain) -> AnySelection:
        """Returns what is active for a slice and others of its kind."""
        found = self.recalibrators
        return found.class_selection if chain == CLASS_CHAIN else found.selection

    def champion(self, chain: Chain) -> AnyMethod:
        """Returns the active recalibrator of a slice, or of class probabilities."""
        return self.selection(chain).of(chain)

    def _slice(self, chain: Chain) -> int:
        return CLASS_SLICE if chain == CLASS_CHAIN else self.slices.chains.index(chain)

    # ---- fits

    def is_due(self) -> bool:
        """True if any slice needs a fit."""
        return any(self._has_enough(*entry) for entry in self._wanting())

    def may_be_due(self) -> bool:
        """True if any slice will need a fit, once it has tracks enough."""
        return bool(self._wanting())

    def due(self) -> list[TracksToFit]:
        """Returns the slices that need a fit."""
        return [self._to_fit(*entry) for entry in self._wanting() if self._has_enough(*entry)]

    def _has_enough(self, slice: int, chain: Chain) -> bool:
        return self.reservoir.new(slice) >= self.settings.fewest(chain)

    def _wanting(self) -> list[tuple[int, Chain]]:
        found = [entry for entry in self._kept() if self.register.wants_fit(entry[1])]
        return [entry for entry in found if not self.settings.fits.leaves(entry[1])]

    def asked(self, names: Collection[str]) -> list[TracksToFit]:
        """Returns the slices of these names that have tracks; without names, all that have."""
        kept = self._kept()
        return [self._to_fit(*entry) for entry in kept if not names or entry[1][0] in names]

    def forget(self, chain: Chain, keep: int) -> None:
        """Forgets all tracks of a slice but the newest `keep`."""
        self.reservoir.keep_newest(self._slice(chain), keep)

    def keep_since(self, chain: Chain, stamp_ns: int) -> None:
        """Forgets all tracks of a slice that were over before an event time."""
        tracks = self.reservoir.tracks(self._slice(chain))
        self.forget(chain, sum(track.ended_ns >= stamp_ns for track in tracks))

    def count_from(self, chain: Chain, until: Mapping[int, int] | None = None) -> None:
        """Excludes ground truth up to a time from the decisions of a slice.

        until  event time by source; None: the latest of the tracks kept now
        """
        tracks = self.reservoir.tracks(self._slice(chain))
        self._until[chain[0]] = _latest_by_source(tracks) if until is None else until

    def _kept(self) -> list[tuple[int, Chain]]:
        found = ((slice, self.chain(slice)) for slice in self.reservoir.slices())
        return [(slice, chain) for slice, chain in found if chain is not None]

    def _to_fit(self, slice: int, chain: Chain) -> TracksToFit:
        tracks = self.reservoir.tracks(slice)
        self.reservoir.taken(slice)
        return TracksToFit(chain, tracks, _latest_by_source(tracks), self.champion(chain))


def _cut(until: Mapping[int, int], source: int, units: _Units) -> int | None:
    """Returns the event time that tracks must exceed; None: none, or the source's clock was set
    back to before it.
    """
    cut, now = until.get(source), units.open.time(source)
    return None if cut is None or (now is not None and now < cut) else cut


def _latest_by_source(tracks: Sequence[AnyTrack]) -> dict[int, int]:
    found: dict[int, int] = {}
    for track in tracks:
        found[track.source] = max(track.ended_ns, found.get(track.source, track.ended_ns))
    return found


def job_of(
    slices: Sequence[TracksToFit],
    settings: FitSettings,
    limits: Limits,
    policy: PolicySettings | None = None,
) -> tuple[FitJob, tuple[TracksToFit, ...]]:
    """Makes the job of a fit, and returns the slices with the tracks that it uses: the newest ones
    that are alike. Takes some milliseconds a slice, in any thread.

    policy  slices that look healthy by its band and have no recalibrator are left out; None: none
    """
    fitted, rows = [], {}
    for entry in slices:
        tracks = entry.tracks[-latest_alike(entry.tracks, settings.fewest(entry.chain)) :]
        found = fit_rows(tracks)
        idle = isinstance(entry.champion, Identity | ClassIdentity)
        if policy is None or not (idle and looks_healthy(found, settings, policy)):
            rows[entry.chain[0]] = found
            fitted.append(replace(entry, tracks=tracks))
    return FitJob(settings, rows, limits), tuple(fitted)
