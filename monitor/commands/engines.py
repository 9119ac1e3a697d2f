"""Measures a recording by one of two engines: from its rows, or from micro-bins."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

import numpy as np

from monitor.commands.recordings import (
    RecalibratedRecording,
    left_out,
    numbered_tracks,
    read_selected,
    recalibrate_gaussians,
    usable_truth,
)
from monitor.frames.space import BoolArray
from monitor.recalibration.selection import Selection
from monitor.statistics.bins import LOWEST, OCTAVES, Binning, LogBins
from monitor.statistics.clusters import ALONE, cluster_id
from monitor.statistics.evaluation import Evaluation, EvaluationError
from monitor.statistics.exact_engine import FrozenEdges, Shaped, evaluate_rows, freeze_edges
from monitor.statistics.reading import CellBinning, WidthRange, read
from monitor.statistics.stage import observe
from monitor.store.recordings import Recording

# An octave has 32 times as many as in the sidecar, which keeps them for every slice and pane.
MICRO_BINS = 1024


@dataclass(frozen=True, slots=True)
class Measured:
    """Measures of the Gaussians asked for, and what they were recalibrated by, if at all."""

    evaluation: Evaluation
    recalibrated: RecalibratedRecording | None


def measured(options: argparse.Namespace, model: Selection | None) -> Measured:
    """All measures of the Gaussians asked for; under the model's own distribution if it has one.

    Raises RecordingError, InvalidRecalibrator, EvaluationError.
    """
    recording = read_selected(options.file, options)
    made = None if model is None else recalibrate_gaussians(model, recording)
    shaped = None
    if made is not None:
        recording, shaped = made.recording, made.shaped
    edges = _frozen(recording, options, model)
    if options.engine == "exact":
        return Measured(_exact(recording, options, edges, shaped), made)
    if made is not None and shaped is not None:
        raise EvaluationError(
            f"--engine streaming: what {made.selection.version} says of a detection is no Gaussian "
            f"(output: {made.output}), and micro-bins keep Gaussians only. Use --engine exact."
        )
    return Measured(_streamed(recording, options, edges), made)


def _frozen(
    recording: Recording, options: argparse.Namespace, model: Selection | None
) -> FrozenEdges | None:
    """Edges of the reference, which is selected and recalibrated alike, but without the fault."""
    if options.edges_from is None:
        return None
    alike = argparse.Namespace(**{**vars(options), "fault": None})
    reference = read_selected(options.edges_from, alike)
    if model is not None:
        reference = recalibrate_gaussians(model, reference).recording
    if reference.space.names != recording.space.names:
        raise EvaluationError(
            f"--edges-from {options.edges_from} has dimensions "
            f"{', '.join(reference.space.names)} and not {', '.join(recording.space.names)}. "
            "Give --dimensions that both files have."
        )
    return freeze_edges(reference.space, reference.covariance, options.bins)


def _exact(
    recording: Recording,
    options: argparse.Namespace,
    edges: FrozenEdges | None,
    shaped: Shaped | None,
) -> Evaluation:
    labelled, usable = _usable(recording)
    # What the other engine and fit refuse, and the rows of which are to be counted here too.
    mean = np.where((labelled & ~usable)[:, None], np.nan, recording.mean)
    return evaluate_rows(
        recording.space,
        mean,
        recording.covariance,
        recording.truth,
        tau=options.tau,
        bins=options.bins,
        binning=options.binning,
        value_range=options.range,
        edges=edges,
        fewest_rows=options.min_bin_rows,
        cluster=numbered_tracks(recording.sequence_index, recording.track),
        shaped=shaped,
    )


def _streamed(
    recording: Recording, options: argparse.Namespace, edges: FrozenEdges | None
) -> Evaluation:
    labelled, usable = _usable(recording)
    kept = np.flatnonzero(usable)
    bins = LogBins(LOWEST, options.micro_bins, OCTAVES)
    binning = Binning(bins, tau=tuple(options.tau.tolist()))
    tracks = numbered_tracks(recording.sequence_index, recording.track)
    clusters = count = None
    if tracks is not None:
        of_rows = tracks[kept]
        clusters = cluster_id((of_rows,))
        clusters[of_rows < 0] = ALONE
        count = int(np.unique(of_rows[of_rows >= 0]).size)
    statistics = observe(
        recording.space,
        binning,
        recording.space.error(recording.truth[kept], recording.mean[kept]),
        recording.covariance[kept],
        clusters,
    )
    width: CellBinning = WidthRange(options.range) if options.binning == "equal-width" else edges
    return replace(
        read(statistics, options.bins, width, options.min_bin_rows),
        without_truth=int(np.count_nonzero(~labelled)),
        refused=int(np.count_nonzero(labelled & ~usable)),
        tracks=count,
    )


def _usable(recording: Recording) -> tuple[BoolArray, BoolArray]:
    """(N,) rows with truth, and those to be measured. Raises EvaluationError without any."""
    labelled, usable = usable_truth(recording)
    if not usable.any():
        raise EvaluationError(
            f"nothing to evaluate: {left_out(labelled, usable)}. Select rows with ground truth."
        )
    return labelled, usable
