"""The drift part of `replay`: a reference before it, alarms during it, evidence at its end.

References are learned as the sidecar learns them: by class, at both stages, each sequence a stream
of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from monitor.commands.alarms import STATES
from monitor.commands.apply import recalibrate_gaussians
from monitor.commands.options import add_value, allow, finite, shown, table, toml_section
from monitor.commands.recordings import (
    add_condition,
    numbered_tracks,
    read_selected,
    usable_truth,
)
from monitor.commands.sending import RecordedSequence, sequences
from monitor.commands.sidecar_client import Client
from monitor.config import DriftConfig, load
from monitor.drift.alarms import Alarm, AlarmReason, SliceStanding, alarm_sentence, hours
from monitor.drift.bets import Stage
from monitor.drift.evidence import DriftSettings
from monitor.drift.reference import Origin, Reference
from monitor.drift.track_seconds import TrackSeconds
from monitor.drift.usual import ReferenceLearner, WatchedRows, enough
from monitor.frames.slices import SliceBy
from monitor.frames.space import FloatArray
from monitor.recalibration.selection import Selection
from monitor.statistics.clusters import ALONE, ClusterArray, cluster_id
from monitor.statistics.observations import measure
from monitor.store.documents import read_references, reference_text
from monitor.store.recordings import Recording

# Of recorded drives; fewer tell nothing.
_FEWEST_TRACKS, _FEWEST_DETECTIONS = 10, 1000

# s that events may take longer than the answer that tells of the same alarms.
_PATIENCE = 5.0
_PERIOD = 0.01


class TooLittleToLearn(ValueError):
    """Recorded drives say too little of what is usual."""


@dataclass(frozen=True, slots=True)
class LearnedReferences:
    """References learned from drives.

    references  of those that are known well enough
    remarks     a sentence for each of the others
    """

    references: Mapping[str, Mapping[Stage, Reference]]
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DriftFound:
    """Alarms and evidence that the sidecar told of.

    alarms     in the order in which they were raised
    standings  of each slice and severity, at the end
    """

    alarms: tuple[Alarm, ...] = ()
    standings: tuple[SliceStanding, ...] = ()


@dataclass(frozen=True, slots=True)
class Moment:
    """A time in the drive, told from the start of a sequence.

    stream    its name; None where several may be meant
    start_ns  event time of its first frame
    frame     number of the last frame by then; None where no sequence is played at that time
    """

    stream: str | None
    start_ns: int
    frame: int | None


@dataclass(slots=True)
class AlarmListener:
    """Alarms in the order in which they were raised, since it began.

    before  those that had been raised by then, and stayed
    """

    before: frozenset[tuple[str, ...]] = frozenset()
    raised: list[Alarm] = field(default_factory=list)

    async def listen(self, client: Client) -> None:
        """Listens as long as the sidecar serves."""
        async with contextlib.aclosing(client.alarm_changes()) as changes:
            async for heard in changes:
                if heard.change.why is AlarmReason.RAISED:
                    self.raised.append(heard.change.alarm)

    async def all_of(
        self, standings: tuple[SliceStanding, ...], patience: float = _PATIENCE
    ) -> DriftFound:
        """Returns the alarms heard of; those that stay at the end are added if they were not heard.

        patience  s to wait for those that have not been
        """
        end = time.monotonic() + patience
        while (missing := self._missing(standings)) and time.monotonic() < end:
            await asyncio.sleep(_PERIOD)
        missing.sort(key=lambda alarm: alarm.driven)
        return DriftFound((*self.raised, *missing), standings)

    def _missing(self, standings: tuple[SliceStanding, ...]) -> list[Alarm]:
        known = self.before | set(map(_key, self.raised))
        return [alarm for alarm in _staying(standings) if _key(alarm) not in known]


def add_drift(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a verb that plays detections to a sidecar which watches for drift."""
    group = parser.add_argument_group("drift")
    usual = group.add_mutually_exclusive_group()
    text = (
        "what is usual, as `calibration-monitor reference` wrote it (default: the started "
        "sidecar learns it from what is played)"
    )
    add_value(usual, "--reference", "F", text)
    add_condition(
        usual,
        "--reference-where",
        "learn what is usual from the rows of the files whose column has this value, in place of "
        "--where, before anything is played; may be repeated",
    )


