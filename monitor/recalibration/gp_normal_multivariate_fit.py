"""Fits GP-Normal multivariate: covariance scaling in closed form, and what depends on the
detection by a process for each row of the factor. Serving does not need this file.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_triangular

from monitor.calibration.cholesky import whiten
from monitor.calibration.space import FloatArray
from monitor.recalibration.document import as_matrix
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.gp_normal_multivariate import GpNormalMultivariate
from monitor.recalibration.processes.gp_inputs import Inputs
from monitor.recalibration.processes.hyperparameters import ProcessSettings
from monitor.recalibration.processes.input_choice import choose_inputs
from monitor.recalibration.processes.latent_stack import stack_of
from monitor.recalibration.processes.sparse_process import SparseProcess
from monitor.recalibration.processes.triangular_factors import lower_factor, row_of_factor
from monitor.recalibration.processes.triangular_likelihood import TriangularRow
from monitor.recalibration.processes.triangular_process import TriangularProcess
from monitor.recalibration.recalibrator import UnfitData
from monitor.recalibration.row_order import in_one_order

# As covariance scaling: a share of the mean eigenvalue below which errors repeat each other.
SINGULAR = 1e-9
# Of a binary mantissa: about five decimal digits.
_DIGITS = 2.0**16

AS_USUAL = ProcessSettings()


def fit(rows: FitRows, settings: ProcessSettings = AS_USUAL) -> GpNormalMultivariate:
    """Each form of covariance by itself, of the detections that came with it.

    The likelihood is a product over the dimensions, so that K small processes are fitted, each
    with the inputs that pay for themselves. The same rows in any order give the same bits.

    Raises UnfitData without rows, where a dimension has no error, and where the errors of a form
    do not span all dimensions; ValueError for coupled outputs.
    """
    # The closed form of the likelihood has f and φ independent of each other.
    settings.require_independent(GpNormalMultivariate.method)
    rows.check()
    rows = in_one_order(rows)
    k = rows.space.k
    alone = rows.estimates.diagonal & (k > 1)
    scale = np.sqrt(np.mean(np.square(rows.error / rows.deviation), axis=0))
    return GpNormalMultivariate(
        rows.space.order,
        tuple(scale.tolist()),
        _fitted(rows.take(np.flatnonzero(alone)), "variances", settings) if alone.any() else None,
        None
        if alone.all()
        else _fitted(rows.take(np.flatnonzero(~alone)), "covariances", settings),
    )


def _fitted(rows: FitRows, form: str, settings: ProcessSettings) -> TriangularProcess:
    u, log_unit = _whitened(rows, form)
    moment = u @ u.T / rows.n
    _check_span(moment, rows, form)
    moment = 0.5 * (moment + moment.T)
    root = np.linalg.cholesky(moment)
    u = solve_triangular(root, u, lower=True)
    log_unit = log_unit + np.log(np.diagonal(root))[:, None]
    fitted = _row_by_row(u, log_unit, rows, settings)
    weights = stack_of(fitted, rows.estimates, margin=0.0)
    _, variance = weights.at(rows.estimates)
    return TriangularProcess(as_matrix(moment), weights, tuple(variance.max(axis=1).tolist()))


def _row_by_row(
    u: FloatArray, log_unit: FloatArray, rows: FitRows, settings: ProcessSettings
) -> list[tuple[Inputs, SparseProcess]]:
    fitted = []
    innovation = np.empty_like(u)
    order = np.array(rows.space.order)
    # A row of the factor is of the errors of its dimension and of those before; only the first
    # has nothing but a size.
    worth = np.minimum.accumulate(rows.location_weight[order])
    worth[0] = rows.size_weight[order[0]]
    worth = np.minimum(worth, _different(rows) / rows.n)
    for i in range(len(u)):
        likelihood = TriangularRow(u[i], innovation[:i], log_unit[i])
        inputs, process = choose_inputs(likelihood, rows, float(worth[i]), settings)
        fitted.append((inputs, process))
        *phi, own = row_of_factor(*process.at(inputs.of(rows.estimates)))
        innovation[i] = u[i]
        for weight, earlier in zip(phi, innovation, strict=False):
            innovation[i] -= weight * earlier
        innovation[i] /= own
    return fitted


def _different(rows: FitRows) -> int:
    """How many rows differ in the first five digits of anything.

    Weights that depend on the detection could take in a few that are repeated often, to the last
    place and never sure enough of it.
    """
    sent = rows.estimates
    values = np.hstack([rows.error, sent.mean, sent.covariance.reshape(rows.n, -1)])
    mantissa, exponent = np.frexp(values)
    rounded = np.ldexp(np.round(mantissa * _DIGITS), exponent)
    return len(np.unique(rounded, axis=0))


def _whitened(rows: FitRows, form: str) -> tuple[FloatArray, FloatArray]:
    """W⁻¹ r and log diag W, both (K, n), in the order of the space."""
    order = np.array(rows.space.order)
    error = rows.error[:, order]
    if form == "variances":
        deviation = rows.deviation[:, order]
        return np.ascontiguousarray((error / deviation).T), np.log(deviation).T
    factor = lower_factor(rows.estimates.covariance[:, order[:, None], order])
    step = np.arange(rows.space.k)
    return whiten(factor, error), np.log(factor[step, step])


def _check_span(moment: FloatArray, rows: FitRows, form: str) -> None:
    size = np.sqrt(np.diagonal(moment))
    if not size.all() or np.linalg.eigvalsh(moment / np.outer(size, size))[0] <= SINGULAR:
        raise UnfitData(
            f"the errors of {rows.n} rows with {form} over {rows.space.names} are singular: "
            f"{rows.space.k} dimensions need more rows with independent errors. Use gp-normal or "
            f"more data, or leave out the rows with {form}."
        )
