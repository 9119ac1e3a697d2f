"""What served before the champion, beside it: it comes back when it is proven better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from monitor.calibration.detections import Limits
from monitor.promotion.betting import Clip, Watch
from monitor.promotion.log_score import mean_differences
from monitor.promotion.records import Evidence
from monitor.promotion.settings import TrialSettings
from monitor.promotion.whole_track import WholeTrack, rows_of
from monitor.recalibration.recalibrator import Recalibrator


@dataclass(frozen=True, slots=True)
class Guard:
    """Of one slice.

    A trial asks whether a candidate is better from the start; a guard may be worse for hours, and
    become better when a fault ends. So it bets anew at every track, for as long as it stands.

    recalibrator  what served before
    clip          how much a track can say: trial.clip_of(recalibrator, champion, …)
    """

    slice: str
    recalibrator: Recalibrator
    clip: Clip
    watch: Watch = field(default_factory=Watch)

    def taken(self, tracks: Sequence[WholeTrack], champion: Recalibrator, limits: Limits) -> Guard:
        """With more tracks of the slice, in the order they ended.

        Tracks on which it makes what cannot be forwarded are no reason to go back to it: while it
        does, it begins anew.
        """
        if not tracks:
            return self
        rows = rows_of(tracks)
        differences = mean_differences(rows, self.recalibrator, champion, limits)
        if differences.unsound:
            return replace(self, watch=Watch())
        watch = self.watch.taken(differences.value, rows.counts, self.clip)
        return replace(self, watch=watch)

    def won(self, settings: TrialSettings) -> bool:
        """Whether it is proven better now."""
        return self.watch.log10_better >= math.log10(settings.rollback_tracks)

    def evidence(self, settings: TrialSettings) -> Evidence:
        """In numbers, of the tracks since it seems to be better; of worse there is no bet."""
        leading = self.watch.leading
        return Evidence(
            leading.tracks,
            leading.total / leading.tracks if leading.tracks else 0.0,
            self.watch.log10_better,
            0.0,
            math.log10(settings.rollback_tracks),
        )
