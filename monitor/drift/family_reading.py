"""The standing of every slice, read off a family; nothing here changes it."""

from __future__ import annotations

import numpy as np

from monitor.drift.alarms import Counted, DriftReading, DriftState, SliceStanding, StageStanding
from monitor.drift.bets import SEVERITIES, Severity, Stage
from monitor.drift.evidence import Scale, Unit, by_severity, scale_of
from monitor.drift.family import Family
from monitor.drift.observed import CHARTS_OF
from monitor.drift.reference import Reference
from monitor.frames.slices import TOTAL
from monitor.frames.space import FloatArray

# Of what an alarm needs.
_WARNING = 0.1


# Detections with truth, of which fewer say nothing.
_FEWEST = 100


def family_reading(
    family: Family, left_out: tuple[tuple[str, int], ...], store_failures: int
) -> DriftReading:
    """All of it, as of now."""
    charts = family.evidence.by_chart(family.evidence.weights)
    evidence = by_severity(charts)
    standings = [
        _standing(family, name, severity, evidence[i, s], family.evidence.peak[i, s])
        for i, name in enumerate(family.names)
        for s, severity in enumerate(SEVERITIES)
    ]
    standings += [
        _standing(family, TOTAL, severity, evidence[:, s].sum(), family.peak[s])
        for s, severity in enumerate(SEVERITIES)
    ]
    # Alarms of the last run, of slices of which nothing has come in this one.
    standings += [
        _standing(family, name, severity, np.float64(0.0), np.float64(0.0))
        for name, severity in dict.fromkeys(key[:2] for key in family.alarms.latched)
        if name != TOTAL and name not in family.names
    ]
    return DriftReading(
        standings=tuple(standings),
        stages=tuple(
            _stage(family, i, stage, charts[i]) for i in range(len(family.names)) for stage in Stage
        ),
        counts=family.alarms.told(),
        epochs=tuple(zip(family.names, family.epochs, strict=True)),
        driven=family.clock.driven / 3600.0,
        left_out=left_out,
        store_failures=store_failures,
    )


def _standing(
    family: Family, name: str, severity: Severity, evidence: np.float64, peak: np.float64
) -> SliceStanding:
    threshold = family.settings.hours(severity)
    alarm = family.alarms.of(name, severity)
    if alarm is not None:
        state = DriftState.ALARM
    elif evidence >= _WARNING * threshold:
        state = DriftState.WARNING
    elif name != TOTAL and family.labelled[family.names.index(name)] < _FEWEST:
        state = DriftState.TOO_FEW
    else:
        state = DriftState.OK
    return SliceStanding(name, severity, state, float(evidence), float(peak), threshold, alarm)


def _stage(family: Family, slice: int, stage: Stage, charts: FloatArray) -> StageStanding:
    reference = family.usual.references[slice][stage]
    number = CHARTS_OF[stage].start + int(np.argmax(charts[CHARTS_OF[stage]]))
    scale: Scale = scale_of(family.evidence.run[slice, number], family.usual.worth(slice, stage))
    unit = _counted(family, slice, reference)
    of_frames = unit is Counted.FRAME
    return StageStanding(
        slice=family.names[slice],
        stage=stage,
        scale=scale,
        effective_ratio=reference.frame_tempering if of_frames else reference.tempering,
        reference=reference.origin,
        reference_tracks=0 if reference.levels is None else reference.levels.tracks,
        reference_detections=reference.detections,
        unit=unit,
    )


def _counted(family: Family, slice: int, reference: Reference) -> Counted:
    unit = family.settings.unit
    if unit is Unit.TRACK:
        return Counted.TRACK
    if family.usual.frame_size[slice]:
        return Counted.FRAME
    of_tracks = unit is Unit.TRACK_SECOND and reference.levels is not None
    return Counted.TRACK_SECOND if of_tracks else Counted.DETECTION
