"""Loads the compiled kernels at import; None if they are not built.

Each kernel has a twin in NumPy where it is called, which returns the same bits. Nothing here knows
what the numbers mean. `CALIBRATION_MONITOR_NATIVE=off` leaves the kernels out.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    FloatArray = npt.NDArray[np.float64]
    IntArray = npt.NDArray[np.int64]
    ByteArray = npt.NDArray[np.uint8]

SWITCH: Final = "CALIBRATION_MONITOR_NATIVE"


class Kernels(Protocol):
    """Lists the kernels of kernels.c, which tells what each computes.

    Arrays are C-contiguous; a shape, a format or a layout that does not fit raises ValueError, and
    what is written to must be writable.
    """

    SOURCE: str
    """Names the text of kernels.c that was compiled: the first digits of its SHA-256."""

    def factorise_lower(self, a: FloatArray, singular: float, /) -> None:
        """Turns lower triangles (K, K, N) into their Cholesky factors, in place."""

    def usable(
        self,
        class_index: IntArray,
        mean: FloatArray,
        packed: FloatArray,
        order: IntArray,
        pivot: FloatArray,
        classes: int,
        largest_mean: float,
        least: float,
        most: float,
        singular: float,
        /,
    ) -> bool:
        """Tells whether all detections of a frame pass; if so, it has written the pivots (n, K)."""

    def read_records(
        self,
        data: bytes,
        start: int,
        mask: ByteArray,
        values: ByteArray,
        places: IntArray,
        columns: list[npt.NDArray[np.generic]],
        /,
    ) -> bool:
        """Copies the fields of records, which go from `start` to the end, into columns (n, …).

        Returns False where a record has other bytes than the values (length,) at the mask.
        """

    def write_records(
        self, record: bytes, places: IntArray, columns: list[npt.NDArray[np.generic]], n: int, /
    ) -> bytes:
        """Writes n records as the one given, but for their fields, from columns (n, …)."""

    def predict(
        self,
        state: FloatArray,
        covariance: FloatArray,
        moving: IntArray,
        diffusion: FloatArray,
        seconds: float,
        grown: float,
        /,
    ) -> None:
        """Moves states (T, S) and covariances (T, S, S) on by a time step, in place."""

    def update(
        self,
        state: FloatArray,
        covariance: FloatArray,
        track: IntArray,
        detection: IntArray,
        innovation: FloatArray,
        noise: FloatArray,
        grown: float,
        /,
    ) -> None:
        """Updates some states (T, S) and covariances (T, S, S), in place."""

    def gate(self, *arguments: FloatArray | IntArray | float) -> int | None:
        """Writes the pairs within a gate; returns how many, −n if n have no room, or None."""


def _built() -> Kernels | None:
    """Imports the extension; None where it is switched off, or built of another source."""
    if os.environ.get(SWITCH) == "off":
        return None
    try:
        extension: Any = importlib.import_module("monitor.native._kernels")
    except ImportError:
        return None
    source = Path(__file__).with_name("kernels.c")
    if source.exists() and digest(source) != extension.SOURCE:
        # The clone has moved on since the build: the library may lack what the code calls.
        return None
    return cast(Kernels, extension)


def digest(source: Path) -> str:
    """Returns the first digits of the SHA-256 of kernels.c."""
    return hashlib.sha256(source.read_bytes()).hexdigest()[:12]


kernels: Final = _built()
NAME: Final = "NumPy" if kernels is None else "C"
