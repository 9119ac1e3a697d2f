"""Every method there is, fitted and then in force in a sidecar: what it makes goes out whole."""

from functools import cache

import numpy as np
import pytest

from monitor.frames.detections import Estimates, Reason
from monitor.frames.frame import Header
from monitor.frames.space import plain_space
from monitor.pipeline.forwarding import OUTPUT_NUMBER
from monitor.recalibration.classes.class_selection import CLASS_FITS, CLASS_METHODS, ClassSelection
from monitor.recalibration.classes.probabilities import ClassIdentity, ClassRows, from_probabilities
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import FITTINGS, FitOptions
from monitor.recalibration.selection import METHODS, Selection
from tests.piped import opened, pipeline_of
from tests.received import FULL, VARIANCES, Sent, frame, in_form

XY = plain_space(("x", "y"), "m")
LEVELS = (0.01, 0.1, 0.5, 0.9, 0.99)
HEADER = Header("lidar", XY, ("car", "truck"), quantile_levels=LEVELS)


def estimates(seed: int, n: int, form: str = FULL) -> Estimates:
    random = np.random.default_rng(seed)
    root = np.tril(random.normal(size=(n, 2, 2)))
    root[:, [0, 1], [0, 1]] = np.exp(0.3 * random.normal(size=(n, 2)))
    covariance = root @ root.transpose(0, 2, 1)
    if form == VARIANCES:
        covariance *= np.eye(2)
    mean = random.uniform(-5, 5, size=(n, 2))
    return Estimates(mean, covariance, np.full(n, form == VARIANCES))


@cache
def fitted(method: str, form: str) -> Selection:
    """On 200 rows whose errors are heavier tailed and twice as large as they are said to be."""
    sent = estimates(1, 200, form)
    deviation = np.sqrt(np.diagonal(sent.covariance, axis1=1, axis2=2))
    error = 2 * deviation * np.random.default_rng(2).standard_t(4, size=(200, 2))
    rows = FitRows(XY, sent, error, np.full(200, -1), np.arange(200) / 10, np.zeros(200))
    return Selection(XY.names, FITTINGS[method].fit(rows, FitOptions(), None))


def detections(sent: Estimates, form: str) -> list[Sent]:
    pairs = zip(sent.mean, sent.covariance, strict=True)
    return [
        Sent(i, tuple(mean.tolist()), in_form(covariance, form), i % 2)
        for i, (mean, covariance) in enumerate(pairs)
    ]


@pytest.mark.parametrize("form", [VARIANCES, FULL])
@pytest.mark.parametrize("method", METHODS)
def test_what_a_method_makes_goes_out_with_its_own_quantiles(method, form):
    selection, sent = fitted(method, form), estimates(3, 20, form)
    pipeline = pipeline_of()
    pipeline.activate(pipeline.recalibrators.learn(selection.to_json()).version)
    answer = pipeline.process(opened(pipeline, HEADER), frame(detections(sent, form)))
    assert pipeline.counters.internal_errors == 0
    assert (answer.reason == Reason.NONE).all()
    made = selection.fallback.apply(sent)
    if answer.forwarded is not None:
        assert np.array_equal(answer.forwarded.mean, made.mean)
        assert np.array_equal(answer.forwarded.covariance, made.covariance)
    assert answer.extras is not None
    assert (answer.extras.output == OUTPUT_NUMBER[selection.fallback.output]).all()
    assert answer.extras.quantiles is not None
    quantiles = answer.extras.quantiles.reshape(20, 2, len(LEVELS))
    assert (np.diff(quantiles, axis=2) > 0).all()
    chains = [()] * len(pipeline.slices.chains)
    marginals = selection.marginals(sent, np.zeros(20, np.int64), chains)
    expected = marginals.quantiles(np.array(LEVELS)).transpose(1, 2, 0)
    assert quantiles == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_methods_of_several_shapes_serve_the_slices_of_one_frame():
    chosen = ("gp-cauchy", "isotonic-quantiles")
    cauchy, isotonic = (fitted(method, FULL).fallback for method in chosen)
    selection = Selection(XY.names, cauchy, {"truck": isotonic})
    sent = estimates(4, 20)
    pipeline = pipeline_of(selection)
    answer = pipeline.process(opened(pipeline, HEADER), frame(detections(sent, FULL)))
    assert pipeline.counters.internal_errors == 0
    assert answer.extras is not None
    assert answer.extras.output.tolist() == [3, 2] * 10
    assert answer.extras.quantiles is not None
    for i, one in enumerate((cauchy, isotonic)):
        part = Selection(XY.names, one)
        alone = pipeline_of(part)
        whole = alone.process(opened(alone, HEADER), frame(detections(sent, FULL)))
        assert whole.extras is not None
        assert whole.extras.quantiles is not None
        assert np.array_equal(answer.extras.quantiles[i::2], whole.extras.quantiles[i::2])


@pytest.mark.parametrize("method", CLASS_METHODS)
def test_what_a_method_makes_of_class_probabilities_goes_out(method):
    random = np.random.default_rng(5)
    opinions = random.dirichlet(np.full(3, 0.5), size=(400, 2))
    label = np.array([random.choice(3, p=0.5 * row[0] + 0.5 / 3) for row in opinions])
    rows = ClassRows(from_probabilities(opinions), label)
    classes = ClassSelection(("car", "truck", "bus"), CLASS_FITS[method](rows))
    pipeline = pipeline_of()
    pipeline.activate(pipeline.recalibrators.learn(classes.to_json()).version)
    sent = [
        Sent(i, (0.0, 0.0), (1.0, 1.0), 0, class_probabilities=tuple(row.ravel().tolist()))
        for i, row in enumerate(opinions[:20])
    ]
    header = Header("lidar", XY, classes.classes)
    answer = pipeline.process(opened(pipeline, header), frame(sent))
    assert pipeline.counters.internal_errors == 0
    assert answer.extras is not None
    if method == ClassIdentity.method:
        assert answer.extras.class_probabilities is None
        return
    expected = classes.apply(from_probabilities(opinions[:20])).mean(axis=1)
    assert answer.extras.class_probabilities == pytest.approx(expected, abs=1e-12)
    assert answer.extras.class_version == classes.version
