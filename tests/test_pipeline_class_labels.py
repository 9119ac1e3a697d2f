"""Every label of a class or of a Gaussian is in exactly one count."""

from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.detections import Reason
from tests.piped import account_of, pipeline_of, reported
from tests.piped_classes import (
    BAD,
    GOOD_TRUTH,
    counted,
    gaussians,
    opened,
    sent,
)
from tests.received import Label, frame, labels

wrong_or_right = st.sampled_from([(), (), GOOD_TRUTH, (1.0,), (1.0, float("nan"))])
a_class = st.sampled_from([None, 0, 1, 2, 3, 2**32 - 1])
a_label = st.builds(
    Label, st.one_of(st.integers(0, 9), st.none()), wrong_or_right, st.booleans(), a_class
)
a_detection = st.tuples(
    st.sampled_from(["fine", "fine", "no probabilities", "broken", "refused"]),
    wrong_or_right,
    a_class,
)


@dataclass
class Bookkeeping:
    """What should become of labels, one at a time; written from the meaning of the counts."""

    kinds: dict[int, str]
    known: set[int] = field(default_factory=set)
    named: set[int] = field(default_factory=set)
    classified: int = 0
    measured: int = 0

    def outcome(self, label: Label) -> str:
        kind = self.kinds.get(-1 if label.id is None else label.id)
        good = label.truth == GOOD_TRUTH
        has_class = label.class_index is not None and label.class_index < 3
        if label.id is None or not (label.ignore or good or (not label.truth and has_class)):
            if label.id is not None:
                self.named.add(label.id)
            return "refused"
        if kind is None:
            return "orphan"
        if kind == "refused":
            return "unusable"
        if label.id in self.known:
            return "duplicate"
        judged = has_class and kind == "fine"
        if not (label.ignore or good or judged):
            self.named.add(label.id)
            return "unusable"
        self.known.add(label.id)
        if label.ignore:
            return "ignored"
        self.classified += judged
        self.measured += good
        return "matched"

    def notes(self, label: Label) -> Counter[Reason]:
        told = label.truth in ((), GOOD_TRUTH)
        beyond = label.class_index is not None and label.class_index >= 3
        if beyond and told and label.id is not None and not label.ignore:
            return Counter({Reason.CLASS_PROBABILITIES_INVALID: 1})
        fine = label.truth == GOOD_TRUTH or (not label.truth and label.class_index is not None)
        if label.id is None or not (label.ignore or fine):
            return Counter({Reason.GROUND_TRUTH_INVALID: 1})
        return Counter()


@settings(max_examples=200)
@given(
    st.lists(a_detection, max_size=7),
    st.lists(st.tuples(st.lists(a_label, max_size=10), st.booleans()), max_size=4),
)
def test_every_label_is_in_exactly_one_count(drawn, messages):
    pipeline = pipeline_of()
    rows, books = [], Bookkeeping({})
    expected: Counter[str] = Counter()
    for id, (kind, truth, true_class) in enumerate(drawn):
        row = replace(sent(id, true_class), truth=truth)
        rows.append(
            {
                "fine": row,
                "no probabilities": replace(row, class_probabilities=()),
                "broken": replace(row, class_probabilities=(1.0, 1.0, 1.0)),
                "refused": replace(row, covariance=BAD.covariance),
            }[kind]
        )
        books.kinds[id] = kind
        if truth or true_class is not None:
            # An inline label is one that came first; the class of a refused one is not judged.
            refused = kind == "refused" and truth in ((), GOOD_TRUTH)
            label = Label(id, truth, class_index=true_class)
            expected["unusable" if refused else books.outcome(label)] += 1
    pipeline.process(opened(pipeline), frame(rows))
    assert account_of(pipeline.counters.truth) == dict(+expected)
    notes = Counter(pipeline.counters.notices)
    unmatched = 0
    for message, complete in messages:
        books.named.clear()
        now = Counter(books.outcome(label) for label in message)
        answer = reported(pipeline, labels(message, complete=complete))
        assert account_of(answer.account) == dict(now)
        for label in message:
            notes += books.notes(label)
        expected += now
        if complete:
            waiting = {id for id, kind in books.kinds.items() if kind != "refused"}
            rest = waiting - books.known - books.named
            unmatched += len(rest)
            books.known |= rest
    assert account_of(pipeline.counters.truth) == dict(+expected)
    assert +Counter(pipeline.counters.notices) == +notes
    assert pipeline.counters.unmatched == unmatched
    usable = {id for id, kind in books.kinds.items() if kind != "refused"}
    assert pipeline.ledger.fates.pending == len(usable - books.known)
    assert gaussians(pipeline) == books.measured
    assert sum(held.n for held in counted(pipeline).values()) == books.classified
    assert pipeline.counters.internal_errors == 0
