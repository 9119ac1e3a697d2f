"""The text format of Prometheus: families of samples written from names, labels and numbers.

Export bins are the only family that this file knows by its meaning. PromQL makes windows and fleets
of them, from thousands of series of which only the numbers change: a sample costs 11 µs if
prometheus_client writes it, 1 µs behind a name and labels that are written once, 0.3 µs by a form
of many. Export bins are written one slice at a time.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.metadata import version
from itertools import accumulate, pairwise, product
from types import SimpleNamespace
from typing import TypeAlias, cast

import numpy as np
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from monitor import __version__, native
from monitor.frames.status import Histogram
from monitor.statistics.bins import ExportEdges, SliceBins

# By name as queries know it, with its labels; counters are named `_total`.
HELP = {
    # Measures since epoch.
    "matched_detections{slice}": "Detections with ground truth behind the measures; slice total is "
    "the sum of the others.",
    "ence{slice,stage,dimension}": "Expected normalised calibration error; 0 is calibrated.",
    "ence_noise_floor{slice,stage,dimension}": "ENCE of a calibrated detector whose errors are as "
    "correlated and heavy-tailed as these.",
    "uce{slice,stage,dimension}": "Uncertainty calibration error, in the dimension's unit squared.",
    "rmse{slice,stage,dimension}": "Root mean squared error, in the dimension's unit.",
    "bias{slice,stage,dimension}": "Mean error, truth less mean, in the dimension's unit.",
    "bias_margin{slice,stage,dimension}": "Half of the 95 % interval of the mean error, by tracks; "
    "NaN where there are fewer than two.",
    "qce{slice,stage,dimension}": "Quantile calibration error, mean over tau.",
    "nees_ratio{slice,stage,dimension}": "Mean normalised squared error per dimension; 1 is "
    "calibrated, above it overconfident.",
    "nees_median_ratio{slice,stage}": "Median NEES over the median of chi-square; 1 is calibrated.",
    "effective_detections{slice,stage}": "Independent detections that those with ground truth are "
    "worth, by their joint NEES.",
    "coverage{slice,stage,tau}": "Share of errors within the chi-square region of level tau.",
    # Measures over windows.
    "window_detections{slice,window}": "Detections with ground truth in the window.",
    "window_nees_ratio{slice,stage,window}": "Mean NEES over the number of dimensions, in the "
    "window; 1 is calibrated.",
    # Class probabilities.
    "classified_detections{slice}": "Detections with class probabilities and a true class.",
    "class_accuracy{slice,stage}": "Share of detections whose likeliest class is the true one.",
    "class_ece{slice,stage}": "Expected calibration error of the likeliest class.",
    "class_uce_entropy{slice,stage}": "Entropy calibration error; not 0 if calibrated: watch its "
    "change.",
    "class_brier{slice,stage}": "Brier score.",
    "class_nll{slice,stage}": "Mean negative log-likelihood of the true class, nats.",
    "class_ause{slice,stage}": "Area under the sparsification error: how badly uncertainty ranks "
    "errors.",
    "class_overconfidence{slice,stage}": "Mean confidence of what is wrong.",
    "class_underconfidence{slice,stage}": "Mean lack of confidence of what is right.",
    "class_entropy{slice,stage}": "Mean entropy over the logarithm of the number of classes.",
    "class_aleatoric{slice,stage}": "Part of class_entropy within each opinion.",
    "class_epistemic{slice,stage}": "Part of class_entropy that is disagreement of "
    "opinions: what more data can remove.",
    # All detections, labelled or not.
    "predicted_entropy{slice,of}": "Entropy of the class probabilities over log C, of all "
    "detections of the shortest window, labelled or not.",
    "predicted_deviation{slice,of}": "Predicted deviation det(Σ)^(1/2K) of all detections of the "
    "shortest window, labelled or not, in the unit of the stream.",
    "predicted_above_before_ratio{slice,of}": "Share of all detections of the shortest "
    "window, labelled or not, above the 95 % quantile of the time before it at the same distance; "
    "0.05: as before.",
    # A stored state that is served.
    "fleet_vehicles": "Vehicles that have uploads in the state that is served.",
    "fleet_uploads": "Uploads in the state that is served.",
    # Vehicles of a fleet.
    "fleet_vehicles_compared{slice,stage}": "Vehicles with enough data to be compared with the "
    "fleet.",
    "fleet_vehicles_different{slice,stage,quantity}": "Vehicles that differ from the fleet by more "
    "than healthy ones do, at a false discovery rate of 5 %.",
    # Export bins.
    "tau{tau}": "The level itself, for queries.",
    "bin_info{bin,lower,upper}": "Edges of each bin of the predicted deviation; 1.",
    "bin_detections_total{slice,stage,dimension,bin}": "Detections with ground truth by bin of the "
    "predicted deviation.",
    "bin_variance_total{slice,stage,dimension,bin}": "Sum of predicted variances, unit squared, by "
    "bin of the predicted deviation.",
    "bin_squared_error_total{slice,stage,dimension,bin}": "Sum of squared errors, unit squared, by "
    "bin of the predicted deviation.",
    "bin_nees_total{slice,stage,dimension,bin}": "Sum of normalised estimation errors squared by "
    "bin of the predicted deviation.",
    "bin_nees_within_total{slice,stage,dimension,bin,tau}": "Detections within the chi-square "
    "region of level tau by bin of the predicted deviation.",
    # Frames and detections.
    "frames_total": "Frames answered.",
    "detections_total{outcome}": "Detections by what became of them; each time their frame comes.",
    "passed_through_total{reason}": "Valid detections returned as they came.",
    "rejected_total{reason}": "Detections, messages and further fields that were refused.",
    "calls_refused_total{why}": "Calls that showed no token that is known, or one of another "
    "right.",
    "frame_seconds": "Time from a frame's bytes to its answer's bytes.",
    "fast_decode_ratio": "Share of frames whose detections all have one layout.",
    "loop_lag_seconds": "Longest delay of the event loop since the last refresh.",
    "overload": "1 while frames are answered and forwarded, but not monitored.",
    "clock_epoch": "Of the wall clock; goes up by one when it is set.",
    "pending_bytes": "Bytes of frames that wait for their truth.",
    "pending_detections": "Detections that wait for their truth.",
    "streams": "Streams registered.",
    "checkpoint_age_seconds": "Since the last checkpoint; NaN: not yet, or never.",
    "checkpoint_failures_total": "Checkpoints that could not be written to disk; the log says why.",
    "event_time_jumps_total": "How often event time began anew or jumped ahead.",
    "late_frames_total": "Frames that came behind their stream's watermark.",
    "overloads_total": "How often monitoring gave way to forwarding.",
    "clock_steps_total": "How often the wall clock was set.",
    "internal_errors_total": "Faults of the sidecar itself; its log says which.",
    "overflow_detections_total": "Matched detections in overflow slices.",
    "overflow_classified_total": "Matched class probabilities in overflow slices, or for which "
    "there was none.",
    "streams_dropped_total": "Streams ended because the client read no answers.",
    # Recalibration.
    "uncertain_detections_total{by}": "Detections flagged as too uncertain, by what shows it; each "
    "time their frame comes.",
    "class_recalibrations_total{outcome}": "Detections by what the recalibrator of class "
    "probabilities in force made of theirs; each time their frame comes.",
    "recalibrator_info{version,method,mode,output}": "The recalibrators in force; what each makes "
    "of a detection is its output.",
    "recalibrator_swaps_total{outcome}": "Changes of the recalibrator, by why another one came in "
    "force.",
    "recalibrator_fits_total{outcome}": "Slices by what came of their fit beside the stream.",
    "recalibrator_trials_total{outcome}": "Candidates by what became of them; one that began and "
    "was proven is in both.",
    "recalibration_factor{slice,dimension}": "Typical factor on the variance that was sent, as "
    "last forwarded; 1 leaves it alone.",
    "trial_log10_evidence{slice,state,direction}": "log10 of the wealth of who bets that what is "
    "on trial is better than what is in force, or worse.",
    "trial_log10_threshold{slice,state}": "Evidence at which a trial is decided.",
    "trial_tracks{slice,state}": "Tracks that had a say in a trial so far.",
    "recalibrator_pinned": "1 while nothing is promoted, adapted or rolled back by itself.",
    "learning_left_out_total": "Tracks, and frames with truth, for which there was no room to "
    "learn from them.",
    # Drift.
    "drift_log10_evidence{slice,severity}": "log10 of the most evidence of drift, in hours, since "
    "the last acknowledgement, epoch or calm; of total: of any slice.",
    "drift_log10_threshold{severity}": "Evidence at which there is an alarm: log10 of the stated "
    "hours between two false ones.",
    "drift_state{slice,severity}": "0: nothing found; 1: a tenth of what an alarm needs; 2: alarm, "
    "until it is acknowledged, a new epoch, or calm; 3: fewer than 100 labelled detections "
    "were watched, or more were left out.",
    "drift_alarms_total{stage,detector,direction}": "Alarms that were raised, by what was found "
    "and the detector with most of the evidence.",
    "drift_alarm_size{slice,severity,stage,quantity,dimension,unit}": "Of the alarm that stays: by "
    "how much the quantity is wrong. scale, correlation: factor by which standard deviations are "
    "too small; bias: truth less detection; tail: share of detections outside of what the "
    "covariance allows; confidence: accuracy less stated confidence.",
    "drift_scale_estimate{slice,stage}": "By how much standard deviations are too small: root of "
    "the mean NEES/K; of the alarm that stays, else since the evidence against them began to rise; "
    "NaN: unknown.",
    "drift_effective_sample_ratio{slice}": "How many independent detections one of the slice is "
    "worth, as forwarded; at most 1.",
    "drift_reference_tracks{slice,origin,unit}": "Tracks that what is usual as forwarded is known "
    "from; where that comes from, and what counts as one observation.",
    "drift_epochs_total": "How often a recalibrator of a slice was followed by another, with a "
    "reference of its own; over all slices.",
    "drift_driving_seconds_total": "Driving that was watched.",
    "drift_left_out_total{reason}": "Detections with truth that were not watched, or not by all "
    "bets, by why.",
    # Labels, and what became of detections.
    "ground_truth_total{outcome}": "Labels by what became of them.",
    "unmatched_detections_total": "Detections of completely labelled frames without a label.",
    "dropped_detections_total": "Detections that left the store before their truth came.",
    "detection_fates{fate}": "Detections that came since the ledger began, by what became of them: "
    "they add up to all. A later revision of a label may change one.",
    "match_ratio": "Matched detections among the usable ones whose fate is known.",
    "retracted_detections_total": "Detections whose labels a later revision took back.",
    "labelled_ratio{slice}": "Share of a slice's detections of which labels told anything.",
    "gated_matches": "Matches that the gate of [matching] decided.",
    "near_gate_ratio": "Share of them near the gate: it cuts the tail of the errors off.",
    "ground_truth_delay_seconds": "Event time from a frame to its labels, by message.",
    # The disk.
    "ledger_bytes": "Bytes of frames and labels on disk.",
    "ledger_partitions": "Partitions of event time they are in.",
    "ledger_waiting": "Entries that wait for the disk.",
    "ledger_replayed_entries": "Entries that were done again at the start.",
    "ledger_lost_entries": "Entries that could not be done again at the start.",
    "ledger_failures_total": "Writes to the disk that came to nothing; the log says why.",
    "files_refused_total{of}": "Files that could not be used, by what they hold; the log says why.",
    # Tracks, and a tracker elsewhere.
    "tracker_frames_total{order}": "Frames by how they came to the tracker.",
    "tracks{slice,status}": "Tracks as of the last frame of each stream.",
    "track_nis_ratio{slice}": "Mean normalised innovation squared per dimension that is no angle; "
    "far above 1: overconfident.",
    "track_innovation_correlation{slice}": "Correlation of the whitened innovation with the one of "
    "the frame before.",
    "gate_reject_ratio{slice}": "Of confirmed tracks with a detection near, the share whose gate "
    "let none in.",
    "tracker_up": "Whether the tracker elsewhere is there and says that it serves.",
    "tracker_sent_total": "Frames that were written to the tracker elsewhere, whatever became of "
    "them then.",
    "tracker_forwarded_total{outcome}": "Frames for the tracker elsewhere by how it ended with "
    "them, each in one of these.",
    "tracker_unusable_answers_total": "Answers of the tracker elsewhere that were none; the log "
    "says what was wrong.",
    "tracker_seconds": "Time from a frame to the tracker's answer, of those answered in time.",
    # Uploads.
    "uploads_total{outcome}": "Uploads of what was counted, by outcome: sent; failed attempts; "
    "names under which the store held something else.",
    "upload_pending_bytes": "Bytes of the upload that is not acknowledged yet.",
    "upload_age_seconds": "Since the moment up to which all that was counted is uploaded, or since "
    "the start.",
    "upload_interval_seconds": "Between two uploads, as configured.",
    # The sidecar as a program.
    "build_info{version,revision,python,numpy,grpc,protobuf,kernels}": "Which build this is; "
    "always 1.",
    "configuration_reloads_total{outcome}": "Configurations that were read again (SIGHUP), by "
    "outcome.",
    "configuration_waiting_keys": "Keys of the configuration, as last read again, that only a "
    "restart brings in force.",
    "stamp_lag_seconds{of}": "Wall clock at arrival minus capture stamp of the streams of the last "
    "minute.",
    "log_lines_total{level}": "Lines of the log, by level.",
    "log_lines_left_out_total": "Lines that were left out of the log, being too many of their "
    "kind.",
}


# Set where an image is built; it is no setting.
REVISION_VARIABLE = "CALIBRATION_MONITOR_REVISION"

# By label, the distributions that the behaviour of the sidecar depends on most.
_BUILT_ON = {"numpy": "numpy", "grpc": "grpcio", "protobuf": "protobuf"}
JOINT = "joint"


def build() -> Mapping[str, str]:
    """Returns the version, the revision of the source and the libraries below, by label."""
    return {
        "version": __version__,
        # Prometheus drops a label that is empty, and queries ask for it.
        "revision": os.environ.get(REVISION_VARIABLE, "")[:64] or "unknown",
        "python": platform.python_version(),
        **{label: version(name) for label, name in _BUILT_ON.items()},
        "kernels": native.NAME,
    }


# By name, without `calibration_`: the names of the labels, and the text.
_FAMILIES = {
    name: (tuple(filter(None, labels.rstrip("}").split(","))), text)
    for (name, _, labels), text in ((key.partition("{"), text) for key, text in HELP.items())
}

# The values of the labels, and the sample's value.
Row: TypeAlias = tuple[*tuple[str, ...], float]


def _text(family: Metric) -> str:
    # A registry is asked for nothing but collect().
    registry = SimpleNamespace(collect=lambda: [family])
    return generate_latest(cast("CollectorRegistry", registry)).decode()


def family(name: str, rows: Iterable[Row]) -> str:
    """Writes a family of counters, which are named `_total`, or of gauges."""
    lines = [_head(name)]
    for *values, number in rows:
        lines += series(name, *values), _go(number), "\n"
    return "".join(lines)


# As Go writes numbers, which Prometheus is written in.
_go = cast("Callable[[float], str]", floatToGoString)


@lru_cache(maxsize=512)
def _head(name: str) -> str:
    text = _FAMILIES[name][1].replace("\\", r"\\").replace("\n", r"\n")
    kind = "counter" if name.endswith("_total") else "gauge"
    return f"# HELP calibration_{name} {text}\n# TYPE calibration_{name} {kind}\n"


@lru_cache(maxsize=1 << 15)
def series(name: str, *values: str) -> str:
    """Writes the name of a series with its labels, sorted, and what stands before its number."""
    pairs = sorted(zip(_FAMILIES[name][0], values, strict=True))
    labels = ",".join(f'{label}="{value.translate(_QUOTED)}"' for label, value in pairs)
    return f"calibration_{name}{{{labels}}} " if labels else f"calibration_{name} "


def single(name: str, number: float) -> str:
    """Writes a family without labels."""
    return family(name, [(number,)])


def histogram(name: str, counted: Histogram) -> str:
    """Writes a histogram."""
    found = HistogramMetricFamily(f"calibration_{name}", _FAMILIES[name][1])
    bounds = [*(f"{bound:g}" for bound in counted.bounds), "+Inf"]
    found.add_metric((), list(zip(bounds, accumulate(counted.counts), strict=True)), counted.sum)
    return _text(found)


# Metrics of this process; the collector registers nowhere and reads /proc when it is asked.
_PROCESS = ProcessCollector(registry=None)


def process() -> bytes:
    """Writes the families of every Prometheus client: memory, CPU, files, start of the process."""
    return "".join(map(_text, _PROCESS.collect())).encode()


# In a label's value, for its quotes; and for a form.
_QUOTES = {"\\": r"\\", "\n": r"\n", '"': r"\""}
_QUOTED, _ESCAPED = str.maketrans(_QUOTES), str.maketrans({**_QUOTES, "%": "%%"})


@lru_cache(maxsize=512)
def form(name: str, *values: tuple[str, ...]) -> str:
    """Writes the lines of samples with `%s` for each finite number, to be used as `form % numbers`.

    The labels of a slice never change: forms are remembered.

    values  of each label; every combination is a sample
    """
    labels = _FAMILIES[name][0]
    order = sorted(range(len(labels)), key=labels.__getitem__)
    pairs = ",".join(f'{labels[i]}="%s"' for i in order)
    line = f"calibration_{name}{{{pairs}}} %%s\n"
    rows = product(*([value.translate(_ESCAPED) for value in each] for each in values))
    return "".join(line % tuple(row[i] for i in order) for row in rows)


# By family: the array of StageBins that it shows.
_ARRAYS = {
    "bin_detections_total": "n",
    "bin_variance_total": "variance",
    "bin_squared_error_total": "squared_error",
    "bin_nees_total": "nees",
    "bin_nees_within_total": "within",
}


def bins(slices: tuple[SliceBins, ...], edges: ExportEdges) -> Iterator[str]:
    """Yields all families of export bins, in pieces.

    An empty bin is written as 0, because PromQL sees no increase in the first value of a series.
    """
    tau = tuple(f"{level!r}" for level in edges.binning.tau)
    yield family("tau", ((t, float(t)) for t in tau))
    bounds = pairwise(("0", *(f"{edge:g}" for edge in edges.edges), "+Inf"))
    yield family("bin_info", ((str(i), *bound, 1.0) for i, bound in enumerate(bounds)))
    for name, array in _ARRAYS.items():
        yield _head(name)
        for entry in slices:
            stages = tuple(stage for stage, _ in entry.stages)
            counted = np.array([getattr(totals, array) for _, totals in entry.stages])
            # Squares have units, NEES belongs to the joint block, counts to both.
            own = entry.dimensions
            axes = {"n": (*own, JOINT), "variance": own, "squared_error": own}.get(array, (JOINT,))
            places = tuple(map(str, range(entry.stages[0][1].n.shape[1])))
            levels = (tau,) if array == "within" else ()
            made = form(name, (entry.name,), stages, axes, places, *levels)
            yield made % tuple(counted.ravel().tolist())
