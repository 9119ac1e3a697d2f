"""Recalibrators, trials, fits and records as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from monitor.edges.recalibrator_messages import Listing, Summary
from monitor.promotion.records import Evidence, Factor, Record
from monitor.promotion.standing import SliceFitted, TrialStanding, TrialState
from monitor.verbs.printed import shown, table

# Names in one cell; the number of further ones is told.
MOST_NAMES = 4
# Quantiles of a factor this near to each other are those of a scaling, which has one.
SAME = 1.005


def listing(listing: Listing) -> str:
    """All that are known, all trials, and what may happen by itself."""
    blocks = [recalibrators(listing.recalibrators)]
    if listing.trials:
        blocks.append(trials(listing.trials))
    pinned = "pinned: nothing happens by itself" if listing.pinned else "not pinned"
    blocks.append(f"promotion: {shown(listing.promotion)}, {pinned}")
    return "\n\n".join(blocks)


def recalibrators(summaries: Iterable[Summary]) -> str:
    """A line each; a star before those in force."""
    rows = [
        (
            f"{'*' if entry.in_force else ' '} {shown(entry.version)}",
            shown(entry.method),
            entry.kind.replace("_", " "),
            _names(entry.dimensions or entry.class_names) or "any",
            _names(entry.slices) or "-",
        )
        for entry in summaries
    ]
    return table(("* in force", "method", "of", "fitted on", "slices of its own"), rows)


def trials(standings: Iterable[TrialStanding]) -> str:
    """Two lines each: how it stands, and what it does; then what waits for people."""
    standings = tuple(standings)
    lines = []
    for standing in standings:
        lines.append(
            f"{shown(standing.slice)}: {shown(standing.version)} {_STATES[standing.state]}"
        )
        lines.append(f"  {_evidence(standing.evidence)}")
        lines += [f"  variance {text}" for text in _factors(standing.factors)]
    waiting = [entry for entry in standings if entry.state is TrialState.PROVEN]
    lines += [f"to put it in force: recalibrators promote {entry.version}" for entry in waiting]
    return "\n".join(lines)


_STATES = {
    TrialState.RUNNING: "is on trial",
    TrialState.PROVEN: "is proven better, and waits for approval",
    TrialState.GUARD: "served before, and comes back if it is better",
}


def fits(fitted: Iterable[SliceFitted]) -> str:
    """What came of each slice."""
    lines = []
    for entry in fitted:
        found = f"{shown(entry.version)} is on trial" if entry.version else shown(entry.reason)
        rows = f"{entry.tracks:,} tracks, {entry.detections:,} detections"
        lines.append(f"{shown(entry.slice)}: {found} ({rows})")
        lines += [f"  variance {text}" for text in _factors(entry.factors)]
    return "\n".join(lines) or "no slice has enough tracks for a fit yet"


def change(before: str, after: str) -> str:
    """Of what is in force."""
    if before == after:
        return f"{shown(after)} is in force, as before"
    return f"{shown(after)} is in force, in place of {shown(before)}"


def history(records: Iterable[Record]) -> str:
    """A line each, with what is known beneath; times are UTC."""
    return "\n".join(line for record in records for line in _record(record))


def _record(record: Record) -> list[str]:
    about = " ".join(filter(None, (shown(record.slice), shown(record.version))))
    what = record.what.replace("_", " ")
    lines = [f"{record.sequence:>5}  {_time(record.time_ns)}  {what:<11}  {about}".rstrip()]
    if record.before != record.after:
        lines.append(f"{shown(record.before)} → {shown(record.after)}")
    lines.append(f"by {shown(record.actor)}")
    if record.reason:
        lines[-1] += f": {shown(record.reason)}"
    if record.evidence is not None:
        lines.append(_evidence(record.evidence))
    lines += [f"variance {text}" for text in _factors(record.factors)]
    return [lines[0], *(f"{'':7}{line}" for line in lines[1:])]


def _time(time_ns: int) -> str:
    return f"{datetime.fromtimestamp(time_ns // 10**9, UTC):%Y-%m-%d %H:%M:%S}"


def _evidence(found: Evidence) -> str:
    return (
        f"{found.tracks:,} tracks, gain {found.gain:+.3g} nats; log10 evidence for "
        f"{found.log10_better:.2f}, against {found.log10_worse:.2f}, decides at "
        f"{found.log10_threshold:.2f}"
    )


def _factors(factors: Sequence[Factor]) -> list[str]:
    """One line, or none; × is the typical factor, with 5 % and 95 % quantiles where they differ."""
    return [", ".join(map(_factor, factors))] if factors else []


def _factor(factor: Factor) -> str:
    text = f"{shown(factor.dimension)} ×{factor.typical:.3g}"
    if factor.highest <= SAME * factor.lowest:
        return text
    return f"{text} ({factor.lowest:.3g} to {factor.highest:.3g})"


def _names(names: Sequence[str]) -> str:
    text = ", ".join(map(shown, names[:MOST_NAMES]))
    more = len(names) - MOST_NAMES
    return f"{text} and {more} more" if more > 0 else text
