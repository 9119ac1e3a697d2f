"""Sends frames with ground truth through a pipeline, and prints a hash of all that it counts.

A program, not a test: started with and without compiled kernels.
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from monitor import native
from monitor.frames.frame import Header
from tests.piped import (
    BAD,
    CLASSES,
    DOUBLE,
    MISSING,
    SECOND,
    XYZ,
    counted,
    opened,
    outgoing,
    pipeline_of,
    sent,
)
from tests.received import FULL, TRIANGLE, VARIANCES, frame


def bits(value: Any) -> Iterator[bytes]:
    """Yields what a value is made of, to the last bit."""
    if isinstance(value, np.ndarray):
        yield f"{value.shape} {value.dtype}".encode() + value.tobytes()
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield field.name.encode()
            yield from bits(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield repr(key).encode()
            yield from bits(value[key])
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from bits(entry)
    elif isinstance(value, str | int | float | bool | None):
        yield repr(value).encode()
    else:
        raise TypeError(f"{type(value)} has no bits here")


def main() -> None:
    pipeline, found = pipeline_of(DOUBLE), hashlib.sha256()
    headers = [Header(f"camera{i}", XYZ, CLASSES) for i in range(3)]
    for number in range(1, 61):
        form = (FULL, TRIANGLE, VARIANCES)[number % 3]
        rows = [sent(i, 31 * number + i, form, truth=i % 3 > 0) for i in range(number % 23)]
        if number % 7 == 0:
            rows += [BAD, MISSING]
        stream = opened(pipeline, headers[number // 3 % 3])
        for part in bits(outgoing(pipeline.process(stream, frame(rows, number, number * SECOND)))):
            found.update(part)
    pipeline.remember_answered()
    for part in bits(counted(pipeline)):
        found.update(part)
    print(native.NAME, found.hexdigest())


if __name__ == "__main__":
    main()
