"""What is usual of recorded drives, learned as the sidecar learns it: by class, at both stages,
each sequence a stream of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from monitor.calibration.clusters import ALONE, ClusterArray, cluster_id
from monitor.calibration.drift.charts import Stage
from monitor.calibration.drift.learner import ReferenceLearner
from monitor.calibration.drift.reference import Origin, Reference
from monitor.calibration.drift.settings import DriftSettings
from monitor.calibration.drift.track_seconds import TrackSeconds
from monitor.calibration.drift.usual import enough
from monitor.calibration.drift.watched import WatchedRows
from monitor.calibration.measured import measure
from monitor.calibration.space import FloatArray
from monitor.edges.files import Recording
from monitor.recalibration.selection import Selection
from monitor.verbs.playback import sequences
from monitor.verbs.recalibrated import recalibrate_gaussians
from monitor.verbs.truth import left_out, numbered_tracks, usable_truth


class TooLittleToLearn(ValueError):
    """Recorded drives say too little of what is usual."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """What drives say of each class.

    references  of those that are known well enough
    remarks     a sentence for each of the others
    """

    references: Mapping[str, Mapping[Stage, Reference]]
    remarks: tuple[str, ...]


def learnt(
    recordings: Sequence[Recording], selection: Selection | None, settings: DriftSettings
) -> Learnt:
    """Learn from the rows of recordings that have truth and can be used.

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
                    learner.add_blocks(
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
    """The detections with truth of each sequence; slices are positions in recording.classes.

    number  of the file: tracks of two files are different ones
    """
    _, usable = usable_truth(recording)
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
    _, usable = usable_truth(recording)
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
) -> Learnt:
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
        return Learnt(references, tuple(remarks))
    if not remarks:
        masks = [usable_truth(recording) for recording in recordings]
        labelled, usable = (np.concatenate(parts) for parts in zip(*masks, strict=True))
        remarks = [left_out(labelled, usable)]
    raise TooLittleToLearn(f"nothing is learned: {'; '.join(remarks)}. Give longer drives.")
