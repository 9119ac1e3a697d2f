"""Several processes, each with inputs of its own, served together: one pass over a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from monitor.calibration.space import FloatArray, IntArray
from monitor.recalibration.document import as_array, numbers, parts
from monitor.recalibration.processes.gp_inputs import Feature, FeatureKind, Inputs
from monitor.recalibration.processes.kernels import KernelForm, NormalisedKernel
from monitor.recalibration.processes.sparse_process import SparseProcess, in_blocks
from monitor.recalibration.recalibrator import Document, Estimates, InvalidRecalibrator

# Latent values of documents: e^±100 is beyond every unit.
LARGEST = 100.0
# Beyond what a fit says of its own rows, the log of a factor goes by a factor of two at most.
MARGIN = float(np.log(2.0))


@dataclass(frozen=True)
class LatentStack:
    """J latent values of each estimate, the outputs of all processes one after the other.

    inputs     of each process
    processes  as many
    low, high  (J,) what is served lies between, whatever the processes say
    """

    inputs: tuple[Inputs, ...]
    processes: tuple[SparseProcess, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def outputs(self) -> int:
        """J."""
        return len(self.low)

    def means(self, estimates: Estimates) -> FloatArray:
        """(J, n) E[f], between low and high."""
        compiled = self._compiled
        mean = self.at(estimates)[0] if compiled is None else compiled.means(estimates)
        return self._limited(mean)

    def log_expectations(self, estimates: Estimates) -> FloatArray:
        """(J, n) log E[e^f] = mean + variance/2, between low and high."""
        mean, variance = self.at(estimates)
        variance *= 0.5
        mean += variance
        return self._limited(mean)

    def at(self, estimates: Estimates) -> tuple[FloatArray, FloatArray]:
        """Mean and variance (J, n) as the processes have them; each estimate by itself."""
        if self._compiled is not None:
            return self._compiled.at(estimates)
        parts = [
            process.at(inputs.of(estimates))
            for inputs, process in zip(self.inputs, self.processes, strict=True)
        ]
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    def _limited(self, values: FloatArray) -> FloatArray:
        low, high = self._range
        return np.clip(values, low, high, out=values)

    @cached_property
    def _range(self) -> tuple[FloatArray, FloatArray]:
        return np.array(self.low)[:, None], np.array(self.high)[:, None]

    @cached_property
    def _compiled(self) -> _Compiled | None:
        """None where a kernel is not the normalised one."""
        kernels = [kernel for process in self.processes for kernel in process.kernels]
        if not all(isinstance(kernel, NormalisedKernel) for kernel in kernels):
            return None
        return _compile(self.inputs, self.processes)

    def parameters(self) -> Document:
        """All fields, as JSON values."""
        return {
            "processes": [
                {**inputs.parameters(), **process.parameters()}
                for inputs, process in zip(self.inputs, self.processes, strict=True)
            ],
            "low": list(self.low),
            "high": list(self.high),
        }

    @classmethod
    def from_parameters(cls, parameters: Document, k: int) -> LatentStack:
        """The inverse of parameters, of estimates of k dimensions; raises InvalidRecalibrator."""
        inputs, processes = [], []
        for i, part in enumerate(parts(parameters, "processes")):
            try:
                inputs.append(Inputs.from_parameters(part, k))
                processes.append(SparseProcess.from_parameters(part))
            except InvalidRecalibrator as error:
                raise InvalidRecalibrator(f"in 'processes' at {i}: {error}") from None
            if processes[i].latents:
                _check_points(i, inputs[i], processes[i])
        outputs = sum(process.outputs for process in processes)
        low, high = (
            numbers(parameters, name, outputs, -LARGEST, LARGEST) for name in ("low", "high")
        )
        for a, b in zip(low, high, strict=True):
            if a > b:
                raise InvalidRecalibrator(f"'low' {a} and 'high' {b}: they must be in order.")
        return cls(tuple(inputs), tuple(processes), low, high)


def _check_points(i: int, inputs: Inputs, process: SparseProcess) -> None:
    """Raises InvalidRecalibrator where the inputs do not make points of the process."""
    count = len(inputs.features)
    if count != process.width:
        raise InvalidRecalibrator(
            f"'processes' at {i} has {count} features in 'inputs' and points of {process.width} "
            "in 'inducing': there must be as many."
        )
    if process.form is KernelForm.PAPER and any(
        feature.kind is not FeatureKind.VARIANCE or feature.low < feature.centre
        for feature in inputs.features[count // 2 :]
    ):
        raise InvalidRecalibrator(
            f"'processes' at {i} has the kernel '{process.form}': the second half of its 'inputs' "
            "must be variances, not below their centre."
        )


def stack_of(
    fitted: Sequence[tuple[Inputs, SparseProcess]],
    estimates: Estimates,
    margin: float,
    *,
    expectations: bool = False,
) -> LatentStack:
    """Fitted processes, limited to what they say of the estimates they were fitted on.

    margin        by how much more, in units of the latents
    expectations  whether log_expectations are served, and no means
    """
    inputs, processes = zip(*fitted, strict=True)
    low, high = [], []
    for one, process in fitted:
        served, variance = process.at(one.of(estimates))
        if expectations:
            served += 0.5 * variance
        ends = served.min(axis=1) - margin, served.max(axis=1) + margin
        bounded = np.clip(ends, -LARGEST, LARGEST)
        low += bounded[0].tolist()
        high += bounded[1].tolist()
    return LatentStack(inputs, processes, tuple(low), tuple(high))


@dataclass(frozen=True, slots=True)
class _Compiled:
    """All latents of normalised kernels as few products: with x the union of the features,
    log k = x W + x² V + b.

    inputs     the union of features, F
    linear     (F, L M) W, zero where a process does not look; M points a latent, some of them
               without weight
    square     (F, L M) V
    offset     (L M,) b
    alpha      (L M, L) mean = k α, block by block
    quadratic  (L, M, M) variance = 1 + kᵀ Q k
    constant   (J, 1)
    latents    L
    mixing     of each latent the outputs that it is part of, and its entries of A there (…, 1)
    """

    inputs: Inputs
    linear: FloatArray
    square: FloatArray
    offset: FloatArray
    alpha: FloatArray
    quadratic: FloatArray
    constant: FloatArray
    latents: int
    mixing: tuple[tuple[IntArray, FloatArray], ...]

    def means(self, estimates: Estimates) -> FloatArray:
        return self._means(self._kernels(estimates), estimates.mean.shape[0])

    def at(self, estimates: Estimates) -> tuple[FloatArray, FloatArray]:
        n, latents = estimates.mean.shape[0], self.latents
        k = self._kernels(estimates)
        mean = self._means(k, n)
        variance = np.zeros_like(mean)
        if not latents or not n:
            return mean, variance
        by_latent = k.reshape(len(k), -1, latents, self.quadratic.shape[1]).transpose(0, 2, 1, 3)
        reduced = by_latent @ self.quadratic
        reduced *= by_latent
        spread = 1.0 + reduced.sum(axis=3).transpose(1, 0, 2).reshape(latents, -1)
        np.maximum(spread, 0.0, out=spread)
        for latent, (outputs, entries) in enumerate(self.mixing):
            variance[outputs] += entries * entries * spread[latent, :n]
        return mean, variance

    def _kernels(self, estimates: Estimates) -> FloatArray:
        """(B, BLOCK, L M) k(x, Z) of all latents."""
        points = in_blocks(self.inputs.of(estimates))
        k = points @ self.linear
        points *= points
        k += points @ self.square
        k += self.offset
        np.minimum(k, 0.0, out=k)
        np.exp(k, out=k)
        return k

    def _means(self, k: FloatArray, n: int) -> FloatArray:
        mean = np.repeat(self.constant, n, axis=1)
        if not self.latents or not n:
            return mean
        latent_mean = (k @ self.alpha).reshape(-1, self.latents).T
        # One after the other: a product with A would round by its shape.
        for latent, (outputs, entries) in enumerate(self.mixing):
            mean[outputs] += entries * latent_mean[latent, :n]
        return mean


def _compile(inputs: Sequence[Inputs], processes: Sequence[SparseProcess]) -> _Compiled:
    column: dict[Feature, int] = {}
    for one, process in zip(inputs, processes, strict=True):
        for feature in one.features if process.latents else ():
            column.setdefault(feature, len(column))
    most = max(len(process.inducing) for process in processes)
    latents = sum(process.latents for process in processes)
    ends = np.cumsum([0, *(process.outputs for process in processes)])
    linear, square = np.zeros((2, len(column), latents, most))
    offset, alpha = np.zeros((latents, most)), np.zeros((latents, most, latents))
    quadratic, mixing = np.zeros((latents, most, most)), np.zeros((ends[-1], latents))
    latent = 0
    for one, process, (first, last) in zip(inputs, processes, pairwise(ends), strict=True):
        m, z = len(process.inducing), as_array(process.inducing)
        places = [column[feature] for feature in one.features] if process.latents else []
        for own, kernel in enumerate(process.kernels):
            assert isinstance(kernel, NormalisedKernel)  # else nothing is compiled
            w, v, b = kernel.expanded(z)
            linear[places, latent, :m], square[places, latent, :m] = w, v
            offset[latent, :m] = b
            alpha[latent, :m, latent] = process.weights[0][own]
            quadratic[latent, :m, :m] = process.weights[1][own]
            mixing[first:last, latent] = as_array(process.mixing)[:, own]
            latent += 1
    used = [np.flatnonzero(entries) for entries in mixing.T]
    constant = np.concatenate([process.constant for process in processes])
    flat = latents * most
    return _Compiled(
        Inputs(tuple(column), inputs[0].k),
        linear.reshape(len(column), flat),
        square.reshape(len(column), flat),
        offset.reshape(flat),
        alpha.reshape(flat, latents),
        quadratic,
        constant[:, None],
        latents,
        tuple((outputs, mixing[outputs, latent, None]) for latent, outputs in enumerate(used)),
    )
