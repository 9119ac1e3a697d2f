"""Which rows each recalibrator serves, so that every one of them is asked once for a frame.

A Gaussian process costs by the call as much as by the row; slices that share one go through
it together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from monitor.calibration.space import IntArray
from monitor.recalibration.recalibrator import Estimates, Recalibrator


@dataclass(frozen=True, slots=True)
class Share:
    """What one recalibrator serves.

    part  its rows, in the order of Shares.order
    """

    recalibrator: Recalibrator
    part: slice


@dataclass(frozen=True, slots=True)
class Shares:
    """n rows among at least one recalibrator, none of them twice.

    order  (n,) row numbers, those of one recalibrator side by side; None where one serves all
    """

    order: IntArray | None
    shares: tuple[Share, ...]

    def sorted(self, estimates: Estimates) -> Estimates:
        """The estimates in that order."""
        return estimates if self.order is None else estimates.take(self.order)


def share_out(slices: IntArray, serving: Callable[[int], Recalibrator]) -> Shares:
    """Who serves which rows. Only slices that a row is in are asked for.

    slices   (n,) index of the slice of each row, n at least 1
    serving  the recalibrator of a slice, by index; the same object where it is the same
    """
    present = np.flatnonzero(np.bincount(slices))
    numbers: dict[int, int] = {}
    chosen: list[Recalibrator] = []
    number_of = np.zeros(int(present[-1]) + 1, np.int16)
    for i in present.tolist():
        recalibrator = serving(i)
        number = numbers.setdefault(id(recalibrator), len(chosen))
        if number == len(chosen):
            chosen.append(recalibrator)
        number_of[i] = number
    if len(chosen) == 1:
        return Shares(None, (Share(chosen[0], slice(0, slices.size)),))
    # Of 16 bits: sorted by counting, several times quicker.
    number_by_row = number_of[slices]
    ends = np.cumsum(np.bincount(number_by_row)).tolist()
    return Shares(
        np.argsort(number_by_row, kind="stable"),
        tuple(
            Share(recalibrator, slice(start, end))
            for recalibrator, start, end in zip(chosen, [0, *ends], ends, strict=False)
        ),
    )


def recalibrated(estimates: Estimates, shares: Shares) -> Estimates:
    """Each estimate by the recalibrator that serves it; the very same if none changes any.

    Raises ValueError where a recalibrator gives back others than it got.
    """
    if shares.order is None:
        return _checked(shares.shares[0].recalibrator, estimates)
    sent = shares.sorted(estimates)
    parts = [(share, sent.take(share.part)) for share in shares.shares]
    made = [_checked(share.recalibrator, part) for share, part in parts]
    if all(outcome is part for outcome, (_, part) in zip(made, parts, strict=True)):
        return estimates
    back = np.empty_like(shares.order)
    back[shares.order] = np.arange(shares.order.size)
    return Estimates(
        np.concatenate([outcome.mean for outcome in made])[back],
        np.concatenate([outcome.covariance for outcome in made])[back],
        np.concatenate([outcome.diagonal for outcome in made])[back],
    )


def _checked(recalibrator: Recalibrator, part: Estimates) -> Estimates:
    outcome = recalibrator.apply(part)
    if outcome.shapes != part.shapes:
        # Others would be given the estimates of rows that are not theirs, without a word.
        raise ValueError(
            f"{recalibrator.method} made shapes {outcome.shapes} of {part.shapes}: "
            "a recalibrator gives back as many estimates as it gets."
        )
    return outcome
