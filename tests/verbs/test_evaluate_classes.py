"""The part of `evaluate` for class probabilities: both engines, and the table."""

from dataclasses import replace

import numpy as np
import pytest

from monitor.commands.evaluate import class_table, evaluate_classes
from monitor.statistics.class_evaluation import AUSE
from monitor.statistics.evaluation import EvaluationError
from monitor.store.class_recordings import ClassRecording


@pytest.fixture
def recording():
    random = np.random.default_rng(3)
    opinions = random.dirichlet(np.full(4, 0.5), size=(300, 3))
    probabilities = opinions.mean(axis=1)
    label = (probabilities.cumsum(axis=1) > random.random((300, 1))).argmax(axis=1)
    label[:7] = -1
    label[7:9] = 4
    probabilities[9, 0] = np.nan
    return ClassRecording(probabilities, label, opinions, gaussians=False)


@pytest.mark.parametrize("engine", ["exact", "streaming"])
def test_what_is_left_out_is_counted(recording, engine):
    found = evaluate_classes(recording, engine=engine, bins=20)
    assert (found.n, found.without_truth, found.refused) == (290, 7, 3)
    assert found.opinions == 290


@pytest.mark.parametrize("bins", [10, 15, 20])
def test_both_engines_agree(recording, bins):
    exact = evaluate_classes(recording, engine="exact", bins=bins)
    streamed = evaluate_classes(recording, engine="streaming", bins=bins)
    for name in ("ece", "mce", "ace", "cece", "uce_entropy", "cuce", "nll", "brier", "epistemic"):
        assert getattr(streamed, name) == pytest.approx(getattr(exact, name), rel=1e-9), name
    for i, name in enumerate(AUSE):
        difference = abs(getattr(streamed, name) - getattr(exact, name))
        assert difference <= streamed.ause_bound[i]


def test_bins_of_equal_count_are_those_of_the_rows(recording):
    found = evaluate_classes(recording, engine="exact", bins=10, binning="equal-count")
    assert found.counts_confidence.sum() == 290
    assert found.counts_confidence.max() - found.counts_confidence.min() <= 1
    width = evaluate_classes(recording, engine="exact", bins=10)
    assert found.ece != width.ece and found.ccqs == width.ccqs


@pytest.mark.parametrize(
    ("bins", "named"),
    [
        ({"bins": 25}, "--class-bins 25: .* Use one of 1, 2, .* 60, or --engine exact"),
        ({"bins": 20, "binning": "equal-count"}, "--class-binning equal-count .* --engine exact"),
    ],
)
def test_bins_that_cut_micro_bins_are_refused_with_a_remedy(recording, bins, named):
    with pytest.raises(EvaluationError, match=named):
        evaluate_classes(recording, engine="streaming", **bins)
    assert evaluate_classes(recording, engine="exact", **bins).n == 290


@pytest.mark.parametrize("engine", ["exact", "streaming"])
def test_nothing_to_evaluate_is_an_error(recording, engine):
    unlabelled = replace(recording, label=np.full(300, -1))
    with pytest.raises(EvaluationError, match="of 300 rows, 300 have no true class and 0"):
        evaluate_classes(unlabelled, engine=engine, bins=20)


def test_the_table_names_every_measure(recording):
    evaluation = evaluate_classes(recording, engine="exact", bins=20)
    table = class_table(evaluation)
    assert table.startswith("290 rows with a true class of 4, 7 without, 3 refused")
    for head in ("ECE", "cECE", "UCE", "cUCE", "CCQS", "UCQS", "AUSE by", "variation ratio", "NLL"):
        assert head in table
    assert f"{evaluation.ece:.4g}" in table and f"{evaluation.ause_brier_entropy:.4g}" in table
    assert " at 75%" in table
    assert max(map(len, table.splitlines())) <= 100
