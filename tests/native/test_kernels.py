"""Kernels of C give the bits of NumPy, refuse what they were not made for, and may be missing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hatch_build
from monitor import native
from monitor.frames.cholesky import factorise_lower, put_lower
from tests.components import program

ROOT = Path(__file__).parents[2]
# A kernel is compared with NumPy where it was compiled; the last test sees to it that CI has it.
BUILT = [] if native.kernels is None else [native.kernels]
compared = pytest.mark.parametrize("kernels", BUILT)
ODD = (0.0, -0.0, 5e-324, 1e-310, 1e-160, 1.0, -1.0, 1e160, 1e308, np.inf, -np.inf, np.nan)


def covariances(seed: int, n: int, k: int, odd: float) -> np.ndarray:
    """Symmetric (n, k, k): definite ones of all sizes, a share of `odd` of them spoiled."""
    random = np.random.default_rng(seed)
    roots = random.normal(size=(n, k, k)) * 10.0 ** random.integers(-6, 6, (n, k, 1))
    made = np.array(roots @ roots.transpose(0, 2, 1))
    for row in np.flatnonzero(random.random(n) < odd):
        i, j = random.integers(k, size=2)
        made[row, i, j] = made[row, j, i] = random.choice(ODD)
        if random.random() < 0.3:
            made[row, i] = made[row, :, i] = made[row, j]  # singular
    return made


def same_bits(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Compares bits; one NaN is like another."""
    nothing = np.isnan(ours) & np.isnan(theirs)
    return bool(np.all(nothing | (ours.view(np.int64) == theirs.view(np.int64))))


@compared
@given(st.integers(0, 2**32), st.integers(0, 300), st.integers(1, 32), st.sampled_from([0, 0.1, 1]))
def test_factors_are_those_of_numpy_to_the_last_bit(kernels, seed, n, k, odd):
    lower = np.zeros((k, k, n))
    put_lower(covariances(seed, n, k, odd), tuple(range(k)), lower)
    plain = lower.copy()
    factorise_lower(lower, kernels)
    factorise_lower(plain, None)
    regular = np.isfinite(plain[-1, -1])
    # What is not definite has no factor; all that is said of it is the last pivot.
    assert same_bits(lower[..., regular], plain[..., regular])
    assert np.isnan(lower[-1, -1, ~regular]).all()


@compared
@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.zeros((2, 3, 4)), "not square"),
        (np.zeros((33, 33, 1)), "33 dimensions"),
        (np.zeros((0, 0, 1)), "0 dimensions"),
        (np.zeros((2, 2)), "2 axes, not 3"),
        (np.zeros((2, 2, 4), np.float32), "format 'f'"),
        (np.zeros((2, 2, 4), np.int64), "format 'l'"),
        (np.zeros((2, 2, 4), ">f8"), "format '>d'"),
        (np.zeros((2, 2, 8))[..., ::2], "C-contiguous"),
        (np.zeros((2, 2, 4)).T, "C-contiguous"),
        (np.frombuffer(bytes(128)).reshape(2, 2, 4), "writable"),
        ([[[1.0]]], "C-contiguous"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(kernels, array, why):
    with pytest.raises(ValueError, match=why):
        kernels.factorise_lower(array, 1e-12)


@compared
@pytest.mark.parametrize("arguments", [(), (np.zeros((1, 1, 1)),), (np.zeros((1, 1, 1)), "1")])
def test_arguments_that_are_missing_or_no_numbers_are_refused(kernels, arguments):
    with pytest.raises(TypeError):
        kernels.factorise_lower(*arguments)


@pytest.mark.parametrize(
    ("switch", "name"), [("off", "NumPy"), ("", native.NAME if BUILT else "NumPy")]
)
def test_the_environment_switches_kernels_off(switch, name):
    told = subprocess.run(
        [sys.executable, "-c", "from monitor import native; print(native.NAME)"],
        env=os.environ | {native.SWITCH: switch},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == f"{name}\n"


@compared
def test_what_is_loaded_was_compiled_from_what_is_read(kernels):
    """Fails after a change of kernels.c until `make kernels`."""
    assert hashlib.sha256(hatch_build.SOURCE.read_bytes()).hexdigest().startswith(kernels.SOURCE)


def hook() -> hatch_build.CustomBuildHook:
    return hatch_build.CustomBuildHook.__new__(hatch_build.CustomBuildHook)


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_compiler_the_wheel_is_pure_and_that_is_said(compiler, monkeypatch, capsys):
    monkeypatch.setenv("CC", compiler)
    monkeypatch.delenv(native.SWITCH, raising=False)
    data: dict[str, object] = {"force_include": {}}
    hook().initialize("standard", data)
    assert data == {"force_include": {}}
    assert compiler in capsys.readouterr().err
    monkeypatch.setenv(native.SWITCH, "required")
    with pytest.raises(hatch_build.NotCompiled):
        hook().initialize("standard", data)


@pytest.mark.components
def test_with_a_compiler_the_wheel_serves_all_later_versions_of_python(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", f"{program('gcc')} -Wall -Wextra -Wpedantic -Werror")
    monkeypatch.setenv(native.SWITCH, "required")
    monkeypatch.setenv("CALIBRATION_MONITOR_PLATFORM", "some_machine")
    monkeypatch.setattr(hatch_build, "BUILD", tmp_path)
    data: dict[str, object] = {"force_include": {}}
    hook().initialize("standard", data)
    library = tmp_path / "some_machine" / "_kernels.abi3.so"
    assert data == {
        "force_include": {str(library): "monitor/native/_kernels.abi3.so"},
        "pure_python": False,
        "tag": "cp311-abi3-some_machine",
    }
    assert library.read_bytes().startswith(b"\x7fELF")


@pytest.mark.components
def test_a_clone_has_its_kernels():
    """Says so where `make` could not compile them: the laws above had nothing to compare."""
    program("gcc")
    program("python3-config")  # comes with the headers
    assert native.NAME == "C"
