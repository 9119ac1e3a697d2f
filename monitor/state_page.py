"""The page at /: a plain table of the state, for a person with a browser."""

from __future__ import annotations

import html

from monitor import __version__
from monitor.edges.exporter import Snapshot


def page(snapshot: Snapshot) -> bytes:
    """HTML; it asks for itself again every five seconds."""
    rows = "".join(
        f"<tr><td>{html.escape(reading.name)}<td>{reading.raw.rows}"
        f"<td>{reading.raw.joint.nees_over_k:.3f}<td>{reading.recalibrated.joint.nees_over_k:.3f}"
        f"<td>{reading.raw.joint.qce:.3f}<td>{reading.recalibrated.joint.qce:.3f}"
        for reading in snapshot.readings
    )
    counters = snapshot.counters
    versions = ", ".join(f"recalibrator {entry.version}" for entry in snapshot.recalibrators)
    text = (
        "<!doctype html><meta charset=utf-8><meta http-equiv=refresh content=5>"
        "<title>calibration monitor</title><style>body{font:14px sans-serif;margin:2em}"
        "td,th{padding:.2em 1em;text-align:right}td:first-child{text-align:left}</style>"
        f"<h1>calibration monitor {__version__}</h1>"
        f"<p>{counters.frames} frames, {counters.detections} detections, "
        f"{counters.truth.matched} with ground truth; mode {html.escape(snapshot.mode)}, "
        f"{html.escape(versions)}; <a href=/metrics>metrics</a></p>"
        "<table><tr><th>slice<th>n<th>NEES/K raw<th>recalibrated<th>QCE raw<th>recalibrated"
        f"{rows}</table>"
    )
    return text.encode()
