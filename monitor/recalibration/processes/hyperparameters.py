"""What of a process the data do not fix by themselves: its settings, and the parameters of its
kernels and couplings as the one vector that an optimiser moves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.recalibration.processes.kernels import Kernel, KernelForm, kernel_of, scale_count
from monitor.recalibration.processes.sparse_process import Coupling

# Bounds: between features that say nothing and what so few inducing points can follow.
SCALE = (0.3, 20.0)
AMPLITUDE = (0.01, 5.0)
# Features act over about their spread, the latents by half a unit.
START_SCALE = 1.5
START_AMPLITUDE = 0.5


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """How a process is to be.

    inducing  points, at most
    coupling  of its outputs, where a method has several
    """

    inducing: int = 12
    kernel: KernelForm = KernelForm.NORMALISED
    coupling: Coupling = Coupling.INDEPENDENT

    def require_independent(self, method: str) -> None:
        """Raises ValueError where outputs are coupled that the method fits one by one."""
        if self.coupling is not Coupling.INDEPENDENT:
            raise ValueError(
                f"coupling '{self.coupling}': {method} fits its outputs one by one. "
                "Use gp-normal for coupled variances."
            )


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """What is not in the posterior.

    scale   (J, P) of each latent's kernel; equal rows where a kernel is common to all
    mixing  (J, J) A, of as many latents as outputs
    """

    scale: FloatArray
    mixing: FloatArray


@dataclass(frozen=True, slots=True)
class Packing:
    """Independent: the log scales of every latent, then the log amplitudes. Coupled: the log
    scales of the common kernel, then the lower triangle of A, since only B = A Aᵀ counts.

    outputs  J
    width    of the points
    """

    form: KernelForm
    coupling: Coupling
    outputs: int
    width: int

    def start(self) -> FloatArray:
        """Where a search begins."""
        if self.coupling is Coupling.COREGIONALISED:
            # What all outputs share is found first, in the first latent.
            mixing = 0.5 * START_AMPLITUDE * np.eye(self.outputs)
            mixing[:, 0] = START_AMPLITUDE
            entries = mixing[np.tril_indices(self.outputs)]
        else:
            entries = np.full(self.outputs, np.log(START_AMPLITUDE))
        return np.concatenate([np.full(self._logs, np.log(START_SCALE)), entries])

    def bounds(self) -> list[tuple[float, float]]:
        """Of each entry."""
        entries = self.start().size - self._logs
        amplitude = (-AMPLITUDE[1], AMPLITUDE[1])
        if self.coupling is Coupling.INDEPENDENT:
            amplitude = (float(np.log(AMPLITUDE[0])), float(np.log(AMPLITUDE[1])))
        scale = (float(np.log(SCALE[0])), float(np.log(SCALE[1])))
        return [scale] * self._logs + [amplitude] * entries

    def unpack(self, packed: FloatArray) -> Hyperparameters:
        """Scales and mixing."""
        scale = np.exp(packed[: self._logs]).reshape(-1, scale_count(self.form, self.width))
        entries = packed[self._logs :]
        if self.coupling is Coupling.INDEPENDENT:
            return Hyperparameters(scale, np.diag(np.exp(entries)))
        mixing = np.zeros((self.outputs, self.outputs))
        mixing[np.tril_indices(self.outputs)] = entries
        return Hyperparameters(np.repeat(scale, self.outputs, axis=0), mixing)

    def chain(
        self, hyper: Hyperparameters, by_log_scale: FloatArray, by_mixing: FloatArray
    ) -> FloatArray:
        """Derivatives by the vector, of those by the log scales (J, P) and the mixing (J, J)."""
        if self.coupling is Coupling.INDEPENDENT:
            entries = np.diagonal(by_mixing * hyper.mixing)
            return np.concatenate([by_log_scale.ravel(), entries])
        entries = by_mixing[np.tril_indices(self.outputs)]
        return np.concatenate([by_log_scale.sum(axis=0), entries])

    def kernels(self, hyper: Hyperparameters) -> list[Kernel]:
        """Of each latent."""
        return [kernel_of(self.form, scale) for scale in hyper.scale]

    @property
    def _logs(self) -> int:
        kernels = self.outputs if self.coupling is Coupling.INDEPENDENT else 1
        return kernels * scale_count(self.form, self.width)
