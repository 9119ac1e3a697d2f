"""calibration-monitor reference: learns the reference of drift from healthy recorded drives.

It is learned as the sidecar learns it: by class, at both stages, each sequence a stream of its own.
`replay` gives its sidecar such a reference, or learns one before it plays.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from monitor.commands.apply import read_model, recalibrate_gaussians
from monitor.commands.output import table, tell, working, write_output
from monitor.commands.recordings import numbered_tracks, read_selected
from monitor.commands.sending import sequences
from monitor.commands.soundness import usable_truth
from monitor.config import load
from monitor.drift.charts import Origin, Stage
from monitor.drift.evidence import DriftSettings
from monitor.drift.reference import Reference
from monitor.drift.track_seconds import TrackSeconds
from monitor.drift.usual import (
    BLOCK_NS,
    ReferenceLearner,
    WatchedRows,
    enough,
    watched_errors,
)
from monitor.frames.space import BoolArray, IntArray
from monitor.frames.words import SliceBy
from monitor.options.values import allow
from monitor.recalibration.selection import Selection
from monitor.statistics.clusters import ALONE, ClusterArray, cluster_id
from monitor.statistics.observations import Measured, measure
from monitor.store.documents import read_references, reference_text
from monitor.store.recordings import Recording

# Of recorded drives; fewer tell nothing.
_FEWEST_TRACKS, _FEWEST_DETECTIONS = 10, 1000

# By class, of those that are known well enough.
References: TypeAlias = Mapping[str, Mapping[Stage, Reference]]


class TooLittleToLearn(ValueError):
    """Recorded drives hold too little data for a reference."""


def run(options: argparse.Namespace) -> int:
    """0 when the file was written.

    Raises RecordingError, InvalidRecalibrator, InvalidConfiguration, TooLittleToLearn, CannotWrite.
    """
    selection = None if options.recalibrator is None else read_model(options.recalibrator)
    settings = learning_settings(options)
    recordings = [read_selected(path, options) for path in options.files]
    references = learn_references("reference", recordings, selection, settings)
    write_output(options.output, reference_text(references))
    found = {
        name: {stage.label: _summary(known) for stage, known in sorted(stages.items())}
        for name, stages in references.items()
    }
    content = {"output": options.output, "references": found}
    tell(options, content, reference_table(found))
    return 0


def _summary(known: Reference) -> dict[str, float | None]:
    """Names what is told of a reference; None for levels of tracks where there are none."""
    levels = known.levels
    return {
        "detections": known.detections,
        "nees_over_k": known.nees_ratio,
        "worth": known.tempering,
        "tracks": 0 if levels is None else levels.tracks,
        "level": None if levels is None else float(levels.mean[0]),
        "between": None if levels is None else float(levels.between[0]),
        "within": None if levels is None else float(levels.within[0]),
    }


def reference_table(found: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> str:
    """Writes a line for each class and stage."""
    heads = ("slice", "stage", "detections", "NEES/K", "worth", "tracks", "level", "τ", "ω")
    formats = ("", ".3f", ".2f", "", ".2f", ".2f", ".2f")
    rows = []
    for name, stages in found.items():
        for stage, one in stages.items():
            cells = zip(one.values(), formats, strict=True)
            rows.append((name, stage, *("-" if v is None else f"{v:{form}}" for v, form in cells)))
    return table(heads, rows)


def check_drift(options: argparse.Namespace) -> None:
    """Raises ValueError where a reference has no sidecar or no slices to act on."""
    names = ("reference", "reference_where")
    why = (
        f"it would be a setting of the sidecar at {options.address} ([drift] reference). Leave it "
        "out, or leave --address out."
    )
    allow(options, not options.address, why, *names)
    by = ",".join(options.slice_by)
    why = f"references are of classes, not of --slice-by {by}. Leave one of them out."
    allow(options, options.slice_by == (SliceBy.CLASS,), why, *names)


def learning_settings(options: argparse.Namespace) -> DriftSettings:
    """Reads from the file of --config how much data is enough. Without one little is, since people
    chose the drives: a slice of few tracks is then watched by detections.

    Raises InvalidConfiguration.
    """
    if options.config is not None:
        return load(options.config).drift.settings()
    return DriftSettings(reference_tracks=_FEWEST_TRACKS, reference_detections=_FEWEST_DETECTIONS)


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
    # A drill changes what is played, not the reference.
    asked = {**vars(options), "where": options.reference_where, "fault": None}
    recordings = [read_selected(path, argparse.Namespace(**asked)) for path in options.files]
    found = learn_references("replay", recordings, selection, learning_settings(options))
    with tempfile.TemporaryDirectory(prefix="calibration-monitor-") as folder:
        path = Path(folder) / "reference.json"
        path.write_text(reference_text(found), encoding="utf-8")
        yield path


def learn_references(
    verb: str, recordings: Sequence[Recording], selection: Selection | None, settings: DriftSettings
) -> References:
    """Learns from the rows of recordings that have ground truth and can be used.

    verb       that tells people of the classes of which too little is known
    selection  the recalibrator that is to be active; None: both stages are the same
    raises     TooLittleToLearn, InvalidRecalibrator, and ValueError where the recordings have
               different dimensions or frames that cannot be played
    """
    spaces = {recording.space for recording in recordings}
    if len(spaces) > 1:
        names = " and ".join(sorted(",".join(space.names) for space in spaces))
        raise ValueError(
            f"the files have dimensions {names}, but a reference has one set of them. Give "
            "--dimensions that all have."
        )
    k = len(recordings[0].space.joint)
    learners = defaultdict[str, list[ReferenceLearner]](
        lambda: [ReferenceLearner(k) for _ in Stage]
    )
    frames = 0
    total = sum(recording.mean.shape[0] for recording in recordings)
    with working("learning", total) as done:
        for number, recording in enumerate(recordings):
            for rows in _watched(number, recording, selection):
                done(rows.nees.shape[1])
                seconds, _ = TrackSeconds(settings).take(k, rows)
                for i, name in enumerate(recording.classes):
                    of_class, over = rows.slices == i, seconds[seconds["slice"] == i]
                    if not of_class.any():
                        continue
                    frame, stamp = rows.frame[of_class], rows.stamp_ns[rows.frame[of_class]]
                    for stage, learner in zip(Stage, learners[name], strict=True):
                        nees, track = rows.nees[stage, of_class], rows.track[of_class]
                        learner.add(nees, track, frame + frames, stamp)
                        learner.add_seconds(stage, over)
                frames += rows.stamp_ns.size
    references = {
        name: {
            stage: learner.learned(Origin.FILE, settings.shortest_reference)
            for stage, learner in zip(Stage, both, strict=True)
        }
        for name, both in sorted(learners.items())
        if all(enough(learner, settings) for learner in both)
    }
    remarks = [
        f"{name}: {raw.tracks} tracks and {raw.detections} detections are too few for a reference "
        f"([drift] reference_tracks = {settings.reference_tracks} and reference_detections "
        f"= {settings.reference_detections} are needed)"
        for name, (raw, _) in sorted(learners.items())
        if name not in references
    ]
    if not references:
        if not remarks:
            remarks = [usable_truth(recording).told() for recording in recordings]
        if all(recording.bare for recording in recordings):
            raise TooLittleToLearn(
                "nothing is learned: no row has a covariance, so that there is no σ whose drift "
                "could be seen. Fill the files first: fit, then apply."
            )
        raise TooLittleToLearn(f"nothing is learned: {'; '.join(remarks)}. Give longer drives.")
    for remark in remarks:
        print(f"calibration-monitor {verb}: {remark}", file=sys.stderr)
    return references


def _watched(
    number: int, recording: Recording, selection: Selection | None
) -> Iterator[WatchedRows]:
    """Yields the labelled detections of each sequence; slices are positions in recording.classes.

    number  of the file: tracks of two files are different ones
    """
    made = recording
    if selection is not None:
        made = recalibrate_gaussians(selection, recording).recording
    tracks, labelled_rows = _tracks(number, recording), usable_truth(recording).rows
    usable = np.flatnonzero(labelled_rows & ~recording.assumed)
    measured = [_measured(one, usable) for one in (recording, made)]
    sound = measured[0].regular & measured[1].regular
    nees, z, u, error = watched_errors(recording.space, measured, np.flatnonzero(sound))
    place = np.full(recording.mean.shape[0], -1)
    place[usable[sound]] = np.arange(nees.shape[1])
    for sequence in sequences(recording, ""):
        labelled: BoolArray = place[sequence.rows] >= 0
        rows = sequence.rows[labelled]
        at = place[rows]
        stamp_ns = np.rint(sequence.times * 1e9).astype(np.int64)
        # A frame without rows, by which the last second of every track is over.
        stamp_ns = np.append(stamp_ns, stamp_ns[-1:] + BLOCK_NS)
        yield WatchedRows(
            slices=recording.class_index[rows],
            nees=nees[:, at],
            z=z[:, :, at],
            u=u[:, :, at],
            error=error[:, :, at],
            track=tracks[rows],
            frame=sequence.frame_of_row[labelled],
            stamp_ns=stamp_ns,
            source=np.zeros(stamp_ns.size, np.int64),
            changed=np.full(stamp_ns.size, selection is not None),
        )


def _measured(recording: Recording, rows: IntArray) -> Measured:
    """Measures rows with truth and a covariance."""
    error = recording.space.error(recording.truth[rows], recording.mean[rows])
    return measure(recording.space, [(error, recording.covariance[rows])])


def _tracks(number: int, recording: Recording) -> ClusterArray:
    """(N,) the true object of each row in its sequence and class; ALONE where unknown."""
    found = np.full(recording.class_index.size, ALONE)
    objects = numbered_tracks(recording)
    if objects is not None:
        ids = cluster_id((number, objects, recording.class_index))
        found[objects >= 0] = ids[objects >= 0]
    return found
