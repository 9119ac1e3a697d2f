"""Whether there is anything to try in what was fitted, before any trial."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.calibration.detections import Limits
from monitor.promotion.factors import Ratios, factors_made, ratios, ratios_made
from monitor.promotion.outcome import ANY_SIZE, forwarded, outcome_of
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
    limits: Limits = ANY_SIZE,
) -> Judgement:
    """What is to be tried of a fit, on n ≥ 1 estimates as sent in the slice.

    Home: where every factor lies within the band, the detector is healthy, and is best left alone:
    a factor that was fitted to it is mostly noise. Hysteresis: a step that changes next to nothing
    is none.

    limits  of the deviations of what can be forwarded
    """
    outcome = outcome_of(fitted, estimates, limits)
    if outcome.unsound:
        return Judgement(
            None,
            f"{fitted.method} {outcome.unsound}: look at the ground truth it was fitted on, or "
            "use another method",
        )
    found = factors_made(outcome.made, estimates, names)
    low, high = policy.band
    home = all(low <= factor.lowest and factor.highest <= high for factor in found)
    candidate: Recalibrator = Identity() if home else fitted
    listed = ", ".join(f"{factor.dimension} {factor.typical:.3g}" for factor in found)
    reason = f"factors on the variance: {listed}"
    if home:
        reason = f"every factor on the variance lies within {low:g} … {high:g}: {listed}"
    made, served = estimates if home else outcome.made, forwarded(champion, estimates, limits)
    change = ratios_made(made, served)
    if not _grows(change, policy.hysteresis) and not _shrinks(change, policy.hysteresis):
        same = f"none changes by more than {policy.hysteresis:g} against what is in force"
        why = "nothing to correct" if home else same
        return Judgement(None, f"{reason}; {why}", found)
    return Judgement(
        candidate,
        f"{reason}; back to what is sent" if home else reason,
        found,
        _shrinks(change, policy.hysteresis),
    )


def shrinks(
    candidate: Recalibrator, champion: Recalibrator, estimates: Estimates, hysteresis: float
) -> bool:
    """Whether it makes a variance smaller than the champion does, by more than the hysteresis.

    In some dimension, on more than 5 % of n ≥ 1 estimates.
    """
    return _shrinks(ratios(candidate, champion, estimates), hysteresis)


def _shrinks(change: Ratios, hysteresis: float) -> bool:
    return bool((change.lowest < 1 / hysteresis).any())


def _grows(change: Ratios, hysteresis: float) -> bool:
    return bool((change.highest > hysteresis).any())
