"""A stored state that a sidecar shows and never changes: that of a fleet, or a copy of a vehicle's.

Nothing is counted beside it, so that event time stands still where the state has it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from monitor.config import Config, replaced
from monitor.frames.space import MOST_SLICES
from monitor.pipeline.housekeeping import in_steps
from monitor.pipeline.live_statistics import LiveStatistics
from monitor.statistics.bins import IncompatibleStatistics
from monitor.statistics.observations import finished
from monitor.statistics.state import Slicing, StatisticsState, windows_described
from monitor.statistics.vehicles import Comparison, compare
from monitor.store.state_files import read_state

# s of the units of windows; days from two on, since a day is called 24h.
_UNITS = (("d", 86400, 2), ("h", 3600, 1), ("m", 60, 1), ("s", 1, 1))


@dataclass(slots=True)
class ShownState:
    """Brings a file of statistics into a sidecar, and what has changed in the file since.

    state     as it was read last
    vehicles  those of its vehicles that differ
    """

    path: Path
    state: StatisticsState
    vehicles: Comparison

    @classmethod
    def of(cls, path: Path) -> ShownState:
        """Reads a file. Raises UnusableFile, InvalidState, IncompatibleStatistics, OSError."""
        state = read_state(path).state
        return cls(path, state, compare(state.vehicles))

    def configured(self, config: Config) -> Config:
        """Takes bins, windows and slicing from the state; nothing is kept on disk.

        raises  InvalidConfiguration; IncompatibleStatistics where no configuration has such bins
        """
        state, own = self.state, config.statistics
        bins, slicing = state.binning.deviation, state.slicing
        windows = own.windows
        if own.window_lengths().lengths_ns != state.windows.lengths_ns:
            windows = tuple(map(_named, state.windows.lengths_ns))
        changes: dict[tuple[str, str], object] = {
            ("statistics", "slice_by"): slicing.by or None,
            ("statistics", "range_edges"): slicing.range_edges or None,
            ("statistics", "range_dimensions"): slicing.range_dimensions or None,
            ("statistics", "tau"): state.binning.tau,
            ("statistics", "lowest_deviation"): bins.lowest,
            ("statistics", "micro_bins_per_octave"): bins.per_octave,
            ("statistics", "windows"): windows,
            ("statistics", "panes"): state.windows.panes,
            # Those of a fleet may be more than those of a vehicle.
            ("statistics", "max_slices"): MOST_SLICES,
            ("limits", "max_spaces"): max(config.limits.max_spaces, MOST_SLICES),
            ("state", "folder"): "",
        }
        found = replaced(config, changes)
        found.statistics.binning().check_same(state.binning)
        if found.statistics.window_lengths() != state.windows:
            raise IncompatibleStatistics(
                f"{self.path}: {windows_described(state.windows)} cannot be served: lengths are "
                "whole seconds. Serve statistics of a sidecar, or what was merged of them."
            )
        return found

    def show(self, live: LiveStatistics) -> None:
        """Brings the state into statistics that hold nothing yet."""
        finished(live.import_in_steps(_sliced(self.state, live)))

    async def read_again(self, live: LiveStatistics) -> None:
        """Adds what the file has gained since it was read; takes out what it has lost.

        raises  as `of`; IncompatibleStatistics where bins, windows or slicing have changed, and
                then all stays as it is
        """
        now, before = (await asyncio.to_thread(read_state, self.path)).state, self.state
        if (now.windows, now.slicing) != (before.windows, before.slicing):
            raise IncompatibleStatistics(
                f"{self.path}: its windows or slices are others by now. Restart the sidecar."
            )
        now.binning.check_same(before.binning)
        gained = await in_steps(now.since(before))
        vehicles = await asyncio.to_thread(compare, now.vehicles)
        live.come_to(live.generation, now.clock_ns)
        await in_steps(live.import_in_steps(_sliced(gained, live)))
        self.state, self.vehicles = now, vehicles


def _sliced(state: StatisticsState, live: LiveStatistics) -> StatisticsState:
    """Fills in slicing that an older state does not tell."""
    return replace(state, slicing=live.slicing) if state.slicing == Slicing() else state


def _named(length_ns: int) -> str:
    """Names the length of a window as a configuration does; the nearest where it is none."""
    seconds = max(length_ns // 10**9, 1)
    unit, size = next(
        (unit, size)
        for unit, size, least in _UNITS
        if seconds % size == 0 and seconds >= least * size
    )
    return f"{seconds // size}{unit}"
