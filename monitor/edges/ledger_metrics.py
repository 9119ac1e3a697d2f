"""Families of the ledger: what became of every detection and label, and how the disk does."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from monitor.counters import Counters
from monitor.edges.exposition import counter, gauge, histogram
from monitor.ledger_reading import DiskReading, LedgerReading


def ledger(reading: LedgerReading, counters: Counters) -> Iterator[str]:
    """All of them."""
    yield gauge(
        "detection_fates",
        "Detections that came since the ledger began, by what became of them: they add up to all. "
        "A later revision of a label may change one.",
        ("fate",),
        (((fate,), count) for fate, count in reading.fates.items()),
    )
    yield gauge(
        "match_ratio",
        "Matched detections among the usable ones whose fate is known.",
        (),
        [((), reading.match_ratio)],
    )
    yield counter(
        "retracted_detections",
        "Detections whose labels a later revision took back.",
        (),
        [((), reading.retracted)],
    )
    yield gauge(
        "labelled_ratio",
        "Share of a slice's detections of which labels told anything.",
        ("slice",),
        (((share.slice,), share.labelled) for share in reading.shares),
    )
    yield gauge(
        "gated_matches",
        "Matches that the gate of [matching] decided.",
        (),
        [((), reading.gated)],
    )
    yield gauge(
        "near_gate_ratio",
        "Share of them near the gate: it cuts the tail of the errors off.",
        (),
        [((), reading.near_gate)],
    )
    delays = counters.truth_delay
    bounds = [f"{bound:g}" for bound in delays.bounds] + ["+Inf"]
    yield histogram(
        "ground_truth_delay_seconds",
        "Event time from a frame to its labels, by message.",
        zip(bounds, accumulate(delays.counts), strict=True),
        delays.sum,
    )
    yield from _disk(reading.disk)


def _disk(disk: DiskReading) -> Iterator[str]:
    for name, text, value in (
        ("ledger_bytes", "Bytes of frames and labels on disk.", disk.bytes),
        ("ledger_partitions", "Files they are in.", disk.partitions),
        ("ledger_waiting", "Entries that wait for the disk.", disk.waiting),
        (
            "ledger_replayed_entries",
            "Entries that were done again at the start.",
            disk.replayed,
        ),
        (
            "ledger_lost_entries",
            "Entries that could not be done again at the start.",
            disk.not_replayed,
        ),
    ):
        yield gauge(name, text, (), [((), value)])
    yield counter(
        "ledger_failures",
        "Writes to the disk that came to nothing; the log says why.",
        (),
        [((), disk.failures)],
    )
    yield counter(
        "files_refused",
        "Files that could not be used, by what they hold; the log says why.",
        ("of",),
        (((of,), count) for of, count in disk.refused.items()),
    )
