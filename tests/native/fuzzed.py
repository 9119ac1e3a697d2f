"""Asks kernels for the bits of NumPy, and gives them arguments that do not fit. No tests here.

python -m tests.native.fuzzed --calls N [--library FILE]     of another build: a sanitized one
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from monitor import native
from monitor.frames.cholesky import SINGULAR, factorise_lower, put_lower
from monitor.frames.covariances import usable_pivots
from monitor.frames.space import Dimension, DimensionKind, Space, packed_covariances

ODD = (0.0, -0.0, 5e-324, 1e-310, 1e-160, 1.0, -1.0, 1e160, 1e308, np.inf, -np.inf, np.nan)
# All that a kernel may raise, whatever it is given.
REFUSALS = (ValueError, TypeError, OverflowError, MemoryError)


def covariances(random: np.random.Generator, n: int, k: int, odd: float) -> np.ndarray:
    """Symmetric (n, k, k): definite ones of all sizes, a share of `odd` of them spoiled."""
    roots = random.normal(size=(n, k, k)) * 10.0 ** random.integers(-6, 6, (n, k, 1))
    products = roots @ roots.transpose(0, 2, 1)
    made: np.ndarray = 0.5 * (products + products.transpose(0, 2, 1))
    for row in np.flatnonzero(random.random(n) < odd):
        i, j = random.integers(k, size=2)
        made[row, i, j] = made[row, j, i] = random.choice(ODD)
        if random.random() < 0.3:
            made[row, i] = made[row, :, i] = made[row, j]  # singular
    return made


def same_bits(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Compares bits; one NaN is like another."""
    nothing = np.isnan(ours) & np.isnan(theirs)
    bits = np.ascontiguousarray(ours).view(np.int64) == np.ascontiguousarray(theirs).view(np.int64)
    return ours.shape == theirs.shape and bool(np.all(nothing | bits))


# ---- laws: kernels, or None for NumPy twice, make what NumPy makes


def factors_agree(kernels: Any, random: np.random.Generator, n: int, k: int, odd: float) -> None:
    lower = np.zeros((k, k, n))
    put_lower(covariances(random, n, k, odd), tuple(range(k)), lower)
    plain = lower.copy()
    factorise_lower(lower, kernels)
    factorise_lower(plain, None)
    regular = np.isfinite(plain[-1, -1])
    # What is not definite has no factor; all that is said of it is the last pivot.
    assert same_bits(lower[..., regular], plain[..., regular])
    assert np.isnan(lower[-1, -1, ~regular]).all()


