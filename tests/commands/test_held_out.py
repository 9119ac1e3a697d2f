"""Whether a fit is worth it: judged on tracks that it has not seen, and said with its interval."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monitor.commands.held_out import PARTS, dealt, told
from monitor.commands.python_api import evaluate, fit
from monitor.recalibration.scaling import CovarianceScaling
from monitor.statistics.verdicts import FEWEST_TO_JUDGE
from monitor.store.recordings import read_recording


def by_class(tracks=40, **too_small):
    """The tracks of several classes, each as `simulated` makes them."""
    parts = [simulated(factor, tracks, seed=i) for i, factor in enumerate(too_small.values())]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    joined["gt_id"] = np.arange(joined["x"].size) // 10
    return joined | {"class": np.repeat(list(too_small), parts[0]["x"].size)}


def simulated(too_small=1.0, tracks=40, seed=0):
    """Tracks of ten rows, with errors that are `too_small` times as large as σ says."""
    random = np.random.default_rng(seed)
    n = 10 * tracks
    truth, sigma = random.normal(0, 20, n), random.uniform(0.2, 1, n)
    mean = truth + too_small * sigma * random.standard_normal(n)
    return {"x": mean, "std_x": sigma, "gt_x": truth, "gt_id": np.arange(n) // 10}


def test_a_fit_that_helps_is_worth_it_by_the_gain_of_the_formula():
    data = simulated(too_small=2.0)
    (judged,) = fit(data).held_out
    assert judged.verdict.startswith("worth it")
    assert (judged.slice, judged.rows, judged.tracks) == ("all", 400, 40)
    error = (data["gt_x"] - data["x"]) / data["std_x"]
    nees = np.mean(error**2)
    nll = 0.5 * (np.log(2 * np.pi) + error**2) + np.log(data["std_x"])
    assert (judged.before.nees_over_k, judged.before.nll) == pytest.approx((nees, nll.mean()))
    # The mean NEES becomes 1, and ln σ grows by the logarithm of its root.
    assert judged.after.nees_over_k == pytest.approx(1.0, rel=0.05)
    assert judged.factors["x"] == pytest.approx(np.sqrt(nees), rel=0.02)
    assert judged.gain == pytest.approx(0.5 * (nees - 1 - np.log(nees)), rel=0.05)
    assert 0 < judged.interval[0] < judged.gain < judged.interval[1]


def test_evaluate_with_a_model_says_what_it_gains_on_the_rows_of_the_file():
    data, model = simulated(too_small=2.0, seed=1), fit(simulated(too_small=2.0), held_out=False)
    found = evaluate(data, model=model)
    made: Any = found.to_dict()["model"]
    (gain,) = made["before_after"]
    before, after = (one.groups[""].joint.nll for one in (evaluate(data), found))
    assert gain["nll_gain"] == pytest.approx(before - after)
    assert gain["verdict"].startswith("worth it: gains ")


def test_a_fit_to_calibrated_data_is_no_proven_gain():
    verdicts = [fit(simulated(seed=seed)).held_out[0].verdict[:14] for seed in range(5)]
    assert verdicts.count("no proven gain") >= 4


def test_each_track_is_judged_once_by_a_fit_that_has_not_seen_it_and_may_be_harmful():
    recording, kept, seen = read_recording(simulated()), np.arange(5, 400), []
    wrong = fit(simulated(too_small=0.2, seed=1), held_out=False).selection

    def spied(rows):
        seen.append(rows)
        return wrong

    unseen = dealt(recording, kept, spied)
    assert unseen is not None
    judged, odd = unseen.judged({"odd": kept[1::2]})
    left_out = [np.setdiff1d(kept, rows) for rows in seen]
    assert len(seen) == PARTS
    assert np.sort(np.concatenate(left_out)).tolist() == kept.tolist()
    for rows, out in zip(seen, left_out, strict=True):
        assert not np.intersect1d(rows // 10, out // 10).size
    assert (judged.rows, judged.tracks, odd.slice, odd.rows) == (395, 40, "odd", 197)
    assert judged.verdict.startswith("harmful")
    assert judged.gain < judged.interval[1] < 0


def test_too_few_tracks_are_no_ground_for_a_verdict():
    few, enough = (fit(simulated(too_small=3.0, tracks=FEWEST_TO_JUDGE - i)) for i in (1, 0))
    assert few.held_out[0].verdict.startswith("too little data")
    assert enough.held_out[0].verdict.startswith("worth it")
    assert fit(simulated(tracks=PARTS - 1)).held_out == ()


def test_what_is_judged_is_what_is_saved_and_a_mean_hides_no_opposite_errors():
    data = by_class(car=2.0, truck=1.0)
    made = fit(data, by="class", proven_only=True)
    everything, car, truck = made.held_out
    assert made.selection.by_slice["truck"].method == "identity"
    assert truck.after == truck.before
    assert (truck.factors["x"], truck.gain) == (1.0, 0.0)
    assert truck.verdict.startswith("left as the detector reports it (the fit: ")
    assert car.verdict.startswith("worth it")
    assert car.after.nll < car.before.nll
    assert everything.after.nll == pytest.approx((car.after.nll + truck.after.nll) / 2)
    low, high = sorted((car, truck), key=lambda one: one.after.nees_over_k)
    text = told(made.held_out)
    assert (
        f"; NEES/K by slice: {low.after.nees_over_k:.3f} ({low.slice}) to "
        f"{high.after.nees_over_k:.3f} ({high.slice})\n"
    ) in text
    assert "left as the detector reports them (proven_only): truck" in str(made)
    # One fit of both is wrong for each.
    one = fit(data)
    assert "proven_only leaves alone what" not in str(made)
    assert one.held_out[0].verdict.startswith("worth it")


def test_how_far_a_slice_was_drawn_is_said_with_a_remedy_that_holds():
    data = by_class(tracks=20, car=1.4, truck=1.0)

    def fitted(**options):
        made = fit(data, by="class", held_out=False, **options)
        one = made.selection.by_slice["car"]
        assert isinstance(one, CovarianceScaling)
        return one.scale[0], next(line for line in made.remarks if line.startswith("slice car"))

    drawn, said = fitted()
    alone, silent = fitted(fewest_tracks=10)
    assert drawn < 0.98 * alone
    words = f"which draws its factors on σ: x {alone:.2f} to {drawn:.2f} (fewest_tracks=10 if 20 "
    assert f", borrows from fallback, {words}tracks are enough)" in said
    assert "borrows" not in silent
    with pytest.raises(ValueError, match="fewest_tracks: it is for by"):
        fit(data, fewest_tracks=20)
    with pytest.raises(ValueError, match="fewest_tracks 0"):
        fit(data, by="class", fewest_tracks=0)
    with pytest.raises(ValueError, match="proven_only needs the judgement that held_out=False"):
        fit(data, proven_only=True, held_out=False)
