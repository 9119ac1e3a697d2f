"""What is said of truth that does not come, matches nothing, or is too little."""

import pytest

from monitor.commands.doctor.observation import Answer, Asked, Limits
from monitor.commands.doctor.rules import Area, Severity
from tests.diagnosis.observed import ADDED, NOW, SECOND, STARTED, of, seen, status, stream, without

labels = of(Area.LABELS)
TRUTH = "calibration_ground_truth_total"
SILENT = {f"{TRUTH}{{outcome=matched}}": 0.0}


def outcomes(**counts):
    return {f"{TRUTH}{{outcome={name}}}": float(count) for name, count in counts.items()}


def bad(observation):
    return [each for each in labels(observation) if each.severity is not Severity.WELL]


@pytest.mark.parametrize(
    ("ago_s", "within_s", "silent"),
    [(1801.0, 1800.0, True), (1799.0, 1800.0, False), (20.0, 10.0, True), (7000.0, 8000.0, False)],
)
def test_truth_that_has_not_come_for_long_is_told(ago_s, within_s, silent):
    late = status(stream(matched_received_ns=NOW - int(ago_s * SECOND)))
    found = bad(seen(added=SILENT, told=late, truth_within_s=within_s))
    assert bool(found) == silent
    if silent:
        assert found[0].severity is Severity.WRONG
        assert "frames come, but no truth comes: none has matched a detection for" in found[0].what
        assert "Measures stand still; drift cannot be found" in found[0].why
        assert "docs/runbook.md#calibrationnolabels" in found[0].remedy


def test_truth_that_has_never_come_is_a_remark_until_it_is_due():
    bare = stream(matched=0, matched_received_ns=None)
    never = outcomes(matched=0)
    (found,) = bad(seen(never, SILENT, status(bare, started_ns=NOW - 60 * SECOND)))
    assert found.severity is Severity.REMARK
    assert "no truth has come yet, since the start 60 s ago" in found.what
    (found,) = bad(seen(never, SILENT, status(bare, started_ns=STARTED)))
    assert found.severity is Severity.WRONG
    assert "none has matched a detection since the start 2 h ago" in found.what


def test_where_no_frames_come_no_truth_is_missed():
    gone = stream(received_ns=NOW - 60 * SECOND, matched_received_ns=NOW - 7000 * SECOND)
    assert bad(seen(added=SILENT, told=status(gone))) == []


@pytest.mark.parametrize(
    ("worst", "remedy"),
    [
        ("orphan", "labels of another detector, of a stream with another name"),
        ("too_late", "[pending] max_bytes"),
        ("refused", "the answer says which field"),
        ("unusable", "without an estimate that can be compared"),
    ],
)
def test_labels_that_match_nothing_are_told_by_what_becomes_of_them(worst, remedy):
    counts = outcomes(matched=500_000, **{worst: 300})
    (found,) = bad(seen(counts, SILENT | outcomes(**{worst: 300})))
    assert found.severity is Severity.WRONG
    assert "labels come, but none of them matches a detection" in found.what
    assert f"(300 labels while doctor looked: {worst} 100 %)" in found.what
    assert "streams here are front and rear" in found.what
    assert remedy in found.remedy


def test_labels_of_which_few_match_are_told_with_all_their_outcomes():
    counts = outcomes(matched=500_000, orphan=60, too_late=20)
    (found,) = bad(seen(counts, outcomes(matched=20, orphan=60, too_late=20)))
    assert "only 20 % of them match a detection" in found.what
    assert "(100 labels while doctor looked: orphan 60 % and too_late 20 %)" in found.what


@pytest.mark.parametrize("matched", [50, 100])
def test_labels_of_which_half_match_are_well(matched):
    added = outcomes(matched=matched, orphan=100 - matched)
    assert bad(seen(outcomes(matched=500_000, orphan=100 - matched), added)) == []


def test_too_few_labels_in_the_time_are_judged_since_the_start():
    counts = outcomes(matched=30, orphan=100)
    (found,) = bad(
        seen(counts | {"calibration_detections_total{outcome=recalibrated}": 9e3}, SILENT)
    )
    assert "(130 labels since the start: orphan 77 %)" in found.what


