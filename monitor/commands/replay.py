"""calibration-monitor replay: streams recorded detections through a real sidecar."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from monitor.client import PLAIN
from monitor.commands.alarms import DriftFound, drift_json, drift_table, listening_for_alarms
from monitor.commands.apply import check_dimensions, read_model
from monitor.commands.output import finite, plain, tell, toml, working, write_output
from monitor.commands.pages.report_page import digest_of, written
from monitor.commands.recordings import as_stated, read_selected
from monitor.commands.reference import check_drift, reference_file
from monitor.commands.replay_tracking import (
    OF_TRACKER,
    check_tracking,
    compare,
    read_track_labels,
    tracking_table,
)
from monitor.commands.report.live import Seen, look, report_of
from monitor.commands.sending import (
    Playback,
    RecordedSequence,
    first_error,
    running_sidecar,
    sequences,
)
from monitor.commands.sidecar_client import (
    Client,
    DriftStandings,
    SidecarUnavailable,
    access_of,
    ask,
)
from monitor.config import Config, load
from monitor.frames.slices import is_total
from monitor.frames.words import Mode, SliceBy
from monitor.options.values import allow
from monitor.recalibration.selection import IDENTITY, Selection
from monitor.v1 import calibration_pb2
from monitor.v1.perception_monitor_pb2 import GetCalibrationResponse

T = TypeVar("T")

_Found: TypeAlias = tuple[GetCalibrationResponse, DriftFound, Seen | None]
_JOINT = ("nees_over_k", "nees_median_ratio", "nll")
_BY_DIMENSION = ("ence", "ence_noise_floor", "uce")
_BIN = ("lower", "upper", "n", "variance", "squared_error", "nees")

_STAGES = {
    calibration_pb2.STAGE_RAW: "raw",
    calibration_pb2.STAGE_RECALIBRATED: "recalibrated",
}


def run(options: argparse.Namespace) -> int:
    """0 when every frame was answered and every label accounted for."""
    own = options.mode is not Mode.APPLY or options.slice_by != (SliceBy.CLASS,)
    if options.address and own:
        raise ValueError(
            f"--address {options.address}: --mode and --slice-by are settings of that sidecar. "
            "Leave them out, or leave --address out."
        )
    why = "it is for a sidecar that is started here. Leave it out, or leave --address out."
    allow(options, not options.address, why, "config")
    if not options.address and access_of(options) != PLAIN:
        raise ValueError(
            "--certificate-authority and --token-file are for a sidecar that runs: name its "
            "--address, or leave them out."
        )
    check_tracking(options)
    check_drift(options)
    selection = None
    if options.recalibrator:
        named = options.recalibrator
        selection = IDENTITY if named == "none" else read_model(named)
    fitted = () if selection is None else selection.dimensions
    files = []
    for i, path in enumerate(options.files):
        # What --assume-std states is sent.
        recording = as_stated(read_selected(path, options, fitted=fitted), options)
        files.append(sequences(recording, f"file{i}." if len(options.files) > 1 else ""))
    played = [sequence for found in files for sequence in found]
    if selection is not None:
        for sequence in played:
            check_dimensions(selection, sequence.header.space)
    yardstick = read_track_labels(options, files) if options.ground_truth is not None else None
    playback = Playback(
        played, options.speed, options.ground_truth_delay, tracking=yardstick is not None
    )
    frames = sum(sequence.frames for sequence in played)
    with (
        reference_file(options, selection) as reference,
        working("playing", frames, "frames") as playback.done,
    ):
        config = _config(options, played, reference)
        found = _ask(options, config, lambda client: _replay(client, playback, selection, options))
    tracking = None
    if yardstick is not None:
        raw = None if options.address is not None else playback.tracks
        observed = options.mode is not Mode.APPLY
        corrected = selection is not None and selection.changes_estimates
        if raw is not None and corrected and not observed:
            # The same drive without the recalibrator, for its tracks.
            plainly = Playback(played, delay=math.inf, tracking=True)
            with working("playing without the recalibrator", frames, "frames") as plainly.done:
                _ask(options, _config(options, played), plainly.play)
            raw = plainly.tracks
        tracking = compare(playback.tracks, raw, yardstick, options.address)
    _complain(playback)
    if options.report is not None and (seen := found[2]) is not None:
        made = {path: digest_of(path) for path in options.files}
        write_output(options.report, written(report_of(seen, made)))
    tell(options, *_report(playback, found, tracking))
    return 0


def _ask(options: argparse.Namespace, config: str, question: Callable[[Client], Awaitable[T]]) -> T:
    """Asks the sidecar of --address; without it, one is started for the question.

    Raises the first of the errors with which streams break.
    """
    with contextlib.ExitStack() as stack:
        address = options.address
        if address is None:
            address = stack.enter_context(running_sidecar(config)).grpc
        try:
            return ask(Client(address, access_of(options)), question)
        except ExceptionGroup as group:
            # Where one stream breaks, others break with it: one cause is enough.
            error = first_error(group)
            if isinstance(error, SidecarUnavailable):
                raise SidecarUnavailable(
                    f"the sidecar at {address} ended a stream before all was sent: see its log."
                ) from error
            raise error from None


def _config(
    options: argparse.Namespace, played: list[RecordedSequence], reference: Path | None = None
) -> str:
    """Writes a configuration with room for every stream and slice, whichever comes first.

    Raises InvalidConfiguration.
    """
    given = Config() if options.config is None else load(options.config)
    slices = len(played) * max(len(sequence.header.classes) for sequence in played)
    # Detections without a covariance are in slices of their own.
    slices *= 2 if any(sequence.recording.assumed.any() for sequence in played) else 1
    sections: dict[str, dict[str, Any]] = {
        "recalibration": {"mode": options.mode},
        "statistics": {"slice_by": options.slice_by, "max_slices": max(24, slices)},
        "server": {"max_streams": max(64, len(played))},
        "drift": given.drift.model_dump(mode="json", exclude_none=True),
    }
    if reference is not None:
        sections["drift"]["reference"] = str(reference)
    if options.ground_truth is not None:
        asked = {name: getattr(options, name) for name in OF_TRACKER} | {"kind": "embedded"}
        sections["tracker"] = given.tracker.model_dump(mode="json", exclude_none=True)
        sections["tracker"] |= {name: value for name, value in asked.items() if value is not None}
    return toml(sections)


async def _replay(
    client: Client, playback: Playback, selection: Selection | None, options: argparse.Namespace
) -> _Found:
    if selection is not None:
        await client.promote("replay", document=selection.to_json())
    async with listening_for_alarms(client) as heard:
        await playback.play(client)
        found = await client.calibration(include_bins=True, bins=options.bins)
        drift = await heard.all_of(DriftStandings.of(found))
        seen = None if options.report is None else await look(client)
    return found, drift, seen


def _complain(playback: Playback) -> None:
    """Prints a line where frames were not counted, and one where labels were not used."""
    account, lines = playback.account, []
    if playback.shed:
        lines.append(
            f"{playback.shed} of {playback.frames} frames were answered but not counted, because "
            "the sidecar was overloaded: their labels find no frame. Start it with serve "
            "--never-shed, or play slower with --speed."
        )
    if account.matched != playback.labels:
        counts = {name.replace("_", " "): count for name, count in asdict(account).items()}
        words = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        lines.append(
            f"{account.matched} of {playback.labels} labels matched; {words}. {playback.complaint}"
        )
    for line in lines:
        print(f"calibration-monitor replay: {line}", file=sys.stderr)


def _report(
    playback: Playback, found: _Found, tracking: dict[str, Any] | None
) -> tuple[dict[str, Any], str]:
    """Builds the JSON object and the text that are printed."""
    (calibration, drift, _), matched = found, playback.account.matched
    counts = {"frames": playback.frames, "detections": playback.detections, "matched": matched}
    if playback.shed:
        counts["frames_not_counted"] = playback.shed
    of_drift = drift_json(drift, playback.played)
    of_tracks = {} if tracking is None else {"tracking": tracking}
    blocks = [
        f"{playback.frames} frames, {playback.detections} detections, {matched} with ground truth; "
        f"recalibrator {calibration.recalibrator_version}",
        table(calibration),
        drift_table(drift, playback.played),
        "" if tracking is None else tracking_table(tracking),
    ]
    content = counts | as_json(calibration) | of_drift | of_tracks
    return content, "\n".join(filter(None, blocks))


def as_json(calibration: GetCalibrationResponse) -> dict[str, Any]:
    """Builds tau, slices and total as `replay --json` prints them; None in place of NaN.

    variance, squared_error and nees of a bin are sums over its n detections.
    """
    by_name = {
        entry.slice: {_STAGES[stage.stage]: _measures(stage) for stage in entry.stages}
        for entry in _ordered(calibration)
    }
    # Of what came with a covariance, or without where none did.
    whole = next(filter(is_total, by_name), None)
    total = None if whole is None else by_name.pop(whole)
    return {"tau": list(calibration.tau), "slices": by_name, "total": total}


def _ordered(calibration: GetCalibrationResponse) -> list[calibration_pb2.SliceCalibration]:
    """Slices by name, totals last; they come in the order in which they were first seen."""
    return sorted(calibration.slices, key=lambda entry: (is_total(entry.slice), entry.slice))


def _measures(stage: calibration_pb2.StageCalibration) -> dict[str, Any]:
    joint = stage.joint
    dimensions = {dimension.name: dimension for dimension in stage.dimensions}
    blocks: dict[str, Any] = dimensions | {"joint": joint}
    return {
        "n": stage.n,
        "k": joint.k,
        **{name: finite(getattr(joint, name)) for name in _JOINT},
        **{
            name: {axis: finite(getattr(found, name)) for axis, found in dimensions.items()}
            for name in _BY_DIMENSION
        },
        "qce": {axis: finite(found.qce) for axis, found in blocks.items()},
        "qce_by_tau": {axis: list(found.qce_by_tau) for axis, found in blocks.items()},
        "bins": {axis: _bins(found.bins) for axis, found in blocks.items()},
    }


def _bins(bins: Any) -> list[dict[str, Any]]:
    return [
        {name: plain(getattr(bin, name)) for name in _BIN} | {"within": list(bin.within)}
        for bin in bins
    ]


def table(calibration: GetCalibrationResponse) -> str:
    """Writes a line for each slice and stage."""
    heads = ("slice", "stage", "n", "NEES/K", "median", "QCE", "NLL", "ENCE by dimension")
    rows, width = [heads], max([20, *(len(entry.slice) for entry in calibration.slices)])
    for entry in _ordered(calibration):
        for stage in entry.stages:
            joint = stage.joint
            ence = " ".join(f"{found.name} {found.ence:.3f}" for found in stage.dimensions)
            values = (joint.nees_over_k, joint.nees_median_ratio, joint.qce, joint.nll)
            a, b, c, d = (f"{value:.4f}" for value in values)
            rows.append((entry.slice, _STAGES[stage.stage], str(stage.n), a, b, c, d, ence))
    return "\n".join(
        f"{name:<{width}} {stage:<12} {''.join(f'{cell:>9}' for cell in numbers)}  {ence}"
        for name, stage, *numbers, ence in rows
    )
