"""Says what a benchmark ran on, without which absolute numbers mean nothing, and times calls."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path


def machine() -> str:
    """Names processor, cores and Python."""
    told = Path("/proc/cpuinfo").read_text("utf-8").partition("model name")[2]
    model = told.partition("\n")[0].lstrip("\t :") or platform.machine()
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def shortest(rounds: int, *calls: Callable[[], object]) -> list[float]:
    """Times each call, in s; one round runs them all, one after the other."""
    took = [float("inf")] * len(calls)
    for _ in range(rounds):
        for i, call in enumerate(calls):
            began = time.perf_counter()
            call()
            took[i] = min(took[i], time.perf_counter() - began)
    return took