def test_where_truth_is_overdue_the_few_labels_that_come_say_why():
    # By their share since the start they are nothing: half a million matched before.
    late = status(stream(matched_received_ns=NOW - 7000 * SECOND))
    (found,) = bad(seen(outcomes(matched=500_000, orphan=5), SILENT | outcomes(orphan=5), late))
    assert found.severity is Severity.WRONG
    assert "none of them matches a detection (5 labels while doctor looked: orphan" in found.what


def test_hardly_any_truth_is_told():
    (found,) = bad(seen(outcomes(matched=900)))
    assert found.severity is Severity.WRONG
    assert found.what.startswith("less than 0.1 % of the detections have truth (900 of ")
    assert "calibrationlabelledsharelow" in found.remedy


def test_slices_and_streams_without_truth_beside_others_are_named():
    (found,) = bad(seen({"calibration_labelled_ratio{slice=tram}": 0.001}))
    assert found.severity is Severity.REMARK
    assert "hardly any detection of tram has truth" in found.what
    (found,) = bad(seen(told=status(stream(), stream("rear", matched=0))))
    assert found.severity is Severity.REMARK
    assert found.what == ("no truth has matched a detection of rear, while other streams have some")


def test_matches_near_the_gate_are_told():
    gate = {"calibration_near_gate_ratio": 0.165, "calibration_gated_matches": 5000.0}
    (found,) = bad(seen(gate))
    assert found.severity is Severity.REMARK
    assert "16 % of the matches lie near the gate" in found.what
    assert bad(seen(gate | {"calibration_gated_matches": 20.0})) == []


def test_truth_that_comes_after_its_frames_have_left_is_told():
    late = {f"{TRUTH}{{outcome=too_late}}": 100.0, "calibration_dropped_detections_total": 900.0}
    (found,) = bad(seen(late, late))
    assert found.severity is Severity.WRONG
    assert "100 labels came too late" in found.what
    left = {"calibration_dropped_detections_total": 900.0}
    assert bad(seen(left, left)) == []  # nobody asked for them


@pytest.mark.parametrize(
    ("metrics", "limits", "words"),
    [
        ({"calibration_ledger_bytes": 1.95e9}, Limits(), "1.82 GB of 2 GB"),
        ({"calibration_pending_bytes": 250e6}, Limits(on_disk=False), "238 MB of 256 MB"),
        ({"calibration_pending_bytes": 250e6}, Limits(), None),
        ({"calibration_pending_bytes": 95e3}, Limits(100_000, on_disk=False), "92.8 kB of 97.7 kB"),
    ],
)
def test_a_store_that_is_nearly_full_is_told_unless_the_disk_has_it_as_well(metrics, limits, words):
    found = bad(seen(metrics, limits=limits))
    assert [each.severity for each in found] == [Severity.REMARK] * (words is not None)
    if words:
        assert words in found[0].what


def test_frames_that_no_label_can_name_are_told():
    fates = {
        "calibration_detection_fates{fate=dropped_no_frame_id}": 900.0,
        "calibration_detection_fates{fate=matched}": 100.0,
    }
    (found,) = bad(seen(fates))
    assert "90 % of the detections came in frames without a frame_id" in found.what


def test_what_is_well_says_how_many_labels_match_and_when_the_last_one_came():
    told = status(stream(matched_received_ns=NOW - 12 * SECOND))
    (found,) = labels(seen(told=told, added=ADDED))
    assert found.what == (
        "100 % of the labels match, 50 % of the detections have one, the last came 12 s ago"
    )


def test_frames_that_could_have_truth_are_not_denied_where_the_status_is_not_told():
    none = outcomes(matched=0, orphan=0, too_late=0, refused=0, unusable=0)
    (found,) = labels(without(seen(none, SILENT), told=Asked(Answer.NO_TOKEN, "no token")))
    assert found.what == "no truth has come since the start"
