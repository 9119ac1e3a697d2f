"""The recalibrators that a sidecar knows, and what the active ones make of a frame.

One of each kind is active, of estimates and of class probabilities: it acts on the next frame, on
estimates, class probabilities, quantiles and flags. A part that fails is counted, logged and left
out; the others are sent. Tracking and counting never happen here.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from monitor.config import Config, InvalidConfiguration
from monitor.frames.cholesky import add_up
from monitor.frames.classes import are_probabilities
from monitor.frames.detections import Estimates, Examined, FrameBatch, Reason
from monitor.frames.frame import AnswerExtras, Header, UncertainBy
from monitor.frames.reasons import Notice
from monitor.frames.slices import Chain, RangeBuckets, SliceTable
from monitor.frames.space import BoolArray, FloatArray, IntArray, read_only
from monitor.frames.status import Counters
from monitor.frames.words import Mode
from monitor.pipeline.housekeeping import contained
from monitor.promotion.decisions import KnownRecalibrator
from monitor.recalibration.class_probabilities import from_probabilities
from monitor.recalibration.recalibrator import (
    InvalidRecalibrator,
    Output,
    weakest,
)
from monitor.recalibration.rejection import normalised_entropy
from monitor.recalibration.selection import (
    CLASS_IDENTITY,
    IDENTITY,
    AnySelection,
    ClassSelection,
    Selection,
)
from monitor.statistics.exact_engine import generalised_deviation
from monitor.statistics.measures import Marginals, NormalMarginals
from monitor.store.documents import any_selection_from_json

log = logging.getLogger(__name__)
Kind = type[AnySelection]

# Recalibrators that are known at a time.
MOST_KNOWN = 1000


@dataclass(frozen=True, slots=True)
class ActiveRecalibrator:
    """An active recalibrator, in a few words.

    output  what it makes of a detection: the least Output that is true whatever the slice, or
            "class_probabilities"
    """

    version: str
    method: str
    output: str


class UnknownVersion(LookupError):
    """No recalibrator of that version is known."""


class NothingToRollBack(LookupError):
    """Nothing of that kind, or in that slice, was active before."""


class KnownRecalibrators(dict[str, AnySelection]):
    """Holds recalibrators by version, in the order in which they became known."""

    def find(self, version: str) -> AnySelection:
        """The one of a version. Raises UnknownVersion."""
        selection = self.get(version)
        if selection is None:
            raise UnknownVersion(
                f"no recalibrator '{version[:80]}': promote one that is known, or send its "
                f"document. Known are {', '.join(self)}."
            )
        return selection

    def admit(self, selection: AnySelection, keep: Collection[str]) -> AnySelection:
        """The one of its version, which becomes known; the oldest is forgotten if there are too
        many, unless its version is one to keep.
        """
        if selection.version not in self and len(self) >= MOST_KNOWN:
            self.pop(next((version for version in self if version not in keep), ""), None)
        return self.setdefault(selection.version, selection)


@dataclass(slots=True)
class Recalibrators:
    """Recalibrators that are known, and the two of them that act on the next frame.

    before    versions that were active, by kind, the latest last
    on_trial  versions of the candidates, by slice
    """

    selection: Selection = IDENTITY
    class_selection: ClassSelection = CLASS_IDENTITY
    known: KnownRecalibrators = field(default_factory=KnownRecalibrators)
    before: dict[Kind, list[str]] = field(
        default_factory=lambda: {Selection: [], ClassSelection: []}
    )
    on_trial: dict[str, str] = field(default_factory=dict)
    # Versions by the digest of their document: reading one can take seconds.
    _read: dict[bytes, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for selection in (self.selection, self.class_selection):
            self.known[selection.version] = selection

    def learn(self, document: str) -> AnySelection:
        """Learns a recalibrator from its document. Raises InvalidRecalibrator."""
        known = self.known_by(document)
        return self.admit(document, any_selection_from_json(document)) if known is None else known

    def known_by(self, document: str) -> AnySelection | None:
        """That of a document that was learnt before, letter by letter; None if none was."""
        return self.known.get(self._read.get(_digest(document), ""))

    @property
    def needed(self) -> set[str]:
        """Versions that are never forgotten: active now or before, on trial, or the identities."""
        active = (self.selection, self.class_selection, IDENTITY, CLASS_IDENTITY)
        versions = {selection.version for selection in active}
        return versions.union(self.on_trial.values(), *self.before.values())

    @property
    def whole(self) -> set[str]:
        """Versions that name a recalibrator by itself, whatever a candidate was once called."""
        identities = IDENTITY.version, CLASS_IDENTITY.version
        return {*identities, *self.before[Selection], *self.before[ClassSelection]} | self.sent

    @property
    def sent(self) -> set[str]:
        """Versions that became known by their document, and are."""
        return {version for version in self._read.values() if version in self.known}

    def admit(self, document: str, read: AnySelection) -> AnySelection:
        """Knows from now on what was read from a document."""
        selection = self.known.admit(read, keep=self.needed)
        if len(self._read) >= MOST_KNOWN:
            self._read = {key: one for key, one in self._read.items() if one in self.known}
        if len(self._read) < MOST_KNOWN:
            self._read[_digest(document)] = selection.version
        return selection

    def activate(self, version: str, ranges: RangeBuckets | None) -> str:
        """Lets a known recalibrator act from the next frame on, in place of the one of its kind.

        ranges   the buckets here
        returns  the version before
        raises   UnknownVersion
        """
        found = self.known.find(version)
        if isinstance(found, ClassSelection):
            before, self.class_selection = self.class_selection.version, found
            _warn_of_class_order(found)
        else:
            before, self.selection = self.selection.version, found
            _warn_of_ranges(found, ranges)
        return before

    @property
    def versions(self) -> str:
        """Names what makes the recalibrated stage, of estimates and of class probabilities."""
        classes = self.class_selection
        versions = [self.selection.version, classes.version]
        return " ".join(versions if classes.changes_probabilities else versions[:1])

    def listed(self) -> tuple[KnownRecalibrator, ...]:
        """Lists all that are known, in the order in which they became known."""
        promoted = (self.selection.version, self.class_selection.version)
        return tuple(
            KnownRecalibrator(known, version in promoted) for version, known in self.known.items()
        )

    def active(self) -> tuple[ActiveRecalibrator, ...]:
        """That of estimates, and that of class probabilities if it is in use."""
        selection, classes = self.selection, self.class_selection
        output = str(weakest(selection.outputs))
        of_estimates = ActiveRecalibrator(selection.version, selection.method, output)
        if not in_use(classes):
            return (of_estimates,)
        return of_estimates, ActiveRecalibrator(
            classes.version, classes.method, "class_probabilities"
        )


def _warn_of_class_order(selection: ClassSelection) -> None:
    """Warns where a recalibrator tells classes apart by their place, not by their names."""
    if selection.classes or selection.recalibrator.classes is None:
        return
    log.warning(
        "recalibrator %s was fitted on %d classes without names: whether those of a stream come "
        "in the same order is not checked. Fit it on a recording with class_names.",
        selection.version,
        selection.recalibrator.classes,
    )


def _warn_of_ranges(selection: Selection, ranges: RangeBuckets | None) -> None:
    """Warns where slices by range are cut elsewhere than here, and so have other names."""
    if selection.ranges in (None, ranges):
        return
    log.warning(
        "recalibrator %s was fitted by range, on %s of %s: here slices are by other ranges, so "
        "that wider ones of it serve them. Set [statistics] slice_by, range_edges and "
        "range_dimensions alike.",
        selection.version,
        list(selection.ranges.edges),
        list(selection.ranges.dimensions),
    )


def _digest(document: str) -> bytes:
    # A document may come with half a surrogate pair, which has no bytes of its own.
    return hashlib.sha256(document.encode("utf-8", "surrogatepass")).digest()


def served_otherwise(slices: SliceTable, earlier: Selection, now: Selection) -> list[int]:
    """Lists the slices that another recalibrator serves than before."""
    return [
        i
        for i, (entry, chain) in enumerate(zip(slices.slices, slices.chains, strict=True))
        if earlier.applied_to(chain, entry.space.names) != now.applied_to(chain, entry.space.names)
    ]


def in_use(classes: ClassSelection) -> bool:
    """Says whether a selection changes any detection: the identity does not, unless it rejects."""
    return classes.changes_probabilities or classes.rejection is not None


_KINDS: Mapping[str, Kind] = {
    "recalibrator": Selection,
    "class_recalibrator": ClassSelection,
}


def configured(recalibrators: Recalibrators, config: Config) -> dict[str, str]:
    """Versions that the configuration names, by its key; '' where it names none.

    They are known from now on. Raises InvalidConfiguration where a file cannot be used.
    """
    return {key: _learnt(recalibrators, key, getattr(config.recalibration, key)) for key in _KINDS}


def _learnt(recalibrators: Recalibrators, key: str, path: str) -> str:
    if not path:
        return ""
    try:
        selection = recalibrators.learn(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfiguration(
            f"[recalibration] {key} = '{path}': {error.strerror}. Check the path."
        ) from None
    except (InvalidRecalibrator, UnicodeDecodeError) as error:
        raise InvalidConfiguration(f"[recalibration] {key} = '{path}': {error}") from None
    if not isinstance(selection, _KINDS[key]):
        other = "class_recalibrator" if key == "recalibrator" else "recalibrator"
        raise InvalidConfiguration(
            f"[recalibration] {key} = '{path}' is a {selection.method}: name it in {other}."
        )
    return selection.version


# As on the wire; 0 there: not recalibrated.
OUTPUT_NUMBER = {
    Output.GAUSSIAN: 1,
    Output.MOMENTS: 2,
    Output.SURROGATE: 3,
    Output.ESTIMATED: 4,
}
# Plain numbers: members of an enum would widen every flag to 64 bits.
_ENTROPY, _DEVIATION = int(UncertainBy.ENTROPY), int(UncertainBy.DEVIATION)
Made = TypeVar("Made")
Number = TypeVar("Number", np.uint8, np.float64)


@dataclass(frozen=True, slots=True)
class Recalibrated:
    """The n usable detections of a frame, as sent and as a selection recalibrated them.

    slices  (n,) index into chains
    made    recalibrated estimates; the object `sent` itself if nothing was changed
    sound   (n,) True: the recalibrator gave a usable estimate
    whole   True: all detections are sound
    why     the reason that sound detections carry
    bare    (n,) detections that came without a covariance; None if all came with one
    missing (n,) those among them for which none was estimated: they are not sound
    """

    selection: Selection
    sent: Estimates
    slices: IntArray
    chains: Sequence[Chain]
    made: Estimates
    sound: BoolArray
    whole: bool
    why: Reason
    bare: BoolArray | None = None
    missing: BoolArray | None = None

    @property
    def acted(self) -> Selection | None:
        """The selection, if it could be applied to any detection.

        A selection that failed on the whole frame is not tried again on its rows when labels come.
        """
        if self.why is Reason.RECALIBRATOR_MISMATCH:
            return None
        return self.selection if self.whole or self.sound.any() else None

    @property
    def forwarded(self) -> Estimates:
        """The estimates that the tracker gets."""
        return self.made if self.why is Reason.NONE else self.sent

    def marked(self, examined: Examined) -> Examined:
        """Adds the reasons of the recalibration to the examined detections."""
        if self.why is Reason.NONE and self.whole and self.bare is None:
            return examined
        rows, reason = examined.batch.rows, examined.reason.copy()
        reason[rows] = self.why
        if self.bare is not None and self.why is Reason.NONE:
            reason[rows[self.bare]] = Reason.COVARIANCE_ESTIMATED
        reason[rows[~self.sound]] = Reason.RECALIBRATOR_FAILED
        if self.missing is not None:
            reason[rows[self.missing]] = Reason.MISSING_COVARIANCE
        # Nothing is to be said of covariances that are estimated.
        clean = examined.clean and self.whole and self.why is Reason.NONE
        return replace(examined, reason=reason, clean=clean)

    def sound_of(self, rows: IntArray) -> tuple[IntArray, Estimates]:
        """Returns the sound rows among rows (n,) with their recalibrated estimates."""
        if self.whole:
            return rows, self.made
        kept = np.flatnonzero(self.sound)
        return rows[kept], self.made.take(kept)

    def output(self) -> npt.NDArray[np.uint8]:
        """Returns (n,) OUTPUT_NUMBER of the recalibrator that serves each detection."""
        outputs, n = self.selection.outputs, self.slices.size
        if len(outputs) == 1 or n == 0:
            return _constant(n, OUTPUT_NUMBER[next(iter(outputs))])
        found = np.zeros(len(self.chains), np.uint8)
        for i in np.flatnonzero(np.bincount(self.slices)).tolist():
            found[i] = OUTPUT_NUMBER[self.selection.of(self.chains[i]).output]
        return found[self.slices]

    def quantiles(self, levels: tuple[float, ...]) -> FloatArray:
        """Returns quantiles (n ≥ 1, K T) at T levels, dimension by dimension, of the methods' own
        distributions; some may not be finite.
        """
        n, k = self.sent.mean.shape
        if self.selection.outputs <= {Output.GAUSSIAN, Output.ESTIMATED}:
            # Gaussian methods give the normal distribution of the estimates that are here already.
            marginals: Marginals = NormalMarginals(self.made.mean, self.made.deviation)
        else:
            marginals = self.selection.marginals(self.sent, self.slices, self.chains)
        values = marginals.quantiles(np.array(levels))
        return values.transpose(1, 2, 0).reshape(n, k * len(levels))


def estimated_rows(selection: Selection, slices: IntArray, chains: Sequence[Chain]) -> BoolArray:
    """Finds the rows whose covariance a selection estimates, (n,); slices as of Selection.apply."""
    found = np.zeros(len(chains), bool)
    for i in np.flatnonzero(np.bincount(slices)).tolist():
        found[i] = selection.estimates(chains[i])
    estimated: BoolArray = found[slices]
    return estimated


@lru_cache(maxsize=256)
def _constant(n: int, number: int) -> npt.NDArray[np.uint8]:
    """Returns (n,) filled with one number; read-only, since frames share it."""
    return read_only(np.full(n, number, np.uint8))


@dataclass(frozen=True, slots=True)
class RecalibratedClasses:
    """Class probabilities of the n usable detections of a frame, as recalibrated.

    answer  (n, C) what goes back; NaN for detections that have none, None if none has any
    made    the answer if it differs from what was sent: the statistics' recalibrated stage
    """

    notices: tuple[Notice, ...] = ()
    answer: FloatArray | None = None
    made: FloatArray | None = None


NO_CLASSES = RecalibratedClasses()


def recalibrate_classes(
    classes: ClassSelection, header: Header, batch: FrameBatch, counters: Counters
) -> RecalibratedClasses:
    """Recalibrates the class probabilities of the detections that have some.

    Each of them is counted once: recalibrated, mismatch (of other classes), or failed.
    """
    opinions = batch.probabilities
    # The probability of a single class cannot be wrong.
    if opinions is None or opinions.shape[2] < 2 or not in_use(classes):
        return NO_CLASSES
    rows = np.flatnonzero(~np.isnan(opinions[:, 0, 0]))
    account = counters.class_recalibrations
    if not classes.fits(header.classes):
        account.mismatch += rows.size
        return RecalibratedClasses((_other_classes(header.classes, batch.rows[rows]),))
    what = f"class probabilities of recalibrator {classes.version}"
    mean = _attempt(what, lambda: _mean_of(classes, opinions[rows]), header, counters)
    if mean is None:
        mean = np.full((rows.size, opinions.shape[2]), np.nan)
    sound = are_probabilities(mean.T)
    made, failed = rows[sound], batch.rows[rows[~sound]]
    account.recalibrated += made.size
    account.failed += failed.size
    notices = tuple[Notice, ...]()
    if failed.size:
        within = "within [0, 1] that add up to 1"
        notices = (_failed_notice("class_probabilities", within, failed),)
    if made.size == 0:
        return RecalibratedClasses(notices)
    answer = np.full((opinions.shape[0], opinions.shape[2]), np.nan)
    answer[made] = mean[sound]
    # A selection that only rejects makes what was sent, but for rounding.
    return RecalibratedClasses(notices, answer, answer if classes.changes_probabilities else None)


def _attempt(
    what: str, make: Callable[[], Made], header: Header, counters: Counters
) -> Made | None:
    """Returns what `make` returns; None if it fails, which is logged and counted."""
    fault = "a frame of stream %s is answered without %s"
    with contained(counters, log, fault, header.stream, what):
        return make()
    return None


def _mean_of(classes: ClassSelection, opinions: FloatArray) -> FloatArray:
    """Recalibrates each of the opinions (n, M, C) and returns their mean (n, C).

    source  Laves et al. 2019, eq. 25
    """
    made = classes.apply(from_probabilities(opinions))
    if made.shape != opinions.shape:
        raise ValueError(f"{classes.version} made {made.shape} of {opinions.shape}")
    mean: FloatArray = add_up(made.transpose(1, 0, 2)) / opinions.shape[1]
    return mean


def _failed_notice(field: str, sound: str, rows: IntArray) -> Notice:
    """Makes the notice of a field that the recalibrator failed to make sound for rows (n ≥ 1,)."""
    return Notice(
        Reason.RECALIBRATOR_FAILED,
        field,
        f"the promoted recalibrator gave none {sound}: absent; promote another.",
        rows.size,
        int(rows[0]),
    )


def _other_classes(names: tuple[str, ...], rows: IntArray) -> Notice:
    shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    return Notice(
        Reason.RECALIBRATOR_MISMATCH,
        "class_names",
        f"{shown}: the promoted recalibrator of class probabilities was fitted on others; "
        "promote one that was fitted on these.",
        rows.size,
        int(rows[0]),
    )


@dataclass(frozen=True, slots=True)
class ProcessedFrame:
    """A frame of N detections with its n usable estimates recalibrated.

    classes        the active recalibrator of class probabilities
    probabilities  (n, C) RecalibratedClasses.answer
    """

    header: Header
    examined: Examined
    recalibrated: Recalibrated
    classes: ClassSelection
    probabilities: FloatArray | None
    mode: Mode

    def output(self) -> npt.NDArray[np.uint8]:
        """Returns (N,) OUTPUT_NUMBER of the estimates; 0: not recalibrated."""
        if self.recalibrated.why is Reason.RECALIBRATOR_MISMATCH:
            return _constant(self.examined.reason.size, 0)
        kept = None if self.recalibrated.whole else self.recalibrated.sound
        return self.in_frame(self.recalibrated.output(), kept, 0)

    def rejected(self) -> npt.NDArray[np.uint8] | None:
        """Returns (N,) UncertainBy; None while no rejection is active."""
        by_entropy, by_deviation = self.classes.rejection, self.recalibrated.selection.rejection
        if self.mode is not Mode.APPLY or (by_entropy is None and by_deviation is None):
            return None
        sound, made = self.recalibrated.sound, self.recalibrated.made
        found = np.zeros(sound.size, np.uint8)
        if by_entropy is not None and self.probabilities is not None:
            found[by_entropy.rejects(normalised_entropy(self.probabilities))] += _ENTROPY
        if by_deviation is not None and self.recalibrated.why is Reason.NONE:
            # σ_G = det(Σ)^(1/2K) of the recalibrated joint block.
            space = self.header.space
            deviation = generalised_deviation(space, made.covariance, made.diagonal)
            found[by_deviation.rejects(deviation) & sound] += _DEVIATION
        return self.in_frame(found, None, 0)

    def in_frame(
        self, values: npt.NDArray[Number], kept: BoolArray | None, otherwise: float
    ) -> npt.NDArray[Number]:
        """Spreads values of usable detections (n, …) over the frame (N, …).

        kept       (n,) those to take; None: all
        otherwise  the value elsewhere
        """
        n, rows = self.examined.reason.size, self.examined.batch.rows
        if rows.size == n and kept is None:
            return values
        every = np.full((n, *values.shape[1:]), otherwise, values.dtype)
        every[rows if kept is None else rows[kept]] = values if kept is None else values[kept]
        return every


def answer_extras(
    frame: ProcessedFrame, counters: Counters
) -> tuple[AnswerExtras, tuple[Notice, ...]]:
    """Makes the parts of an answer beside its estimates, with notices of those that failed."""
    header, recalibrated = frame.header, frame.recalibrated
    batch, notices = frame.examined.batch, tuple[Notice, ...]()
    probabilities, quantiles = frame.probabilities if frame.mode is Mode.APPLY else None, None
    sound, levels = recalibrated.sound, header.quantile_levels
    if levels and recalibrated.why is Reason.NONE and sound.any():
        made = _attempt("quantiles", lambda: recalibrated.quantiles(levels), header, counters)
        finite = np.zeros(sound.size, bool)
        if made is not None:
            finite = sound & np.isfinite(made).all(axis=1)
            if finite.any():
                quantiles = frame.in_frame(made, None if finite.all() else finite, np.nan)
        failed = batch.rows[sound & ~finite]
        if failed.size:
            notices += (_failed_notice("quantiles", "that are finite", failed),)
    rejected = _attempt("flags", frame.rejected, header, counters)
    if rejected is not None:
        counters.count_uncertain(rejected)
    output = _attempt("the kinds of its outputs", frame.output, header, counters)
    extras = AnswerExtras(
        output=_constant(frame.examined.reason.size, 0) if output is None else output,
        quantiles=quantiles,
        class_probabilities=(
            None if probabilities is None else frame.in_frame(probabilities, None, np.nan)
        ),
        class_version="" if probabilities is None else frame.classes.version,
        rejected_by=rejected,
    )
    return extras, notices
