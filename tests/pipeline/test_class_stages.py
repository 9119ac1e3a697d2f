"""Class probabilities as sent and as recalibrated: one frame, whenever its labels come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from monitor.config import Config
from monitor.frames.space import FloatArray, IntArray
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.recalibrators import Recalibrators
from monitor.pipeline.restart import Resumption
from monitor.pipeline.truth import Search
from monitor.recalibration.class_probabilities import from_probabilities
from monitor.recalibration.class_scaling import Temperature
from monitor.recalibration.rejection import RejectedBy
from monitor.recalibration.selection import CLASS_IDENTITY, IDENTITY, ClassSelection
from monitor.statistics.class_evaluation import evaluate_class_rows
from monitor.statistics.observations import finished
from monitor.statistics.reading import read_class_slice
from monitor.statistics.state import ClassStages
from monitor.store.journal import Journal
from tests import laws
from tests.journals import ListJournal, frame_in, name_of
from tests.piped_classes import CLASSES, WARM, opened, recalibrating, rejection
from tests.received import Label, Sent, frame, labels

FRAMES, ROWS = 6, 200


def overconfident(seed: int, opinions: int = 1) -> tuple[FloatArray, IntArray]:
    """Softmax of twice the logits that the classes are drawn from: right is T = 2."""
    random = np.random.default_rng(seed)
    logits = 1.5 * random.normal(size=(ROWS, 1, len(CLASSES)))
    true = np.exp(logits[:, 0]) / np.exp(logits[:, 0]).sum(axis=1, keepdims=True)
    label = (true.cumsum(axis=1) > random.random((ROWS, 1))).argmax(axis=1)
    claimed = np.exp(2 * (logits + 0.2 * (opinions > 1) * random.normal(size=(ROWS, opinions, 3))))
    return claimed / claimed.sum(axis=2, keepdims=True), label


def came(pipeline: Pipeline, number: int, opinions: int = 1, *, inline: bool = False) -> None:
    values, label = overconfident(number, opinions)
    rows = [
        Sent(
            i,
            (0.0, 0.0),
            (1.0, 1.0),
            class_probabilities=tuple(values[i].ravel().tolist()),
            true_class=int(label[i]) if inline else None,
        )
        for i in range(ROWS)
    ]
    pipeline.process(opened(pipeline), frame(rows, number, number * 10**9))


def told(pipeline: Pipeline, number: int, shift: int = 0, revision: int = 0) -> None:
    _, label = overconfident(number)
    rows = [Label(i, class_index=int(c + shift) % len(CLASSES)) for i, c in enumerate(label)]
    message = replace(labels(rows, number), revision=revision)
    answer = pipeline.report(message)
    if isinstance(answer, Search):
        journal = cast(ListJournal, pipeline.ledger.journal)
        pipeline.report(message, journal.look_up("lidar", number, answer.partition))


def stages_of(pipeline: Pipeline) -> ClassStages:
    ((_, _, held),) = finished(pipeline.live.classes_in_steps())
    return held


def running(classes: ClassSelection, journal: ListJournal, **sections: Any) -> Pipeline:
    recalibrators = Recalibrators(IDENTITY, classes)
    config = Config.model_validate(sections)
    return Pipeline(config, cast(Journal, journal), recalibrators=recalibrators)


def died(journal: ListJournal) -> Pipeline:
    """The next process: another recalibrator is active, and the ledger is all that is left."""
    fresh = running(CLASS_IDENTITY, journal)
    for entry in journal.entries:
        kept = frame_in(entry)
        if kept is not None:
            fresh.ledger.known(*name_of(entry), kept.frame.stamp_ns, entry.partition)
    Resumption(fresh).run(cast(Journal, journal), 0)
    return fresh


@pytest.mark.parametrize("mode", ["apply", "observe"])
@pytest.mark.parametrize("opinions", [1, 3])
def test_a_label_counts_for_what_was_made_then_whenever_it_comes(mode, opinions):
    journal = ListJournal()
    pipeline = running(WARM, journal, recalibration={"mode": mode})
    for number in range(FRAMES):
        came(pipeline, number, opinions, inline=number < 2)
    for number in (2, 3):
        told(pipeline, number, shift=number - 2)
    told(pipeline, 3, revision=1)
    pipeline = died(journal)
    for number in (4, 5):
        told(pipeline, number, shift=number - 4)
    told(pipeline, 5, revision=1)

    drawn = [overconfident(number, opinions) for number in range(FRAMES)]
    sent, label = (np.concatenate(part) for part in zip(*drawn, strict=True))
    made = WARM.apply(from_probabilities(sent)).mean(axis=1)
    several = sent if opinions > 1 else None
    found = read_class_slice("", stages_of(pipeline))
    assert_as_evaluated(found.raw, sent.mean(axis=1), label, several)
    assert_as_evaluated(found.recalibrated, made, label, None)
    assert found.raw.ece > 0.1 > 0.05 > found.recalibrated.ece
    # Of recalibrated opinions only the mean is kept.
    assert np.isnan(found.recalibrated.epistemic)
    assert np.isnan(found.raw.epistemic) == (opinions == 1)


def assert_as_evaluated(
    found: Any, likely: FloatArray, label: IntArray, opinions: FloatArray | None
) -> None:
    """As evaluate has it, of the rows themselves."""
    expected = evaluate_class_rows(likely, label, opinions=opinions)
    assert found.n == expected.n
    names = "accuracy ece mce ace cece uce_entropy cuce nll brier entropy ccqs ucqs aleatoric"
    for name in (*names.split(), "sharpness", "confidence_skewness", "entropy_skewness"):
        wanted = pytest.approx(getattr(expected, name), rel=1e-8, abs=1e-11, nan_ok=True)
        assert getattr(found, name) == wanted, name


def test_frames_without_a_recalibrator_count_at_both_stages_as_sent():
    pipeline = running(CLASS_IDENTITY, ListJournal())
    came(pipeline, 0, inline=True)
    held = stages_of(pipeline)
    assert held.recalibrated is held.raw
    version = pipeline.recalibrators.learn(WARM.to_json()).version
    pipeline.activate(version)
    came(pipeline, 1, inline=True)
    both, alone = stages_of(pipeline), running(WARM, ListJournal())
    came(alone, 1, inline=True)
    laws.assert_same(both.raw, held.raw.merge(stages_of(alone).raw))
    laws.assert_same(both.recalibrated, held.raw.merge(stages_of(alone).recalibrated))
    reading = read_class_slice("lidar", both)
    assert list(reading.shown) == ["raw", "recalibrated"]


def test_what_only_rejects_or_was_fitted_on_other_classes_changes_nothing():
    rejects = ClassSelection(CLASSES, CLASS_IDENTITY.recalibrator, rejection(RejectedBy.ENTROPY, 0))
    others = ClassSelection(("a", "b", "c"), Temperature(2.0))
    for classes in (rejects, others):
        pipeline = running(classes, ListJournal())
        came(pipeline, 0, inline=True)
        held = stages_of(pipeline)
        assert held.recalibrated is held.raw


def test_frames_weigh_what_was_made_of_them():
    weights = []
    for classes in (CLASS_IDENTITY, WARM):
        pipeline = recalibrating(classes)
        came(pipeline, 0)
        pipeline.remember_answered()
        weights.append(pipeline.ledger.fates.store.bytes)
    assert weights[1] - weights[0] == 8 * ROWS * len(CLASSES)
