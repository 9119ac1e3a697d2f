"""Decisions of the register, carried out, recorded and told by its owner, and what they change."""

from __future__ import annotations

from dataclasses import dataclass, replace

from monitor.frames.slices import Chain, RangeBuckets
from monitor.promotion.records import Evidence, Factor, Happened, Verdict
from monitor.recalibration.recalibrator import Document, Identity, Recalibrator
from monitor.recalibration.selection import IDENTITY, AnyMethod, AnySelection, Selection


@dataclass(frozen=True, slots=True)
class KnownRecalibrator:
    """A recalibrator that the sidecar knows; promoted where it is active."""

    selection: AnySelection
    promoted: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision of the register about one slice.

    dimensions    names of the dimensions, or of the classes
    recalibrator  the one it is about; to be made active where `what` is one of SWAPS
    reason        in words
    verdict       on a candidate that is discarded
    waited        the candidate was proven before, and waited for approval
    keep          at a rollback: how many of the newest tracks came since the recalibrator that
                  comes back is better
    """

    what: Happened
    chain: Chain
    dimensions: tuple[str, ...]
    recalibrator: AnyMethod
    reason: str
    evidence: Evidence | None = None
    factors: tuple[Factor, ...] = ()
    verdict: Verdict | None = None
    waited: bool = False
    keep: int | None = None

    @property
    def slice(self) -> str:
        """Name of the slice."""
        return self.chain[0]


def stepped(
    selection: Selection,
    dimensions: tuple[str, ...],
    chain: Chain,
    recalibrator: Recalibrator,
    ranges: RangeBuckets | None = None,
    notes: Document | None = None,
) -> Selection:
    """Gives the finest slice of a chain another recalibrator; all other slices keep theirs.

    Where a slice would get the identity anyway, it has none of its own: so a rollback to the
    identity gives the very version that was left.

    dimensions  of the slice, for a selection that has none
    ranges      the buckets that slices are named after, where they are
    notes       for people
    """
    by_slice = {name: one for name, one in selection.by_slice.items() if name != chain[0]}
    bases = {name: one for name, one in selection.bases.items() if name != chain[0]}
    bare = replace(selection, by_slice=by_slice, bases=bases)
    at_home = isinstance(recalibrator, Identity)
    if not (at_home and isinstance(bare.of(chain), Identity)):
        by_slice = {**by_slice, chain[0]: recalibrator}
    untouched = not by_slice and selection.rejection is None
    if untouched and isinstance(selection.fallback, Identity):
        return IDENTITY
    return replace(
        bare,
        by_slice=by_slice,
        dimensions=selection.dimensions or dimensions,
        ranges=selection.ranges or ranges,
        fitted_on=notes if notes is not None else selection.fitted_on,
    )