def check_drift(options: argparse.Namespace) -> None:
    """Raises ValueError where a reference has no sidecar or no slices to act on."""
    names = ("reference", "reference_where")
    why = (
        f"it would be a setting of the sidecar at {options.address} ([drift] reference). Leave it "
        "out, or leave --address out."
    )
    allow(options, not options.address, why, *names)
    by = ",".join(options.slice_by)
    why = f"it says what is usual of classes, not of --slice-by {by}. Leave one of them out."
    allow(options, options.slice_by == (SliceBy.CLASS,), why, *names)


def drift_config(options: argparse.Namespace) -> DriftConfig:
    """Reads [drift] of the file that --config names. Raises InvalidConfiguration."""
    return DriftConfig() if options.config is None else load(options.config).drift


def learning_settings(options: argparse.Namespace) -> DriftSettings:
    """How much is enough to learn from: as the file that --config names says. Without one, of
    drives that people chose, little: a slice of few tracks is watched by detections then.

    Raises InvalidConfiguration.
    """
    if options.config is not None:
        return drift_config(options).settings()
    return DriftSettings(reference_tracks=_FEWEST_TRACKS, reference_detections=_FEWEST_DETECTIONS)


def drift_section(options: argparse.Namespace, reference: Path | None) -> str:
    """Writes [drift] of the sidecar to be started, as TOML. Raises InvalidConfiguration."""
    section = drift_config(options).model_dump(mode="json", exclude_none=True)
    if reference is not None:
        section["reference"] = str(reference)
    return toml_section("drift", section)


