"""calibration-monitor recalibrators: shows or changes the recalibrators of a running sidecar.

The sidecar decides; this file asks it, then prints its answers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from monitor.commands.output import shown, table, tell, write_output
from monitor.commands.sidecar_client import Client, access_of, ask
from monitor.frames.slices import CLASS_PROBABILITIES
from monitor.promotion.records import (
    Evidence,
    Factor,
    Record,
    SliceFitted,
    TrialStanding,
    TrialState,
)
from monitor.store.column_names import some_of
from monitor.wire.values import Listing, Summary

# Names in one cell; the number of further ones is told.
MOST_NAMES = 4

# Quantiles of a factor this near to each other are those of a scaling, which has one.
SAME = 1.005

_STATES = {
    TrialState.RUNNING: "is on trial",
    TrialState.PROVEN: "is proven better, and waits for approval",
    TrialState.GUARD: "served before, and comes back if it is better",
}

# Characters of a document that is shown between what people read; a longer one goes to a file.
MOST_SHOWN = 4000


def run(options: argparse.Namespace) -> int:
    """0 when the sidecar did what was asked.

    Raises SidecarUnavailable, SidecarRefused, InvalidRecalibrator, CannotWrite, UnknownWord.
    """
    act = _ACTIONS[options.action]
    ask(Client(options.address, access_of(options)), lambda client: act(client, options))
    return 0


async def _list(client: Client, options: argparse.Namespace) -> None:
    listing = await client.listing()
    names = ("recalibrators", "trials", "pinned", "promotion")
    found = {name: getattr(listing, name) for name in names}
    tell(options, found, listing_lines(listing))


async def _show(client: Client, options: argparse.Namespace) -> None:
    summary, document, records = await client.shown(options.version)
    if options.output is not None:
        write_output(options.output, document)
    if options.output is not None:
        words = f"document written to {options.output}"
    elif len(document) <= MOST_SHOWN:
        words = document.rstrip()
    else:
        words = f"document of {len(document):,} characters: give --output F to write it to a file"
    blocks = [recalibrators((summary,)), words, *([history_lines(records)] if records else [])]
    found = {"recalibrator": summary, "document": json.loads(document), "records": records}
    tell(options, found, "\n\n".join(blocks))


async def _fit(client: Client, options: argparse.Namespace) -> None:
    found = tuple(await client.fit(options.slice, options.method, options.actor))
    tell(options, {"fits": found}, fits(found))


async def _promote(client: Client, options: argparse.Namespace) -> None:
    if options.file is None:
        change = await client.promote(options.actor, version=options.version)
    else:
        # All methods and what checks their documents, which the other actions do without.
        from monitor.commands.apply import document_of, read_any_model

        document = document_of(read_any_model(options.file))
        change = await client.promote(options.actor, document=document)
    _tell_swap(options, *change)


async def _rollback(client: Client, options: argparse.Namespace) -> None:
    change = await client.rollback(options.slice, options.actor, classes=options.classes)
    _tell_swap(options, *change)


def _tell_swap(options: argparse.Namespace, before: str, after: str) -> None:
    tell(options, {"before": before, "after": after}, swap_line(before, after))


async def _pin(client: Client, options: argparse.Namespace) -> None:
    pinned = options.action == "pin"
    before = await client.pin(options.actor, pinned=pinned)
    words = ("already " if before == pinned else "") + ("pinned" if pinned else "not pinned")
    tell(options, {"pinned": pinned, "before": before}, words)


async def _history(client: Client, options: argparse.Namespace) -> None:
    records = (await client.listing(options.n)).records
    tell(options, {"records": records}, history_lines(records) or "nothing has happened yet")


_ACTIONS = {
    **{"list": _list, "show": _show, "fit": _fit, "promote": _promote, "rollback": _rollback},
    **{"pin": _pin, "unpin": _pin, "history": _history},
}


def listing_lines(listing: Listing) -> str:
    """Writes all that are known, all trials, and what may happen by itself."""
    blocks = [recalibrators(listing.recalibrators)]
    if listing.trials:
        blocks.append(trials(listing.trials))
    pinned = "pinned: nothing happens by itself" if listing.pinned else "not pinned"
    blocks.append(f"promotion: {shown(listing.promotion)}, {pinned}")
    return "\n\n".join(blocks)


def recalibrators(summaries: Iterable[Summary]) -> str:
    """Writes a line for each recalibrator; a star before those that are active."""
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
    return table(("* active", "method", "of", "fitted on", "slices of its own"), rows)


def trials(standings: Iterable[TrialStanding]) -> str:
    """Writes two lines a trial, how it stands and what it does; then what waits for people."""
    standings = tuple(standings)
    lines = []
    for standing in standings:
        lines.append(
            f"{shown(standing.slice)}: {shown(standing.version)} {_STATES[standing.state]}"
        )
        lines.append(f"  {_evidence(standing.evidence)}")
        lines += [f"  {text}" for text in _factors(standing.slice, standing.factors)]
    waiting = [entry for entry in standings if entry.state is TrialState.PROVEN]
    lines += [f"to make it active: recalibrators promote {entry.version}" for entry in waiting]
    return "\n".join(lines)


def fits(fitted: Iterable[SliceFitted]) -> str:
    """Writes what came of the fit of each slice."""
    lines = []
    for entry in fitted:
        found = f"{shown(entry.version)} is on trial" if entry.version else shown(entry.reason)
        rows = f"{entry.tracks:,} tracks, {entry.detections:,} detections"
        lines.append(f"{shown(entry.slice)}: {found} ({rows})")
        lines += [f"  {text}" for text in _factors(entry.slice, entry.factors)]
    return "\n".join(lines) or "no slice has enough tracks for a fit yet"


def swap_line(before: str, after: str) -> str:
    """Writes which recalibrator is active, and which was."""
    if before == after:
        return f"{shown(after)} is active, as before"
    return f"{shown(after)} is active, in place of {shown(before)}"


def history_lines(records: Iterable[Record]) -> str:
    """Writes a line for each record, with what is known beneath; times are UTC."""
    return "\n".join(line for record in records for line in _record(record))


def _record(record: Record) -> list[str]:
    about = " ".join(filter(None, (shown(record.slice), shown(record.version))))
    what = record.what.replace("_", " ")
    time = datetime.fromtimestamp(record.time_ns // 10**9, UTC)
    lines = [f"{record.sequence:>5}  {time:%Y-%m-%d %H:%M:%S}  {what:<11}  {about}".rstrip()]
    if record.before != record.after:
        lines.append(f"{shown(record.before)} → {shown(record.after)}")
    lines.append(f"by {shown(record.actor)}")
    if record.reason:
        lines[-1] += f": {shown(record.reason)}"
    if record.evidence is not None:
        lines.append(_evidence(record.evidence))
    lines += _factors(record.slice, record.factors)
    return [lines[0], *(f"{'':7}{line}" for line in lines[1:])]


def _evidence(found: Evidence) -> str:
    return (
        f"{found.tracks:,} tracks, gain {found.gain:+.3g} nats; log10 evidence for "
        f"{found.log10_better:.2f}, against {found.log10_worse:.2f}, decides at "
        f"{found.log10_threshold:.2f}"
    )


def _factors(slice: str, factors: Sequence[Factor]) -> list[str]:
    """Writes one line, or none; × is the typical factor, with its 5 % and 95 % quantiles."""
    if slice == CLASS_PROBABILITIES:
        return [f"{shown(factor.dimension)} {factor.typical:.3g}" for factor in factors]
    texts = []
    for factor in factors:
        between = f" ({factor.lowest:.3g} to {factor.highest:.3g})"
        spread = between if factor.highest > SAME * factor.lowest else ""
        texts.append(f"{shown(factor.dimension)} ×{factor.typical:.3g}{spread}")
    return [f"variance {', '.join(texts)}"] if texts else []


def _names(names: Sequence[str]) -> str:
    return some_of(list(map(shown, names)), MOST_NAMES)
