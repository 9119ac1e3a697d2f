"""Whether there is anything to try in what was fitted, before any trial."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.promotion.factors import factors, ratios
from monitor.promotion.outcome import sound_outcome
from monitor.promotion.records import Factor
from monitor.promotion.settings import PolicySettings
from monitor.recalibration.identity import Identity
from monitor.recalibration.recalibrator import Estimates, Recalibrator


@dataclass(frozen=True, slots=True)
class Judgement:
    """Of one fit in one slice.

    candidate  what is to be tried: what was fitted, or the identity; None: nothing
    reason     in words, why it is that
    factors    of what was fitted, on the variance as sent; none where it fails
    shrinks    whether the candidate makes a variance smaller than the champion does
    """

    candidate: Recalibrator | None
    reason: str
    factors: tuple[Factor, ...] = ()
    shrinks: bool = False


def judge(
    fitted: Recalibrator,
    champion: Recalibrator,
    estimates: Estimates,
    names: tuple[str, ...],
    policy: PolicySettings,
) -> Judgement:
    """What is to be tried of a fit, on n ≥ 1 estimates as sent in the slice.

    Home: where every factor lies within the band, the detector is healthy, and is best left alone:
    a factor that was fitted to it is mostly noise. Hysteresis: a step that changes next to nothing
    is none.
    """
    if sound_outcome(fitted, estimates) is None:
        return Judgement(
            None,
            f"{fitted.method} makes covariances that are not finite or not positive definite: "
            "look at the ground truth it was fitted on, or use another method",
        )
    found = factors(fitted, estimates, names)
    low, high = policy.band
    home = all(low <= factor.lowest and factor.highest <= high for factor in found)
    candidate: Recalibrator = Identity() if home else fitted
    listed = ", ".join(f"{factor.dimension} {factor.typical:.3g}" for factor in found)
    reason = f"factors on the variance: {listed}"
    if home:
        reason = f"every factor on the variance lies within {low:g} … {high:g}: {listed}"
    if not _changes(candidate, champion, estimates, policy.hysteresis):
        same = f"none changes by more than {policy.hysteresis:g} against what is in force"
        why = "nothing to correct" if home else same
        return Judgement(None, f"{reason}; {why}", found)
    smaller = shrinks(candidate, champion, estimates, policy.hysteresis)
    return Judgement(
        candidate, f"{reason}; back to what is sent" if home else reason, found, smaller
    )


def _changes(
    candidate: Recalibrator, champion: Recalibrator, estimates: Estimates, hysteresis: float
) -> bool:
    """Whether some variance changes by more than that, either way."""
    found = ratios(candidate, champion, estimates)
    return bool((found.lowest < 1 / hysteresis).any() or (found.highest > hysteresis).any())


def shrinks(
    candidate: Recalibrator, champion: Recalibrator, estimates: Estimates, hysteresis: float
) -> bool:
    """Whether it makes a variance smaller than the champion does, by more than the hysteresis.

    In some dimension, on more than 5 % of n ≥ 1 estimates.
    """
    return bool((ratios(candidate, champion, estimates).lowest < 1 / hysteresis).any())
