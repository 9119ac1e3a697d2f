"""The recalibrators that a sidecar knows, of estimates and of class probabilities.

One of each kind is active: it acts on the next frame.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from monitor.config import Config, InvalidConfiguration
from monitor.frames.slices import RangeBuckets, SliceTable
from monitor.frames.space import Space
from monitor.promotion.records import KnownRecalibrator
from monitor.recalibration.class_selection import (
    CLASS_IDENTITY,
    AnySelection,
    ClassSelection,
)
from monitor.recalibration.recalibrator import (
    Identity,
    InvalidRecalibrator,
    Recalibrator,
    weakest,
)
from monitor.recalibration.selection import IDENTITY, Chain, Selection
from monitor.store.documents import any_selection_from_json

log = logging.getLogger(__name__)
Kind = type[AnySelection]

# Recalibrators that are known at a time.
MOST_KNOWN = 1000


@dataclass(frozen=True, slots=True)
class ActiveRecalibrator:
    """A recalibrator in force, in a few words.

    output  what it makes of a detection: the least Output that is true whatever the slice, or
            "class_probabilities"
    """

    version: str
    method: str
    output: str


class UnknownVersion(LookupError):
    """No recalibrator of that version is known."""


class NothingToRollBack(LookupError):
    """Nothing of that kind, or in that slice, was in force before."""


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
        return {IDENTITY.version, *self.before[Selection]} | self.sent

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
        if _serving(earlier, entry.space, chain) != _serving(now, entry.space, chain)
    ]


def _serving(selection: Selection, space: Space, chain: Chain) -> Recalibrator:
    """Finds what serves a slice: where a selection does not fit, the identity."""
    return selection.of(chain) if selection.fits(space) else Identity()


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
