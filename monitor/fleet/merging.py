"""Adds up the states of a fleet: each upload once, by any number of processes, to the same bytes.

The beginning of each object says which uploads it holds. From these it is decided which objects are
needed; then each process adds up a share of them, one at a time, and the sums of all shares are
added. Sums are exact and slices are sorted at the end, so that neither order nor shares matter.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from pathlib import Path
from typing import Any, cast

from monitor.fleet.objects import Folder, Objects, StoreFailed, UnusableStore, objects_at
from monitor.statistics.bins import IncompatibleStatistics
from monitor.statistics.holdings import NOTHING_HELD, Holdings, Life
from monitor.statistics.state import StatisticsState
from monitor.statistics.vehicles import NO_VEHICLES, RowKey, VehicleRow, VehicleRows, add_row
from monitor.store.files import UnusableFile, beginning_of, body_of, is_regular
from monitor.store.state_definitions import InvalidState
from monitor.store.state_files import Beginning, beginning_in
from monitor.store.statistics_state import StoredState, joined_unknown, parsed, serialised

# Bytes of an object that are read first; where its first part is longer, so many times more.
_FIRST_BYTES, _MORE = 2**13, 16
# Beginnings that are read at a time: of a bucket, each is a request that takes tens of ms.
_AT_A_TIME = 16
# Objects that make a further process worth its start, unless the number of processes is asked for.
_WORTH = 64

_UNUSABLE = (UnusableFile, InvalidState, IncompatibleStatistics)
# Begins to show how far a work of so many objects has come.
Progress = Callable[[str, int], AbstractContextManager[Callable[[float], None]]]


class PartlyHeld(IncompatibleStatistics):
    """A state holds some uploads that others hold, and some besides: sums cannot be taken apart."""


@dataclass(frozen=True, eq=False, slots=True)
class Source:
    """An object that holds a state.

    address  of the folder, or of the bucket and prefix, that it is in
    name     below it
    """

    address: str
    name: str
    begins: Beginning

    @property
    def path(self) -> str:
        """Says where it is."""
        return path_of(self.address, self.name)


@dataclass(frozen=True, slots=True)
class Merged:
    """The sum of all objects.

    duplicates  paths of those that are left out, since others hold all of their uploads
    skipped     why further ones are left out, which name their paths
    """

    stored: StoredState
    duplicates: tuple[str, ...]
    skipped: tuple[str, ...]


def merged(
    addresses: Sequence[str], jobs: int | None, progress: Progress, *, skip_unusable: bool = False
) -> Merged:
    """Adds up all objects at some addresses: files, folders, and prefixes of buckets.

    jobs           processes; None: as many as pay
    skip_unusable  objects that are damaged, or do not fit most others, are left out
    raises         UnusableStore, StoreFailed, OSError; PartlyHeld; unless they are skipped
                   UnusableFile, InvalidState, IncompatibleStatistics. All name the object
    """
    places = [place for address in addresses for place in places_at(address)]
    unusable = _Unusable(skip_unusable)
    with progress("reading what is held", len(places)) as done:
        sources = _fitting(list(begun(places, unusable, done)), unusable)
    waiting, taken, parts = sources, list[Source](), list[_Part]()
    with progress("merging", len(sources)) as done:
        while waiting:
            more, waiting = chosen(taken, waiting)
            done(0 if parts else len(waiting))
            found = list(_folded(more, jobs, unusable, done))
            bad = {one for part in found for one in part.unusable}
            parts += found
            taken += [one for one in more if one not in bad]
            if not bad:
                break
            # What such an object was to bring may be in others that were left out for it.
    states = [part.state for part in parts if part.state is not None]
    if not states:
        raise UnusableFile(f"no object can be used. The first: {unusable.why[0]}")
    while len(states) > 1:
        pairs = (states[i : i + 2] for i in range(0, len(states), 2))
        states = [reduce(StatisticsState.merge, pair) for pair in pairs]
    holds = Holdings.united(one.begins.holds for one in taken)
    # Sorted, so that they are the same bytes whatever the shares were.
    unknown = reduce(joined_unknown, sorted(one for part in parts for one in part.unknown), b"")
    return Merged(
        StoredState(replace(states[0].in_order(), holds=holds), unknown),
        tuple(one.path for one in waiting),
        tuple(unusable.why),
    )


@dataclass(slots=True)
class _Unusable:
    """Notes why objects cannot be used; unless they are to be skipped, raises it."""

    skip: bool
    why: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def of(self, path: str) -> Iterator[None]:
        """Raises UnusableFile, InvalidState, IncompatibleStatistics, with the path and a remedy."""
        try:
            yield
        except _UNUSABLE as error:
            text = str(error) if str(error).startswith(path) else f"{path}: {error}"
            if not self.skip:
                raise type(error)(f"{text} Or leave it out: --skip-unusable.") from None
            self.why.append(text)


# ---- which objects there are, and how they begin


def path_of(address: str, name: str) -> str:
    """Says where an object is."""
    return f"{address.rstrip('/')}/{name}" if "://" in address else str(Path(address, name))


def places_at(address: str) -> Iterator[tuple[str, str]]:
    """Lists the objects at an address, each as an address to open and a name below it.

    address  of a folder, a file, or a prefix of a bucket; in a bucket, what ends with `.state` is
             an object
    raises   UnusableStore, StoreFailed, OSError
    """
    if not address:
        raise UnusableStore("an address is empty: name a file, a folder, or s3://bucket/prefix.")
    objects: Objects = Folder(path) if (path := Path(address)).exists() else _opened(address)
    if isinstance(objects, Folder):
        path = objects.folder
        if path.is_dir():
            address = str(path)
        else:
            if not is_regular(path):
                path.stat()  # says that it is not there
            yield str(path.parent), path.name
            return
    elif address.endswith(".state"):
        above, _, name = address.rpartition("/")
        yield above, name
        return
    names = [name for name in objects.names() if not re.search(r"(^|/)[._]", name)]
    if not names:
        raise UnusableStore(f"'{address}' has no objects below it. Leave it out, or correct it.")
    yield from ((address, name) for name in names)


@cache
def _opened(address: str) -> Objects:
    return objects_at(address)


def begun(
    places: Sequence[tuple[str, str]], unusable: _Unusable, done: Callable[[float], None]
) -> Iterator[Source]:
    """Reads the beginning of each object, some at a time.

    raises  StoreFailed; ValueError where a plain export is named twice; as _Unusable does
    """
    plain = set[str]()
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        try:
            for place, reading in [(place, pool.submit(_begin, *place)) for place in places]:
                with unusable.of(path := path_of(*place)):
                    begins = reading.result()
                    if not begins.holds:
                        real = path if "://" in path else os.path.realpath(path)
                        if real in plain:
                            raise ValueError(
                                f"{path} is named twice: it would be counted twice. Name it once."
                            )
                        plain.add(real)
                    yield Source(*place, begins)
                done(1)
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(address: str, name: str) -> Beginning:
    objects, path, most = _opened(address), path_of(address, name), _FIRST_BYTES
    while True:
        data = objects.head(name, most)
        body, length, _ = beginning_of(data, path)
        whole = len(body) >= length
        if len(data) < most and not whole:
            body_of(data, path)  # says that it is torn
        if (found := beginning_in(body, whole=whole)) is not None:
            return found
        most *= _MORE


def _fitting(sources: Sequence[Source], unusable: _Unusable) -> list[Source]:
    """Leaves out states that have not the bins, windows and slicing of most."""
    states = dict[bytes, StatisticsState]()
    misfits = set[bytes]()
    by_number = Counter(one.begins.definitions for one in sources)
    first = {one.begins.definitions: one for one in reversed(sources)}
    for definitions, _ in by_number.most_common():
        path = first[definitions].path
        misfits.add(definitions)
        with unusable.of(path):
            state = parsed(definitions).state
            if states:
                usual = first[next(iter(states))].path
                try:
                    next(iter(states.values())).merge(state)
                except IncompatibleStatistics as error:
                    raise IncompatibleStatistics(f"{path} does not fit {usual}: {error}") from None
            states[definitions] = state
            misfits.discard(definitions)
    unusable.why += [
        f"{one.path}: likewise"
        for one in sources
        if one.begins.definitions in misfits and one is not first[one.begins.definitions]
    ]
    return [one for one in sources if one.begins.definitions not in misfits]


# ---- which of them are needed


def chosen(taken: Sequence[Source], waiting: Iterable[Source]) -> tuple[list[Source], list[Source]]:
    """Chooses objects so that each upload is among them once, whatever their order.

    taken    objects that are chosen already
    returns  what is to be added, all plain exports among it, and what others hold
    raises   PartlyHeld
    """
    # By vehicle and epoch: first and last upload of a run, and who holds it; sorted.
    held = dict[Life, list[tuple[int, int, int]]]()
    holders, more, twice = list[Source](), list[Source](), list[Source]()

    def hold(source: Source) -> None:
        for life, runs in source.begins.holds.spans.items():
            known = held.setdefault(life, [])
            for first, last in runs:
                known.insert(bisect(known, (first,)), (first, last, len(holders)))
        holders.append(source)

    for source in taken:
        hold(source)

    def rank(source: Source) -> tuple[Any, ...]:
        holds = source.begins.holds
        return -len(holds), sorted(holds.spans.items()), source.path

    for source in sorted(waiting, key=rank):
        shared, others = list[Holdings](), list[int]()
        for (vehicle, epoch), runs in source.begins.holds.spans.items():
            known = held.get((vehicle, epoch), [])
            for first, last in runs:
                at = max(bisect(known, (first,)) - 1, 0)
                while at < len(known) and known[at][0] <= last:
                    start, end, holder = known[at]
                    if end >= first:
                        both = max(start, first), min(end, last)
                        shared.append(Holdings({(vehicle, epoch): (both,)}))
                        others.append(holder)
                    at += 1
        if not shared:
            hold(source)
            more.append(source)
        elif len(both_hold := Holdings.united(shared)) == len(source.begins.holds):
            twice.append(source)
        else:
            raise PartlyHeld(
                f"{source.path} holds {both_hold.described()}, which "
                f"{holders[others[0]].path} holds too, and others besides: sums cannot be taken "
                "apart. Merge the uploads themselves, or leave out one of the two."
            )
    return more, twice


# ---- adding up


@dataclass(slots=True)
class _Part:
    """The sum of a share of the objects, without what they hold.

    state     None where none could be used
    unknown   fields of newer code
    unusable  objects that could not be used
    """

    state: StatisticsState | None = None
    unknown: list[bytes] = field(default_factory=list)
    unusable: list[Source] = field(default_factory=list)


def _folded(
    sources: Sequence[Source],
    jobs: int | None,
    unusable: _Unusable,
    done: Callable[[float], None],
) -> Iterator[_Part]:
    if jobs is None:
        jobs = min(len(os.sched_getaffinity(0)), len(sources) // _WORTH)
    jobs = min(jobs, len(sources))
    if jobs <= 1:
        yield folded(sources, unusable, done)
        return
    # Neighbours are of one size, mostly: fleet states come first.
    shares = [sources[i::jobs] for i in range(jobs)]
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as ended:
        working = dict[Any, tuple[Any, Sequence[Source]]]()
        for share in shares:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(theirs, share, unusable.skip))
            process.start()
            ended.callback(process.join)
            ended.callback(process.terminate)
            theirs.close()
            working[ours] = process, share
        while working:
            for connection in multiprocessing.connection.wait(list(working)):
                process, share = working[connection]
                try:
                    said: Any = cast(Any, connection).recv()
                except EOFError:
                    process.join()
                    raise StoreFailed(
                        f"a process that merges has ended by itself (code {process.exitcode}): "
                        "is there memory enough? Give fewer --jobs."
                    ) from None
                if isinstance(said, Exception):
                    raise said
                if said is None:
                    done(1)
                    continue
                data, unknown, bad, why = said
                del working[connection]
                unusable.why += why
                state = None if data is None else parsed(data).state
                yield _Part(state, unknown, [share[i] for i in bad])


def _work(answers: Any, share: Sequence[Source], skip: bool) -> None:
    """Adds up a share in a process of its own, and sends the sum; for each object before, None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, and ends us
    unusable = _Unusable(skip)
    with contextlib.suppress(BrokenPipeError):  # the parent has gone
        try:
            part = folded(share, unusable, lambda _: answers.send(None))
        except BrokenPipeError:
            raise
        except Exception as error:
            answers.send(error)
            return
        bad = {id(one) for one in part.unusable}
        data = None if part.state is None else b"".join(serialised(StoredState(part.state)))
        at = [i for i, one in enumerate(share) if id(one) in bad]
        answers.send((data, part.unknown, at, unusable.why))


