"""The doctor: reads a running sidecar and says what is wrong with it."""

from __future__ import annotations

from monitor.commands.doctor.diagnosis import EXAMPLE, add_options, run

__all__ = ["EXAMPLE", "add_options", "run"]