@contextlib.contextmanager
def reference_file(
    options: argparse.Namespace, selection: Selection | None
) -> Iterator[Path | None]:
    """Yields the file of references for the started sidecar; None where it shall learn them itself.

    Raises RecordingError, InvalidDocument, InvalidRecalibrator, TooLittleToLearn.
    """
    if options.reference is not None:
        read_references(options.reference)  # a sidecar would refuse it with less to say
        yield Path(options.reference).resolve()
        return
    if options.reference_where is None:
        yield None
        return
    # A drill changes what is played, not what is usual.
    asked = {**vars(options), "where": options.reference_where, "fault": None}
    recordings = [read_selected(path, argparse.Namespace(**asked)) for path in options.files]
    found = learn_references(recordings, selection, learning_settings(options))
    for remark in found.remarks:
        print(f"calibration-monitor replay: {remark}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="calibration-monitor-") as folder:
        path = Path(folder) / "reference.json"
        path.write_text(reference_text(found.references), encoding="utf-8")
        yield path


def learn_references(
    recordings: Sequence[Recording], selection: Selection | None, settings: DriftSettings
) -> LearnedReferences:
    """Learns from the rows of recordings that have ground truth and can be used.

    selection  the recalibrator that is to be in force; None: both stages are the same
    raises     TooLittleToLearn, InvalidRecalibrator, and ValueError where the recordings have
               different dimensions or frames that cannot be played
    """
    spaces = {recording.space for recording in recordings}
    if len(spaces) > 1:
        names = " and ".join(sorted(",".join(space.names) for space in spaces))
        raise ValueError(
            f"the files have dimensions {names}, but what is usual is known of one set of them. "
            "Give --dimensions that all have."
        )
    (space,) = spaces
    learners: dict[str, list[ReferenceLearner]] = {}
    frames = 0
    for number, recording in enumerate(recordings):
        for rows in _watched(number, recording, selection):
            seconds = TrackSeconds(settings).take(rows)
            for i, name in enumerate(recording.classes):
                of_class, second = rows.slices == i, seconds.slices == i
                if not of_class.any():
                    continue
                both = learners.setdefault(
                    name, [ReferenceLearner(len(space.joint)) for _ in Stage]
                )
                for stage, learner in zip(Stage, both, strict=True):
                    learner.add(
                        rows.nees[stage, of_class],
                        rows.track[of_class],
                        rows.frame[of_class] + frames,
                    )
                    learner.seconds.add(
                        seconds.level[stage, second],
                        seconds.count[second],
                        seconds.before[second],
                        seconds.mean[stage, second],
                    )
            frames += rows.stamp_ns.size
    return _known_well(learners, settings, recordings)


def _watched(
    number: int, recording: Recording, selection: Selection | None
) -> Iterator[WatchedRows]:
    """Yields the labelled detections of each sequence; slices are positions in recording.classes.

    number  of the file: tracks of two files are different ones
    """
    usable = usable_truth(recording).rows
    raw = _nees(recording)
    made = raw
    if selection is not None:
        made = _nees(recalibrate_gaussians(selection, recording).recording)
    usable &= np.isfinite(raw) & np.isfinite(made)
    nees, tracks = np.stack([raw, made]), _tracks(number, recording)
    for sequence in sequences(recording, ""):
        labelled = usable[sequence.rows]
        rows = sequence.rows[labelled]
        yield WatchedRows(
            slices=recording.class_index[rows],
            nees=nees[:, rows],
            track=tracks[rows],
            frame=sequence.frame_of_row[labelled],
            stamp_ns=np.rint(sequence.times * 1e9).astype(np.int64),
            source=np.zeros(sequence.frames, np.int64),
            changed=np.full(sequence.frames, selection is not None),
        )


def _nees(recording: Recording) -> FloatArray:
    """(N,) of the joint block; NaN where a row has no truth or is no usable Gaussian."""
    usable = usable_truth(recording).rows
    found = np.full(usable.size, np.nan)
    if usable.any():
        error = recording.space.error(recording.truth[usable], recording.mean[usable])
        measured = measure(recording.space, [(error, recording.covariance[usable])])
        found[usable] = np.where(measured.regular, measured.nees[-1], np.nan)
    return found


def _tracks(number: int, recording: Recording) -> ClusterArray:
    """(N,) the true object of each row in its sequence and class; ALONE where unknown."""
    found = np.full(recording.class_index.size, ALONE)
    objects = numbered_tracks(recording.sequence_index, recording.track)
    if objects is not None:
        ids = cluster_id((number, objects, recording.class_index))
        found[objects >= 0] = ids[objects >= 0]
    return found


def _known_well(
    learners: Mapping[str, Sequence[ReferenceLearner]],
    settings: DriftSettings,
    recordings: Sequence[Recording],
) -> LearnedReferences:
    references: dict[str, dict[Stage, Reference]] = {}
    remarks: list[str] = []
    for name, both in sorted(learners.items()):
        if all(enough(learner, settings) for learner in both):
            references[name] = {
                stage: learner.learned(Origin.FILE, settings.shortest_reference)
                for stage, learner in zip(Stage, both, strict=True)
            }
        else:
            remarks.append(
                f"{name}: {both[0].tracks} tracks and {both[0].detections} detections say too "
                f"little of what is usual ([drift] reference_tracks = {settings.reference_tracks} "
                f"and reference_detections = {settings.reference_detections} are needed)"
            )
    if references:
        return LearnedReferences(references, tuple(remarks))
    if not remarks:
        remarks = [usable_truth(recording).told() for recording in recordings]
    raise TooLittleToLearn(f"nothing is learned: {'; '.join(remarks)}. Give longer drives.")


def moment(event_ns: int, played: Sequence[RecordedSequence]) -> Moment:
    """Places an event time among the sequences played, of which there is at least one.

    It is told from the first of those that have a frame with this very stamp; where none has, of
    those that are played by then.
    """
    stamps = [np.rint(sequence.times * 1e9).astype(np.int64) for sequence in played]
    last = [int(np.searchsorted(of, event_ns, side="right")) - 1 for of in stamps]
    running = [
        i
        for i, (of, at) in enumerate(zip(stamps, last, strict=True))
        if at >= 0 and event_ns <= of[-1]
    ]
    there = [i for i in running if stamps[i][last[i]] == event_ns] or running
    if not there:
        alone = played[0].header.stream if len(played) == 1 else None
        return Moment(alone, int(stamps[0][0]), None)
    first = there[0]
    name = played[first].header.stream if len(there) == 1 else None
    return Moment(name, int(stamps[first][0]), last[first])


def drift_json(found: DriftFound, played: Sequence[RecordedSequence]) -> dict[str, Any]:
    """Builds alarms and drift of replay --json; None in place of what is not known."""
    return {
        "alarms": [_alarm(alarm, played) for alarm in found.alarms],
        "drift": [_standing(standing) for standing in found.standings],
    }


def _alarm(alarm: Alarm, played: Sequence[RecordedSequence]) -> dict[str, Any]:
    at, scale = moment(alarm.event_ns, played), alarm.scale
    return {
        "slice": alarm.slice,
        "severity": alarm.severity.value,
        "stage": alarm.stage.label,
        "detector": alarm.detector.value,
        "direction": alarm.direction.value,
        "stream": at.stream,
        "t": (alarm.event_ns - at.start_ns) / 1e9,
        "frame": at.frame,
        "labelled": alarm.labelled,
        "detections": alarm.detections,
        "tracks": alarm.tracks,
        "evidence_hours": finite(alarm.evidence),
        "threshold_hours": alarm.threshold,
        "since_t": (alarm.since_ns - at.start_ns) / 1e9,
        "scale": [finite(value) for value in (scale.estimate, scale.lower, scale.upper)],
    }


def _standing(standing: SliceStanding) -> dict[str, Any]:
    return {
        "slice": standing.slice,
        "severity": standing.severity.value,
        "state": standing.state.name.lower(),
        "log10_evidence": _log10(standing.evidence),
        "log10_peak": _log10(standing.peak),
        "log10_threshold": _log10(standing.threshold),
    }


def _log10(hours: float) -> float | None:
    """Logarithm of evidence; None without any."""
    return math.log10(hours) if 0 < hours < math.inf else None


def drift_table(found: DriftFound, played: Sequence[RecordedSequence]) -> str:
    """Writes a line for each slice and severity, one for each alarm; empty if nobody watched."""
    lines = []
    if found.standings:
        heads = ("drift", "severity", "state", "evidence", "peak", "threshold")
        lines.append(table(heads, [_row(standing) for standing in found.standings]))
    for alarm in found.alarms:
        at = moment(alarm.event_ns, played)
        frame = "" if at.frame is None else f", frame {at.frame}"
        stream = "" if at.stream is None else f" of {at.stream}"
        when = f"{(alarm.event_ns - at.start_ns) / 1e9:.1f} s{frame}{stream}"
        lines.append(f"{when}: {shown(alarm_sentence(alarm))}")
    return "\n".join(lines)


def _row(standing: SliceStanding) -> tuple[str, ...]:
    return (
        shown(standing.slice),
        standing.severity.value,
        STATES[standing.state],
        *map(hours, (standing.evidence, standing.peak, standing.threshold)),
    )


@contextlib.asynccontextmanager
async def listening_for_alarms(client: Client) -> AsyncIterator[AlarmListener]:
    """Listens for alarms as long as the context lasts."""
    heard = AlarmListener()
    listening = asyncio.create_task(heard.listen(client))
    try:
        # Whoever replays to a sidecar of somebody else has not raised what is there.
        standings = (await client.standings()).standings
        heard.before = frozenset(map(_key, _staying(standings)))
        yield heard
    finally:
        listening.cancel()
        # If it broke, so has all else; and alarms that stay are read at the end.
        await asyncio.gather(listening, return_exceptions=True)


def _staying(standings: Iterable[SliceStanding]) -> list[Alarm]:
    return [standing.alarm for standing in standings if standing.alarm is not None]


def _key(alarm: Alarm) -> tuple[str, ...]:
    return (alarm.slice, alarm.severity, str(alarm.event_ns), str(alarm.epoch))
