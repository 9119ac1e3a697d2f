"""calibration-monitor replay: streams recorded detections through a real sidecar."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import sys
import time
from collections import deque
from dataclasses import dataclass, field

from monitor.calibration.slices import SliceBy
from monitor.config import Mode
from monitor.counters import TruthAccount
from monitor.edges.answered import decode_truth_answer, refused
from monitor.edges.client import Client, Conversation, SidecarUnavailable
from monitor.edges.report import as_json, table
from monitor.edges.requests import encode_frame, encode_truth
from monitor.recalibration.selection import IDENTITY
from monitor.verbs.models import check_dimensions, read_model
from monitor.verbs.playback import PlayedFrame, Sequence, sequences
from monitor.verbs.recorded import add_selection, read_selected
from monitor.verbs.sidecar_process import running_sidecar

EXAMPLE = """examples:
  calibration-monitor replay drive.csv.gz --dimensions x,y,z --class Car
  calibration-monitor replay drive.csv.gz --recalibrator car.json --ground-truth-delay 30s --json
  calibration-monitor replay drive.csv.gz --speed 1 --fault variance=0.2@t=10s
  calibration-monitor replay drive.csv.gz --address 127.0.0.1:50051

Each sequence is a stream; every frame number from 0 to its last is sent, empty ones too.
--json prints frames, detections, matched, tau, and for each of slices and for total, by stage:
n, nees_over_k, nees_median_ratio; by dimension ence, uce, qce; and the bins they come from, whose
variance, squared_error and nees are sums over the bin's n detections and whose within counts, for
each tau, those with nees inside the chi-square quantile."""

# Frames on their way at a time.
WINDOW = 16
# Sequences played at a time.
SIDE_BY_SIDE = 8
# The sidecar cuts no more.
MOST_BINS = 512


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument("files", metavar="FILE", nargs="+", help=".npz, .csv or .csv.gz")
    add_selection(parser)
    parser.add_argument("--address", metavar="H:P", help="of a running sidecar; default: start one")
    parser.add_argument(
        "--ground-truth-delay",
        metavar="S",
        type=_seconds,
        default=0.0,
        help="event time by which labels come late, such as 30s (default 0s)",
    )
    parser.add_argument(
        "--speed",
        metavar="max|N",
        type=_speed,
        default=math.inf,
        help="max, or N times the recorded pace (default max)",
    )
    parser.add_argument("--recalibrator", metavar="FILE|none", help="promote this one first")
    parser.add_argument(
        "--mode", choices=tuple(Mode), type=Mode, default=Mode.APPLY, help="of the started sidecar"
    )
    parser.add_argument(
        "--slice-by",
        metavar="class,stream",
        type=_slice_by,
        default=(SliceBy.CLASS,),
        help="slices of the started sidecar (default class)",
    )
    parser.add_argument("--bins", metavar="N", type=_bins, default=20)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


@dataclass(slots=True)
class Tally:
    """What was sent and what came back."""

    frames: int = 0
    detections: int = 0
    labels: int = 0
    account: TruthAccount = field(default_factory=TruthAccount)
    complaint: str = ""


def run(options: argparse.Namespace) -> int:
    """0 when every frame was answered and every label accounted for."""
    own = options.mode is not Mode.APPLY or options.slice_by != (SliceBy.CLASS,)
    if options.address and own:
        raise ValueError(
            f"--address {options.address}: --mode and --slice-by are settings of that sidecar. "
            "Leave them out, or leave --address out."
        )
    played: list[Sequence] = []
    for i, path in enumerate(options.files):
        prefix = "" if len(options.files) == 1 else f"file{i}."
        played += sequences(read_selected(path, options), prefix)
    document = None
    if options.recalibrator:
        none = options.recalibrator == "none"
        selection = IDENTITY if none else read_model(options.recalibrator)
        for sequence in played:
            check_dimensions(selection, sequence.header.space)
        document = selection.to_json()
    with contextlib.ExitStack() as stack:
        address = options.address
        if address is None:
            config = _config(options, played)
            address = stack.enter_context(running_sidecar(config)).grpc
        try:
            report = asyncio.run(_replay(address, played, document, options))
        except ExceptionGroup as group:
            # Where one stream breaks, others break with it: one cause is enough.
            error = _first(group)
            if isinstance(error, SidecarUnavailable):
                raise SidecarUnavailable(
                    f"the sidecar at {address} ended a stream before all was sent: see its log."
                ) from error
            raise error from None
    print(report)
    return 0


def _first(error: Exception) -> Exception:
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


def _config(options: argparse.Namespace, played: list[Sequence]) -> str:
    """Room for every stream and every slice, so that nothing hangs on which comes first."""
    streams = max(64, len(played))
    slices = len(played) * max(len(sequence.header.classes) for sequence in played)
    slice_by = ", ".join(f'"{part}"' for part in options.slice_by)
    return (
        f'[recalibration]\nmode = "{options.mode}"\n'
        f"[statistics]\nslice_by = [{slice_by}]\nmax_slices = {max(24, slices)}\n"
        f"[server]\nmax_streams = {streams}\n"
    )


async def _replay(
    address: str, played: list[Sequence], document: str | None, options: argparse.Namespace
) -> str:
    tally = Tally()
    async with Client(address) as client:
        if document is not None:
            await client.promote(document, "replay")
        progress = asyncio.create_task(_show_progress(tally, sum(s.frames for s in played)))
        gate = asyncio.Semaphore(SIDE_BY_SIDE)
        async with asyncio.TaskGroup() as tasks:
            for sequence in played:
                tasks.create_task(_play(client, sequence, options, tally, gate))
        progress.cancel()
        calibration = await client.calibration(include_bins=True, bins=options.bins)
    if tally.account.matched != tally.labels:
        print(
            f"calibration-monitor replay: {tally.account.matched} of {tally.labels} labels "
            f"matched; {_in_words(tally.account)}. {tally.complaint}",
            file=sys.stderr,
        )
    if options.json:
        counts = {
            "frames": tally.frames,
            "detections": tally.detections,
            "matched": tally.account.matched,
        }
        return json.dumps({**counts, **as_json(calibration)})
    head = (
        f"{tally.frames} frames, {tally.detections} detections, "
        f"{tally.account.matched} with ground truth; recalibrator "
        f"{calibration.recalibrator_version}"
    )
    return f"{head}\n{table(calibration)}"


async def _show_progress(tally: Tally, frames: int) -> None:
    """A line on a terminal, nothing in a pipe."""
    while sys.stderr.isatty():
        print(f"\r{tally.frames} of {frames} frames", end="\r", file=sys.stderr, flush=True)
        await asyncio.sleep(0.2)


@dataclass(frozen=True, slots=True)
class _Played:
    """One sequence over a stream of frames and a stream of labels.

    Sending and reading never wait for each other: with large frames a sidecar that
    waits to be read does not read either.

    asked  frames on their way; None: no more
    told   numbers of labels in the messages on their way; None: no more
    """

    sequence: Sequence
    frames: Conversation
    labels: Conversation
    tally: Tally
    asked: asyncio.Queue[PlayedFrame | None] = field(default_factory=lambda: asyncio.Queue(WINDOW))
    told: asyncio.Queue[int | None] = field(default_factory=lambda: asyncio.Queue(WINDOW))

    async def send_frames(self, speed: float) -> None:
        began = time.monotonic()
        for played in self.sequence.play():
            if math.isfinite(speed):
                due = began + (played.time_s - self.sequence.times[0]) / speed
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            await self.asked.put(played)
            await self.frames.send(encode_frame(played.frame))
        await self.asked.put(None)
        await self.frames.close()

    async def read_answers(self, delay: float) -> None:
        """And send the labels, each when event time has gone `delay` beyond its frame."""
        waiting: deque[PlayedFrame] = deque()
        while (played := await self.asked.get()) is not None:
            complaint = refused(await self.frames.receive())
            if complaint is not None:
                stream = self.sequence.header.stream
                raise ValueError(f"frame {played.frame.frame_id} of {stream}: {complaint}")
            self.tally.frames += 1
            self.tally.detections += played.frame.id.size
            waiting.append(played)
            while waiting and waiting[0].time_s <= played.time_s - delay:
                await self._send_labels(waiting.popleft())
        for played in waiting:
            await self._send_labels(played)
        await self.told.put(None)
        await self.labels.close()

    async def _send_labels(self, played: PlayedFrame) -> None:
        if played.labelled.size == 0:
            return
        frame = played.frame
        ids = frame.id[played.labelled]
        await self.told.put(ids.size)
        stream = self.sequence.header.stream
        await self.labels.send(encode_truth(stream, frame.frame_id, ids, played.truth))

    async def read_accounts(self) -> None:
        while (labels := await self.told.get()) is not None:
            account, complaint = decode_truth_answer(await self.labels.receive())
            self.tally.labels += labels
            self.tally.account.add(account)
            self.tally.complaint = self.tally.complaint or complaint


async def _play(
    client: Client,
    sequence: Sequence,
    options: argparse.Namespace,
    tally: Tally,
    gate: asyncio.Semaphore,
) -> None:
    async with gate:
        played = _Played(sequence, await client.open(sequence.header), client.truth(), tally)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(played.send_frames(options.speed))
            tasks.create_task(played.read_answers(options.ground_truth_delay))
            tasks.create_task(played.read_accounts())


def _in_words(account: TruthAccount) -> str:
    counts = {name: getattr(account, name) for name in account.__dataclass_fields__}
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)


def _seconds(text: str) -> float:
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}': expected seconds, such as 30s")
    return value


def _speed(text: str) -> float:
    try:
        value = math.inf if text == "max" else float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"'{text}': expected max, or a positive factor such as 1")
    return value


def _bins(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_BINS:
        raise argparse.ArgumentTypeError(
            f"'{text}': expected a number of bins, from 1 to {MOST_BINS}"
        )
    return int(text)


def _slice_by(text: str) -> tuple[SliceBy, ...]:
    try:
        return tuple(SliceBy(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"'{text}': expected class, stream or class,stream"
        ) from None
