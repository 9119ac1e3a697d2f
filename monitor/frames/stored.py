"""A frame in the form in which it is remembered for late labels.

It holds the estimates that the detector sent, those that were forwarded and the version of the
recalibrator. Labels never live here: see matching/record.py.
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
    """Name of a slice, equal in every run, unlike its index."""

    name: str
    overflow: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class StoredEstimates:
    """n Gaussians, packed.

    mean      (n, K)
    packed    (n, K) variances if all are diagonal, else (n, K(K+1)/2) lower triangles
    diagonal  (n,)
    """

    mean: FloatArray
    packed: FloatArray
    diagonal: BoolArray

    @property
    def nbytes(self) -> int:
        """Counts the bytes of the arrays."""
        return self.mean.nbytes + self.packed.nbytes + self.diagonal.nbytes

    def estimates(self, rows: IntArray) -> Estimates:
        """Unpacks some rows, bit for bit."""
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
    """Packs estimates, into buffers of their own."""
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

    slice   of the class statistics; None if there was no room for one
    rows    (m,) positions, ascending
    values  (m, M, C)
    """

    slice: SliceKey | None
    rows: IntArray
    values: FloatArray


@dataclass(frozen=True, eq=False, slots=True)
class StoredFrame:
    """One frame: the n usable detections of the `received` ones.

    id           (n,)
    class_index  (n,)
    slices       slices of the detections; slice (n,) uint16 is an index into them
    sent         as the detector sent them
    made         as the recalibrator made them; None if it changed nothing
    version      of the recalibrator; None if none could be applied
    unusable     ids of detections that have nothing to compare, ascending
    tracks       (n,) None without a tracker
    source       tells tracks of equal id apart
    epoch        of the wall clock
    bare         how many detections came without a covariance
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
        """Counts the usable detections."""
        return int(self.id.size)

    @property
    def nbytes(self) -> int:
        """Counts the bytes of the arrays."""
        own = self.id.nbytes + self.class_index.nbytes + self.slice.nbytes + self.unusable.nbytes
        made = 0 if self.made is None else self.made.nbytes
        tracks = 0 if self.tracks is None else self.tracks.id.nbytes + self.tracks.known.nbytes
        opinions = self.opinions
        of_classes = 0 if opinions is None else opinions.rows.nbytes + opinions.values.nbytes
        return own + self.sent.nbytes + made + tracks + of_classes
