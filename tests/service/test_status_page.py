"""The status page: what it says, that its numbers are GetCalibration's, that names are harmless."""

from __future__ import annotations

import base64
import hashlib
import html
import math
import re
import urllib.error
import urllib.request
from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import quote

import numpy as np
import pytest

from monitor.drift.alarms import (
    Alarm,
    AlarmChange,
    AlarmReason,
    DriftReading,
    DriftState,
    error_of,
    hours,
)
from monitor.drift.charts import Quantity, Stage
from monitor.figures.svg import number
from monitor.figures.timeline import Mark
from monitor.frames.slices import TOTAL
from monitor.frames.space import MOST_SLICES
from monitor.pipeline.housekeeping import Events
from monitor.promotion.records import (
    Evidence,
    Factor,
    Happened,
    Record,
    TrialStanding,
    TrialState,
)
from monitor.recalibration.estimated.covariates import Layout
from monitor.recalibration.estimated.residual import ResidualCovariance
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.selection import IDENTITY, Selection
from monitor.service.history import MOST_MARKS, MOST_POINTS, NEES_RAW, History, Moment
from monitor.service.pages import SCRIPT, Pages
from monitor.service.view import View, findings, percent, sigma, span, state_of, view_of
from monitor.statistics.exact_engine import BinCut
from monitor.statistics.observations import finished
from monitor.statistics.reading import ReadingCache, WindowReading
from monitor.v1 import calibration_pb2, drift_pb2, frame_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.wire.values import value_of
from tests.alarmed import READING, STANDINGS, alarm
from tests.checkpointed import OF_CLASSES
from tests.drifting import TOO_SMALL, Drive, drive_until_alarm, settings
from tests.exported import snapshot
from tests.labelled import converse, header
from tests.piped import EYE, HEADER, XYZ, opened, pipeline_of, statistics_of
from tests.received import Sent, frame
from tests.served import PATIENCE, Sidecar, eventually, running
from tests.tags import Tags

EVIL, ODD = "<script>alert(1)</script>", "a\"b/c d%2F&é'"
SECOND = 10**9
STAGES = {"raw": calibration_pb2.STAGE_RAW, "recalibrated": calibration_pb2.STAGE_RECALIBRATED}
SEVERITIES = {"page": drift_pb2.DRIFT_SEVERITY_PAGE, "ticket": drift_pb2.DRIFT_SEVERITY_TICKET}


# ---- a sidecar with an alarm, odd names and class probabilities


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    (folder / "classes.json").write_text(OF_CLASSES.to_json(), "utf-8")
    active = f"[recalibration]\nclass_recalibrator = '{folder / 'classes.json'}'"
    with running(folder, settings(more=active)) as started:
        drive = Drive(started, ("car", EVIL, ODD), objects=12)
        drive.send(40)
        drive.variance[EVIL] = TOO_SMALL
        drive_until_alarm(drive, 20, EVIL)
        drive.close()
        sure = frame_pb2.Frame(frame_id=1, stamp_ns=round(drive.seconds * SECOND))
        for i in range(60):
            sure.detections.add(
                id=i,
                class_index=0,
                mean=[i, 1.0],
                covariance=[4.0, 4.0],
                class_probabilities=[0.7, 0.2, 0.1],
                ground_truth_class=i % 3,
            )
        converse(started, header("camera", ("car", "bus", "tram")), pb.ProcessRequest(frame=sure))
        assert eventually(lambda: "Class probabilities" in started.get("/"))
        # Windows, and so the page, are read every ten seconds.
        assert eventually(lambda: "All detections" in started.get("/"), 3 * PATIENCE)
        assert eventually(lambda: differences(started, "/") == [], 3 * PATIENCE)
        yield started


