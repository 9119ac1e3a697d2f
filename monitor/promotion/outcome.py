"""What a recalibrator makes of estimates where nobody has vouched for it yet."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.calibration.detections import Limits
from monitor.recalibration.recalibrator import Estimates, Recalibrator
from monitor.recalibration.soundness import fault_of, sent_where_unsound, sound_rows

# Of what is not to be judged by its size: finite and positive definite is enough.
ANY_SIZE = Limits(float("inf"), 0.0, float("inf"))
# Characters of what an exception says.
_MOST_WORDS = 200


@dataclass(frozen=True, eq=False, slots=True)
class Outcome:
    """Of a recalibrator, of n estimates.

    made     what could be forwarded; as sent where anything could not
    unsound  why it could not, to be read after the name of the method; '' where it could
    """

    made: Estimates
    unsound: str = ""


def outcome_of(recalibrator: Recalibrator, sent: Estimates, limits: Limits = ANY_SIZE) -> Outcome:
    """What it makes, all of which is factorised, whatever the method promises."""
    try:
        made = recalibrator.apply(sent)
        fault = fault_of(sent, made, limits)
    except Exception as error:
        # Whatever goes wrong in a method is a finding about it.
        fault = f"fails: {in_words(error)}"
    return Outcome(sent, fault) if fault else Outcome(made)


def in_words(error: Exception) -> str:
    """One line that may be recorded, whatever the error says."""
    words = "".join(c if c.isprintable() else " " for c in str(error))
    said = " ".join(words.split())[:_MOST_WORDS]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def forwarded(recalibrator: Recalibrator, sent: Estimates, limits: Limits = ANY_SIZE) -> Estimates:
    """What the tracker gets from one in force: as sent wherever it fails."""
    try:
        made = recalibrator.apply(sent)
        sound = sound_rows(sent, made, limits, definite=recalibrator.keeps_definite)
    except Exception:
        return sent
    return sent_where_unsound(sent, made, sound)
