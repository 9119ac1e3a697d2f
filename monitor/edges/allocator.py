"""Freed memory stays with the process: half the time of array work is else spent on getting
pages from the system again. An importer of ctypes.
"""

from __future__ import annotations

import ctypes

# Of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# Blocks up to this come from the heap, not from the system one by one.
_LARGEST_BLOCK = 2**25
# The heap gives back what is free at its end above this.
_KEPT = 2**26


def keep_freed_memory() -> bool:
    """Tell the C library so; False where it is another one, which then does as it likes."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))
