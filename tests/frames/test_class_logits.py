"""Logits in place of class probabilities: which of them are looked at, and what becomes of them."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax as softmax_of

from monitor.frames import logits as logits_module
from monitor.frames.classes import MOST_VALUES
from monitor.frames.logits import with_softmax
from tests.piped_classes import probabilities, sent
from tests.received import Sent, frame


def of_logits(id: int, values: int) -> Sent:
    logits = tuple(np.random.default_rng(id).normal(size=values).tolist())
    return replace(sent(id, opinions=0), class_logits=logits)


@pytest.fixture
def looked_at(monkeypatch):
    """The sizes of all arrays whose softmax was taken."""
    sizes, softmax = [], logits_module.softmax

    def counting(logits):
        sizes.append(logits.size)
        return softmax(logits)

    monkeypatch.setattr(logits_module, "softmax", counting)
    return sizes


def test_logits_become_probabilities_at_no_more_cost_than_what_was_sent(looked_at):
    both = replace(of_logits(500, 3), class_probabilities=probabilities(1, 2))
    rows = [of_logits(0, 2046), *(of_logits(i, 3) for i in range(1, 400)), both, sent(3)]
    rows.append(sent(4, opinions=0))
    found = with_softmax(frame(rows), 3).detections.class_probabilities
    assert found is not None
    # Logits beside probabilities of their own are not looked at.
    assert looked_at == [2046 + 399 * 3]
    for row, values, length in zip(rows, *found, strict=True):
        expected = np.array(row.class_probabilities)
        if row.class_logits and not row.class_probabilities:
            expected = softmax_of(np.array(row.class_logits).reshape(-1, 3), axis=1).ravel()
        assert length == expected.size
        assert values[:length] == pytest.approx(expected, rel=1e-12)
        assert np.isnan(values[length:]).all()


@pytest.mark.parametrize("values", [2, 4, 0, MOST_VALUES + 1, 3 * MOST_VALUES])
def test_logits_that_make_no_whole_opinions_are_not_looked_at(looked_at, values):
    rows = [of_logits(1, values), of_logits(2, values)]
    found = with_softmax(frame(rows), 3).detections.class_probabilities
    assert not looked_at
    if values:
        assert found is not None
        assert found[1].tolist() == [values] * 2
        assert np.isnan(found[0]).all()
    with_softmax(frame([*rows, of_logits(3, 6)]), 3)
    assert looked_at == [6]
