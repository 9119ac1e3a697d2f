"""Laws of every figure: valid, inside its frame, and with all its numbers in the table."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.figures.comparison import before_after, heat_map
from monitor.figures.evaluations import evaluation_figures, slices_figure
from monitor.figures.page import STYLE, content_policy, document
from monitor.figures.reliability import (
    Points,
    class_reliability,
    coverage,
    rejection,
    reliability,
)
from monitor.figures.svg import Figure, around, number
from monitor.figures.sweep import Curve, temperature_sweep_figure
from monitor.figures.timeline import Line, Mark, sparkline, timeline
from monitor.figures.top_view import Gaussians, top_view
from monitor.frames.space import FloatArray, plain_space
from monitor.statistics.bins import Binning
from monitor.statistics.reading import read
from monitor.statistics.state import no_stage_statistics
from tests.tags import Tags

ODD = (math.nan, math.inf, -math.inf, 0.0, -1.0, 1e-300, 1e-9, 0.5, 1.0, 3.0, 1e9, 1e300)
NAMES = ("car", "<script>alert(1)</script>", "a & b \"c\" 'd'", "é" * 64, "")
VALUES = st.lists(st.sampled_from(ODD), max_size=40).map(lambda found: np.array(found, float))


def drawn(values: FloatArray, name: str = "car") -> list[tuple[Figure, list[float]]]:
    """Each figure of these values, with the numbers that its table must hold."""
    n, time, said = values.size, 10.0 * np.arange(values.size, dtype=np.float64), f"of {name}"
    lines = [Line(name, time, values), Line("other", time, values[::-1].copy())]
    marks = [Mark(15.0, name), Mark(16.0, "promoted", "well"), Mark(math.nan, "never")]
    stated = Points(name, values, values[::-1].copy(), np.ones(n, np.int64), values / 2, values * 2)
    shares = np.nan_to_num(values, nan=0.5, posinf=1.0, neginf=0.0).clip(0, 1)
    sure = Points(name, shares, shares, np.ones(n, np.int64), shares, shares)
    names, tau = [f"{name} {i}" for i in range(n)], np.sort(shares)
    covariance = np.abs(np.nan_to_num(values, posinf=1, neginf=1))[:, None, None] * np.eye(2)
    means = np.stack([values, values], axis=1)
    some = list(values)
    return [
        (timeline(name, said, lines, marks[:2], x_label=name, y_label="y"), some),
        (timeline(name, said, lines, marks, x_label="x", y_label=name, log=True, ideal=1.0,
                  limits=[(name, 10.0)]), some),
        (reliability(name, said, name, [stated, replace(stated, name="made")]), some),
        (class_reliability(name, said, [sure]), list(shares)),
        (coverage(name, said, tau, [(name, shares)]), list(shares)),
        (rejection(name, said, tau, shares, [(name, values)]), some),
        (heat_map(name, said, names, [name, "joint"], np.stack([values, values], axis=1)), some),
        (before_after(name, said, names, values, values[::-1].copy(), name), some),
        (temperature_sweep_figure(name, said, 0.1 * (time + 1), [
            Curve(name, values, math.nan), Curve("other", values[::-1].copy(), 1.0, rising=True),
        ]), some),
        (top_view(name, said, [Gaussians(name, means, covariance)], means, [means]), some),
    ]  # fmt: skip


def checked(svg: str) -> None:
    """Every coordinate is finite and inside the frame; text alone may reach beyond its right."""
    root = ElementTree.fromstring(svg)
    width, height = (float(one) for one in root.attrib["viewBox"].split()[2:])
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"]
    for mark in root.iter():
        kind, at = str(mark.tag).partition("}")[2], mark.attrib
        assert "style" not in at
        for x, y in ("x", "y"), ("cx", "cy"):
            if kind != "svg" and x in at:
                assert -0.01 <= float(at[x]) <= width + 0.01, at
                assert -0.01 <= float(at[y]) <= height + 0.01, at
        if kind == "rect":
            assert 0 <= float(at["width"]) <= width
            assert float(at["y"]) + float(at["height"]) <= height + 0.01
        for letter, numbers in re.findall(r"([A-Za-z])([^A-Za-z]*)", at.get("d", "")):
            found = [float(one) for one in re.findall(r"-?[0-9.]+(?:e-?\d+)?", numbers)]
            assert all(map(math.isfinite, found))
            if letter in "ML":
                for across, down in zip(found[::2], found[1::2], strict=True):
                    assert -0.01 <= across <= width + 0.01
                    assert -0.01 <= down <= height + 0.01


@given(VALUES)
def test_every_figure_is_xml_inside_its_frame_with_its_numbers_in_the_table(values):
    for figure, shown in drawn(values):
        checked(figure.svg)
        ElementTree.fromstring(figure.standalone())
        cells = {cell for row in figure.table.rows for cell in row}
        assert {number(float(one)) for one in shown} <= cells, figure.title
        assert all(len(row) == len(figure.table.head) for row in figure.table.rows)
    line = Line("", np.arange(values.size) * 10.0, values)
    checked(sparkline("said", line, [Mark(1.0, "page", "page")], beside=line))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [0, 1, 50])
def test_names_are_text_whatever_they_hold(name, n):
    for figure, _ in drawn(np.full(n, 2.0), name):
        checked(figure.svg)
        opened = Tags(figure.html()).opened
        assert not {"script", "b"} & set(opened)
        assert (
            name in "".join(ElementTree.fromstring(figure.svg).itertext())
            or len(name) > 18
            or not n
        )


def test_a_slice_without_rows_is_drawn_empty():
    statistics = no_stage_statistics(plain_space(("x", "y"), "m"), Binning())
    evaluation = read(statistics)
    for figure in [
        *evaluation_figures("car", {"raw": evaluation}, {"x": "m"}),
        slices_figure([("car", evaluation)]),
        slices_figure([]),
    ]:
        checked(figure.svg)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00"), (1.0, "1.00"), (0.12345, "0.123"), (12.34, "12.3"), (123.4, "123"),
        (1234.5, "1,234"), (1e-5, "1.00e-05"), (2.5e7, "2.50e+07"), (-0.5, "-0.500"),
        (math.nan, "–"), (math.inf, "–"),
    ],
)  # fmt: skip
def test_a_number_has_three_digits_that_count(value, text):
    assert number(value) == text


@given(VALUES, st.booleans())
def test_a_scale_shows_all_that_can_be_shown(values, log):
    scale = around(values, log=log)
    assert scale.low < scale.high
    assert math.isfinite(scale.high - scale.low)
    shown = values[np.isfinite(values) & ((values > 0) | (not log)) & (np.abs(values) < 1e100)]
    shown = shown[(np.abs(shown) > 1e-100) | (not log)]
    assert ((shown >= scale.low) & (shown <= scale.high)).all()
    # Ticks lie in the range, but for a thousandth.
    low, high = (float(scale(one)) for one in (scale.low, scale.high))
    assert (low, high) == (scale.start, scale.end)
    assert len(scale.ticks()) <= 12


def test_a_document_allows_its_own_style_and_script_and_nothing_else():
    text = document("<b>", "<main></main>", "let a=1", 5)
    assert "<title>&lt;b&gt;</title>" in text
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in text
    assert f"<style>{STYLE}</style>" in text
    assert "refresh" not in document("t", "")
    assert "unsafe" not in content_policy("let a=1")
    assert "script-src" not in content_policy()
    assert "connect-src" not in content_policy()
