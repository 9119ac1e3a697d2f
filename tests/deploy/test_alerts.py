"""The alert rules under promtool: each fires when it should, for whom, and not before; a restart
and what is not there are no fault.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from monitor.drift.alarms import DriftState
from tests.deploy.scraping import DRIFT, RECALIBRATORS, RUNBOOK_BASE, SERVICE, promtool

pytestmark = pytest.mark.components

Samples = list[dict[str, str]]


class Case(NamedTuple):
    """Gives samples, and by time the alerts that fire of them, as `name severity label=value …`.

    At each time these fire and no others, on the van unless instance= says otherwise.
    """

    name: str
    samples: Samples
    at: Mapping[str, Sequence[str]]


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    """Writes samples of every minute as promtool has them: 0+1x5 counts to 5, _x5 is a gap."""
    pairs = ",".join(f'{key}="{value}"' for key, value in {"instance": "van", **labels}.items())
    whole = name if name == "up" else f"calibration_{name}"
    return {"series": f"{whole}{{{pairs}}}", "values": values}


def labels_of(alert: str) -> dict[str, str]:
    name, severity, *others = alert.split()
    further = dict(pair.split("=") for pair in others)
    labels = {"alertname": name, "severity": severity, "instance": "van", **further}
    return {label: value for label, value in labels.items() if value}


def rule_test(case: Case, names: Sequence[str]) -> dict[str, object]:
    found = []
    for time, alerts in case.at.items():
        for name in names:
            firing = [each for each in map(labels_of, alerts) if each["alertname"] == name]
            expected = [
                {"exp_labels": {k: v for k, v in each.items() if k != "alertname"}}
                for each in firing
            ]
            found.append({"eval_time": time, "alertname": name, "exp_alerts": expected})
    return {
        "name": case.name,
        "interval": "1m",
        "input_series": case.samples,
        "alert_rule_test": found,
    }


def holds(folder: Path, rules: str, tests: Sequence[dict[str, object]]) -> bool:
    """Lets promtool run the tests; it fails, and names those that do, unless all are right."""
    (folder / "alerts.yml").write_text(rules)
    files = [str(folder / "alerts.yml")]
    content = {"rule_files": files, "evaluation_interval": "1m", "tests": tests}
    (folder / "alerts_test.yml").write_text(json.dumps(content))
    return "SUCCESS" in promtool("test", "rules", str(folder / "alerts_test.yml"))


# ---- recalibrators

COMPENSATED = "CalibrationFaultCompensated warning slice=car"


def factor(values: str, **labels: str) -> dict[str, str]:
    return series("recalibration_factor", values, **{"slice": "car", "dimension": "x", **labels})


def of_recalibrators() -> Iterator[Case]:
    waiting = "CalibrationCandidateWaits info slice=car state=proven direction=better"
    evidence = [
        series("trial_log10_evidence", values, slice="car", state=state, direction=direction)
        for state, direction, values in (
            ("running", "better", "1+0.1x5 stale"),
            ("guard", "better", "3x20"),
            ("proven", "better", "_x5 2x4 stale"),
            ("proven", "worse", "_x5 -3x4 stale"),
        )
    ]
    at: dict[str, list[str]] = {"4m": [], "8m": [waiting], "20m": []}
    yield Case("a candidate that is proven waits until it is promoted", evidence, at)
    told, none = ["CalibrationFitsFail warning outcome=failed"], list[str]()
    for name, failed, at in (
        ("three within an hour", "0x9 8x9 9x9 10x200", {"25m": none, "40m": told, "2h": none}),
        ("two before a restart", "0x9 1x9 2x9 _x2 0x50", {"35m": none, "50m": none}),
        ("two on each side of it", "0x4 1x4 2x4 0x4 1x4 2x50", {"18m": none, "30m": told}),
    ):
        fits = series("recalibrator_fits_total", failed, outcome="failed")
        fitted = series("recalibrator_fits_total", "0+1x200", outcome="candidate")
        yield Case(f"tries that fail, {name}", [fits, fitted], at)
    for found in ("0.4", "2.5"):
        samples = [
            factor(f"1x9 {found}x30 1x20"),
            factor("0.5x60", dimension="y"),
            factor("2x60", slice="bus"),
            factor("1x20 9x8 1x40", slice="bus", dimension="y"),
        ]
        at = {"15m": [], "25m": [COMPENSATED], "50m": []}
        yield Case(f"a fault that {found} compensates for ten minutes is told", samples, at)
    several = [factor("1x9 0.4x30 1x20"), factor("1x19 3x40 1x9", dimension="y")]
    at = {"15m": [], "25m": [COMPENSATED], "45m": [COMPENSATED], "65m": []}
    yield Case("a slice has one alert, however many of its dimensions are outside", several, at)


# ---- drift

PAGE = "CalibrationDriftPage page slice=car"
TICKET = "CalibrationDriftTicket ticket slice=car"
OK, WARNING, ALARM, TOO_FEW = (int(state) for state in DriftState)


def state(values: str, severity="page", **labels: str) -> dict[str, str]:
    return series("drift_state", values, **{"slice": "car", "severity": severity, **labels})


def of_drift() -> Iterator[Case]:
    for severity, told in (("page", PAGE), ("ticket", TICKET)):
        yield Case(
            f"a {severity} is told at once, and for a quarter of an hour after its alarm is over",
            [state(f"{OK}x9 {ALARM}x9 {OK}x60", severity)],
            {"9m": [], "10m": [told], "19m": [told], "33m": [told], "36m": [], "1h": []},
        )
    yield Case(
        "no other state is told, whatever the evidence was",
        [
            *(state(f"{one}x120", slice=f"in {one}") for one in (OK, WARNING, TOO_FEW)),
            series("drift_log10_evidence", "5x120", slice=f"in {OK}", severity="page"),
            series("drift_log10_threshold", "3x120", severity="page"),
        ],
        {"1m": [], "2h": []},
    )
    yield Case(
        "an alarm of a moment that one scrape has seen is told",
        [state(f"{OK}x9 {ALARM} {OK}x60")],
        {"9m": [], "10m": [PAGE], "20m": [PAGE], "40m": []},
    )
    of_bus, total = TICKET.replace("car", "bus"), PAGE.replace("car", "total")
    yield Case(
        "each slice and vehicle has an alert of its own, and so have all slices together",
        [
            state(f"{ALARM}x20"),
            state(f"{ALARM}x20", slice="total"),
            state(f"{ALARM}x20", "ticket", slice="bus"),
            state(f"{OK}x20", slice="bus"),
            state(f"{ALARM}x20", instance="truck"),
        ],
        {"10m": [PAGE, total, of_bus, f"{PAGE} instance=truck"]},
    )
    yield Case(
        "an alarm outlives ten minutes without a sidecar, which kept it",
        [state(f"{OK}x4 {ALARM}x5 stale _x9 {ALARM}x30")],
        {"6m": [PAGE], "15m": [PAGE], "25m": [PAGE], "45m": [PAGE]},
    )


# ---- the sidecar, and what it is fed

JOB = {"job": "calibration_monitor"}
# Ten frames a second of five detections, of which a tenth has truth.
FRAMES, DETECTIONS, MATCHED = 600, 3000, 300
HOURS = 300  # minutes


def growing(per_minute: float) -> str:
    return f"0+{per_minute:g}x{HOURS}"


def restarting(per_minute: float) -> str:
    """Grows for an hour, and from 0 on after it."""
    return f"0+{per_minute:g}x59 0+{per_minute:g}x{HOURS - 60}"


def own(name: str, values: str, **labels: str) -> dict[str, str]:
    return series(name, values, **labels, **JOB)


def truth(outcome: str, values: str) -> dict[str, str]:
    return own("ground_truth_total", values, outcome=outcome)


def buckets(grown, fast: float, slow: float) -> Samples:
    """Counts frames a minute that took up to 1 ms, and 0.1 … 0.5 s."""
    counts = {"0.001": fast, "0.1": fast, "0.5": fast + slow, "+Inf": fast + slow}
    return [own("frame_seconds_bucket", grown(count), le=le) for le, count in counts.items()]


def samples(*changed: dict[str, str], grown=growing) -> Samples:
    """Makes those of a healthy sidecar, with some series replaced."""
    counters = (
        ("frames_total", {}, FRAMES),
        ("detections_total", {"outcome": "recalibrated"}, DETECTIONS),
        ("detections_total", {"outcome": "passed_through"}, 0),
        ("detections_total", {"outcome": "refused"}, 3),
        ("passed_through_total", {"reason": "missing_covariance"}, 3),
        ("passed_through_total", {"reason": "observe_mode"}, 0),
        ("rejected_total", {"reason": "duplicate_id"}, 3),
        ("ground_truth_total", {"outcome": "matched"}, MATCHED),
        *(("ground_truth_total", {"outcome": bad}, 1) for bad in FRUITLESS),
        *(("ground_truth_total", {"outcome": o}, 2 * MATCHED) for o in ("duplicate", "ignored")),
        *(("drift_left_out_total", {"reason": r}, 0) for r in ("overload", "tracks")),
        ("drift_left_out_total", {"reason": "late"}, 5),
    )
    healthy = [
        series("up", f"1x{HOURS}", **JOB),
        *(own(name, grown(count), **labels) for name, labels, count in counters),
        own("checkpoint_age_seconds", f"10x{HOURS}"),
        own("checkpoint_failures_total", f"0x{HOURS}"),
        own("loop_lag_seconds", f"0.004x{HOURS}"),
        *buckets(grown, FRAMES, 0),
    ]
    return list({each["series"]: each for each in (*healthy, *changed)}.values())


UNHEALTHY = ("missing_covariance", "recalibrator_mismatch", "recalibrator_failed", "internal")
FRUITLESS = ("unusable", "orphan", "too_late", "refused")
QUIET: dict[str, list[str]] = {f"{minutes}m": [] for minutes in (1, 6, 31, 59, 62, 66, 95, 240)}


def service(name: str, found: Samples, at: Mapping[str, Sequence[str]]) -> Case:
    """Makes a case whose alerts are given by name and further labels: all are warnings."""
    return Case(
        name, found, {time: [worded(*a.split()) for a in told] for time, told in at.items()}
    )


def worded(name: str, *labels: str) -> str:
    return " ".join((f"Calibration{name}", "warning", f"job={JOB['job']}", *labels))


def of_service() -> Iterator[Case]:
    up, frames = series("up", "1x300", **JOB), own("frames_total", growing(FRAMES))
    yield service("nothing is told of a healthy one", samples(), QUIET)
    yield service(
        "nothing is told of a healthy one with a restart", samples(grown=restarting), QUIET
    )
    down = ["SidecarDown"]
    yield service("no scrape at all is told", [], {"4m": [], "10m": ["SidecarDown instance="]})
    yield service(
        "a sidecar that cannot be scraped is told after five minutes, and for it alone",
        [
            series("up", "1x9 0x20 1x60", **JOB),
            series("up", "1x90", **JOB, instance="bus"),
            own("frames_total", f"0+{FRAMES}x9 stale"),
            truth("matched", f"0+{MATCHED}x9 stale"),
        ],
        {"9m": [], "13m": [], "16m": down, "29m": down, "31m": []},
    )
    none = ["NoLabels"]
    ended = truth("matched", f"0+{MATCHED}x60 {60 * MATCHED}x200")
    at = {"60m": [], "90m": [], "100m": none}
    yield service("labels that end are told after half an hour", [up, frames, ended], at)
    batches = truth("matched", " ".join(f"{MATCHED * batch}x14" for batch in range(20)))
    yield service("labels every quarter of an hour are labels", [up, frames, batches], QUIET)
    yield service(
        "who only observes passes all through, and nothing is told",
        samples(
            own("passed_through_total", growing(DETECTIONS), reason="observe_mode"),
            own("detections_total", growing(0), outcome="recalibrated"),
            own("detections_total", growing(DETECTIONS), outcome="passed_through"),
        ),
        QUIET,
    )
    stale = ["CheckpointStale"]
    yield service(
        "statistics that are not written are told, and one slow disk is not",
        [up, own("checkpoint_age_seconds", "10x9 0+60x10 10x60 130x2 10x60")],
        {"12m": [], "19m": stale, "22m": [], "86m": []},
    )
    for failures, told in (("0x9 1+6x50", stale), ("0x9 1x50", []), ("9x9 0x50", [])):
        ages = own("checkpoint_age_seconds", " ".join(["NaN"] * 60))
        failed = own("checkpoint_failures_total", failures)
        at = {"9m": [], "25m": told, "59m": told}
        yield service(f"failures {failures}", [up, ages, failed], at)
    uploads = (
        own("upload_age_seconds", f"0+60x{HOURS}"),
        own("upload_interval_seconds", f"3600x{HOURS}"),
    )
    yield service(
        "uploads that stand are told after four intervals",
        samples(*uploads),
        {"59m": [], "240m": [], "250m": ["UploadStale"]},
    )
    yield service(
        "a moment of overload, and what is left out for other reasons, are not told",
        samples(
            own("loop_lag_seconds", f"0.004x9 2x3 0.004x{HOURS}"),
            own("drift_left_out_total", growing(500), reason="late"),
        ),
        QUIET,
    )
    few = [truth("matched", restarting(DETECTIONS / 200))]
    few += [truth(outcome, restarting(0)) for outcome in FRUITLESS]
    yield over_a_restart("hardly any label", "45m", "LabelledShareLow", *few)
    for outcome in FRUITLESS:
        found = truth(outcome, restarting(2 * MATCHED))
        yield over_a_restart(f"most labels are {outcome}", "30m", "MatchRatioLow", found)
    for reason in UNHEALTHY:
        found = own("passed_through_total", restarting(DETECTIONS / 10), reason=reason)
        yield over_a_restart(f"passed through by {reason}", "15m", "PassThroughHigh", found)
    found = own("rejected_total", restarting(DETECTIONS / 50), reason="mean_value")
    yield over_a_restart("two in a hundred are refused", "15m", "RejectedHigh", found)
    signs = {
        "loop": [own("loop_lag_seconds", f"0.4x{HOURS}")],
        "frames": buckets(restarting, 0.98 * FRAMES, 0.02 * FRAMES),
        "drift": [own("drift_left_out_total", restarting(5), reason="overload")],
        "drift of tracks": [own("drift_left_out_total", restarting(5), reason="tracks")],
    }
    for by, changed in signs.items():
        told = [f"Overload by={by.split()[0]}"]
        at = {"4m": [], **dict.fromkeys(("15m", "59m", "80m"), told)}
        yield service(f"overload by {by}", samples(*changed, grown=restarting), at)


def over_a_restart(name: str, minutes: str, told: str, *changed: dict[str, str]) -> Case:
    """Makes a case of what is told after some minutes, and still after a restart at the hour."""
    before = {"15m": "8m", "30m": "10m", "45m": "25m"}[minutes]
    late = (minutes, "100m", "240m" if minutes == "45m" else "59m")
    at: dict[str, list[str]] = {before: [], **{time: [told] for time in late}}
    return service(f"{name}, over a restart", samples(*changed, grown=restarting), at)


@pytest.mark.parametrize(
    ("rules", "cases"),
    [(RECALIBRATORS, of_recalibrators), (DRIFT, of_drift), (SERVICE, of_service)],
    ids=["recalibrators", "drift", "service"],
)
def test_alerts_fire_when_and_for_whom_they_should_and_no_others_do(tmp_path, rules, cases):
    text = rules.read_text("utf-8")
    names = re.findall(r"- alert: (\w+)", text)
    # Words of an alert are compared too: the rules under test are the same without.
    without = re.sub(r"        annotations:\n(          .*\n|            .*\n)+", "", text)
    assert holds(tmp_path, without, [rule_test(case, names) for case in cases()])


CAUSES = {
    ("scale", "joint", ""): ("2.2", "joint: errors are 2.20 times what was predicted"),
    ("scale", "y", ""): ("0.5", "y: errors are 0.50 times what was predicted"),
    ("bias", "x", "m"): ("-0.312", "x is off by -0.31 m (true less reported)"),
    ("correlation", "y", ""): (
        *("1.8", "y: the errors are not correlated as is stated, by a factor 1.80"),
    ),
    ("tail", "joint", ""): (*("0.08", "8% of detections lie outside what the covariance allows"),),
    ("confidence", "joint", ""): ("-0.22", "accuracy less stated confidence is -22%"),
}


def test_the_first_word_of_an_alert_says_what_is_wrong_and_by_how_much_where_that_is_known(
    tmp_path,
):
    def size(values: str, severity="page", **labels: str) -> dict[str, str]:
        joint = {"quantity": "scale", "dimension": "joint", "stage": "recalibrated"}
        at = {"slice": "car", "severity": severity, **joint, **labels}
        return series("drift_alarm_size", values, **at)

    def both(*sizes: dict[str, str], slice="car") -> Samples:
        return [*(state(f"{ALARM}x9", each, slice=slice) for each in ("page", "ticket")), *sizes]

    tests: list[dict[str, object]] = []

    def says(found: Samples, **texts: str) -> None:
        told = [words("5m", texts.get("of", PAGE), cause=texts["page"])]
        if "ticket" in texts:
            told.append(words("5m", TICKET, cause=texts["ticket"]))
        tests.append({"interval": "1m", "input_series": found, "alert_rule_test": told})

    for (quantity, dimension, unit), (value, text) in CAUSES.items():
        labels = {"quantity": quantity, "dimension": dimension, "unit": unit}
        page, ticket = size(f"{value}x9", **labels), size(f"{value}x9", "ticket", **labels)
        both_say = f"recalibrated, {text}"
        says(both(page, ticket), page=both_say, ticket=both_say)
    # What an alert asks Prometheus for must be quoted well.
    joint = CAUSES["scale", "joint", ""]
    found = both(size("2.2x9", slice=r"a\"b\"\\c"), slice=r"a\"b\"\\c")
    says(found, of=PAGE.replace("car", 'a"b"\\c'), page=f"recalibrated, {joint[1]}")
    raw = "raw, joint: errors are 0.50 times what was predicted"
    says(both(size("0.5x9", "ticket", stage="raw")), page="", ticket=raw)
    says(both(size(" ".join(["NaN"] * 10))), page="", ticket="")
    assert holds(tmp_path, saying("cause", DRIFT), tests)


def test_a_compensated_slice_names_its_dimensions_and_the_factor_of_each(tmp_path):
    found = [
        factor("2.5x30"),
        factor("1.5x30", dimension="y"),
        factor("0.25x30", dimension="yaw"),
        factor("9x30", dimension="z", slice="bus"),
        factor("8x30", instance="truck"),
    ]
    text = "variances of {} are forwarded {} times as large as they come. "
    expected = words("15m", COMPENSATED, factors=text.format("x", 2.5) + text.format("yaw", 0.25))
    for alert, said in (
        (COMPENSATED.replace("car", "bus"), text.format("z", 9)),
        (f"{COMPENSATED} instance=truck", text.format("x", 8)),
    ):
        expected["exp_alerts"] += words("15m", alert, factors=said)["exp_alerts"]
    test: dict[str, object] = {"interval": "1m", "input_series": found}
    test["alert_rule_test"] = [expected]
    assert holds(tmp_path, saying("factors", RECALIBRATORS), [test])


@pytest.mark.parametrize("base", ["", RUNBOOK_BASE])
def test_an_alert_links_to_its_section_once_it_is_known_where_the_runbook_is(tmp_path, base):
    test: dict[str, object] = {
        "interval": "1m",
        "external_labels": {"runbook_base": base} if base else {},
        "input_series": [state(f"{ALARM}x9")],
        "alert_rule_test": [
            words("5m", PAGE, runbook_url=base and f"{base}#calibrationdriftpage"),
        ],
    }
    assert holds(tmp_path, saying("runbook_url", DRIFT), [test])


def saying(annotation: str, rules: Path) -> str:
    """Leaves one annotation, beside the label severity, in the text of a file of rules."""
    others = rf"^ {{10}}(?!severity:|{annotation}:)\w+: .*\n(?: {{12}}.*\n)*"
    text = re.sub(others, "", rules.read_text("utf-8"), flags=re.MULTILINE)
    return re.sub(r"^ {8}annotations:\n(?! {10})", "", text, flags=re.MULTILINE)


def words(time: str, alert: str, **annotations: str) -> dict[str, Any]:
    """Expects one alert at a time, with these annotations."""
    labels = labels_of(alert)
    name = labels.pop("alertname")
    one = {"exp_labels": labels, "exp_annotations": annotations}
    return {"eval_time": time, "alertname": name, "exp_alerts": [one]}
