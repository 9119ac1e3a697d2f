"""What a fit to labels descends: the negative log-likelihood of averaged opinions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.calibration.space import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class AveragedLoss:
    """−log p(true class) of n rows, each with M opinions.

    value     (n,) in nats
    by_score  (C, n · M) derivative of the row's value by each score
    """

    value: FloatArray
    by_score: FloatArray


def averaged_loss(scores: FloatArray, label: IntArray) -> AveragedLoss:
    """The loss of p = 1/M Σ_m softmax(s_m), and its derivatives.

    −log p_y = log M − log Σ_m exp(log softmax(s_m)_y), and by s_mc: r_m (softmax(s_m)_c − [c = y])
    with r_m the share of opinion m in p_y. With M = 1 that is the usual cross-entropy.

    scores  (C, n · M), the opinions of a row side by side
    label   (n,) y
    source  Laves et al. 2019, eq. 25 and section 3.5
    """
    opinions = scores.shape[1] // label.size
    true, column = np.repeat(label, opinions), np.arange(scores.shape[1])
    shifted = scores - scores.max(axis=0)
    probability = np.exp(shifted)
    total = probability.sum(axis=0)
    probability /= total
    log_true = (shifted[true, column] - np.log(total)).reshape(label.size, opinions)
    largest = log_true.max(axis=1, keepdims=True)
    share = np.exp(log_true - largest)
    added = share.sum(axis=1, keepdims=True)
    share /= added
    value = np.log(opinions) - largest[:, 0] - np.log(added[:, 0])
    probability[true, column] -= 1.0
    if opinions > 1:
        probability *= share.ravel()
    return AveragedLoss(value, probability)
