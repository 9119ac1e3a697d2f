"""Channels: what is looked at of the errors of a second of a track, each a level of its own.

The joint NEES says that something is wrong; a channel says what. There is one for the NEES as a
whole, and for each dimension one of its scale, one of its bias and one of how it hangs together
with the dimensions before it. All levels are means over the detections of a second, and vary from
track to track and from second to second as levels.py says.

With z the errors in stated deviations, and u the same whitened by the stated covariance, each
dimension given those before it:

    joint, scale    ln e, ln(z² + 1/20)
                                      off by a factor on the variance: its ln, or a little less
    bias            z, cut            off by as many stated deviations
    correlation     2 where |u| > |z|, −2 where it is less, 0 where they are equal
                                      above 0 where the correlation that is stated is not there, or
                                      has the other sign; below it where there is more than stated

Where the stated correlations are true, z and u may be exchanged, so that the last has a mean of 0
and varies alike whatever the scale of the errors and the stated correlation are. Levels are bounded
or grow as a logarithm does, so that no outlier decides alone.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from monitor.frames.space import FloatArray, IntArray, read_only

# Dimensions with channels of their own, the first of the joint block: a box and its velocity have
# eight. Further ones count in the joint NEES alone.
MOST_NAMED = 8

# Places of the channels: NEES against what is usual, and against what is shipped; then those of
# each dimension.
JOINT, SHIPPED, SCALES = 0, 1, 2
BIASES = SCALES + MOST_NAMED
CORRELATIONS = BIASES + MOST_NAMED
CHANNELS = CORRELATIONS + MOST_NAMED

# Added to z²: ln z² of a Gaussian has a variance of 4.9 and a long tail to the left, since errors
# near 0 say little of the scale; so it is symmetric, its variance is 1.8, and a factor of 10 moves
# it by 1.96 in place of 2.30.
_SMALL_SQUARE = 0.05

# Its mean of a Gaussian.
GAUSSIAN_SCALE = -0.7559

# Errors beyond count as if they were so many stated deviations off.
_MOST_BIAS = 4.0

# Levels of correlations are so many times a sign, to lie on the scale of the others.
_CORRELATED = 2.0

# A detection that meets its truth exactly says no more than one that nearly does: ln 0 would
# outweigh the rest of its second. At K = 1, E max(ln e, ln 1e-6) exceeds E ln e by 0.0016.
_SMALLEST_NEES = 1e-6


@cache
def channels(k: int) -> IntArray:
    """Lists the channels that there are of a joint block of K dimensions, ascending.

    In one dimension the scale is that of the NEES; the first has none before it.
    """
    named = min(k, MOST_NAMED)
    scales = [SCALES + i for i in range(named)] if named > 1 else []
    biases = [BIASES + i for i in range(named)]
    correlations = [CORRELATIONS + i for i in range(1, named)]
    return read_only(np.array([JOINT, SHIPPED, *scales, *biases, *correlations], np.int64))


@cache
def degrees_of(k: int) -> FloatArray:
    """Returns the degrees of freedom of channels that are a mean ln NEES, (CHANNELS + MOST_NAMED,).

    0 of the others, and of what comes after the channels, which may be asked for as well.
    """
    found = np.zeros(CHANNELS + MOST_NAMED)
    found[:SCALES] = k
    return read_only(found)


def observed(nees: FloatArray, z: FloatArray, u: FloatArray) -> FloatArray:
    """Returns what each channel of channels(k) sees of n detections, (channels, n).

    nees  (n,) of all dimensions
    z, u  (D, n) of the first D = min(K, MOST_NAMED) of them
    """
    joint = np.log(np.maximum(nees, _SMALLEST_NEES))
    parts = [joint[None], joint[None]]
    square = np.square(z)
    if len(z) > 1:
        parts.append(np.log(square + _SMALL_SQUARE))
    parts.append(np.clip(z, -_MOST_BIAS, _MOST_BIAS))
    if len(z) > 1:
        parts.append(_CORRELATED * np.sign(np.square(u[1:]) - square[1:]))
    return np.concatenate(parts)
