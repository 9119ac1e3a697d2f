"""The recalibrators a sidecar knows, of estimates and of class probabilities; and what one
makes of the estimates of a frame.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor.calibration.slices import RangeBuckets
from monitor.calibration.space import BoolArray, IntArray
from monitor.counters import Counters
from monitor.recalibration.classes.class_selection import FORMAT as CLASS_FORMAT
from monitor.recalibration.classes.class_selection import ClassSelection, class_selection_from_json
from monitor.recalibration.recalibrator import Estimates, InvalidRecalibrator
from monitor.recalibration.selection import Chain, Selection, from_json
from monitor.recalibration.soundness import sound_rows

log = logging.getLogger(__name__)

# Recalibrators that are known at a time.
MOST_KNOWN = 1000


# Whichever is fitted, known, and promoted.
AnySelection = Selection | ClassSelection


@dataclass(frozen=True, slots=True)
class Known:
    """A recalibrator the sidecar knows, and whether it is in force."""

    selection: AnySelection
    promoted: bool


@dataclass(frozen=True, slots=True)
class InForce:
    """A recalibrator in force, in a few words.

    output  what it makes of a detection: an Output, or "class_probabilities"
    """

    version: str
    method: str
    output: str


def in_use(classes: ClassSelection) -> bool:
    """Whether it has anything to say of a detection: the identity has not, unless it rejects."""
    return classes.changes_probabilities or classes.rejection is not None


def in_force(selection: Selection, classes: ClassSelection) -> tuple[InForce, ...]:
    """That of estimates, and that of class probabilities if it is in use."""
    # Like its method: of the first slice by name, or of the fallback if there are none.
    first = selection.of(tuple(sorted(selection.by_slice)[:1]))
    of_estimates = InForce(selection.version, selection.method, str(first.output))
    if not in_use(classes):
        return (of_estimates,)
    return of_estimates, InForce(classes.version, classes.method, "class_probabilities")


@dataclass(frozen=True, slots=True)
class Promotion:
    """A change of the recalibrator in force."""

    before: str
    after: str
    actor: str


class UnknownVersion(LookupError):
    """No recalibrator of that version is known."""


class KnownRecalibrators(dict[str, AnySelection]):
    """By version, in the order they became known."""

    def find(self, version: str) -> AnySelection:
        """The one of a version. Raises UnknownVersion."""
        selection = self.get(version)
        if selection is None:
            raise UnknownVersion(
                f"no recalibrator '{version[:80]}': known are {', '.join(self)}. "
                "Promote one of them, or send its document."
            )
        return selection

    def learn(self, document: str) -> AnySelection:
        """Get to know a recalibrator of either kind from its document, which says the kind.

        Raises InvalidRecalibrator.
        """
        selection = _from_document(document)
        if len(self) >= MOST_KNOWN and selection.version not in self:
            raise InvalidRecalibrator(
                f"{MOST_KNOWN} recalibrators are known already: restart the sidecar."
            )
        return self.setdefault(selection.version, selection)


def warn_of_ranges(selection: AnySelection, ranges: RangeBuckets | None) -> None:
    """Say so where slices by range are cut elsewhere than here, and so found by other names."""
    if isinstance(selection, ClassSelection) or selection.ranges in (None, ranges):
        return
    log.warning(
        "recalibrator %s was fitted by range, on %s of %s: here slices are by other ranges, so "
        "that wider ones of it serve them. Set [statistics] slice_by, range_edges and "
        "range_dimensions alike.",
        selection.version,
        list(selection.ranges.edges),
        list(selection.ranges.dimensions),
    )


def _from_document(document: str) -> AnySelection:
    try:
        content = json.loads(document)
    except (ValueError, RecursionError):
        return from_json(document)  # which says what is wrong
    if isinstance(content, dict) and content.get("format") == CLASS_FORMAT:
        return class_selection_from_json(document)
    return from_json(document)


def applied(
    selection: Selection,
    sent: Estimates,
    slices: IntArray,
    chains: Sequence[Chain],
    counters: Counters,
) -> tuple[Estimates, BoolArray]:
    """What a recalibrator makes of estimates; where it fails, what was sent and False, (n,).

    slices  (n,) index into chains
    """
    try:
        made = selection.apply(sent, slices, chains)
        sound = sound_rows(sent, made, definite=selection.keeps_definite)
    except Exception:
        log.exception("recalibrator %s failed", selection.version)
        counters.internal_errors += 1
        return sent, np.zeros(slices.size, bool)
    if sound.all():
        return made, sound
    if not sound.any():
        return sent, sound
    mean, covariance = made.mean.copy(), made.covariance.copy()
    diagonal = made.diagonal.copy()
    mean[~sound], covariance[~sound] = sent.mean[~sound], sent.covariance[~sound]
    diagonal[~sound] = sent.diagonal[~sound]
    return Estimates(mean, covariance, diagonal), sound
