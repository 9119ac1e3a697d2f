"""Made-up counts by export bin, and their measures from the papers, bin by bin; no tests."""

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np

from monitor.config import Reloads
from monitor.drift.alarms import (
    AlarmCount,
    Counted,
    DriftReading,
    DriftState,
    SliceStanding,
    StageStanding,
)
from monitor.drift.charts import SEVERITIES, Detector, Direction, Origin, Quantity, Scale, Stage
from monitor.frames.slices import TOTAL
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.promotions import Promotions
from monitor.pipeline.restart import Resumption
from monitor.promotion.records import TrialStanding
from monitor.service.log import LogCounts
from monitor.service.metrics import Snapshot, render
from monitor.statistics.bins import Binning, ExportEdges, SliceBins, StageBins
from monitor.statistics.observations import finished
from monitor.statistics.reading import PredictedReading
from tests.alarmed import alarm
from tests.piped import pipeline_of

EDGES = ExportEdges(tuple(2.0**octave for octave in range(-4, 5)), Binning())
STAGES = ("raw", "recalibrated")
# By the name of a slice and of a stage.
Counts = dict[tuple[str, str], StageBins]


def drawn(random, per_bin, k, edges: ExportEdges, empty=-1) -> StageBins:
    """About `per_bin` detections in every bin of every axis but the empty one."""
    bins, tau = edges.count, edges.binning.tau_array
    n = random.integers(per_bin // 2, 2 * per_bin + 1, size=(k + 1, bins))
    n[:, empty] = 0
    variance = n[:-1] * 4.0 ** np.arange(bins) * random.uniform(0.01, 0.02, size=(k, bins))
    within = random.binomial(n[-1][:, None], 0.9 * tau)
    return StageBins(
        n=n,
        variance=variance,
        squared_error=variance * random.uniform(0.3, 3.0, size=(k, bins)),
        nees=n[-1] * random.uniform(0.5 * k, 2.0 * k, size=bins),
        within=np.sort(within, axis=1),
    )


def nothing(k, edges: ExportEdges) -> StageBins:
    return scaled(drawn(np.random.default_rng(0), 1, k, edges), 0)


def scaled(counts: StageBins, factor) -> StageBins:
    return replace(counts, **{name: factor * getattr(counts, name) for name in FIELDS})


def added(*parts: StageBins) -> StageBins:
    return replace(
        parts[0], **{name: sum(getattr(part, name) for part in parts) for name in FIELDS}
    )


FIELDS = ("n", "variance", "squared_error", "nees", "within")


def measures(counts: StageBins, tau) -> dict[str, dict[str, float]]:
    """By measure, then by dimension (x0, x1 … and joint)."""
    found: dict[str, dict[str, float]] = {"ence": {}, "ence_noise_floor_gaussian": {}, "uce": {}}
    for d in range(counts.variance.shape[0]):
        n = counts.n[d]
        total = n.sum()
        terms, floors, uce = [], [], 0.0
        for b in np.flatnonzero(n):
            mean_variance = counts.variance[d, b] / n[b]
            mean_square = counts.squared_error[d, b] / n[b]
            rmv, rmse = np.sqrt(mean_variance), np.sqrt(mean_square)
            terms.append(abs(rmv - rmse) / rmv)
            floors.append(1 / np.sqrt(np.pi * n[b]))
            uce += n[b] / total * abs(mean_square - mean_variance)
        found["ence"][f"x{d}"] = float(np.mean(terms))
        found["ence_noise_floor_gaussian"][f"x{d}"] = float(np.mean(floors))
        found["uce"][f"x{d}"] = float(uce)
    n = counts.n[-1]
    of_tau = [
        sum(n[b] / n.sum() * abs(counts.within[b, t] / n[b] - level) for b in np.flatnonzero(n))
        for t, level in enumerate(tau)
    ]
    found["qce"] = {"joint": float(np.mean(of_tau))}
    found["nees"] = {"joint": float(counts.nees.sum() / n.sum())}
    return found


def slice_bins(counts: Counts, k) -> tuple[SliceBins, ...]:
    dimensions = tuple(f"x{d}" for d in range(k))
    names = sorted({name for name, _ in counts})
    return tuple(
        SliceBins(name, dimensions, tuple((stage, counts[name, stage]) for stage in STAGES))
        for name in names
    )


@dataclass
class LaidDown(Promotions):
    """Promotions with trials that a test lays down."""

    standing: tuple[TrialStanding, ...] = ()

    def trials(self) -> tuple[TrialStanding, ...]:
        return self.standing


def snapshot(
    bins: tuple[SliceBins, ...] = (),
    edges: ExportEdges = EDGES,
    pipeline: Pipeline | None = None,
    **others,
) -> Snapshot:
    pipeline = pipeline or pipeline_of()
    return Snapshot(
        **{
            "promotions": Promotions(pipeline),
            "checkpoints": SimpleNamespace(age_seconds=math.nan, failures=0, refused=0),
            "counters": pipeline.counters,
            "edges": edges,
            "resumed": Resumption(pipeline),
            "reloads": Reloads(),
            "logs": LogCounts(),
            "bins": bins,
            **others,
        }
    )


def watched(*slices: str) -> DriftReading:
    """These and their total are well; one alarm there was, of overconfidence of what is forwarded.

    The ratios of what is forwarded are a half, those of raw estimates a quarter.
    """
    return DriftReading(
        standings=tuple(
            SliceStanding(name, severity, DriftState.OK, 5.0, 100.0, 1000.0, None)
            for name in (*slices, TOTAL)
            for severity in SEVERITIES
        ),
        stages=tuple(
            StageStanding(
                slice=name,
                stage=stage,
                scale=Scale(value, value / 2, 2 * value),
                effective_ratio=value,
                reference=Origin.LEARNED,
                reference_tracks=30,
                reference_detections=2400,
                unit=Counted.TRACK_SECOND,
            )
            for name in slices
            for stage, value in ((Stage.RAW, 0.25), (Stage.RECALIBRATED, 0.5))
        ),
        counts=(AlarmCount(Stage.RECALIBRATED, Detector.TRACK, Direction.OVER, alarms=1),),
        epochs=tuple((name, 2) for name in slices),
        driven=1.5,
        left_out=(
            *(("late", 0), ("undated", 0), ("superseded", 0), ("overload", 7), ("failed", 0)),
            *(("late_seconds", 0), ("tracks", 0)),
        ),
    )


def alarmed(slice: str) -> DriftReading:
    """The same of one slice with a page that stays, of a bias of what is forwarded."""
    found = watched(slice)
    page, *others = found.standings
    biased = {"dimension": "x", "quantity": Quantity.BIAS, "size": -0.25, "unit": "m"}
    page = replace(
        page, state=DriftState.ALARM, alarm=alarm(slice, scale=Scale(0.5, 0.25, 1.0), **biased)
    )
    return replace(found, standings=(page, *others))


def certain(slice: str) -> PredictedReading:
    """How certain a detector is that is as certain as usual, made up."""
    return PredictedReading(
        slice=slice,
        n=50,
        deviation_mean=0.5,
        deviation_q50=0.375,
        deviation_q95=1.25,
        deviation_above_before=0.0625,
        classified=40,
        entropy_mean=0.25,
        entropy_q50=0.125,
        entropy_q95=0.75,
        entropy_above_before=0.03125,
        opinions=0,
        aleatoric=math.nan,
        epistemic=math.nan,
    )


def text_of(snapshot: Snapshot) -> str:
    return bytes(finished(render(snapshot))).decode()