class Numbers(HTMLParser):
    """Collects the text of all that says what it is."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self._of = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._of = dict(attrs).get("data-of", "")

    def handle_data(self, data):
        if self._of:
            self.found.append((self._of, data))
            self._of = ""


def numbers(text: str) -> list[tuple[str, str]]:
    return Numbers(text).found


def differences(sidecar: Sidecar, path: str) -> list[tuple[str, str, str]]:
    """What the page says of each number that GetCalibration says otherwise, and what that says."""
    told = {
        window: sidecar.monitor.GetCalibration(
            pb.GetCalibrationRequest(window=window), timeout=PATIENCE
        )
        for window in ("", "5m")
    }
    found = numbers(sidecar.get(path))
    assert len(found) > 8
    both = ((of, text, expected(told, of)) for of, text in found)
    return [one for one in both if one[1] != one[2]]


def expected(answers: dict[str, pb.GetCalibrationResponse], of: str) -> str:
    """What GetCalibration says of a number, as the page writes it."""
    slice, where, stage, axis, measure = of.rsplit("/", 4)
    told = answers["5m" if where == "5m" else ""]
    if where == "counts":
        return f"{getattr(told.counts, measure):,}"
    if where == "classes":
        at = slice, STAGES[stage]
        (found,) = (one for one in told.classes if (one.slice, one.stage) == at)
        return f"{found.n:,}" if measure == "n" else number(getattr(found, measure))
    if where == "drift":
        severity = SEVERITIES[stage]
        (one,) = (one for one in told.drift if (one.slice, one.severity) == (slice, severity))
        held = one.alarm if axis == "alarm" else one
        if measure == "error":
            return error_of(value_of(Alarm, one.alarm), "σ is {factor} times {way}")
        if measure == "size":
            short = "σ {factor} times {way}"
            return error_of(value_of(Alarm, one.alarm), short, interval=False)
        value = getattr(held, measure)
        if measure in ("detections", "tracks"):
            return f"{value:,}"
        return hours(value) if value >= 1e-3 else "none"
    if stage == "predicted":
        (all_of,) = (one for one in told.predicted if one.slice == slice)
        value = getattr(all_of, measure)
        if measure == "n":
            return f"{value:,}"
        return percent(value) if measure.endswith("above_before") else number(value)
    (of_slice,) = (one for one in told.slices if one.slice == slice)
    (of_stage,) = (one for one in of_slice.stages if one.stage == STAGES[stage])
    if measure == "n":
        return f"{of_stage.n:,}"
    if measure == "sigma":
        return sigma(math.sqrt(of_stage.joint.nees_over_k))
    if axis == "joint":
        return number(getattr(of_stage.joint, measure))
    (dimension,) = (one for one in of_stage.dimensions if one.name == axis)
    return number(getattr(dimension, measure))


def slice_path(name: str) -> str:
    return f"/slice/{quote(name, safe='')}"


def test_every_number_is_what_get_calibration_says(sidecar):
    paths = ["/", *map(slice_path, ("car", EVIL, ODD, "total"))]
    for path in paths:
        assert differences(sidecar, path) == []
    measures = {of.rsplit("/", 1)[1] for path in paths for of, _ in numbers(sidecar.get(path))}
    assert measures > {"nees_over_k", "ence", "ence_noise_floor", "qce", "n", "n_eff", "sigma"}
    assert measures > {"error", "evidence_hours", "threshold_hours", "matched", "ece", "frames"}
    assert measures > {"entropy_mean", "entropy_above_before", "deviation_q50"}


def test_figures_show_the_bins_of_get_calibration(sidecar):
    request = pb.GetCalibrationRequest(slices=["car"], window="5m", include_bins=True)
    (told,) = sidecar.monitor.GetCalibration(request, timeout=PATIENCE).slices
    text = sidecar.get("/slice/car")
    for dimension in told.stages[0].dimensions:
        for one in dimension.bins:
            stated, came = (math.sqrt(of / one.n) for of in (one.variance, one.squared_error))
            row = f'<tr><th scope="row">raw</th><td>{one.n:,}</td><td>{number(stated)}</td>'
            assert f"{row}<td>{number(came)}</td>" in text
    for tau, share in zip((0.5, 0.9), told.stages[0].joint.coverage_by_tau[::2], strict=False):
        assert f'<th scope="row">{number(tau)}</th><td>{number(share)}</td>' in text
    assert "Class probabilities" in sidecar.get("/slice/total")


def test_the_alarm_is_the_first_thing_that_is_said_with_what_to_do(sidecar):
    text = sidecar.get("/")
    said = html.unescape(first("<h1[^>]*>(.*?)</h1>", text))
    size = r"σ is [\d.]+ times too small"
    assert re.fullmatch(
        rf"{re.escape(EVIL)} is overconfident: {size}; page raised \d+ s ago\.", said
    )
    assert re.search(r"page</span>: <[^>]*>σ [\d.]+ times too small</span> when raised \d+ s", text)
    assert "docs/runbook.md#calibrationdriftpage" in text
    rows = re.findall(r'<th scope="row"><a href="(/slice/[^"]+)"', text)
    assert rows[0] == slice_path(EVIL)
    assert set(rows) >= {slice_path(ODD), "/slice/car", "/slice/total"}


@pytest.mark.parametrize("path", ["/", "/slice/car", slice_path(EVIL), slice_path(ODD)])
def test_pages_are_whole_ask_for_nothing_outside_and_obey_their_own_policy(sidecar, path):
    with urllib.request.urlopen(sidecar.http + path, timeout=PATIENCE) as response:
        headers, text = response.headers, response.read().decode()
    opened = Tags(text).opened
    assert opened.count("script") == opened.count("style") == opened.count("main") == 1
    assert opened.count("h1") == 1
    policy = headers["Content-Security-Policy"]
    for tag in ("script", "style"):
        body = first(f"<{tag}>(.*?)</{tag}>", text)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    assert "style=" not in text
    assert not re.search(r"\son\w+=", re.sub("<script>.*</script>", "", text, flags=re.DOTALL))
    # Addresses are of this sidecar, but for the name of the language of drawings.
    assert set(re.findall(r"\w+://[^\"]*", text)) <= {"http://www.w3.org/2000/svg"}
    assert all(one.startswith(("/", "data:")) for one in re.findall('(?:href|src)="(.*?)"', text))
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    part = sidecar.get(f"{path}?main")
    Tags(part)
    assert "<script" not in part
    assert "<h1" in part


@pytest.mark.parametrize(
    "name", ["nothing", "car/", "Car", "..%2f..%2fetc", "%00", "%ff", quote(EVIL.upper()), ""]
)
def test_a_slice_that_is_not_there_is_not_found_in_plain_words(sidecar, name):
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{sidecar.http}/slice/{name}", timeout=PATIENCE)
    assert caught.value.code == 404
    assert caught.value.headers["Content-Type"].startswith("text/plain")
    assert caught.value.read() == b"there is no such slice\n"


# ---- sentences


def view(
    now: float = 1000.0,
    *,
    windows: bool = True,
    bare: tuple[int, ...] = (),
    selection: Selection = IDENTITY,
    **others,
) -> View:
    """A sidecar that runs for 100 s, with 400 labelled detections in slices of its classes.

    bare  classes whose detections come without a covariance
    """
    pipeline = pipeline_of(selection)
    stream = opened(pipeline, HEADER)
    random = np.random.default_rng(1)
    for i in range(4):
        truth = random.normal(size=(100, 3))
        rows = [
            Sent(
                100 * i + j,
                (0.0, 0.0, 0.0),
                () if j % 2 in bare else (1.0, 1.0, 1.0),
                j % 2,
                tuple((truth[j] / (8.0 if j % 2 in bare else 1.0)).tolist()),
            )
            for j in range(100)
        ]
        pipeline.process(stream, frame(rows, stamp_ns=i * SECOND), 900 * SECOND)
    readings = finished(ReadingCache(BinCut(5)).read(statistics_of(pipeline)))
    of_window = tuple(WindowReading("5m", one) for one in readings) if windows else ()
    shot = snapshot(pipeline=pipeline, readings=readings, windows=of_window, **others)
    history = History(pipeline.events, lambda: now)
    history.began = now - 100
    ns = int(now * SECOND)
    return view_of(shot, (now, ns, ns), history)


def drawn(of: View, slice: str | None = None) -> str:
    found = Pages(of).get(slice)
    assert found is not None
    text = found.decode()
    Tags(text)
    return text


def untagged(text: str) -> str:
    return re.sub(r"<[^>]*>", "", text)


def first(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.DOTALL)
    assert found, pattern
    return found[1]


def said(of: View) -> list[str]:
    drawn(of)
    return [f"{one.kind}: {one.sentence}" for one in findings(of)]


def test_a_healthy_sidecar_says_that_nothing_is_known_to_be_wrong():
    found = view(910.0)
    (sentence,) = said(found)
    assert re.fullmatch(
        "well: Nothing is known to be wrong in 100 s of data: errors are .* times .*", sentence
    )
    assert drawn(found, "car")


def test_labels_that_drift_left_out_are_told_and_a_warning_where_they_are_most():
    few = replace(READING.standings[0], slice=TOTAL, state=DriftState.TOO_FEW, alarm=None)
    left_out = "Drift has left out 500 labelled detections: 500 late ("
    for standings, kind in (((), "well"), ((few,), "warning")):
        found = view(910.0, drift=DriftReading(standings, left_out=(("late", 500),)))
        (sentence,) = said(found)
        assert sentence.startswith(f"{kind}: {left_out if standings else 'Nothing'}")
        assert left_out in drawn(found)


def test_a_sidecar_without_frames_says_so_and_where_it_waits():
    pipeline = pipeline_of()
    shot = snapshot(pipeline=pipeline)
    empty = view_of(shot, (1.0, SECOND, SECOND), History(pipeline.events))
    assert said(empty) == ["warning: No frames in 1 s: nothing can be judged."]
    assert "detectors are awaited at 127.0.0.1:50051." in drawn(empty)
    assert "What to do" in drawn(empty)


def test_silence_of_frames_or_of_labels_is_said_before_anything_is_called_well():
    (silent,) = said(view(1080.0))
    assert silent == "warning: No frames have come for 3 min: all below is of then."
    late = view(910.0)
    streams = tuple(replace(one, matched_received_ns=None) for one in late.streams)
    (none,) = said(replace(late, streams=streams))
    assert none == "warning: No labels have come in 100 s of frames: nothing can be judged."
    text = drawn(replace(late, streams=streams))
    assert text.index("<h2>Labels") < text.index("<h2>Recalibrators")
    streams = tuple(replace(one, matched_received_ns=190 * SECOND) for one in late.streams)
    (stopped,) = said(replace(late, streams=streams, recent={}))
    assert stopped == "warning: No labels have come for 12 min: nothing can be judged."


def test_alarms_then_swaps_then_tickets_are_said():
    hidden = replace(
        READING.standings[1],
        alarm=alarm(severity=READING.standings[1].severity, stage=Stage.RAW, since_ns=0),
    )
    factor = Factor("x", 4.0, 4.0, 4.0)
    record = Record(1, 880 * SECOND, Happened.PROMOTED, "car", "v", "a", "b", "trial", "proven",
                    factors=(factor,))  # fmt: skip
    found = view(910.0, drift=replace(READING, standings=(READING.standings[0], hidden)))
    found = replace(found, records=(record,), event_ns=196_400_000_000)
    assert said(found) == [
        "page: car is overconfident: σ is 2.2 times too small; page raised 3 min ago.",
        "swap: car was corrected 30 s ago: σ is forwarded 2.00 times larger than the detector "
        "states; being verified.",
        "ticket: car is overconfident as the detector sends it: σ is 2.2 times too small, which is "
        "compensated; ticket raised 3 min ago.",
    ]
    text = drawn(found)
    assert text.count("<article") == 2
    assert "began about 3 min ago" in text
    swap, well = said(replace(view(910.0), records=(record,)))
    assert (swap[:5], well[:5]) == ("swap:", "well:")
    assert "Nothing else" in well
    assert swap.endswith("; being verified, no action is needed now.")


def test_an_alarm_of_one_quantity_is_said_with_its_dimension():
    biased = alarm(dimension="<x>", quantity=Quantity.BIAS, size=-0.312, unit="m")
    found = view(910.0, drift=replace(READING, standings=(replace(STANDINGS[0], alarm=biased),)))
    (page, *_) = said(replace(found, event_ns=196_400_000_000))
    assert page == (
        "page: car is biased: <x> off by −0.31 m (true − reported); page raised 3 min ago."
    )
    text = drawn(found)
    assert "<x>" not in text
    assert "is biased: <b>" in text and "&lt;x&gt; off by −0.31 m (true − reported)" in text


def test_a_swap_is_verified_by_the_guard_and_is_not_called_well_meanwhile():
    record = Record(1, 880 * SECOND, Happened.PROMOTED, "car", "v", "a", "b", "trial", "proven")
    evidence = Evidence(7, 0.1, 1.0, 0.0, 3.0)
    guard = TrialStanding("car", "a", TrialState.GUARD, evidence, ())
    swapped = replace(view(910.0), records=(record,), trials=(guard,), promotion="automatic")
    text = drawn(swapped)
    assert "proves better at odds of 1,000 : 1, it comes back by itself" in text
    assert "the odds for it so far: 10.0 : 1 after 7 tracks." in text
    assert "In 4 min the row of the slice holds only what came after the change." in text
    assert [state_of(swapped, name)[1:] for name in ("car", "truck")] == [
        ("swap", "verifying"),
        ("well", "no alarm"),
    ]
    assert "all from before the change: raw = recalibrated" in text
    later = replace(swapped, wall_ns=1200 * SECOND)
    assert state_of(later, "car")[1:] == ("well", "no alarm")
    assert not any("verified" in one for one in said(later))


def test_of_an_assumed_covariance_it_is_said_how_large_the_errors_are_and_never_that_it_is_wrong():
    found = view(910.0, bare=(1,))
    note, well = said(found)
    assert well.startswith("well: Nothing is known to be wrong in 100 s of data")
    size = r"its errors are 0\.1\d\d m"
    assert re.fullmatch(rf"note: truck, no covariance: σ of . is assumed, 1\.00 m; {size}\.", note)
    assert state_of(found, "truck, no covariance") == (3, "", "σ is assumed")
    assert state_of(found, "total, no covariance") == (4, "", "σ is assumed")
    text = drawn(found)
    assert "No covariance that is learned from its labels is on trial yet" in text
    assert "life-of-a-detector-without-covariances" in text
    assert re.search(rf"truck, no covariance</a>.*?σ is assumed</span>: .*?{size}", text, re.DOTALL)
    assert "too large" not in text
    one = drawn(found, "truck, no covariance")
    assert re.search(size, one)
    assert "too large" not in one
    assert "<th>RMSE</th>" in re.sub(r"<th[^>]*>", "<th>", one)


def test_where_nothing_has_a_covariance_that_is_all_that_is_said():
    (note,) = said(view(910.0, bare=(0, 1)))
    assert note.startswith("note: ")
    assert "no covariance and 1 other slice: σ of " in note


def test_an_estimated_covariance_is_judged_as_any_other():
    half = (tuple(np.log([0.25] * 3).tolist()),) * 2
    one_for_all = ResidualCovariance(3, Layout(), (0.0,), (0.0,), half, (EYE, EYE))
    selection = Selection(XYZ.names, Identity(), {"no covariance": one_for_all})
    found = view(910.0, bare=(1,), selection=selection)
    (sentence,) = said(found)
    assert re.fullmatch(
        r": truck, no covariance: σ [34]\.\d+ times too large; too little evidence for an alarm\.",
        sentence,
    )
    assert state_of(found, "truck, no covariance")[1:] == ("warning", "no alarm yet")
    assert "200 given a covariance, since they came without one" in untagged(drawn(found))


def test_a_promotion_says_that_a_covariance_was_given():
    factor = Factor("x", 0.01, 0.01, 0.01)
    record = Record(1, 880 * SECOND, Happened.PROMOTED, "truck, no covariance", "v", "a", "b",
                    "trial", "proven", factors=(factor,))  # fmt: skip
    found = [one for one in said(replace(view(910.0, bare=(1,)), records=(record,)))
             if one.startswith("swap")]  # fmt: skip
    assert found == [
        "swap: truck, no covariance was given a covariance 30 s ago: σ is forwarded 10.0 times "
        "smaller than was assumed; being verified, no action is needed now."
    ]


def test_lines_go_on_up_to_now_with_every_promotion():
    empty = view(1000.0)
    points = np.full((2, 7), 1.0)
    points[:, 0] = 910.0, 920.0
    mark = Moment("car", Mark(990.0, "promoted", "well"))
    text = drawn(replace(empty, points={"car": points}, moments=(mark,)))
    # 3 to 117 units are 900 to 1000 s.
    assert '<path class="mark well" d="M105.6 2.0L105.6 26.0"/>' in text
    assert "NEES/K, last 100 s" in text


def test_slices_without_labels_in_the_window_are_shown_since_epoch_and_that_is_said():
    text = drawn(view(910.0, windows=False))
    assert "had no labels in the last 100 s and are shown since epoch" in text
    assert {of.rsplit("/", 4)[1] for of, _ in numbers(text)} == {"epoch", "counts"}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (59, "59 s"), (180, "3 min"), (7300, "2 h"), (3e5, "3 d"), (math.nan, "–")],
)
def test_a_duration_is_said_as_people_do(seconds, words):
    assert span(seconds) == words


# ---- the last hour


def test_the_history_is_bounded_however_long_and_however_many_slices():
    now, reading = 0.0, view(910.0).readings["car"]
    history = History(Events(), lambda: now)
    many = {f"slice {i}": reading for i in range(MOST_SLICES + 10)}
    finished(history.add(many, (), {}))
    assert len(history.points) == MOST_SLICES
    one = dict(list(many.items())[:1])
    history = History(Events(), lambda: now)
    for i in range(MOST_POINTS + 50):
        now = 10.0 * i
        finished(history.add(one if i % 2 else {}, (), {}))
    (points,) = history.points.values()
    assert points.shape[0] == MOST_POINTS
    assert points.nbytes * MOST_SLICES < 11e6
    assert points[-1, 0] == now
    assert math.isnan(points[-2, NEES_RAW]) is not math.isnan(points[-1, NEES_RAW])


def test_the_history_marks_alarms_and_promotions_and_forgets_the_oldest():
    events = Events()
    history = History(events, lambda: 5.0)
    events.publish(AlarmChange(AlarmReason.RAISED, alarm()))
    events.publish(AlarmChange(AlarmReason.CALM, alarm()))
    for what in (Happened.PROMOTED, Happened.BEGAN, Happened.ROLLED_BACK):
        events.publish(Record(1, 0, what, "car", "v", "a", "b", "trial", ""))
    assert [one.mark.word for one in history.moments] == ["page", "promoted", "rolled back"]
    for _ in range(2 * MOST_MARKS):
        events.publish(AlarmChange(AlarmReason.RAISED, alarm()))
    assert len(history.moments) == MOST_MARKS


def test_the_script_is_short():
    assert SCRIPT.count("\n") < 20