def frames_agree(kernels: Any, random: np.random.Generator, n: int, k: int, odd: float) -> None:
    """Looks at a whole frame, then at one detection of it by itself."""
    form = int(random.choice([k, k * (k + 1) // 2]))
    packed = np.ascontiguousarray(packed_covariances(covariances(random, n, k, odd), form))
    mean, index = random.normal(size=(n, k)), random.integers(0, 5, n)
    if odd and random.random() < 0.3:
        mean[random.integers(n), random.integers(k)] = random.choice(ODD)
    if random.random() < 0.1:
        index[random.integers(n)] = random.choice([-1, 5])
    kinds = random.choice([DimensionKind.LENGTH, DimensionKind.ANGLE], k)
    space = Space(tuple(Dimension(f"d{i}", "", DimensionKind(x)) for i, x in enumerate(kinds)))
    bounds = (0.0, np.inf) if random.random() < 0.5 else (1e-8, 1e8)

    def found(rows: slice, chosen: Any) -> np.ndarray | None:
        frame = index[rows], mean[rows], packed[rows]
        return usable_pivots(*frame, space, 5, 1e8, bounds, chosen)

    whole, plain = found(slice(None), kernels), found(slice(None), None)
    assert (whole is None) == (plain is None)
    one = int(random.integers(n))
    alone = found(slice(one, one + 1), kernels)
    assert (alone is None) == (found(slice(one, one + 1), None) is None)
    if whole is not None and plain is not None:
        assert same_bits(whole, plain)
        assert alone is not None and same_bits(alone, plain[one : one + 1])


LAWS: tuple[Callable[[Any, np.random.Generator, int, int, float], None], ...]
LAWS = factors_agree, frames_agree


# ---- fuzz: arguments that fit, then some that do not


def _fitting(random: np.random.Generator) -> dict[str, list[Any]]:
    """Makes arguments that fit, by kernel."""
    n, k, size = (int(x) for x in random.integers([0, 1, 0], [20, 9, 4]))
    size += k
    fields = int(random.integers(0, 3))
    places = np.array([[8 * i, 8] for i in range(fields)], np.int64).reshape(-1, 2)
    record = random.bytes(8 * fields + 5)
    columns = [random.normal(size=n) for _ in range(fields)]
    states, whole = random.normal(size=(n, size)), covariances(random, n, size, 0.1)
    some = random.integers(0, n, n) if n else np.zeros(0, np.int64)
    pairs = np.zeros((2, 40), np.int64), np.zeros((40, 2 * k + 1))
    sides = [
        [states.copy(), whole.copy(), some % 3, np.sort(states[:, 0]), np.abs(states[:, 0])]
        for _ in range(2)
    ]
    return {
        "factorise_lower": [np.ones((k, k, n)), SINGULAR],
        "usable": [
            *(some, states[:, :k].copy(), np.ones((n, k * (k + 1) // 2)), random.permutation(k)),
            *(np.zeros((n, k)), 5, 1e8, 0.0, 1e9, SINGULAR),
        ],
        "read_records": [record * n, 0, *np.zeros((2, len(record)), np.uint8), places, columns],
        "write_records": [record, places, columns, n],
        "predict": [states, whole, np.arange(size - k), np.ones((size, size)), 0.1, 1.0],
        "update": [states, whole, some, some, np.ones((n, k)), whole[:, :k, :k].copy(), 1.0],
        "gate": [
            *(*sides[0], *sides[1], some, some, np.arange(k), np.ones((2, k)), *pairs),
            *(1e9, 9.0, 9.1, 1e6, 1.0, SINGULAR),
        ],
    }


def _spoiled(random: np.random.Generator, value: Any) -> Any:
    """Makes something of another shape, format, layout, content or kind."""
    if isinstance(value, list):
        return value[:-1] if random.random() < 0.5 else [*value, np.zeros(3)]
    if not isinstance(value, np.ndarray):
        return [value, -1, 2**70, np.nan, np.inf, 1e308, "x", None, b"", 3.7][random.integers(10)]
    match int(random.integers(12)):
        case 0:
            return value[..., :-1] if value.ndim else value
        case 1:
            return np.concatenate([value, value])
        case 2:
            return value[::-1]
        case 3:
            return value.T
        case 4:
            kind = random.choice(
                ["f4", "i4", "u1", "c16", ">f8", "?", "O", "U3", "M8[s]", "f8", "i8"]
            )
            with np.errstate(all="ignore"):
                return np.zeros(value.shape, kind)
        case 5:
            return value[None]
        case 6:
            return value.ravel()
        case 7:
            return value.tolist()
        case 8:
            return value[:0]
        case 9:
            value = value.copy()
            value.setflags(write=False)
            return value
        case _:
            value = value.copy()
            if value.size and value.dtype == np.int64:
                value.flat[random.integers(value.size)] = random.choice(
                    [-1, 2**62, -(2**63), 20, 2**31]
                )
            elif value.size and value.dtype == np.float64:
                value.flat[random.integers(value.size)] = random.choice(ODD)
            return value


def fuzz(kernels: Any, calls: int, seed: int = 0) -> Counter[str]:
    """Calls kernels with arguments gone wrong; counts what was done and refused."""
    random, counts, told = np.random.default_rng(seed), Counter[str](), 0
    while told < calls:
        for name, arguments in _fitting(random).items():
            # One set of arguments serves several calls: to make it takes longest.
            for _ in range(8):
                given = list(arguments)
                for _ in range(int(random.integers(0, 3))):
                    place = int(random.integers(len(given)))
                    given[place] = _spoiled(random, given[place])
                if random.random() < 0.02:
                    given = given[:-1]
                try:
                    getattr(kernels, name)(*given)
                    counts[f"{name} done"] += 1
                except REFUSALS:
                    counts[f"{name} refused"] += 1
                told += 1
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 where nothing but refusals was raised, and every law held."""
    parser = argparse.ArgumentParser(prog="python -m tests.native.fuzzed", description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--library", help="the extension (default: that of the clone)")
    options = parser.parse_args(arguments)
    kernels: Any = native.kernels
    if options.library:
        loader = importlib.machinery.ExtensionFileLoader("_kernels", options.library)
        spec = importlib.util.spec_from_loader("_kernels", loader)
        assert spec is not None
        kernels = importlib.util.module_from_spec(spec)
        loader.exec_module(kernels)
    random = np.random.default_rng(1)
    for law in LAWS:
        for _ in range(min(options.calls // 100, 1000)):
            n, k = int(random.integers(1, 60)), int(random.integers(1, 33))
            law(kernels, random, n, k, float(random.choice([0, 0.1, 1])))
    counts = fuzz(kernels, options.calls)
    print(*(f"{name} {n}" for name, n in sorted(counts.items())), sep="\n")
    names = {name.split()[0] for name in counts}
    return int(any(counts[f"{name} {end}"] == 0 for name in names for end in ("done", "refused")))


if __name__ == "__main__":
    sys.exit(main())
