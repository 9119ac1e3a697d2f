"""evaluate --engine exact against what other libraries say of the same detections.

values.json holds the values of netcal 1.4.0, uncertainty-toolbox 0.1.1 and plain NumPy 2.4.6
on the sets of datasets.py. Every number of a set is compared, but those that differ on purpose:
to 1e-9 relative, so that counts are equal, and to 1e-12 where a share is taken off a level.
"""

import contextlib
import io
import json
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monitor.cli import main
from tests.reference.datasets import all_sets, digest

HERE = Path(__file__).parent
REFERENCE = json.loads((HERE / "values.json").read_text())
CASES: dict[str, Any] = REFERENCE["cases"]
DETECTIONS = [name for name in CASES if not name.startswith("cls_")]
CLASSES = [name for name in CASES if name.startswith("cls_")]
TAU = np.array(REFERENCE["tau"])
# uncertainty-toolbox has levels 0 and 1 besides.
HUNDRED_LEVELS = np.linspace(0, 1, 100)[1:-1]
AXES = (("std", "std", "bins", 1), ("var", "variance", "uce_bins", 2))
CHECK_LEVELS = np.linspace(0.01, 0.99, 99)
EQUAL_WIDTH = ("--binning", "equal-width")

Found = dict[str, Any]
Evaluate = Callable[..., Found]


@pytest.fixture(scope="module")
def evaluate(tmp_path_factory) -> Evaluate:
    """The object that evaluate prints of a set; each is worked out once."""
    folder = tmp_path_factory.mktemp("reference")
    for name, arrays in all_sets().items():
        assert digest(arrays) == CASES[name]["sha256"], f"{name} is not the set of values.json"
        np.savez(folder / f"{name}.npz", allow_pickle=False, **arrays)
    known: dict[tuple[str, ...], Found] = {}

    def evaluated(*words: str) -> Found:
        if words not in known:
            out = io.StringIO()
            path = str(folder / f"{words[0]}.npz")
            with contextlib.redirect_stdout(out):
                assert main(["evaluate", path, *words[1:], "--json"]) == 0
            known[words] = json.loads(out.getvalue())
        return known[words]

    return evaluated


