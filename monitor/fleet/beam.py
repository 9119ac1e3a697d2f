"""Counts raw logs of a fleet, and merges states, on Apache Beam (extra `beam`).

python -m monitor.fleet.beam --detections 'gs://logs/*.parquet' --labels 'gs://labels/*.parquet' \\
    --output gs://out/fleet

What is counted, and how, is in counting.py: Beam carries bytes.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.io import fileio
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from monitor.config import Config, load
from monitor.fleet.counting import (
    Account,
    Joined,
    as_bytes,
    counted,
    frame_key,
    identity,
    joined,
    packed,
    piece_key,
    unpacked,
)
from monitor.fleet.counting import Detections as Frame
from monitor.fleet.logs import Columnar, detections_in, objects_in
from monitor.store.files import checked
from monitor.store.statistics_state import StoredState, parsed
from monitor.store.tables import RecordingError

log = logging.getLogger(__name__)

# Added up so far: as bytes where it has travelled.
Sum = StoredState | bytes | None


# Beam has no types: each class of it is Any to mypy.
class MergeStates(beam.CombineFn):  # type: ignore[misc]
    """Adds up serialised states to one; none at all are b''."""

    def create_accumulator(self) -> Sum:
        """Begins with nothing."""
        return None

    def add_input(self, accumulator: Sum, element: bytes) -> Sum:
        """Adds a state. Raises IncompatibleStatistics, InvalidState."""
        return self.merge_accumulators((accumulator, element))

    def merge_accumulators(self, accumulators: Iterable[Sum]) -> Sum:
        """Adds sums. Raises IncompatibleStatistics."""
        total: StoredState | None = None
        for one in accumulators:
            if one:
                more = parsed(one) if isinstance(one, bytes) else one
                total = more if total is None else total.merge(more)
        return total

    def compact(self, accumulator: Sum) -> Sum:
        """Makes bytes of a sum that is to travel."""
        return as_bytes(accumulator) if isinstance(accumulator, StoredState) else accumulator

    def extract_output(self, accumulator: Sum) -> bytes:
        """Returns the sum as bytes."""
        found = self.compact(self.merge_accumulators((accumulator,)))
        return found if isinstance(found, bytes) else b""


class CountFrames(beam.CombineFn):  # type: ignore[misc]
    """Counts the joined frames of a piece to a serialised state, and an account by name.

    They wait until all have come: rows of a track count in the order of time.
    """

    def __init__(self, config: Config, latest_ns: int | None = None) -> None:
        super().__init__()
        self.config, self.latest_ns = config, latest_ns

    def create_accumulator(self) -> list[Joined]:
        """Begins with no frames."""
        return []

    def add_input(self, accumulator: list[Joined], element: Joined) -> list[Joined]:
        """Adds a frame."""
        accumulator.append(element)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[list[Joined]]) -> list[Joined]:
        """Puts frames together."""
        return [frame for frames in accumulators for frame in frames]

    def extract_output(self, accumulator: list[Joined]) -> tuple[bytes, dict[str, int]]:
        """Counts the frames."""
        state, account = counted(accumulator, self.config, self.latest_ns)
        return state, dict(account)


class OneOfEach(beam.PTransform):  # type: ignore[misc]
    """Takes states that hold the same uploads once under each key, of pairs of key and state."""

    def expand(self, input_or_inputs: Any) -> Any:
        """Groups them by the uploads that they hold."""
        return (
            input_or_inputs
            | "by uploads" >> beam.MapTuple(lambda key, state: ((key, identity(state)), state))
            | "together" >> beam.GroupByKey()
            | "one of each" >> beam.MapTuple(lambda name, same: (name[0], min(same)))
        )


class _Read(beam.DoFn):  # type: ignore[misc]
    """Reads the frames of a file, by key; a file that cannot be read is refused, and said."""

    def __init__(self, of: Callable[..., Iterator[Any]], kind: str, how: Columnar) -> None:
        super().__init__()
        self.of, self.kind, self.how = of, kind, how

    def process(self, element: Any) -> Iterator[Any]:
        name, account = element.metadata.path, Account()
        account[f"{self.kind}_files"] += 1
        try:
            with element.open() as file:
                for frame in self.of(io.BytesIO(file.read()), name, self.how, account):
                    yield frame_key(frame), packed(frame)
        except RecordingError as error:
            log.warning("refused: %s", error)
            account[f"{self.kind}_files_refused"] += 1
        yield from _told(account)


def _told(account: Account | dict[str, int]) -> Iterator[Any]:
    for name, count in account.items():
        if count:
            yield beam.pvalue.TaggedOutput("account", (name, count))


class _Join(beam.DoFn):  # type: ignore[misc]
    """Joins a frame with its labels, by piece."""

    def __init__(self, config: Config, *, labelled: bool) -> None:
        super().__init__()
        self.config, self.labelled = config, labelled

    def process(self, element: Any) -> Iterator[Any]:
        _, found = element
        frame, account = joined(found["detections"], found["labels"])
        if frame is not None:
            yield piece_key(unpacked(Frame, frame[0]), self.config), frame
        if not self.labelled:
            del account["frames_without_labels"]
        yield from _told(account)


class _Split(beam.DoFn):  # type: ignore[misc]
    def process(self, element: Any) -> Iterator[Any]:
        _, (state, account) = element
        yield state
        yield from _told(account)


def pipeline_of(options: list[str]) -> beam.Pipeline:
    """Makes a pipeline by the options of Beam; in this process, unless they name a runner.

    Beam's own default tries a program first that it would download.
    """
    parsed_options = PipelineOptions(options)
    named = any(one.partition("=")[0] == "--runner" for one in options)
    return beam.Pipeline(None if named else FnApiRunner(), options=parsed_options)


def count_logs(
    start: Any,
    detections: str,
    labels: str | None,
    config: Config,
    how: Columnar,
    latest_ns: int | None = None,
) -> tuple[Any, Any]:
    """Counts all frames of some files, from a pipeline; labels: a pattern of files, too.

    returns  a collection of one serialised state, b'' without any frame; and one of counts by name
    """

    def read(pattern: str, of: Callable[..., Iterator[Any]], kind: str) -> Any:
        return (
            start
            | f"match {kind}" >> fileio.MatchFiles(pattern)
            | f"spread {kind}" >> beam.Reshuffle()
            | f"open {kind}" >> fileio.ReadMatches()
            | f"read {kind}"
            >> beam.ParDo(_Read(of, kind, how)).with_outputs("account", main="main")
        )

    ours = read(detections, detections_in, "detection")
    theirs = None if labels is None else read(labels, objects_in, "label")
    sides = {"detections": ours.main}
    sides["labels"] = start | "no labels" >> beam.Create([]) if theirs is None else theirs.main
    frames = (
        sides
        | "by frame" >> beam.CoGroupByKey()
        | "join"
        >> beam.ParDo(_Join(config, labelled=theirs is not None)).with_outputs(
            "account", main="main"
        )
    )
    pieces = (
        frames.main
        | "count" >> beam.CombinePerKey(CountFrames(config, latest_ns))
        | "split" >> beam.ParDo(_Split()).with_outputs("account", main="main")
    )
    accounts = [ours.account, frames.account, pieces.account]
    accounts += [] if theirs is None else [theirs.account]
    account = accounts | beam.Flatten() | "account" >> beam.CombinePerKey(sum)
    return pieces.main | "merge" >> beam.CombineGlobally(MergeStates()), account


def _write_state(state: bytes, path: str) -> None:
    if state:
        _write(path, checked([state]))


def _write_account(counts: list[tuple[str, int]], path: str) -> None:
    _write(path, (json.dumps(dict(sorted(counts)), indent=2) + "\n").encode())


def _write(path: str, data: bytes) -> None:
    """Writes beside, then deletes what was there and renames: a kill in between leaves the part."""
    part = f"{path}.part"
    with FileSystems.create(part, "application/octet-stream") as file:
        file.write(data)
    if FileSystems.exists(path):
        FileSystems.delete([path])
    FileSystems.rename([part], [path])


def _pairs(text: str) -> dict[str, str]:
    pairs = [one.partition("=") for one in text.split(",")]
    if not all(ours and theirs for ours, _, theirs in pairs):
        raise argparse.ArgumentTypeError(f"'{text}': write NAME=VALUE,NAME=VALUE")
    return {ours: theirs for ours, _, theirs in pairs}


def _deviations(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in _pairs(text).items()}


def main(arguments: list[str] | None = None) -> int:
    """Runs the pipeline; 0 where a state was written."""
    parser = argparse.ArgumentParser(
        prog="python -m monitor.fleet.beam",
        description="Counts recorded frames of a fleet. Further options are those of Beam.",
    )
    parser.add_argument("--detections", required=True, metavar="GLOB", help="Parquet files")
    parser.add_argument("--labels", metavar="GLOB", help="without it, truth is in the detections")
    parser.add_argument("--output", required=True, metavar="PREFIX", help="of .state and .json")
    parser.add_argument("--config", metavar="F", help="TOML of the sidecars of the fleet")
    parser.add_argument("--dimensions", type=lambda text: tuple(text.split(",")), metavar="A,B")
    parser.add_argument(
        "--angles",
        type=lambda text: tuple(filter(None, text.split(","))),
        default=("yaw", "heading"),
    )
    parser.add_argument("--map", type=_pairs, default={}, metavar="OURS=THEIRS,…")
    parser.add_argument("--label-map", type=_pairs, default={}, metavar="OURS=THEIRS,…")
    parser.add_argument("--assume-std", type=_deviations, default={}, metavar="D=S,…")
    options, of_beam = parser.parse_known_args(arguments)
    config = Config() if options.config is None else load(options.config)
    how = Columnar(
        options.dimensions, options.angles, options.map, options.label_map, options.assume_std
    )
    state, told = f"{options.output}.state", f"{options.output}.json"
    with pipeline_of(of_beam) as pipeline:
        merged, account = count_logs(
            pipeline, options.detections, options.labels, config, how, time.time_ns()
        )
        merged | "write state" >> beam.Map(_write_state, state)
        (account | beam.combiners.ToList() | "write account" >> beam.Map(_write_account, told))
    with FileSystems.open(told) as file:
        counts = json.loads(file.read())
    for name, count in counts.items():
        print(f"{count:>14,}  {name.replace('_', ' ')}")
    if not counts.get("frames"):
        print("no frame was counted, and no state is written", file=sys.stderr)
        return 1
    print(f"written to {state}")
    return 0


if __name__ == "__main__":
    # Workers find classes by the name of their module, which __main__ is not.
    from monitor.fleet.beam import main as run

    sys.exit(run())
