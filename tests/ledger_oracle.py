"""What should become of detections and labels, in plain dictionaries, one at a time: written from
the meaning of the counts; what may come, at random; and how it is told to a pipeline. No tests.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from monitor.frames.frame import Header, ReceivedFrame, ReceivedObjects, ReceivedTruth, TruthAnswer
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.truth import Search
from monitor.store.entries import Kept
from tests.journals import ListJournal
from tests.piped import CLASSES, SECOND, XYZ
from tests.received import Label, Sent, frame, in_form, labels

STREAMS = ("lidar", "radar")
HEADERS = {name: Header(name, XYZ, CLASSES) for name in STREAMS}
# Detections of a frame stand so far apart that every object is near one alone.
APART = 50.0
# How far an object is from its detection, in the unit of the stream; the gate is 2.
BESIDE, NEAR_GATE = 0.3, 1.8


@dataclass(frozen=True)
class Came:
    """A frame: usable detections 0 … n − 1, the last of them bare, and some that are not usable."""

    stream: str
    number: int | None
    stamp_s: int
    n: int = 3
    inline: int = 0  # of them carry truth
    refused: int = 0
    bare: int = 0  # of the usable ones come without a covariance

    @property
    def key(self) -> tuple[str, int | None]:
        return self.stream, self.number

    def left_out(self, id: int) -> bool:
        return 100 <= id < 100 + self.refused

    def slice(self, id: int) -> str:
        """The slice of a usable detection."""
        name = CLASSES[id % len(CLASSES)]
        return name if id < self.n - self.bare else f"{name}, no covariance"

    def received(self, *, inline: bool = True) -> ReceivedFrame:
        told = self.inline if inline else 0
        rows = [detection(self, i, truth=i < told) for i in range(self.n)]
        rows += [
            Sent(100 + i, (0.0, 0.0, 0.0), (1.0, 2.0, 2.0, 1.0, 0.0, 0.0))
            for i in range(self.refused)
        ]
        return frame(rows, self.number, self.stamp_s * SECOND)


def detection(came: Came, id: int, *, truth: bool) -> Sent:
    seed = [STREAMS.index(came.stream), came.number or 99, came.stamp_s, id]
    random = np.random.default_rng(seed)
    root = random.normal(size=(3, 3)) + 2 * np.eye(3)
    mean = np.array([APART * (id + 1), 0.0, 0.0]) + 0.01 * random.normal(size=3)
    answer, opinion = mean + random.normal(size=3), random.dirichlet(np.ones(len(CLASSES)))
    tracked, right = random.random() < 0.7, int(random.integers(len(CLASSES)))
    score = float(random.random()) if random.random() < 0.5 else None
    return Sent(
        id,
        tuple(mean.tolist()),
        in_form(root @ root.T, "full") if id < came.n - came.bare else (),
        id % len(CLASSES),
        tuple(answer.tolist()) if truth else (),
        score=score,
        upstream_track=id if tracked else None,
        class_probabilities=tuple(opinion.tolist()),
        true_class=right if truth else None,
    )


@dataclass(frozen=True)
class Named:
    """A label by id; how: truth, class, ignore, or wrong (its truth cannot be used)."""

    id: int
    how: str = "truth"


@dataclass(frozen=True)
class Thing:
    """An object: at a detection, or nowhere near one."""

    id: int
    at: int | None = None
    ignore: bool = False
    near_gate: bool = False
    unsure: bool = False  # it has a covariance of its own


@dataclass(frozen=True)
class Message:
    """Labels of a frame; things None: no objects were spoken of."""

    stream: str
    number: int
    named: tuple[Named, ...] = ()
    things: tuple[Thing, ...] | None = None
    revision: int = 0
    complete: bool = False

    @property
    def told(self) -> int:
        return len(self.named) + len(self.things or ())

    def received(self) -> ReceivedTruth:
        made = [self._label(one) for one in self.named]
        sent = labels(made, self.number, stream=self.stream, complete=self.complete)
        foreign = None if self.things is None else self._objects(self.things)
        return replace(sent, revision=self.revision, foreign=foreign)

    def _label(self, named: Named) -> Label:
        random = np.random.default_rng([named.id, self.revision])
        place = np.array([APART * (named.id + 1), 0.0, 0.0]) + random.normal(size=3)
        truth = tuple(place.tolist())
        match named.how:
            case "truth":
                return Label(named.id, truth, class_index=1)
            case "class":
                return Label(named.id, (), class_index=2)
            case "ignore":
                return Label(named.id, (), ignore=True)
        return Label(named.id, (1.0,))

    def _objects(self, things: tuple[Thing, ...]) -> ReceivedObjects:
        truth, covariance = np.zeros((len(things), 3)), np.full((len(things), 3), np.nan)
        for i, one in enumerate(things):
            truth[i, 0] = -1000.0 - 10 * i
            if one.at is not None:
                # Off the first axis: both make up the distance.
                off = NEAR_GATE if one.near_gate else BESIDE
                truth[i, :2] = APART * (one.at + 1), off + 0.01 * self.revision
            if one.unsure:
                covariance[i] = 0.5, 0.25, 0.0
        size = len(things)
        return ReceivedObjects(
            id=np.array([one.id for one in things], np.uint64),
            has_id=np.ones(size, bool),
            class_index=np.array([(one.at or 0) % len(CLASSES) for one in things], np.int64),
            truth=truth,
            truth_length=np.full(size, 3),
            covariance=covariance,
            covariance_length=np.array([3 * one.unsure for one in things], np.int64),
            ignore=np.array([one.ignore for one in things], bool),
            stamp_ns=np.zeros(size, np.int64),
            has_stamp=np.zeros(size, bool),
        )


@dataclass(frozen=True)
class Busy:
    """The disk keeps up, or not."""

    is_so: bool


@dataclass(frozen=True)
class Drop:
    """A partition goes."""

    partition: int
    why: str


Move = Came | Message | Busy | Drop

any_frames = st.builds(
    Came,
    stream=st.sampled_from(STREAMS),
    number=st.sampled_from([0, 1, 2, 3, 4, 5, 2**64 - 1, None]),
    stamp_s=st.integers(0, 30),
    n=st.integers(0, 4),
    inline=st.integers(0, 2),
    refused=st.integers(0, 1),
    bare=st.integers(0, 1),
).map(lambda one: replace(one, inline=min(one.inline, one.n), bare=min(one.bare, one.n)))
named_frames = any_frames.filter(lambda one: one.number is not None)
named = st.builds(
    Named,
    st.sampled_from([0, 1, 2, 3, 4, 100, 200]),
    st.sampled_from(["truth", "truth", "class", "ignore", "wrong"]),
)


@st.composite
def things(draw: st.DrawFn) -> tuple[Thing, ...]:
    """Objects, none of them at the place of another."""
    places = draw(st.lists(st.sampled_from([0, 1, 2, 3, None, None]), max_size=4))
    once = [at for i, at in enumerate(places) if at is None or at not in places[:i]]
    flags = st.tuples(st.booleans(), st.booleans(), st.booleans())
    drawn = [(i, at, *draw(flags)) for i, at in enumerate(once)]
    return tuple(
        Thing(i, at, ignore and at is not None, near, unsure)
        for i, at, ignore, near, unsure in drawn
    )


messages = st.builds(
    Message,
    st.sampled_from(STREAMS),
    st.integers(0, 5),
    st.lists(named, max_size=4).map(tuple),
    st.none() | things(),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.booleans(),
)


@dataclass
class Book:
    """One frame that was answered.

    told     messages of the revision that stands, that changed anything
    inline   whether what came with it stands
    why_not  what became of it if only memory had it and lost it; "" where the disk has it
    gone     nobody finds it any more; then its fates are in settled, for good
    """

    came: Came
    fate: dict[int, str]
    partition: int
    why_not: str
    told: list[Message] = field(default_factory=list)
    inline: bool = True
    revision: int = -1
    things: bool = False
    near: Counter[str] = field(default_factory=Counter)
    gone: bool = False
    settled: dict[int, str] = field(default_factory=dict)

    def count(self, fate: str) -> int:
        return sum(one == fate for one in self.fate.values())


@dataclass
class Oracle:
    """Of one pipeline; `lost` and `in_memory` tell what is not a matter of meaning: what memory had
    no room for."""

    now: dict[tuple[str, int], Book] = field(default_factory=dict)
    books: list[Book] = field(default_factory=list)
    unnamed: list[Came] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    unlabelled: int = 0
    predicted: int = 0
    settled: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    told: int = 0

    def came(self, came: Came, partition: int, why_not: str) -> None:
        if came.number is not None and (came.stream, came.number) in self.now:
            known = self.now[came.stream, came.number]
            if known.came.stamp_s == came.stamp_s:
                self._label({"duplicate": came.inline})
                self.told += came.inline
                return
        self.predicted += came.n + came.refused
        self.dropped["refused"] += came.refused
        told = min(came.inline, came.n)
        self._label({"matched": told})
        self.told += told
        if came.number is None:
            self.dropped["no_frame_id"] += came.n - told
            self.settled["matched"] += told
            self.unnamed.append(came)
            return
        earlier = self.now.get((came.stream, came.number))
        if earlier is not None and earlier.why_not and not earlier.gone:
            self._lose(earlier, "replaced")
        fate = {i: "matched" if i < told else "waiting" for i in range(came.n)}
        book = Book(came, fate, partition, why_not, inline=told > 0)
        self.now[came.stream, came.number] = book
        self.books.append(book)

    def left_memory(self, key: tuple[str, int]) -> None:
        book = self.now[key]
        if book.why_not and not book.gone:
            self._lose(book, book.why_not)

    def partition_dropped(self, partition: int, why: str, in_memory: set[tuple[str, int]]) -> None:
        for key, book in [(book.came.key, book) for book in self.books]:
            if book.partition != partition or book.why_not or book.gone:
                continue
            here = key in in_memory and self.now[key] is book
            if here and why != "expired" and not book.told:
                book.why_not = why
                continue
            if why == "expired":
                self.unlabelled += book.count("waiting")
                book.gone = True
                self._forget(book)
            else:
                self._lose(book, why)

    def _lose(self, book: Book, why: str) -> None:
        self.dropped[why] += book.count("waiting")
        book.gone = True
        self._forget(book)

    def _forget(self, book: Book) -> None:
        self.settled.update(fate for fate in book.fate.values() if fate != "waiting")
        book.settled, book.fate = book.fate, {}

    def _label(self, counts: dict[str, int]) -> dict[str, int]:
        found = {name: count for name, count in counts.items() if count}
        self.labels.update(found)
        return found

    def tell(self, message: Message, *, findable: bool) -> tuple[dict[str, int], bool]:
        """The account of a message, and whether it changed anything.

        findable  whether anybody can still say what was sent in the frame
        """
        self.told += message.told
        book = self.now.get((message.stream, message.number))
        if book is None:
            return self._label({"orphan": message.told}), False
        if book.gone or not findable:
            return self._label({"too_late": message.told}), False
        if message.revision < book.revision:
            return self._label({"duplicate": message.told}), False
        revises = message.revision > max(book.revision, 0)
        if revises and (useless := self._useless(book, message)):
            return self._label(useless), False
        if revises:
            book.fate = dict.fromkeys(book.fate, "waiting")
            book.told, book.inline, book.things = [], False, False
            book.near.clear()
        news = message.things is not None and not book.things
        account, settled = self._settle(book, message)
        changed = revises or settled > 0 or news
        if changed:
            book.revision = message.revision
            book.told.append(message)
        return self._label(account), changed

    @staticmethod
    def _useless(book: Book, message: Message) -> dict[str, int]:
        """The account of labels of which none at all can be used; empty where one can."""
        if message.things or not message.named:
            return {}
        account: Counter[str] = Counter()
        for one in message.named:
            if one.how != "wrong" and (one.id in book.fate or book.came.left_out(one.id)):
                return {}
            account["refused" if one.how == "wrong" else "orphan"] += 1
        return dict(account)

    def _settle(self, book: Book, message: Message) -> tuple[dict[str, int], int]:
        account: Counter[str] = Counter()
        before = book.count("waiting")
        stands_open = set()
        for one in message.named:
            known = one.id in book.fate
            if one.how == "wrong":
                account["refused"] += 1
                stands_open.add(one.id)
            elif not known:
                account["unusable" if book.came.left_out(one.id) else "orphan"] += 1
            elif book.fate[one.id] != "waiting":
                account["duplicate"] += 1
            else:
                fate = "ignored" if one.how == "ignore" else "matched"
                account[fate] += 1
                book.fate[one.id] = fate
        if message.things is not None and book.things:
            account["duplicate"] += len(message.things)
        elif message.things is not None:
            book.things = True
            self._place(book, message, account)
        if message.complete:
            for id, fate in book.fate.items():
                if fate == "waiting" and id not in stands_open:
                    book.fate[id] = "unmatched"
        return dict(account), before - book.count("waiting")

    def _place(self, book: Book, message: Message, account: Counter[str]) -> None:
        for thing in message.things or ():
            at = -1 if thing.at is None else thing.at
            there = at in book.fate
            if thing.ignore:
                account["ignored"] += 1
                if there and book.fate[at] == "waiting":
                    book.fate[at] = "ignored"
            elif not there:
                account["missed" if message.complete else "unassigned"] += 1
            elif book.fate[at] != "waiting":
                account["duplicate"] += 1
            else:
                account["matched"] += 1
                book.fate[at] = "matched"
                name = book.came.slice(at)
                book.near[f"gated {name}"] += 1
                book.near[f"near_gate {name}"] += thing.near_gate

    def detections(self) -> dict[str, int]:
        found = Counter(self.settled)
        for book in self.books:
            found.update(book.fate.values())
        waiting = found.pop("waiting", 0)
        found.update({f"dropped_{why}": count for why, count in self.dropped.items()})
        found.update(predicted=self.predicted, unlabelled=self.unlabelled, waiting=waiting)
        return {name: count for name, count in found.items() if count}

    def what_stands(self) -> list[tuple[Came, bool, list[Message]]]:
        """Frames, whether what came with them stands, and the labels that do."""
        return [(book.came, book.inline, book.told) for book in self.books]


def tell(pipeline: Pipeline, journal: ListJournal | None, message: Message) -> TruthAnswer:
    """Labels as the service has them told; the disk is looked at where that is asked for."""
    labels = message.received()
    answer = pipeline.ledger.report(labels)
    while isinstance(answer, Search):
        found: Kept | None = None
        if journal is not None:
            found = journal.look_up(answer.stream, answer.frame_id, answer.partition)
        answer = (
            pipeline.ledger.in_vain(labels)
            if found is None
            else pipeline.ledger.report(labels, found)
        )
    return answer


def detections_of(pipeline: Pipeline) -> dict[str, int]:
    """As Oracle.detections."""
    ledger = pipeline.ledger
    counts: dict[str, Any] = ledger.fates.account | {"waiting": ledger.fates.pending}
    counts.pop("retracted")
    return {name: count for name, count in counts.items() if count}
