"""The demo on a terminal while it runs.

render() makes lines; Screen alone writes escape codes.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
from typing import TextIO

from monitor.commands.demo.record import Record, SensorRecord

_REFRESH_S = 0.2
_NAME, _COUNT, _NUMBER = 18, 7, 5
_FIXED = _NAME + 2 * (_COUNT + 2) + 2 * (_NUMBER + 3)
_BAR_LIMIT = 24  # columns
_BAR_FULL = 6.0  # NEES/K of a full bar
_CALIBRATED = (0.4, 2.5)  # what a calibrated sensor may read over 5 s of heavy-tailed errors
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_RED, _GREEN, _BOLD, _DIM, _PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[1m", "\x1b[2m", "\x1b[0m"


def is_live(stream: TextIO) -> bool:
    """Tells if the stream is a terminal that can show a moving picture."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def render(record: Record, where: str, columns: int, rows: int, *, colour: bool) -> list[str]:
    """Draws at most `rows` lines of at most `columns` characters, codes not counted.

    where  the address of the page, for a look with a browser
    """
    width = max(0, min(_BAR_LIMIT, (columns - _FIXED) // 2))
    stage = _NUMBER + 1 + width
    elapsed = f"{record.elapsed_s:.1f} of {_length(record):.0f} s"
    over = f"{'NEES/K of the last 5 s of truth':<{_NAME + 2 * (_COUNT + 2)}}"
    heads = f"{'sensor':<{_NAME}}  {'frames':>{_COUNT}}  {'boxes':>{_COUNT}}  1 is calibrated"
    lines = [
        _styled(f"calibration monitor demo   {elapsed}   {_phase(record)}", columns, _BOLD, colour),
        _progress(record, columns),
        _styled(f"http://{where}/   http://{where}/metrics", columns, _DIM, colour),
        "",
        f"{over}  {'as sent':<{stage}}  recalibrated"[:columns],
        _styled(heads, columns, _DIM, colour),
        *(_row(sensor, width, columns, colour) for sensor in record.sensors.values()),
        "",
    ]
    room = max(0, rows - len(lines))
    events = [f"{at:6.1f} s  {text}" for at, text in record.events]
    lines += [text[:columns] for text in events[len(events) - room :]]
    return lines[:rows]


def bar(value: float, width: int) -> str:
    """Draws a value as a bar, full at 6; always `width` columns."""
    if not math.isfinite(value):
        return " " * width
    eighths = round(8 * width * min(max(value / _BAR_FULL, 0.0), 1.0))
    whole, part = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[part] if part else "")).ljust(width)


def _phase(record: Record) -> str:
    plan, corrects = record.plan, record.corrects
    if record.elapsed_s < plan.fault_s:
        return "healthy"
    if record.elapsed_s < record.fault_ended_s:
        return f"{plan.faulty} recalibrated" if corrects else f"FAULT in {plan.faulty}"
    if corrects:
        return "the fault is over, and is still corrected"
    return "the fault is over, nothing is corrected"


def _length(record: Record) -> float:
    """Seconds of the drive, as planned or as it has become."""
    return max(record.elapsed_s, record.plan.duration_s)


def _progress(record: Record, columns: int) -> str:
    """Draws a line that fills, with marks where the fault begins and ends."""
    plan, length = record.plan, _length(record)
    width = max(1, columns - 1)
    done = round(width * record.elapsed_s / length)
    cells = ["━" if i < done else "─" for i in range(width)]
    ends_s = record.fault_ended_s
    if math.isinf(ends_s):
        ends_s = max(record.elapsed_s, plan.fault_end_s)
    for at_s in (plan.fault_s, ends_s):
        cells[min(int(width * at_s / length), width - 1)] = "┃"
    return "".join(cells)


def _row(sensor: SensorRecord, width: int, columns: int, colour: bool) -> str:
    recent = sensor.recent()
    text = f"{sensor.name:<{_NAME}}  {sensor.frames:>{_COUNT}}  {sensor.detections:>{_COUNT}}"
    if columns < _FIXED:
        return f"{sensor.name} {_number(recent.raw)} {_number(recent.recalibrated)}"[:columns]
    for value in (recent.raw, recent.recalibrated):
        cell = f"{_number(value):>{_NUMBER}} {bar(value, width)}"
        if colour and math.isfinite(value):
            good = _CALIBRATED[0] <= value <= _CALIBRATED[1]
            cell = f"{_GREEN if good else _RED}{cell}{_PLAIN}"
        text += f"  {cell}"
    return text


def _number(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "–"


def _styled(text: str, columns: int, style: str, colour: bool) -> str:
    return f"{style}{text[:columns]}{_PLAIN}" if colour else text[:columns]


class Screen:
    """The terminal's second screen, for as long as the context lasts; the first one comes back."""

    def __init__(self, record: Record, where: str, out: TextIO) -> None:
        self._record, self._where, self._out = record, where, out

    def __enter__(self) -> Screen:
        self._write("\x1b[?1049h\x1b[?25l")
        return self

    def __exit__(self, *error: object) -> None:
        self._write("\x1b[?25h\x1b[?1049l")

    async def keep_drawing(self) -> None:
        """Draws until cancelled."""
        while True:
            self.draw()
            await asyncio.sleep(_REFRESH_S)

    def draw(self) -> None:
        """Draws once; every line is overwritten in place, so that nothing flickers."""
        columns, rows = shutil.get_terminal_size()
        colour = "NO_COLOR" not in os.environ
        lines = render(self._record, self._where, columns, rows, colour=colour)
        self._write("\x1b[H" + "\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
