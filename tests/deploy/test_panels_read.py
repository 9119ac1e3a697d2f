"""What dashboards ask is read, and Grafana's variables are put in, as Grafana does."""

import pytest

from tests.deploy.panel_names import (
    Known,
    behind,
    documented,
    families,
    mentioned,
    metrics,
    mistakes,
)
from tests.deploy.panel_queries import dashboard
from tests.deploy.panel_variables import (
    Chosen,
    UnknownVariable,
    choose,
    intervals,
    kept,
    label_values,
    substituted,
)

CHOSEN = {
    "slice": Chosen(("a.b", "c"), several=True),
    "stage": Chosen(("raw",)),
    "one": Chosen(("a.b",), several=True),
    "all": Chosen(text=".*"),
    "quoted": Chosen(('say "a\\b"',)),
    **intervals(5, 20, 3600),
}
KNOWN = Known(
    {
        "frames_total": {"outcome": frozenset({"refused"}), "instance": frozenset({"van"})},
        "never_seen": {},
        "sliced": {"slice": frozenset({"car"})},
        "other": {"slice": frozenset({"total"})},
    },
    {"frames_total": frozenset({"passed_through"})},
)


def panel(title: str, *expressions: str, **more: object) -> dict[str, object]:
    targets = [{"expr": expression, "refId": "A"} for expression in expressions]
    return {"type": "timeseries", "title": title, "targets": targets, **more}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('x{s=~"$slice"}', 'x{s=~"(a\\\\.b|c)"}'),
        ('x{s=~"${slice}"}', 'x{s=~"(a\\\\.b|c)"}'),
        ('x{s=~"[[slice]]"}', 'x{s=~"(a\\\\.b|c)"}'),
        ('x{s=~"${slice:regex}"}', 'x{s=~"(a\\\\.b|c)"}'),
        ('x{s=~"${slice:pipe}"}', 'x{s=~"a.b|c"}'),
        ('x{s=~"[[slice:csv]]"}', 'x{s=~"a.b,c"}'),
        ('x{s=~"$one"}', 'x{s=~"a\\\\.b"}'),
        ('x{s=~"$all"}', 'x{s=~".*"}'),
        ('x{s="$stage"}', 'x{s="raw"}'),
        ('x{s="$quoted"}', 'x{s="say \\"a\\\\b\\""}'),
        ("rate(x[$__rate_interval])", "rate(x[20s])"),
        ("max_over_time(x[$__range:$__interval])", "max_over_time(x[3600s:5s])"),
        ('label_replace(x, "a", "$1", "b", "(.*)")', 'label_replace(x, "a", "$1", "b", "(.*)")'),
        ("x * $__range_s / ${__interval_ms}", "x * 3600 / 5000"),
    ],
)
def test_a_variable_is_put_in_as_grafana_does(text, expected):
    assert substituted(text, CHOSEN) == expected


@pytest.mark.parametrize("text", ["x{s='$slcie'}", "x{s='${slice:glob}'}"])
def test_what_grafana_would_leave_in_the_query_is_refused(text):
    with pytest.raises(UnknownVariable, match=r"slcie|glob"):
        substituted(text, CHOSEN)


def test_panels_in_open_and_closed_rows_are_found_with_what_makes_them_optional():
    found = dashboard(
        {
            "uid": "own",
            "panels": [
                panel("first", "a", "b"),
                {"type": "row", "title": "Open", "panels": []},
                panel("second", "c"),
                {"type": "row", "title": "With a tracker", "panels": [panel("third", "d")]},
                {"type": "row", "title": "Last", "panels": []},
                panel("fourth"),
            ],
        }
    )
    assert found.panels == ("first", "second", "third", "fourth")
    assert [(q.place, q.expression, q.optional) for q in found.questions] == [
        ("first", "a", False),
        ("first", "b", False),
        ("second", "c", False),
        ("third", "d", True),
    ]


def test_an_open_row_that_says_what_it_needs_makes_what_follows_optional():
    content = {"uid": "own", "panels": [{"type": "row", "title": "With x"}, panel("first", "a")]}
    assert dashboard(content).questions[0].optional


def test_the_fields_that_a_table_is_made_of_are_read():
    own = panel("table", "a")
    own["transformations"] = [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {"renameByName": {"Value #A": "n"}, "indexByName": {"le": 1}},
        },
        {"id": "sortBy", "options": {"sort": [{"field": "n"}, {"field": "tau"}]}},
        {"id": "groupingToMatrix", "options": {"columnField": "x", "rowField": "y"}},
    ]
    found = dashboard({"uid": "own", "panels": [own]})
    assert found.fields == {"table": {"Value #A", "le", "tau", "x", "y"}}


def test_annotations_are_asked_but_grafanas_own():
    listed = [
        {"builtIn": 1, "name": "Annotations & Alerts"},
        {"name": "swaps", "expr": "changes(a[1m]) > 0"},
        {"name": "alarms", "target": {"expr": "ALERTS"}},
    ]
    found = dashboard({"uid": "own", "annotations": {"list": listed}})
    assert [(q.place, q.expression) for q in found.annotations] == [
        ("swaps", "changes(a[1m]) > 0"),
        ("alarms", "ALERTS"),
    ]


