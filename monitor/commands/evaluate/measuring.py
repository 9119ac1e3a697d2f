"""Measures the Gaussians of a recorded file, in groups, and judges each.

The file is read and reduced to columns portion by portion; each group is then measured from these.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from monitor.commands.apply import (
    RecalibratedRecording,
    recalibrate_gaussians,
    remarks_on,
    stated,
)
from monitor.commands.evaluate.errors import WithoutCovariance, measured_errors
from monitor.commands.evaluate.groups import apart_from_filled, divided, finer_parts
from monitor.commands.evaluation_tables import Counts
from monitor.commands.held_out import HeldOut, compared
from monitor.commands.output import to_standard_error, working
from monitor.commands.recordings import (
    numbered_tracks,
    open_selected,
    overlaps,
    read_selected,
    say_oddities,
)
from monitor.commands.soundness import Oddities, Soundness, Usable
from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.frames.words import SliceBy
from monitor.recalibration.selection import Selection
from monitor.statistics.bins import LOWEST, OCTAVES, Binning, LogBins
from monitor.statistics.clusters import ALONE, Clusters, cluster_id, numbered
from monitor.statistics.exact_engine import (
    BinCut,
    Each,
    evaluate_columns,
    freeze_edges,
)
from monitor.statistics.measures import TAU, Evaluation, EvaluationError
from monitor.statistics.reading import read
from monitor.statistics.row_columns import RowColumns, RowReducer, portions
from monitor.statistics.sparsification import ErrorRanking, rank_twice
from monitor.statistics.state import observe
from monitor.statistics.verdicts import Verdict, gravest_first, labels_of, verdict, verdicts
from monitor.store.recordings import Recording, RecordingReader
from monitor.store.stored_arrays import give_back


@dataclass(frozen=True, slots=True)
class Measured:
    """The Gaussians asked for, measured.

    counts    of all rows
    groups    measures by group; one without a name where rows are not divided
    verdicts  of each group and dimension, the gravest first
    usable    which rows could be measured, and why others could not
    unused    columns of the file that were not looked at
    remarks   what looked wrong, as it was told
    matched   how many labels of another file had which outcome; None: truth came along
    by        what the groups are divided by
    mixed     classes that groups mix; empty where each group has one
    made      by what they were recalibrated first; None if they were not
    gains     before and after it, of all rows and by group; empty where they are no Gaussians
    recording the rows, recalibrated where there is a recalibrator
    evaluated measures some of the rows (N,)
    judged    (N,) rows whose covariance is judged
    bare      errors of the rows without a covariance; None where each has one
    """

    counts: Counts
    groups: Mapping[str, Evaluation]
    verdicts: tuple[Verdict, ...]
    usable: Usable
    unused: tuple[str, ...]
    remarks: tuple[str, ...]
    matched: Mapping[str, int] | None
    by: tuple[str, ...]
    mixed: tuple[str, ...]
    made: RecalibratedRecording | None
    gains: tuple[HeldOut, ...]
    recording: Recording
    evaluated: Callable[[BoolArray], Evaluation]
    judged: BoolArray
    bare: WithoutCovariance | None
    _whole: Callable[[], Evaluation]

    @property
    def whole(self) -> Evaluation | None:
        """Measures all rows together, once and when it is asked for; None where none is judged."""
        return self._whole() if self.counts.rows else None


@dataclass(frozen=True, slots=True)
class _JudgedRows:
    """The n rows whose covariance is judged, among N of the recording.

    judged   (N,) which these are
    columns  what measures need of them
    overlap  (n,) with the true boxes; None where rows are no boxes
    track    (n,) numbers, −1 without; None where none is known
    label    (n,) number of the label that the truth is from; None: each has its own
    """

    judged: BoolArray
    columns: RowColumns
    overlap: FloatArray | None
    track: IntArray | None
    label: IntArray | None

    def among(self, rows: BoolArray) -> IntArray | None:
        """Numbers those of some rows (N,) of the recording; None: all of them."""
        some = rows[self.judged]
        return None if some.all() else np.flatnonzero(some)


def measured(
    options: argparse.Namespace,
    model: Selection | None,
    tell: Callable[[str], None] = to_standard_error,
    *,
    whole_too: bool = True,
) -> Measured:
    """Measures the Gaussians asked for; under the model's own distribution if it has one.

    tell       is told what looks wrong, a line each
    whole_too  measure all groups together now, and not when it is asked for
    raises     RecordingError, InvalidRecalibrator, EvaluationError
    """
    if options.jobs == 1:
        return _measured(options, model, tell, map, iter, whole_too=whole_too)
    # NumPy leaves the interpreter to others while it works: threads need no copies of the rows.
    with ThreadPoolExecutor(options.jobs) as pool:
        ahead = partial(_ahead, pool)
        return _measured(options, model, tell, pool.map, ahead, whole_too=whole_too)


def _ahead(pool: ThreadPoolExecutor, values: Iterator[Recording]) -> Iterator[Recording]:
    """Yields values while the next one is already on its way."""
    following = pool.submit(next, values, None)
    while (value := following.result()) is not None:
        following = pool.submit(next, values, None)
        yield value


def _measured(
    options: argparse.Namespace,
    model: Selection | None,
    tell: Callable[[str], None],
    each: Each,
    ahead: Callable[[Iterator[Recording]], Iterator[Recording]],
    *,
    whole_too: bool,
) -> Measured:
    ours_of = {theirs: ours for ours, theirs in (options.map or {}).items()}
    asked = [ours_of.get(name, name) for name in options.by or ()]
    # A sequence is what a stream is called in files.
    by = tuple(dict.fromkeys(SliceBy.STREAM if name == "seq" else name for name in asked))
    beside = tuple(name for name in by if name not in tuple(SliceBy))
    remarks: list[str] = []

    def remark(words: str) -> None:
        remarks.append(words)
        tell(words)

    exact = options.engine == "exact"
    in_portions = None
    # With any of these, more is needed of a Gaussian than its columns.
    whole_file = (model, options.labels, options.fault, options.report, options.assume_std)
    if exact and SliceBy.RANGE not in by and all(one is None for one in whole_file):
        in_portions = _in_portions(options, beside, remark, ahead)
    made, shaped = None, None
    if in_portions is not None:
        recording, rows, usable = in_portions
        before = recording
    else:
        dimensions = () if model is None else model.dimensions
        recording = read_selected(options.file, options, beside, remark, dimensions)
        recording = before = stated(model, recording, options)
        made = None if model is None else recalibrate_gaussians(model, recording)
        if made is not None:
            recording, shaped = made.recording, made.shaped
            for words in remarks_on(made):
                remark(f"model: {words}")
    if not exact and made is not None and shaped is not None:
        raise EvaluationError(
            f"--engine streaming: what {made.selection.version} says of a detection is no Gaussian "
            f"(output: {made.output}), and micro-bins keep Gaussians only. Use --engine exact."
        )
    edges = _frozen(recording, options, model)
    cut = BinCut(options.bins, options.binning, options.range, edges, options.min_bin_rows)
    if in_portions is None:
        parts = (recording.part(some) for some in portions(recording.mean.shape[0]))
        reduced = _reduced(recording, numbered_tracks(recording), parts)
        assert reduced is not None
        rows, usable = reduced
    if not usable.rows.any():
        raise EvaluationError(f"nothing to evaluate: {usable.told()}. {usable.remedy(recording)}")
    # Errors of what was sent without a covariance are measured; a covariance is not judged.
    judged = rows.judged

    def evaluated(
        some: BoolArray,
        clusters: Clusters | None = None,
        done: Callable[[float], object] = lambda rows: None,
    ) -> Evaluation:
        among = rows.among(some)
        track = rows.track if rows.track is None or among is None else rows.track[among]
        if exact:
            found = evaluate_columns(
                rows.columns,
                tau=_levels(options),
                cut=cut,
                rows=among,
                track=track,
                clusters=clusters,
                each=each,
                shaped=None if shaped is None else (shaped, np.flatnonzero(some & judged)),
                done=done,
            )
        else:
            found = _streamed(recording, options, cut, np.flatnonzero(some & judged), track, done)
        if rows.overlap is not None:
            found = _with_overlap(found, rows.columns, rows.overlap, among)
        return replace(
            found,
            without_truth=int(np.count_nonzero(some & ~usable.labelled)),
            refused=int(np.count_nonzero(some & usable.labelled & ~usable.rows)),
        )

    filled = judged & before.assumed & ~recording.assumed
    groups = dict(apart_from_filled(by, recording, judged, filled))
    there = [recording.classes[i] for i in np.unique(recording.class_index[judged])]
    apart = [name for name, some in groups.items() if not some.all()]
    n_of = {name: int(np.count_nonzero(some & judged)) for name, some in groups.items()}
    n = rows.columns.n
    every = np.ones(judged.size, bool)
    total = 2 * sum(n_of.values()) + (n if whole_too and (apart or not groups) else 0)
    said, of_groups = list[Verdict](), dict[str, Evaluation]()
    with working("measuring", total) as done:
        for name, some in groups.items():
            among = rows.among(some)
            track = rows.track if rows.track is None or among is None else rows.track[among]
            clusters = Clusters.of(n_of[name], track)
            of_groups[name] = evaluated(some, clusters, done)
            said += _verdicts(rows, among, clusters, name, of_groups[name], each if exact else None)
            done(n_of[name])
        undivided = next((one for name, one in of_groups.items() if name not in apart), None)
        whole = cache(lambda: undivided or evaluated(every))
        if whole_too and n and undivided is None:
            whole()
            done(n)
    gains: tuple[HeldOut, ...] = ()
    if made is not None and shaped is None and n:
        named = {name: np.flatnonzero(some & judged) for name, some in groups.items() if name}
        gains = compared(before, recording, np.flatnonzero(judged), named)
    bare = usable.rows & recording.assumed
    errors = None
    if bare.any():
        finer = by or finer_parts(recording)
        told = [dict(divided(one, recording, bare)) for one in (by, finer)]
        errors = measured_errors(recording, bare, usable, numbered_tracks(recording), *told)
    tracks = None
    if rows.track is not None:
        known = rows.track[rows.track >= 0]
        tracks = int(numbered(known).max(initial=-1)) + 1
    return Measured(
        counts=Counts(
            rows=n,
            tracks=tracks,
            without_truth=int(np.count_nonzero(~usable.labelled)),
            refused=int(np.count_nonzero(usable.labelled & ~usable.rows)),
        ),
        groups=of_groups,
        verdicts=gravest_first(said),
        usable=usable,
        unused=recording.unused,
        remarks=tuple(remarks),
        matched=recording.matched,
        by=by,
        mixed=tuple(there) if by and SliceBy.CLASS not in by and len(there) > 1 else (),
        made=made,
        gains=gains,
        recording=recording,
        evaluated=evaluated,
        judged=judged,
        bare=errors,
        _whole=whole,
    )


def _in_portions(
    options: argparse.Namespace,
    beside: tuple[str, ...],
    tell: Callable[[str], None],
    ahead: Callable[[Iterator[Recording]], Iterator[Recording]],
) -> tuple[Recording, _JudgedRows, Usable] | None:
    """Reads and reduces a file portion by portion, so that its Gaussians are never all in memory.

    returns  the recording without its Gaussians, which are reduced; None where some have no
             covariance: their errors are measured from all rows
    """
    reader = open_selected(options.file, options, beside)
    about, tracks = reader.about, numbered_tracks(reader.about)
    # What is known of a frame has been checked; measures do not ask for it.
    about = replace(about, frame=None, time_s=None, stamp_ns=None, score=None, track=None)
    if 1 < len(about.classes) < 2**15:
        about = replace(about, class_index=about.class_index.astype(np.int16))
    oddities = Oddities(about.space)
    parts = ahead(_parts(replace(reader, about=about)))
    del reader
    found = _reduced(about, tracks, parts, oddities)
    if found is None:
        return None
    about = replace(about, assumed=np.broadcast_to(np.False_, about.class_index.size))
    say_oddities(options.file, about, options, oddities, tell)
    return about, *found


def _parts(reader: RecordingReader) -> Iterator[Recording]:
    """Reads a file portion by portion."""
    with working("reading", reader.n) as done:
        for rows in portions(reader.n):
            yield reader.part(rows)
            done(rows.stop - rows.start)


def _reduced(
    recording: Recording,
    tracks: IntArray | None,
    parts: Iterable[Recording],
    oddities: Oddities | None = None,
) -> tuple[_JudgedRows, Usable] | None:
    """Reduces a recording to the columns of the rows that are judged; tells which are usable.

    recording  may be without Gaussians: they are in its parts
    tracks     (N,) as numbered_tracks
    oddities   sees each part, which must have its covariances
    returns    None where a part lacks some
    """
    n, space = recording.class_index.size, recording.space
    soundness, reducer = Soundness(space.names, n), RowReducer(space, n)
    judged, overlap = np.zeros(n, bool), list[FloatArray]()
    for place, part in zip(portions(n), parts, strict=True):
        if oddities is not None:
            if part.assumed.any():
                return None
            oddities.add(part)
        sound = soundness.add(part) & ~part.assumed
        chosen = np.flatnonzero(sound)
        gaussians = part.mean, part.covariance, part.truth
        if chosen.size < sound.size:
            gaussians = part.mean[chosen], part.covariance[chosen], part.truth[chosen]
        sound[chosen] = reducer.add(*gaussians)
        judged[place] = sound
        if (found := overlaps(part, sound)) is not None:
            overlap.append(found[sound])
    # The file is closed by now.
    give_back()
    label = recording.between
    rows = _JudgedRows(
        judged,
        reducer.columns(),
        np.concatenate(overlap) if overlap else None,
        None if tracks is None else tracks[judged],
        None if label is None else label[judged, 0],
    )
    return rows, soundness.found()


def _with_overlap(
    found: Evaluation, columns: RowColumns, overlap: FloatArray, rows: IntArray | None
) -> Evaluation:
    """Adds how far boxes overlap the true ones, and whether σ_G ranks them; some rows (n,)."""
    overlap = overlap if rows is None else overlap[rows]
    deviation, _ = columns.axis(columns.space.k, rows)
    ranking = ErrorRanking(partial(rank_twice, deviation, 1.0 - overlap))
    joint = replace(found.joint, mean_iou=float(overlap.mean()), ause_iou=ranking.ause)
    return replace(found, joint=joint)


def _verdicts(
    rows: _JudgedRows,
    among: IntArray | None,
    clusters: Clusters,
    group: str,
    found: Evaluation,
    each: Each | None,
) -> Iterable[Verdict]:
    """Judges the Gaussians of a group.

    found  their measures
    each   works on dimensions, of which the measures tell a part; None: these are not exact
    """
    space = rows.columns.space
    label = rows.label if rows.label is None or among is None else rows.label[among]
    units = [dimension.unit for dimension in space.dimensions]
    if each is None:
        variance, error = rows.columns.variance, rows.columns.error
        if among is not None:
            variance, error = variance[:, among], error[:, among]
        track = rows.track if rows.track is None or among is None else rows.track[among]
        return verdicts(space.names, units, error.T, variance.T, track, group, label)
    most = labels_of(found.rows, label)

    def judged(i: int) -> Verdict:
        variance, error = rows.columns.axis(i, among)
        one = found.dimensions[space.names[i]]
        return verdict(
            (group, space.names[i], units[i]),
            error,
            variance,
            clusters,
            worth=min(one.n_eff, most),
            typical=one.nees_median_ratio,
            bias_interval=one.bias_interval,
        )

    return each(judged, range(space.k))


def _frozen(
    recording: Recording, options: argparse.Namespace, model: Selection | None
) -> tuple[FloatArray, ...] | None:
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


def _levels(options: argparse.Namespace) -> FloatArray:
    """(T,) confidence levels."""
    return TAU if options.tau is None else np.array(options.tau)


def _streamed(
    recording: Recording,
    options: argparse.Namespace,
    cut: BinCut,
    kept: IntArray,
    tracks: IntArray | None,
    done: Callable[[float], object],
) -> Evaluation:
    """Measures some rows from micro-bins; `done` is told of how many further ones.

    kept    (n,) their numbers
    tracks  (n,)
    """
    bins = LogBins(LOWEST, options.micro_bins, OCTAVES)
    binning = Binning(bins, tau=tuple(_levels(options).tolist()))
    clusters = count = None
    if tracks is not None:
        clusters = cluster_id((tracks,))
        clusters[tracks < 0] = ALONE
        count = int(np.unique(tracks[tracks >= 0]).size)
    statistics = observe(
        recording.space,
        binning,
        recording.space.error(recording.truth[kept], recording.mean[kept]),
        recording.covariance[kept],
        clusters,
        done,
    )
    return replace(read(statistics, cut), tracks=count)
