"""Demonstrates the sidecar: a simulated drive with a fault that is found and corrected."""

from __future__ import annotations

from monitor.commands.demo.demonstration import EXAMPLE, add_options, run

__all__ = ["EXAMPLE", "add_options", "run"]