def same(ours: Any, theirs: Any, at: str = "") -> None:
    """Compares numbers, lists, and objects of these, which must have the same keys."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), at
        for key, value in theirs.items():
            same(ours[key], value, f"{at}.{key}")
        return
    assert np.shape(ours) == np.shape(theirs), at
    near = pytest.approx(np.asarray(theirs, float), rel=1e-9, abs=1e-12, nan_ok=True)
    assert np.asarray(ours, float) == near, at


def of(each: Iterable[Found], key: str) -> list[Any]:
    return [one[key] for one in each]


def wide(lower: float, upper: float) -> tuple[str, ...]:
    return *EQUAL_WIDTH, "--range", f"{lower!r}:{upper!r}"


def levels(tau: Iterable[float]) -> tuple[str, str]:
    return "--tau", ",".join(repr(float(level)) for level in tau)


def of_dimension(evaluate: Evaluate, name: str, i: int, ends: tuple[float, float]) -> Found:
    found = evaluate(name)["dimensions"][str(i)]
    bins, n = found["bins"], found["n"]
    rows = np.array(of(bins, "n"))
    return {
        **{key: found[key] for key in ("n", "rmse", "rmv", "nees_mean")},
        "nees_sum": found["nees_mean"] * n,
        "nees_mean_accept_95": found["nees_interval"],
        "nll_mean": found["nll"],
        "std_scaling_s": found["std_scaling"],
        "cv_levi_eq9": found["c_v"],
        "ence_levi_equal_count": found["ence"],
        "uce_equal_count": found["uce"],
        "equal_count_mean_var": of(bins, "variance") / rows,
        "equal_count_mse": of(bins, "squared_error") / rows,
        "pinball_one_sided_by_tau": found["pinball_by_tau"],
        "coverage_central_by_tau": found["picp_by_tau"],
        "coverage_one_sided_by_tau": found["coverage_one_sided_by_tau"],
        **tables(evaluate, name, i, ends),
    }


def tables(evaluate: Evaluate, name: str, i: int, ends: tuple[float, float]) -> Found:
    """Bins of equal width over σ and over σ², and what lies beyond them."""
    found = evaluate(name, "--dimensions", str(i), *wide(*ends))["dimensions"][str(i)]
    return {
        f"table_{short}_axis": {
            "lo": ends[0] ** power,
            "hi": ends[1] ** power,
            "count": of(found[bins], "n"),
            "sum_var": of(found[bins], "variance"),
            "sum_sq_err": of(found[bins], "squared_error"),
            **found["out_of_range"][axis],
        }
        for short, axis, bins, power in AXES
    }


def of_joint(evaluate: Evaluate, name: str) -> Found:
    found = evaluate(name)
    joint = found["joint"]
    return {
        **{key: joint[key] for key in ("k", "nees_mean", "coverage_by_tau")},
        "nees_mean_over_k": joint["nees_over_k"],
        "nees_mean_accept_95": joint["nees_interval"],
        "nll_mean": joint["nll"],
        **{key: joint[key] for key in ("sgv_std_min", "sgv_std_max", "sgv_std_mean")},
        "error_mean": of(found["dimensions"].values(), "bias"),
    }


def of_netcal(evaluate: Evaluate, name: str, theirs: Found) -> Found:
    found = list(evaluate(name)["dimensions"].values())
    few = list(evaluate(name, *EQUAL_WIDTH, "--bins", "10")["dimensions"].values())

    def in_range(kind: str) -> Found:
        ranges = theirs[kind]["range_std"]
        words = [EQUAL_WIDTH if ranges is None else wide(*ranges[i]) for i in range(len(found))]
        each = [
            evaluate(name, "--dimensions", str(i), *one)["dimensions"][str(i)]
            for i, one in enumerate(words)
        ]
        return {
            "range_std": ranges,
            "range_var": None if ranges is None else np.square(ranges),
            "ence": of(each, "ence"),
            "uce": of(each, "uce"),
            "qce_conditional": of(each, "qce"),
            "qce_conditional_by_tau": np.transpose(of(each, "qce_by_tau")),
        }

    return {
        "nll_by_dim": of(found, "nll"),
        "nll_mean": np.mean(of(found, "nll")),
        **{kind: in_range(kind) for kind in ("minmax", "cover", "partial")},
        "ence_10_bins_minmax": of(few, "ence"),
        "uce_10_bins_minmax": of(few, "uce"),
        "qce_marginal": of(found, "qce_marginal"),
        **{
            key: np.transpose(of(found, key))
            for key in ("qce_marginal_by_tau", "picp_by_tau", "mpiw_by_tau")
        },
    }


def of_netcal_joint(evaluate: Evaluate, name: str, ends: tuple[float, float]) -> Found:
    joint = evaluate(name)["joint"]
    words = {"minmax": EQUAL_WIDTH, "cover": wide(*ends)}
    cuts = {key: evaluate(name, *cut)["joint"] for key, cut in words.items()}
    return {
        **{key: joint[key] for key in ("nll", "qce_marginal", "qce_marginal_by_tau")},
        **{f"qce_conditional_{name}": one["qce"] for name, one in cuts.items()},
        **{f"qce_conditional_by_tau_{name}": one["qce_by_tau"] for name, one in cuts.items()},
        "cover_range_sqrt_sgv": ends,
    }


def of_toolbox(evaluate: Evaluate, name: str, i: int) -> Found:
    plain, checked, found = (
        evaluate(name, *words)["dimensions"][str(i)]
        for words in ((), levels(CHECK_LEVELS), levels(HUNDRED_LEVELS))
    )
    ours = {
        "nll_gaussian": plain["nll"],
        "sharpness": plain["sharpness"],
        "check_score": checked["pinball"],
        "crps_gaussian": plain["crps"],
    }
    arrays = all_sets()[name]
    # The interval of level 0 holds errors that are 0 to the last bit, of which there are some.
    perfect = float(np.mean(arrays["gt"][:, i] == arrays["mean"][:, i]))
    for kind, first, coverage in (
        ("interval", perfect, found["picp_by_tau"]),
        ("quantile", 0.0, found["coverage_one_sided_by_tau"]),
    ):
        gap = np.array([first, *(coverage - HUNDRED_LEVELS), 0.0])
        ours[f"ma_cal_{kind}"] = np.mean(np.abs(gap))
        ours[f"rms_cal_{kind}"] = np.sqrt(np.mean(gap**2))
        ours[f"miscal_area_{kind}"] = area_between(gap)
    gap = np.array([0.0, *(found["picp_by_tau"] - HUNDRED_LEVELS), 0.0])
    same(found["calibration_area"], area_between(gap))
    return ours


def area_between(gap: np.ndarray) -> float:
    """Of a line through equally spaced points and zero, one piece after the other."""
    width, area = 1 / (gap.size - 1), 0.0
    for left, right in pairwise(gap):
        # Of two triangles where the line crosses zero, which is at this share of the width.
        share = left / (left - right) if left * right < 0 else 0.0
        halves = abs(left) * share + abs(right) * (1 - share)
        area += width * (halves if share else abs(left + right)) / 2
    return area


@pytest.mark.parametrize("name", DETECTIONS)
def test_every_number_of_other_libraries_is_reproduced(evaluate, name):
    theirs, found = CASES[name], evaluate(name)
    assert found["rows"] == theirs["rows"]
    assert len(found["dimensions"]) == theirs["dims"]
    for i in range(theirs["dims"]):
        values = theirs["numpy"][i]
        ends = values["table_std_axis"]["lo"], values["table_std_axis"]["hi"]
        same(of_dimension(evaluate, name, i, ends), values)
        same(of_toolbox(evaluate, name, i), theirs["uncertainty_toolbox"][i])
    netcal = {k: v for k, v in theirs["netcal"].items() if not k.startswith("quantile_loss")}
    same(of_netcal(evaluate, name, netcal), netcal)
    if "joint_netcal" in theirs:
        same(of_joint(evaluate, name), theirs["joint_numpy"])
        joint = theirs["joint_netcal"]
        same(of_netcal_joint(evaluate, name, joint["cover_range_sqrt_sgv"]), joint)


def test_edges_and_small_bins_are_those_of_netcal_but_for_what_is_charged_with_tau(evaluate):
    """σ on the edges, empty bins and σ beyond the range; bins with few rows left out."""
    theirs = CASES["edges_1d"]["fixed_range"]
    ours: Found = {"rows": 585, "range_std": [0.0, 10.0], "range_var": [0.0, 100.0]}
    ours |= tables(evaluate, "edges_1d", 0, (0.0, 10.0))
    for fewest in (1, 6):
        words = *wide(0.0, 10.0), "--min-bin-rows", str(fewest)
        found = evaluate("edges_1d", *words)["dimensions"]["0"]
        n, within = (np.array(of(found["bins"], key)) for key in ("n", "within"))
        counted = n >= fewest
        gap = np.abs(within - n[:, None] * TAU)[counted].sum(axis=0)
        same(found["qce_by_tau"], gap / n[counted].sum())
        # netcal charges the rows of small bins with τ.
        charged = (gap + n[~counted].sum() * TAU) / n.sum() if fewest > 1 else found["qce_by_tau"]
        ours[f"netcal_sample_threshold_{fewest}"] = {
            "ence": found["ence"],
            "uce": found["uce"],
            "qce_bin_counts": n,
            "qce_conditional_by_tau": np.reshape(charged, (-1, 1)),
        }
    same(ours, theirs)


@pytest.mark.parametrize("name", CLASSES)
def test_every_number_of_a_classifier_is_reproduced(evaluate, name):
    found, theirs = evaluate(name), CASES[name]
    assert found["rows"] == theirs["rows"]
    assert (found["dimensions"], found["joint"]) == ({}, None)
    ours = {
        "brier_multiclass": "brier",
        "ece1": "ece",
        "ace_nonempty_bins": "ace",
        "entropy_mean": "entropy",
        "sharpness_var_confidence": "sharpness",
    }
    classes = found["classification"]
    same({key: classes[ours.get(key, key)] for key in theirs["numpy"]}, theirs["numpy"])
    netcal = {}
    for kind in ("width", "count"):
        for bins in (10, 15, 20):
            words = ("--class-binning", f"equal-{kind}", "--class-bins", str(bins))
            classes = evaluate(name, *words)["classification"]
            netcal[f"{bins}_{kind}"] = {key: classes[key] for key in ("ece", "mce", "ace")}
    same(netcal, theirs["netcal"])
