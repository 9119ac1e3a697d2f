"""Families of the recalibrators: which are in force, what they do, and how their trials stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from monitor.edges.exposition import Row, counter, gauge
from monitor.promotion.records import Evidence
from monitor.promotion.standing import TrialStanding, TrialState
from monitor.recalibration_reading import (
    FitAccount,
    RecalibrationReading,
    SwapAccount,
    TrialAccount,
)
from monitor.recalibrators import InForce


def recalibrators(
    in_force: Iterable[InForce], mode: str, reading: RecalibrationReading
) -> Iterator[str]:
    """One text a family; mode is that of [recalibration]."""
    yield gauge(
        "recalibrator_info",
        "The recalibrators in force; what each makes of a detection is its output.",
        ("version", "method", "mode", "output"),
        (((entry.version, entry.method, mode, entry.output), 1) for entry in in_force),
    )
    counters = reading.counters
    yield counter(
        "recalibrator_swaps",
        "Changes of the recalibrator, by why another one came in force.",
        ("outcome",),
        _outcomes(counters.swaps),
    )
    yield counter(
        "recalibrator_fits",
        "Slices by what came of their fit beside the stream.",
        ("outcome",),
        _outcomes(counters.fits),
    )
    yield counter(
        "recalibrator_trials",
        "Candidates by what became of them; one that began and was proven is in both.",
        ("outcome",),
        _outcomes(counters.trials),
    )
    yield gauge(
        "recalibration_factor",
        "Typical factor on the variance that was sent, as last forwarded; 1 leaves it alone.",
        ("slice", "dimension"),
        (
            ((entry.slice, factor.dimension), factor.typical)
            for entry in reading.factors
            for factor in entry.factors
        ),
    )
    yield from _trials(reading.trials)
    yield gauge(
        "recalibrator_pinned",
        "1 while nothing is promoted, adapted or rolled back by itself.",
        (),
        [((), reading.pinned)],
    )
    yield counter(
        "recalibrator_store_failures",
        "Recalibrators, trials or records that were not written to disk; the log says why.",
        (),
        [((), reading.store_failures)],
    )
    yield counter(
        "learning_left_out",
        "Tracks, and frames with truth, for which there was no room to learn from them.",
        (),
        [((), reading.left_out)],
    )


def _outcomes(account: SwapAccount | FitAccount | TrialAccount) -> Iterator[Row]:
    return (((name,), getattr(account, name)) for name in account.__dataclass_fields__)


def _trials(trials: Sequence[TrialStanding]) -> Iterator[str]:
    """At most one of each state in a slice, so that no series is written twice."""
    yield gauge(
        "trial_log10_evidence",
        "log10 of the wealth of who bets that what is on trial is better than what is in force, "
        "or worse.",
        ("slice", "state", "direction"),
        (
            ((trial.slice, str(trial.state), direction), value)
            for trial in trials
            for direction, value in _bets(trial)
        ),
    )
    values: tuple[tuple[str, str, Callable[[Evidence], float]], ...] = (
        (
            "trial_log10_threshold",
            "Evidence at which a trial is decided.",
            lambda evidence: evidence.log10_threshold,
        ),
        (
            "trial_tracks",
            "Tracks that had a say in a trial so far.",
            lambda evidence: evidence.tracks,
        ),
    )
    for name, text, value in values:
        rows = (((trial.slice, str(trial.state)), value(trial.evidence)) for trial in trials)
        yield gauge(name, text, ("slice", "state"), rows)


def _bets(trial: TrialStanding) -> Iterator[tuple[str, float]]:
    yield "better", trial.evidence.log10_better
    # Nobody bets on a guard being worse: it does not act.
    if trial.state is not TrialState.GUARD:
        yield "worse", trial.evidence.log10_worse
