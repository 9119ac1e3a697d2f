"""Kernels of C give the bits of NumPy, refuse what they were not made for, and may be missing."""

from __future__ import annotations

import hashlib
import math
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
from monitor.frames.covariances import usable_pivots
from monitor.frames.space import packed_covariances, plain_space
from tests.components import program
from tests.native import fuzzed

ROOT = Path(__file__).parents[2]
BUILT = native.kernels is not None
# Each way of computing that there is here; the last test sees to it that CI has both.
WAYS = pytest.mark.parametrize(
    "kernels", [None, native.kernels] if BUILT else [None], ids=["NumPy", "C"][: 1 + BUILT]
)
ODD_SHARES = st.sampled_from([0.0, 0.02, 1.0])


@WAYS
@pytest.mark.parametrize("law", fuzzed.LAWS)
@given(st.integers(0, 2**32), st.integers(1, 300), st.integers(1, 32), ODD_SHARES)
def test_bits_are_those_of_numpy_alone_and_among_others(kernels, law, seed, n, k, odd):
    law(kernels, np.random.default_rng(seed), n, k, odd)


@WAYS
@given(st.integers(0, 2**32), st.integers(1, 8))
def test_a_factor_has_the_bits_of_the_textbook(kernels, seed, k):
    """Cholesky, Banachiewicz's rows: products are taken off in the order of the columns."""
    (matrix,) = fuzzed.covariances(np.random.default_rng(seed), 1, k, 0.0)
    lower = np.zeros((k, k, 1))
    put_lower(matrix[None], tuple(range(k)), lower)
    factorise_lower(lower, kernels)
    expected = np.zeros((k, k))
    for i in range(k):
        for j in range(i + 1):
            entry = float(matrix[i, j])
            for m in range(j):
                entry -= float(expected[i, m]) * float(expected[j, m])
            if j == i and entry < 0:
                assert np.isnan(lower[-1, -1, 0])
                return
            expected[i, j] = math.sqrt(entry) if j == i else entry / float(expected[j, j])
    if np.isfinite(lower[-1, -1, 0]):
        assert fuzzed.same_bits(lower[..., 0], expected)


@WAYS
@pytest.mark.parametrize("form", [3, 6])
@pytest.mark.parametrize("width", [0, 1])
def test_what_lies_apart_in_memory_is_as_good(kernels, form, width):
    random = np.random.default_rng(form)
    space, n = plain_space(("a", "b", "c")), 20
    packed = packed_covariances(fuzzed.covariances(random, n, 3, 0.0), form)
    wide, means = np.zeros((n, form + width)), np.zeros((n, 3 + width))
    wide[:, :form] = packed
    frame = np.zeros(2 * n, np.int64)[::2], means[:, :3], wide[:, :form]
    found = usable_pivots(*frame, space, 1, 1.0, (0.0, np.inf), kernels)
    plain = usable_pivots(*frame, space, 1, 1.0, (0.0, np.inf), None)
    assert found is not None and plain is not None and fuzzed.same_bits(found, plain)


@pytest.mark.components
@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.zeros((2, 3, 4)), "not square"),
        (np.zeros((33, 33, 1)), "33 dimensions"),
        (np.zeros((0, 0, 1)), "0 dimensions"),
        (np.zeros((2, 2)), "2 axes of format 'd', not 3"),
        (np.zeros((2, 2, 4), np.float32), "format 'f'"),
        (np.zeros((2, 2, 4), np.int64), "format 'l'"),
        (np.zeros((2, 2, 4), ">f8"), "format '>d'"),
        (np.zeros((2, 2, 8))[..., ::2], "C-contiguous"),
        (np.zeros((2, 2, 4)).T, "C-contiguous"),
        (np.frombuffer(bytes(128)).reshape(2, 2, 4), "writable"),
        ([[[1.0]]], "C-contiguous"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(array, why):
    assert native.kernels is not None
    with pytest.raises(ValueError, match=why):
        native.kernels.factorise_lower(array, 1e-12)


@pytest.mark.components
@pytest.mark.parametrize("arguments", [(), (np.zeros((1, 1, 1)),), (np.zeros((1, 1, 1)), "1")])
def test_arguments_that_are_missing_or_no_numbers_are_refused(arguments):
    assert native.kernels is not None
    with pytest.raises((TypeError, ValueError)):
        native.kernels.factorise_lower(*arguments)


@pytest.mark.campaign
@pytest.mark.components
@pytest.mark.timeout(900)
def test_a_million_calls_with_arguments_gone_wrong_end_nothing():
    program("gcc")
    assert fuzzed.main(["--calls", "1000000"]) == 0


@pytest.mark.components
@pytest.mark.timeout(600)
def test_sanitizers_find_nothing(tmp_path, monkeypatch):
    """Beyond the ends of an array, and what C leaves open; the laws hold there, too."""
    gcc = program("gcc")
    monkeypatch.setenv("CC", gcc)
    library = tmp_path / "_kernels.abi3.so"
    sanitized = ("-std=c11", "-O1", "-g", "-ffp-contract=off", "-fPIC", "-shared")
    found = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    hatch_build.compile_kernels(library, flags=sanitized + found)
    runtime = subprocess.check_output([gcc, "-print-file-name=libasan.so"], text=True).strip()
    # Python leaves memory behind on purpose.
    environment = os.environ | {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
    asked = ["-m", "tests.native.fuzzed", "--calls", "20000", "--library", str(library)]
    done = subprocess.run(
        [sys.executable, *asked], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("switch", "name"), [("off", "NumPy"), *([("", "C")] if BUILT else [])])
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


def test_what_is_counted_and_answered_has_the_same_bits_with_kernels_and_without():
    told = {}
    for switch in ("off", ""):
        done = subprocess.run(
            [sys.executable, "-m", "tests.native.driven"],
            env=os.environ | {native.SWITCH: switch},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        name, found = done.stdout.split()
        told[name] = found
    assert set(told) == {"NumPy", native.NAME}
    assert len(set(told.values())) == 1


def test_what_is_loaded_was_compiled_from_what_is_read():
    """Fails after a change of kernels.c until `make kernels`."""
    digest = hashlib.sha256(hatch_build.SOURCE.read_bytes()).hexdigest()
    assert native.kernels is None or digest.startswith(native.kernels.SOURCE)


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
