"""One order for the same rows, so that sums over them round alike however they came."""

from __future__ import annotations

import numpy as np

from monitor.recalibration.fit_rows import FitRows


def in_one_order(rows: FitRows) -> FitRows:
    """The rows in an order that depends on what they are alone; equal rows may change places."""
    sent = rows.estimates
    columns = (sent.mean.T, *sent.covariance.transpose(1, 2, 0), rows.error.T, rows.track[None])
    return rows.take(np.lexsort(np.concatenate(columns)))
