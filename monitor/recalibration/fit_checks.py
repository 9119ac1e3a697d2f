"""What every fit asks of its detections, whether it sees rows or only sums of them."""

from __future__ import annotations

from monitor.calibration.space import BoolArray, Space
from monitor.recalibration.recalibrator import UnfitData


def check_errors(space: Space, n: int, any_error: BoolArray) -> None:
    """Raises UnfitData without rows, or where a dimension has no error at all.

    n          rows
    any_error  (K,) whether any of them has an error other than 0
    """
    if n == 0:
        raise UnfitData(
            "cannot fit on 0 detections with ground truth: widen the selection of rows."
        )
    for name, some in zip(space.names, any_error, strict=True):
        if not some:
            raise UnfitData(
                f"dimension '{name}' has no error in {n} rows: nothing can be fitted to it. "
                "Leave the dimension out or check the ground truth."
            )
