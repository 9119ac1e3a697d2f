"""A step: one slice gets another recalibrator, all others keep theirs."""

from __future__ import annotations

from dataclasses import replace

from monitor.calibration.slices import RangeBuckets
from monitor.recalibration.identity import Identity
from monitor.recalibration.recalibrator import Document, Recalibrator
from monitor.recalibration.selection import IDENTITY, Chain, Selection


def stepped(
    selection: Selection,
    dimensions: tuple[str, ...],
    chain: Chain,
    recalibrator: Recalibrator,
    ranges: RangeBuckets | None = None,
    notes: Document | None = None,
) -> Selection:
    """The selection with another recalibrator for the finest name of a chain.

    Where the identity is what a slice would get without one of its own, it has none: so that who
    goes home comes home, to the very version that it left.

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
