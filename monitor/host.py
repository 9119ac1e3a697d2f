"""The process that a sidecar runs in, as far as it needs it: its configuration, to be read again,
its log, and who started it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from monitor.config import Config
from monitor.edges.log_lines import LogCounts
from monitor.edges.service_manager import ServiceManager


def nothing_new(_: Config) -> None:
    """Where nothing but the sidecar asks for settings."""


@dataclass(frozen=True, slots=True)
class Host:
    """Of one sidecar.

    reread    the configuration as it is now; raises InvalidConfiguration
    path      of its file; empty: there is none
    logs      what was logged
    adjusted  is told what is in force after a reload
    manager   who started the process, and may watch over it
    """

    reread: Callable[[], Config] = Config
    path: str = ""
    logs: LogCounts = field(default_factory=LogCounts)
    adjusted: Callable[[Config], None] = nothing_new
    manager: ServiceManager = field(default_factory=lambda: ServiceManager(None, None))
