"""The settings of how recalibrators are fitted, tried and promoted while the sidecar runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from monitor.config_section import Section
from monitor.promotion.settings import (
    FitSettings,
    PolicySettings,
    PromotionMode,
    PromotionSettings,
    TrackSettings,
    TrialSettings,
)
from monitor.recalibration.adaptive_scaling import AdaptiveScaling
from monitor.recalibration.covariance_scaling import CovarianceScaling
from monitor.recalibration.identity import Identity
from monitor.recalibration.methods import METHODS
from monitor.recalibration.scale import Objective
from monitor.recalibration.variance_scaling import VarianceScaling

Factor = Annotated[float, Field(gt=0)]

# By key, the methods to which it means something. As in fitting.FITTINGS, which is heavy to import.
USED_BY: Mapping[str, tuple[str, ...]] = {
    "objective": (VarianceScaling.method, CovarianceScaling.method),
    "time_constant_seconds": (AdaptiveScaling.method,),
}


class PromotionConfig(Section):
    """Fits beside the stream, trials on later truth, and what acts by itself."""

    # manual: fits and promotions when asked for; advise: a proven candidate raises an event and
    # waits; automatic: it is promoted.
    mode: PromotionMode = PromotionMode.ADVISE
    allow_shrinking: bool = False  # automatic also where covariances become smaller
    method: str = "variance-scaling"  # of what is fitted, as in `fit --method`
    objective: Objective | None = None  # of a scaling; left out: its own
    time_constant_seconds: PositiveFloat | None = None  # s, of adaptive-scaling
    band: tuple[Factor, Factor] = (0.5, 2.0)  # factors on the variance that are left alone
    hysteresis: Annotated[float, Field(gt=1)] = 1.1  # a smaller change of variances is none
    prior_tracks: PositiveFloat = 3.0  # that "nothing is wrong" counts for in a fit
    # New ones of a slice before it is fitted again, and the fewest that a fit looks back on.
    fit_tracks: Annotated[int, Field(ge=2)] = 10
    fit_every_seconds: PositiveFloat = 10.0  # s between two fits, at least
    fit_timeout_seconds: PositiveFloat = 120.0  # s after which a fit hangs, and is ended
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.02  # chance of promoting what is no better
    clip: PositiveFloat = 1.0  # nats per dimension that one track can say for a step
    trial_tracks: PositiveInt = 400  # after so many without a proof a trial is over
    # Between two rollbacks of what is no worse, on average, at least.
    rollback_tracks: Annotated[float, Field(ge=100)] = 1e5
    track_idle_seconds: Annotated[float, Field(ge=0.05)] = 1.0  # s without truth that end a track
    # s of a track that count; where nobody tracks: of a block
    track_seconds: Annotated[float, Field(ge=0.05)] = 10.0
    rows_per_track: Annotated[int, Field(ge=2, le=1024)] = 32  # kept, evenly spread
    kept_tracks: Annotated[int, Field(ge=10, le=100_000)] = 500  # of each slice, the newest
    open_tracks: Annotated[int, Field(ge=1, le=100_000)] = 4096  # at a time, over all slices
    # Versions, trials and the audit log; in the working directory; empty: none are kept.
    folder: str = "calibration-monitor.recalibrators"

    @model_validator(mode="after")
    def _known_and_in_order(self) -> Self:
        methods = [method for method in METHODS if method != Identity.method]
        if self.method not in methods:
            raise ValueError(
                f"method '{self.method}' must be one of {', '.join(methods)}; for fits only when "
                "asked for, set mode 'manual'"
            )
        for key, used_by in USED_BY.items():
            given = getattr(self, key)
            if given is not None and self.method not in used_by:
                raise ValueError(
                    f"{key} {given} means nothing to method '{self.method}': leave it out, or set "
                    f"method to {' or '.join(used_by)}"
                )
        if self.fit_tracks > self.kept_tracks:
            raise ValueError(
                f"fit_tracks {self.fit_tracks} must be no more than kept_tracks "
                f"{self.kept_tracks}, or no slice is ever fitted: lower the one or raise the other"
            )
        if not self.band[0] <= 1 <= self.band[1]:
            raise ValueError(f"band {list(self.band)} must have 1 between its ends")
        return self

    def settings(self) -> PromotionSettings:
        """As the pure core takes them."""
        return PromotionSettings(
            TrackSettings(
                idle_ns=int(self.track_idle_seconds * 1e9),
                longest_ns=int(self.track_seconds * 1e9),
                rows_per_track=self.rows_per_track,
                most_tracks=self.kept_tracks,
                most_open=self.open_tracks,
            ),
            FitSettings(
                self.method,
                self.objective,
                self.time_constant_seconds,
                self.prior_tracks,
                self.fit_tracks,
            ),
            TrialSettings(self.alpha, self.clip, self.trial_tracks, self.rollback_tracks),
            PolicySettings(self.mode, self.allow_shrinking, self.band, self.hysteresis),
        )
