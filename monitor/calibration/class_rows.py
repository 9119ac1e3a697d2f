"""What is asked of each row of class probabilities once its true class is known.

Both engines begin here, so that they refuse the same rows and mean the same by every number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import entr

from monitor.calibration.cholesky import add_up
from monitor.calibration.class_opinions import BEYOND, OFF_ONE
from monitor.calibration.evaluation import EvaluationError
from monitor.calibration.space import BoolArray, FloatArray, IntArray

# The true class of a row without truth.
NO_TRUTH = -1
# The smallest positive float32: −log p stays finite, at most 103.3 nats.
SMALLEST = 2.0**-149


@dataclass(frozen=True, slots=True)
class ClassRows:
    """N rows with truth and a usable probability vector over C classes.

    probabilities  (C, N), in [0, 1]
    label          (N,) the true class
    predicted      (N,) the most likely class; the first of several
    right          (N,) whether they agree
    confidence     (N,) probability of the predicted class
    entropy        (N,) Shannon entropy over log C, in [0, 1]; Wolf et al. 2024, eq. 4
    cross_entropy  (N,) −log of the true class's probability, in nats
    brier          (N,) squared distance to the true one-hot vector, in [0, 2]
    aleatoric      (N,) mean entropy of the opinions over log C; None without opinions
    epistemic      (N,) entropy of their mean over log C, less aleatoric; None without
    without_truth  rows left out because their label is −1
    refused        rows left out because of their probabilities or another label
    """

    probabilities: FloatArray
    label: IntArray
    predicted: IntArray
    right: BoolArray
    confidence: FloatArray
    entropy: FloatArray
    cross_entropy: FloatArray
    brier: FloatArray
    aleatoric: FloatArray | None
    epistemic: FloatArray | None
    without_truth: int
    refused: int

    @property
    def n(self) -> int:
        """Rows."""
        return int(self.label.size)

    @property
    def classes(self) -> int:
        """C."""
        return int(self.probabilities.shape[0])


def judge_rows(
    probabilities: FloatArray, label: IntArray, opinions: FloatArray | None = None
) -> ClassRows:
    """The rows that have truth and are sound.

    A vector is sound if each value lies in [0, 1] to BEYOND and they add up to 1 to OFF_ONE,
    the rules of usable_opinions; a row needs all its opinions sound.

    probabilities  (N, C), C at least 2
    label          (N,) in 0 … C − 1, NO_TRUTH where there is none
    opinions       (N, M, C) whose mean the probabilities are
    raises         EvaluationError when shapes do not fit
    """
    _check_shapes(probabilities, label, opinions)
    n, classes = probabilities.shape
    columns = np.ascontiguousarray(probabilities.T, np.float64)
    labelled = label != NO_TRUTH
    usable = labelled & (label >= 0) & (label < classes) & _sound(columns)
    each = None
    if opinions is not None:
        each = np.ascontiguousarray(opinions.transpose(1, 2, 0), np.float64)
        for opinion in each:
            usable &= _sound(opinion)
    if not usable.all():
        columns, label = columns[:, usable], label[usable]
        each = None if each is None else each[:, :, usable]
    columns = columns.clip(0.0, 1.0)
    rows = np.arange(label.size)
    predicted = columns.argmax(axis=0)
    true = columns[label, rows]
    distance = columns.copy()
    distance[label, rows] -= 1.0
    aleatoric, epistemic = (None, None) if each is None else _parts(each.clip(0.0, 1.0))
    return ClassRows(
        probabilities=columns,
        label=label,
        predicted=predicted,
        right=predicted == label,
        confidence=columns[predicted, rows],
        entropy=entropy_of_columns(columns),
        cross_entropy=-np.log(np.maximum(true, SMALLEST)),
        brier=add_up(np.square(distance)),
        aleatoric=aleatoric,
        epistemic=epistemic,
        without_truth=n - int(np.count_nonzero(labelled)),
        refused=int(np.count_nonzero(labelled)) - label.size,
    )


def _check_shapes(probabilities: FloatArray, label: IntArray, opinions: FloatArray | None) -> None:
    shape = probabilities.shape
    if len(shape) != 2 or shape[1] < 2:
        raise EvaluationError(
            f"probabilities have shape {shape}. Give [N, C], a probability for each of at least "
            "two classes; a binary classifier has two."
        )
    if label.shape != shape[:1]:
        raise EvaluationError(
            f"label has shape {label.shape}, but probabilities {shape}. Give one label a row."
        )
    if opinions is not None and (
        opinions.ndim != 3 or opinions.shape[::2] != shape or opinions.shape[1] == 0
    ):
        raise EvaluationError(
            f"opinions have shape {opinions.shape}, but probabilities {shape}. "
            f"Give [{shape[0]}, M, {shape[1]}], M at least 1."
        )


def _sound(columns: FloatArray) -> BoolArray:
    """(N,) which vectors of (C, N) are probabilities; NaN fails every comparison."""
    with np.errstate(invalid="ignore", over="ignore"):
        sound: BoolArray = np.abs(add_up(columns) - 1.0) <= OFF_ONE
        sound &= columns.min(axis=0) >= -BEYOND
        sound &= columns.max(axis=0) <= 1.0 + BEYOND
    return sound


def entropy_of_columns(columns: FloatArray) -> FloatArray:
    """(N,) entropy of (C, N) over log C, in [0, 1]; NaN stays.

    source   Laves et al. 2019, eq. 3
    """
    entropy: FloatArray = add_up(entr(columns)) / np.log(columns.shape[0])
    # A sum a little off 1 must not lead out of [0, 1].
    return np.minimum(entropy, 1.0)


def _parts(each: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Aleatoric and epistemic part of the entropy of (M, C, N) opinions.

    H[mean of p_m] = mean of H[p_m] + mean of KL[p_m ‖ mean of p_m]

    source   Wolf et al. 2024, eq. 10, over log C as eq. 4
    """
    aleatoric = add_up(np.stack([entropy_of_columns(opinion) for opinion in each])) / each.shape[0]
    whole = entropy_of_columns(add_up(each) / each.shape[0])
    return aleatoric, np.maximum(whole - aleatoric, 0.0)
