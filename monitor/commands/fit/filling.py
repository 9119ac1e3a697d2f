"""Turns a fit of errors into a recalibrator that gives covariances to detections without one.

A fit by class and range has plain names; under the names of detections without a covariance its
parts fill what is missing and leave alone what was sent.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from monitor.commands.held_out import score_of
from monitor.frames.slices import NO_COVARIANCE, marked, unmarked
from monitor.frames.space import BoolArray
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.selection import Selection
from monitor.store.gaussians import assumed_deviations
from monitor.store.recordings import Recording

T = TypeVar("T")


def without_covariances(recording: Recording, deviations: Mapping[str, float] | None) -> Recording:
    """Assumes a covariance for every row, whatever was sent; `deviations` as of --assume-std."""
    sigma = assumed_deviations(recording.space.names, deviations)
    return replace(
        recording,
        space=recording.space.with_assumed,
        covariance=np.tile(np.diag(np.square(sigma)), (recording.mean.shape[0], 1, 1)),
        diagonal=True,
        assumed=np.ones(recording.mean.shape[0], bool),
    )


def filling(selection: Selection, *, replaces: bool) -> Selection:
    """Puts recalibrators under the names of detections without a covariance.

    replaces  they also replace what was sent: they stand under the plain names, too
    """
    fills = {marked(name): one for name, one in selection.by_slice.items()}
    bases = {marked(name): basis for name, basis in selection.bases.items()}
    fills[NO_COVARIANCE] = selection.fallback
    if selection.basis is not None:
        bases[NO_COVARIANCE] = selection.basis
    if replaces:
        fills, bases = {**selection.by_slice, **fills}, {**selection.bases, **bases}
        return replace(selection, by_slice=fills, bases=bases)
    return replace(selection, fallback=Identity(), basis=None, by_slice=fills, bases=bases)


def plainly_named(selection: Selection) -> Selection:
    """Inverts `filling`: puts what fills under plain names, as a fit makes it."""
    if NO_COVARIANCE not in selection.by_slice:
        return selection
    return replace(
        selection,
        fallback=selection.by_slice[NO_COVARIANCE],
        basis=selection.bases.get(NO_COVARIANCE),
        by_slice=_plain(selection.by_slice),
        bases=_plain(selection.bases),
    )


def _plain(found: Mapping[str, T]) -> dict[str, T]:
    return {
        unmarked(name): one
        for name, one in found.items()
        if name.endswith(NO_COVARIANCE) and name != NO_COVARIANCE
    }


def compared_to_assumed(
    sent: Recording, assumed: Recording, rows: BoolArray, options: argparse.Namespace
) -> str:
    """Says what estimates are compared with, and how good what was sent is on the same rows.

    rows  (N,) that are judged, and usable as they were sent
    """
    if options.replace:
        return "held out: from the covariances of the file, or assumed ones, to estimated ones"
    sigma = np.sqrt(assumed.covariance[0].diagonal()).tolist()
    told = ", ".join(f"{name} {one:g}" for name, one in zip(sent.space.names, sigma, strict=True))
    words = f"held out: from an assumed σ ({told}) to estimated covariances"
    kept = np.flatnonzero(rows & ~sent.assumed)
    if not kept.size:
        return words
    score = score_of(sent, kept)
    return (
        f"{words}; those that the file has are kept: NEES/K {score.nees_over_k:.3f}, ENCE "
        f"{score.ence:.3f}, NLL {score.nll:.3f} on {kept.size:,} of these rows (--replace puts "
        "estimates in their place)"
    )
