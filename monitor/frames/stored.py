"""A frame as it is kept for its truth: what the detector sent, what was forwarded in its place, and
which recalibrator made that. A value: what labels tell of it is kept beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monitor.frames.detections import Estimates, IdArray
from monitor.frames.frame import Header, TrackIds
from monitor.frames.space import (
    BoolArray,
    FloatArray,
    IntArray,
    square_from_triangle,
    triangle_in_square,
)


@dataclass(frozen=True, slots=True)
class SliceKey:
    """A slice by what makes it up, which is the same in every run; its index is not."""

    name: str
    overflow: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class StoredEstimates:
    """n Gaussians in as few bytes as hold them.

    mean      (n, K)
    packed    (n, K) variances where all are diagonal, else (n, K(K+1)/2) lower triangles
    diagonal  (n,)
    """

    mean: FloatArray
    packed: FloatArray
    diagonal: BoolArray

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return self.mean.nbytes + self.packed.nbytes + self.diagonal.nbytes

    def estimates(self, rows: IntArray) -> Estimates:
        """Some of them, unpacked: bit for bit what was packed."""
        k = self.mean.shape[1]
        packed = self.packed[rows]
        if packed.shape[1] == k:
            covariance = np.zeros((rows.size, k, k))
            step = np.arange(k)
            covariance[:, step, step] = packed
        else:
            covariance = packed[:, square_from_triangle(k)].reshape(-1, k, k)
        return Estimates(self.mean[rows], covariance, self.diagonal[rows])


def stored_estimates(estimates: Estimates) -> StoredEstimates:
    """Nothing of the estimates' own buffers is kept alive."""
    k = estimates.mean.shape[1]
    if estimates.diagonal.all():
        step = np.arange(k)
        packed = estimates.covariance[:, step, step]
    else:
        packed = estimates.covariance.reshape(-1, k * k).take(triangle_in_square(k), axis=1)
    return StoredEstimates(estimates.mean.copy(), packed, estimates.diagonal.copy())


@dataclass(frozen=True, eq=False, slots=True)
class StoredOpinions:
    """Class probabilities of the m detections that have some.

    slice   of the class statistics; None where there was no room for one
    rows    (m,) positions, ascending
    values  (m, M, C)
    """

    slice: SliceKey | None
    rows: IntArray
    values: FloatArray


@dataclass(frozen=True, eq=False, slots=True)
class StoredFrame:
    """One frame; n usable detections of `received` that came.

    id           (n,)
    class_index  (n,)
    slices       those that any is in, and slice (n,) uint16 into them
    made         what the recalibrator made of what was sent; None where that is the same
    version      of the recalibrator; None where none could be applied
    unusable     ids that came with the frame but have nothing to compare, ascending
    tracks       (n,) None where nobody tracks
    source       tells tracks of equal id apart
    epoch        of the wall clock
    bare         of the detections that came, those without a covariance
    """

    header: Header
    frame_id: int
    stamp_ns: int | None
    received: int
    id: IdArray
    class_index: IntArray
    slices: tuple[SliceKey, ...]
    slice: npt.NDArray[np.uint16]
    sent: StoredEstimates
    made: StoredEstimates | None
    version: str | None
    unusable: IdArray
    tracks: TrackIds | None = None
    source: int = 0
    opinions: StoredOpinions | None = None
    epoch: int = 0
    bare: int = 0

    @property
    def n(self) -> int:
        """Usable detections."""
        return int(self.id.size)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        own = self.id.nbytes + self.class_index.nbytes + self.slice.nbytes + self.unusable.nbytes
        made = 0 if self.made is None else self.made.nbytes
        tracks = 0 if self.tracks is None else self.tracks.id.nbytes + self.tracks.known.nbytes
        opinions = self.opinions
        of_classes = 0 if opinions is None else opinions.rows.nbytes + opinions.values.nbytes
        return own + self.sent.nbytes + made + tracks + of_classes