def folded(sources: Sequence[Source], unusable: _Unusable, done: Callable[[float], None]) -> _Part:
    """Adds up some objects, one at a time.

    raises  StoreFailed, also where one is another one by now; as _Unusable does
    """
    part, rows = _Part(), dict[str, dict[RowKey, VehicleRow]]()
    for source in sources:
        path, bad = source.path, len(unusable.why)
        try:
            data = _opened(source.address).get(source.name)
        except StoreFailed as error:
            raise StoreFailed(f"{error}: it was there a moment ago. Merge again.") from None
        with unusable.of(path):
            stored = parsed(body_of(data, path))
            if stored.state.holds != source.begins.holds:
                raise StoreFailed(f"{path} was replaced since it was looked at. Merge again.")
            # What is held is added at the end, and rows in place: they grow with the fleet, the
            # sums do not.
            state = replace(stored.state, holds=NOTHING_HELD, vehicles=NO_VEHICLES)
            part.state = state if part.state is None else part.state.merge(state)
            for vehicle, found in stored.state.vehicles.rows.items():
                for key, row in found.items():
                    add_row(rows.setdefault(vehicle, {}), key, row)
            part.unknown += [stored.unknown] if stored.unknown else []
        if len(unusable.why) > bad:
            part.unusable.append(source)
        done(1)
    if part.state is not None:
        kept = {vehicle: found for vehicle, found in rows.items() if found}
        part.state = replace(part.state, vehicles=VehicleRows(kept))
    return part
