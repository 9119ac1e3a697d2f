"""Scalings of the log-probabilities of classes, from one factor to a small network.

Temperature scaling has one factor for all of them, vector scaling a weight and a bias of each class
(both Guo et al. 2017, section 4.2). In auxiliary scaling a small network corrects what vector
scaling leaves (Laves et al. 2019).

Each but the first is fitted with weight decay towards the simpler one before it; inner validation
says how strong the decay is.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Interval, Len

from monitor.frames.space import FloatArray
from monitor.recalibration.class_probabilities import (
    LARGEST,
    ClassRecalibrator,
    ClassRows,
    as_columns,
    averaged_loss,
)
from monitor.recalibration.fit_rows import descend
from monitor.recalibration.recalibrator import UnfitData, as_matrix

# No temperature that is fitted is beyond these.
COLDEST, HOTTEST = 0.01, 100.0

# Steps of log T of a factor of 1.5 or so, among which the optimum is searched.
_STEPS = 24

# A weight of 0 or less would turn a class upside down.
LEAST_WEIGHT, LARGEST_WEIGHT = 1e-5, 1e5
_Weight = Annotated[float, Interval(ge=LEAST_WEIGHT, le=LARGEST_WEIGHT)]
_Number = Annotated[float, Interval(ge=-LARGEST, le=LARGEST)]
_Numbers = tuple[_Number, ...]

# The slope of the leaky ReLU below 0.
_LEAK = 0.01

# Hidden units are as many as classes, but of many classes a few tell as much in a tenth the time.
_MOST_HIDDEN = 32

# Hidden units of a document at most: the time of a frame grows with them.
_MOST_SERVED = 1024

# The spread of a class whose probability hardly changes; what it tells is not made larger.
_LEAST_SPREAD = 1e-3
_Spread = Annotated[float, Interval(ge=_LEAST_SPREAD, le=LARGEST)]

# Strengths of the decay, from strong to weak. In rows: with the likelihood's sum it is a Gaussian
# prior of variance 1/strength, so that it means the same for any number of rows.
DECAYS = (1000.0, 100.0, 10.0, 1.0)
FOLDS = 5
DOUBT = 2.0


@dataclass(frozen=True, slots=True)
class Temperature(ClassRecalibrator):
    """p̂ = softmax(log p / T), of any number of classes; the most likely class stays so.

    temperature  T; above 1 the detector is too sure of itself
    source       Guo et al. 2017, eq. 9; for several opinions Laves et al. 2019, eq. 25
    """

    temperature: Annotated[float, Interval(ge=1 / LARGEST, le=LARGEST)]
    method: ClassVar[str] = "temperature"

    def scores(self, columns: FloatArray) -> FloatArray:
        """Divides all by the temperature."""
        columns /= self.temperature
        return columns


def fit_temperature(rows: ClassRows) -> Temperature:
    """Fits the T of least loss, to about 1e-10.

    Raises UnfitData where the rows do not determine it: the loss then falls to one end.
    """
    return Temperature(1.0 / inverse_temperature(rows.ordered()))


def inverse_temperature(rows: ClassRows) -> float:
    """Finds the 1/T of least loss: a root of its derivative. See fit_temperature."""
    # Half a second to import, and only a fit needs it.
    from scipy.optimize import brentq

    def loss_and_slope(log_inverse: float) -> tuple[float, float]:
        scores = np.exp(log_inverse) * rows.columns
        loss, by_score = averaged_loss(scores, rows.label)
        return float(loss.mean()), float((by_score * scores).sum())

    grid = np.linspace(-np.log(HOTTEST), -np.log(COLDEST), _STEPS)
    loss, slope = np.array([loss_and_slope(at) for at in grid]).T
    # With one opinion the loss is convex in 1/T. With several it need not be: where the slope
    # turns from falling to rising there is a minimum, and the lowest of them is taken.
    turns = np.flatnonzero((slope[:-1] < 0) & (slope[1:] >= 0))
    if turns.size == 0 or min(loss[0], loss[-1]) <= loss.min():
        way = (
            f"higher the temperature, beyond {HOTTEST:g}: the probabilities say nothing of their "
            "true classes. Check that labels number the classes in the order of the probabilities."
            if loss[0] <= loss[-1]
            else f"lower the temperature, below {COLDEST:g}: the most likely class is always the "
            "true one. Add rows in which it is not."
        )
        raise UnfitData(f"{rows.n} rows are the likelier the {way}")
    step = turns[np.argmin(np.minimum(loss[turns], loss[turns + 1]))]
    root = brentq(
        lambda log_inverse: loss_and_slope(log_inverse)[1], grid[step], grid[step + 1], xtol=1e-13
    )
    return float(np.exp(root))


@dataclass(frozen=True, slots=True)
class VectorScaling(ClassRecalibrator):
    """p̂ = softmax(w log p + b); the most likely class may change.

    weight, bias  (C,) w > 0 and b, of which only differences matter
    source        Guo et al. 2017, section 4.2; Laves et al. 2019, eq. 26, which has no bias
    """

    weight: Annotated[tuple[_Weight, ...], Len(2)]
    bias: _Numbers
    method: ClassVar[str] = "vector-scaling"

    def __post_init__(self) -> None:
        self.check_entries(("bias",), self.classes, "weight")

    @property
    def classes(self) -> int:
        """C."""
        return len(self.weight)

    def scores(self, columns: FloatArray) -> FloatArray:
        """Weighs each class, and adds its bias."""
        columns *= np.array(self.weight)[:, None]
        columns += np.array(self.bias)[:, None]
        return columns


@dataclass(frozen=True, slots=True)
class VectorFamily:
    """s = λ (1 + d) log p + b, the parameters d and b: temperature scaling where they are 0."""

    inverse_temperature: float
    classes: int

    @property
    def bounds(self) -> FloatArray:
        """Lowest and highest value of each parameter, (2 C, 2): weights stay positive."""
        lowest = np.repeat([0.01 - 1.0, -100.0], self.classes)
        return np.stack([lowest, np.full(2 * self.classes, 100.0)], axis=1)

    def weight(self, parameters: FloatArray) -> FloatArray:
        """(C,) λ (1 + d)."""
        return self.inverse_temperature * (1.0 + parameters[: self.classes])

    def scores(self, parameters: FloatArray, columns: FloatArray) -> FloatArray:
        """Scores of log-probabilities (C, N), (C, N)."""
        bias = parameters[self.classes :]
        return self.weight(parameters)[:, None] * columns + bias[:, None]

    def slope(
        self, parameters: FloatArray, columns: FloatArray, by_score: FloatArray
    ) -> FloatArray:
        """Derivative of a loss by the parameters, (2 C,), from that by the scores (C, N)."""
        by_weight = self.inverse_temperature * (by_score * columns).sum(axis=1)
        return np.append(by_weight, by_score.sum(axis=1))


def fit_vector_scaling(rows: ClassRows) -> VectorScaling:
    """Fits weights and biases of least loss, with decay towards one temperature; see fit_family.

    Raises UnfitData where the temperature is not determined, with rows of a single class, and
    with too few to leave some out.
    """
    first = int(rows.label[0])
    if np.all(rows.label == first):
        raise UnfitData(
            f"all {rows.n} rows are of class {first}: parameters of single classes need rows of "
            "others. Use temperature, or more data."
        )
    ordered = rows.ordered()
    family = VectorFamily(inverse_temperature(ordered), rows.classes)
    found = fit_family(family, ordered)
    return VectorScaling(
        tuple(family.weight(found).tolist()), tuple(found[rows.classes :].tolist())
    )


@dataclass(frozen=True)
class AuxiliaryScaling(VectorScaling):
    """p̂ = softmax(w log p + b + W₂ φ(W₁ u + b₁)), φ a leaky ReLU; the top class may change.

    u is log p of each class less `centre`, over `spread`, and clipped to what the fit has seen:
    beyond, the network adds a constant, and the weights rule.

    weight, bias    (C,) w > 0 and b
    centre, spread  (C,)
    lowest, highest (C,) u in the fit
    hidden          (H, C) W₁, a row for each of H hidden units
    hidden_bias     (H,) b₁
    output          (C, H) W₂
    source          Laves et al. 2019, eq. 27. Theirs has no term w log p, and begins with both
                    matrices at 1, which is not the identity: the leaky ReLU shrinks what is
                    negative, and all log-probabilities are
    """

    centre: _Numbers
    spread: tuple[_Spread, ...]
    lowest: _Numbers
    highest: _Numbers
    hidden: tuple[_Numbers, ...]
    hidden_bias: Annotated[_Numbers, Len(1, _MOST_SERVED)]
    output: tuple[_Numbers, ...]
    method: ClassVar[str] = "auxiliary-scaling"

    def __post_init__(self) -> None:
        super().__post_init__()
        classes, units = self.classes, len(self.hidden_bias)
        self.check_entries(("centre", "spread", "lowest", "highest"), classes, "weight")
        self.check_lengths("hidden", self.hidden, [classes] * units, "hidden_bias")
        self.check_lengths("output", self.output, [units] * classes, "hidden_bias")

    def scores(self, columns: FloatArray) -> FloatArray:
        """Weighs each class, and adds its bias and what the network says."""
        weight, bias, centre, spread, lowest, highest, hidden, hidden_bias, output = self._arrays
        rows = np.ascontiguousarray(columns.T)[:, None]
        u = np.clip((rows - centre) / spread, lowest, highest)
        # A product of its own for each opinion: BLAS rounds by shape.
        correction = _leaky(u @ hidden + hidden_bias) @ output
        return as_columns(rows * weight + (bias + correction))

    @cached_property
    def _arrays(self) -> tuple[FloatArray, ...]:
        """Arrays of all fields, in their order; W₁ and W₂ transposed."""
        return tuple(np.array(getattr(self, entry.name)).T.copy() for entry in fields(self))


def _leaky(values: FloatArray) -> FloatArray:
    return np.maximum(values, _LEAK * values)


@dataclass(frozen=True, eq=False, slots=True)
class NetworkFamily:
    """The network as differences from a drawn W₁ and from 0: vector scaling where all are 0.

    weight, bias    (C, 1) of vector scaling
    centre, spread  (C, 1)
    drawn           (H, C)
    """

    weight: FloatArray
    bias: FloatArray
    centre: FloatArray
    spread: FloatArray
    drawn: FloatArray

    @property
    def bounds(self) -> FloatArray:
        """Lowest and highest value of each parameter, (P, 2) with P = H (C + 1) + C (H + 1)."""
        units, classes = self.drawn.shape
        return np.tile([-100.0, 100.0], (units * (2 * classes + 1) + classes, 1))

    def network(
        self, parameters: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """W₁ (H, C), b₁ (H, 1), W₂ (C, H) and what is added to the bias (C, 1)."""
        units, classes = self.drawn.shape
        first, second = np.split(parameters, [units * (classes + 1)])
        first, second = first.reshape(units, -1), second.reshape(classes, -1)
        return self.drawn + first[:, 1:], first[:, :1], second[:, 1:], second[:, :1]

    def scores(self, parameters: FloatArray, columns: FloatArray) -> FloatArray:
        """Scores of log-probabilities (C, N), (C, N)."""
        hidden, hidden_bias, output, bias = self.network(parameters)
        active = _leaky(hidden @ self.standard(columns) + hidden_bias)
        return self.weight * columns + (output @ active + (self.bias + bias))

    def slope(
        self, parameters: FloatArray, columns: FloatArray, by_score: FloatArray
    ) -> FloatArray:
        """Derivative of a loss by the parameters, (P,), from that by the scores (C, N)."""
        hidden, hidden_bias, output, _ = self.network(parameters)
        u = self.standard(columns)
        unit = hidden @ u + hidden_bias
        by_unit = (output.T @ by_score) * np.where(unit > 0, 1.0, _LEAK)
        first = np.column_stack([by_unit.sum(axis=1), by_unit @ u.T])
        second = np.column_stack([by_score.sum(axis=1), by_score @ _leaky(unit).T])
        return np.append(first.ravel(), second.ravel())

    def standard(self, columns: FloatArray) -> FloatArray:
        """u of log-probabilities, both (C, N)."""
        return (columns - self.centre) / self.spread


def fit_auxiliary_scaling(rows: ClassRows) -> AuxiliaryScaling:
    """Fits the network of least loss, with decay towards vector scaling; see fit_family.

    Without decay it overfits, as the paper reports of 100 classes. And as vector scaling itself
    is pulled to temperature scaling, it is that as long as the rows do not speak against it.

    Raises UnfitData where the temperature is not determined, with rows of a single class, and
    with too few to leave some out.
    """
    vector = fit_vector_scaling(rows)
    ordered = rows.ordered()
    columns, classes = ordered.columns, rows.classes
    units = min(classes, _MOST_HIDDEN)
    # What goes into a hidden unit then varies about as much as a class does.
    drawn = np.random.default_rng(0).normal(0.0, 1 / np.sqrt(classes), (units, classes))
    family = NetworkFamily(
        weight=np.array(vector.weight)[:, None],
        bias=np.array(vector.bias)[:, None],
        centre=columns.mean(axis=1, keepdims=True),
        spread=np.maximum(columns.std(axis=1, keepdims=True), _LEAST_SPREAD),
        drawn=drawn,
    )
    hidden, hidden_bias, output, bias = family.network(fit_family(family, ordered))
    u = family.standard(columns)
    return AuxiliaryScaling(
        weight=vector.weight,
        bias=tuple((family.bias + bias)[:, 0].tolist()),
        centre=tuple(family.centre[:, 0].tolist()),
        spread=tuple(family.spread[:, 0].tolist()),
        lowest=tuple(u.min(axis=1).tolist()),
        highest=tuple(u.max(axis=1).tolist()),
        hidden=as_matrix(hidden),
        hidden_bias=tuple(hidden_bias[:, 0].tolist()),
        output=as_matrix(output),
    )


# Maps of log-probabilities to scores, by P parameters; the simpler family where all are 0.
Family = VectorFamily | NetworkFamily


def fit_family(family: Family, rows: ClassRows) -> FloatArray:
    """Finds the θ (P,) that minimises Σ_i loss_i + decay/2 |θ|², the decay chosen among DECAYS.

    Weaker and weaker decay is tried, each on all but one of FOLDS parts of the rows, until two in
    a row do not lower the loss of the parts left out. Of those tried the strongest is taken that
    is not worse than the best by more than DOUBT standard errors of their difference. That may be
    no θ at all: the larger family is used only where the rows show that it must be.

    source  the one-standard-error rule: Hastie et al. 2009, section 7.10; with two, none of 80
            simulated sets of one temperature was given more
    raises  UnfitData with too few rows or tracks to leave a part out
    """
    losses = _held_out_losses(family, rows)
    excess = np.array(losses) - min(losses, key=lambda loss: float(loss.mean()))
    doubt = DOUBT * excess.std(axis=1) / np.sqrt(rows.n * rows.weight)
    # The first that does not lose to the best by more than chance.
    chosen = int(np.flatnonzero(excess.mean(axis=1) <= doubt)[0])
    parameters = np.zeros(len(family.bounds))
    for decay in DECAYS[:chosen]:
        parameters = _descend(family, rows, decay, parameters)
    return parameters


def _held_out_losses(family: Family, rows: ClassRows) -> list[FloatArray]:
    """(n,) each: of every row by a fit without its part; of the simpler family, then by DECAYS."""
    fold = rows.fold(FOLDS)
    if np.unique(fold).size < FOLDS:
        raise UnfitData(
            f"{rows.n} rows are too few to leave out one of {FOLDS} parts for validation. Use "
            "temperature, or rows of more objects."
        )
    inside = [rows.take(np.flatnonzero(fold != part)) for part in range(FOLDS)]
    outside = [np.flatnonzero(fold == part) for part in range(FOLDS)]

    def left_out(found: list[FloatArray]) -> FloatArray:
        loss = np.empty(rows.n)
        for part, parameters in zip(outside, found, strict=True):
            some = rows.take(part)
            loss[part], _ = averaged_loss(family.scores(parameters, some.columns), some.label)
        return loss

    found = [np.zeros(len(family.bounds))] * FOLDS
    losses = [left_out(found)]
    for decay in DECAYS:
        found = [
            _descend(family, part, decay, start) for part, start in zip(inside, found, strict=True)
        ]
        losses.append(left_out(found))
        if np.argmin([loss.mean() for loss in losses]) < len(losses) - 2:
            break
    return losses


def _descend(family: Family, rows: ClassRows, decay: float, start: FloatArray) -> FloatArray:
    columns, label, n = rows.columns, rows.label, rows.n

    def objective(parameters: FloatArray) -> tuple[float, FloatArray]:
        loss, by_score = averaged_loss(family.scores(parameters, columns), label)
        slope = family.slope(parameters, columns, by_score)
        value = float(loss.sum()) + 0.5 * decay * float(parameters @ parameters)
        return value / n, (slope + decay * parameters) / n

    options = {"maxiter": 100, "maxcor": 20, "ftol": 1e-7, "gtol": 1e-6}
    return descend(objective, start, family.bounds, options)