def test_variables_are_asked_for_in_order_and_open_with_all_or_with_the_first():
    listed = [
        {"type": "datasource", "name": "source", "query": "prometheus"},
        {"type": "query", "name": "job", "query": "label_values(up, job)", "includeAll": True},
        {
            "type": "query",
            "name": "slice",
            "query": {"query": 'label_values(n{job=~"$job"}, slice)', "refId": "A"},
            "regex": "/^(?!total)/",
        },
        {"type": "query", "name": "kept", "query": "label_values(tau)", "regex": "/0\\.(.*)/"},
        {"type": "custom", "name": "stage", "query": "raw, recalibrated", "multi": True},
    ]
    values = {"job": ["b.c", "a"], "slice": ["total", "van", "car"], "tau": ["0.5", "0.9"]}
    asked = []

    def look_up(selector: str, label: str) -> list[str]:
        asked.append((selector, label))
        return values[label]

    own = dashboard({"uid": "own", "templating": {"list": listed}})
    chosen, selectors = choose(own.variables, {}, look_up)
    assert asked == [("up", "job"), ('n{job=~"(a|b\\\\.c)"}', "slice"), ("", "tau")]
    assert list(selectors) == ["job", "slice", "kept"]
    assert chosen["job"] == Chosen(("a", "b.c"), several=True)
    assert chosen["kept"] == Chosen(("5",))
    assert chosen["stage"] == Chosen(("raw",), several=True)
    assert "source" not in chosen


def test_somebody_may_choose_another_value():
    listed = [{"type": "query", "name": "slice", "query": "label_values(n, slice)", "multi": True}]
    own = dashboard({"uid": "own", "templating": {"list": listed}})
    chosen, _ = choose(own.variables, {}, lambda *_: ["a", "b"], {"slice": "b"})
    assert substituted("$slice", chosen) == "b"


def test_only_label_values_are_known():
    assert label_values("label_values(slice)") == ("", "slice")
    assert label_values('label_values(n{a=~"x,y"}, slice)') == ('n{a=~"x,y"}', "slice")
    with pytest.raises(UnknownVariable, match="ask for a variable by"):
        label_values("metrics(calibration_.*)")


def test_values_are_kept_by_a_regular_expression():
    assert kept("", ["b", "a"]) == ["b", "a"]
    assert kept("/a/", ["ab", "b"]) == ["a"]


@pytest.mark.parametrize(
    "expression",
    [
        'sum by (outcome) (rate(frames_total{outcome!~"refused|passed_through"}[1m]))',
        'frames_total{outcome=~"ref.*"} * on (instance) group_left () never_seen{any="thing"}',
        'sum by (made) (label_replace(frames_total, "made", "$1", "instance", "(.*)"))',
        'ALERTS{alertname="Whatever",alertstate="firing"}',
        'sum({__name__=~"frames_total|never_seen"})',
        "vector(1) # a comment",
        # A slice of one metric may be none of another.
        'sliced{slice="car"} or other{slice="total"}',
        'other{slice=~"car|total"}',
    ],
)
def test_what_is_there_is_no_mistake(expression):
    assert mistakes(expression, KNOWN) == []


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("rate(frame_total[1m])", "there is no metric frame_total"),
        ("max_over_time(frame_total[5m:1m])", "there is no metric frame_total"),
        ('{__name__=~"frames_total|frame_total"}', "there is no metric frame_total"),
        ('{outcome="refused"}', "a selector without a metric"),
        ('frames_total{out="refused"}', "frames_total has no label out"),
        ('frames_total{outcome=~"refused|lost"}', "outcome of frames_total is never lost"),
        ('frames_total{outcome!="lost"}', "outcome of frames_total is never lost"),
        ('other{slice=~"cat|total"}', "slice of other is never cat"),
        ("sum without (out) (frames_total)", "none of frames_total has the label out"),
        ("frames_total / on (out) frames_total", "none of frames_total has the label out"),
        ('ALERTS{slcie="a"} * frames_total{slcie="a"}', "frames_total has no label slcie"),
    ],
)
def test_what_is_not_there_is_a_mistake(expression, found):
    assert found in mistakes(expression, KNOWN)


def test_the_readme_and_the_exposition_say_which_metrics_there_are():
    readme = """## Metrics
| name | labels | meaning |
|---|---|---|
| `ence`, `uce` | slice, `stage` | of `coverage` no word: raw |
Also `tracker_up`, `forwarded_total{outcome}`, `process_open_fds`.
### Any window
`never`
"""
    names, words = documented(readme)
    assert names == {
        *("calibration_ence", "calibration_uce", "calibration_tracker_up"),
        *("calibration_forwarded_total", "process_open_fds"),
    }
    assert words.keys() == {"calibration_ence", "calibration_uce"}
    assert "raw" in words["calibration_uce"]
    assert families("# TYPE a gauge\na 1\n# TYPE b histogram\n") == {
        "a": {"a"},
        "b": {"b_bucket", "b_sum", "b_count"},
    }


def test_words_that_look_like_metrics_are_found_in_texts():
    text = (
        "`calibration_ence` of fleet:calibration_ence:10m, calibration_bin_*, miscalibration_area"
    )
    assert mentioned(text) == {"calibration_ence"}


def test_what_is_recorded_stands_for_what_it_is_made_of():
    recorded = {"fleet:a": "sum(own:a)", "own:a": "rate(a_total[1m]) / b"}
    assert behind({"fleet:a", "c"}, recorded) == {"fleet:a", "own:a", "a_total", "b", "c"}
    assert metrics("sum(rate(x_total[1m])) / y") == {"x_total", "y"}
