"""What is told of all detections, labelled or not: a detector that meets what it does not know is
seen within one window, and what must not be counted is not."""

from __future__ import annotations

import html
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from monitor.commands.pages.report_page import written
from monitor.commands.report.live import Seen, report_of
from monitor.figures.svg import number
from monitor.pipeline.frame_path import Pipeline
from monitor.service.history import History
from monitor.service.pages import Pages
from monitor.service.view import UNUSUAL, View, findings, percent, view_of
from monitor.statistics.observations import finished
from monitor.statistics.reading import PredictedReading
from monitor.store.statistics_state import StoredState, parsed
from tests.exported import snapshot
from tests.piped import BAD, CLASSES, MISSING, SECOND, opened, pipeline_of, reported, sent
from tests.piped_classes import state_of
from tests.received import Label, Sent, frame, labels
from tests.states import bits, joined

MINUTE = 60 * SECOND
EVERY, ROWS = 10 * SECOND, 60
BY = ("class", "class and range")


class Drive:
    """A detector that is the surer of a class the lower its index, and the nearer an object is, of
    its class as of its place.

    near    share of its detections that are within 20 m
    mix     of the classes
    alien   share of its detections that are of nothing it knows
    """

    def __init__(self, by: str) -> None:
        edges = {"range_edges": [20.0]} if "range" in by else {}
        by_what = {"slice_by": by.split(" and "), **edges}
        self.pipeline = pipeline_of(statistics=by_what)
        self.stream = opened(self.pipeline)
        self.random = np.random.default_rng(11)
        self.frames = 0

    def drive(self, minutes, near=0.9, mix=(0.4, 0.3, 0.2, 0.1), alien=0.0) -> None:
        for _ in range(minutes * MINUTE // EVERY):
            self.pipeline.process(self.stream, self._frame(near, mix, alien))

    def _frame(self, near, mix, alien):
        random, rows = self.random, []
        for i in range(ROWS):
            distance = random.uniform(2, 20) if random.random() < near else random.uniform(20, 80)
            index = int(random.choice(4, p=mix))
            variance = (0.02 * distance) ** 2 * random.lognormal(0.0, 0.2, 3)
            doubt = 0.3 + distance / 20
            likely = np.full(4, 2.0)
            if random.random() >= alien:
                likely = (np.eye(4)[index] * 12 + doubt) / (1 + index)
            likely = random.dirichlet(likely)
            rows.append(
                Sent(
                    i,
                    (distance, 0.0, 0.0),
                    tuple(variance.tolist()),
                    index,
                    class_probabilities=tuple(likely.tolist()),
                )
            )
        self.frames += 1
        return frame(rows, self.frames, self.frames * EVERY)

    def read(self, level: int | None = 0) -> dict[str, PredictedReading]:
        return {one.slice: one for one in finished(self.pipeline.live.predicted_readings(level))}

    def view(self) -> View:
        predicted = tuple(self.read().values())
        shot = snapshot(pipeline=self.pipeline, predicted=predicted)
        history = History(self.pipeline.events, lambda: 1.0)
        return view_of(shot, (1.0, SECOND, SECOND), history)


def page(view: View, slice: str | None = None) -> str:
    found = Pages(view).get(slice)
    assert found is not None
    return re.sub("<[^>]*>", "", html.unescape(found.decode()))


@pytest.mark.parametrize("by", BY)
def test_who_meets_what_it_does_not_know_is_seen_within_a_window_without_any_label(by):
    drive = Drive(by)
    drive.drive(11)
    assert not any("less certain" in one.sentence for one in findings(drive.view()))
    drive.drive(5, alien=0.6)
    view = drive.view()
    (said,) = (one for one in findings(view) if "less certain of their" in one.sentence)
    slices = {name: one for name, one in view.predicted.items() if name != "total"}
    worst, one = max(slices.items(), key=lambda entry: entry[1].entropy_above_before)
    share = percent(one.entropy_above_before)
    # Of a total, the slices have other shares at other times.
    assert math.isnan(view.predicted["total"].entropy_above_before)
    assert said.kind == "note"
    assert re.fullmatch(
        rf"{re.escape(worst)} and \d other slices: {share} of the detections of the last 5 min are "
        r"less certain of their class than 95 % were before\.",
        said.sentence,
    )
    assert f"worth a look {share}" in page(view)
    assert f"worth a look {share} are less certain than 95 % were before" in page(view, worst)
    told = report_of(Seen(state_of(drive.pipeline)), {})
    report = html.unescape(written(told))
    epoch = drive.read(None)[worst]
    cells = [f"{epoch.n:,}", *map(number, (epoch.entropy_mean, epoch.entropy_q95))]
    assert f'<th scope="row">{worst}</th>' + "".join(f"<td>{one}</td>" for one in cells) in report
    # A longer pane that reaches into the window holds, and is drawn at, the time before it.
    (figure,) = (one for section in told.sections if section for one in section.figures)
    assert figure.title == "Entropy over time"
    entropies = [float(row[2]) for row in figure.table.rows]
    assert max(entropies[:2]) < 0.45 < 0.55 < min(entropies[2:])
    # How certain it is of places is as ever.
    assert one.entropy_above_before > 2 * UNUSUAL > UNUSUAL > one.deviation_above_before


@pytest.mark.parametrize("by", BY)
def test_a_scene_that_is_another_but_well_known_is_not_worth_a_look(by):
    drive = Drive(by)
    drive.drive(55)
    usual = drive.view()
    drive.drive(5, near=0.1, mix=(0.1, 0.2, 0.3, 0.4))
    view = drive.view()
    assert not any("less certain" in one.sentence for one in findings(view))
    assert "worth a look" not in page(view)
    shares = [
        share
        for one in view.predicted.values()
        for share in (one.entropy_above_before, one.deviation_above_before)
        if not math.isnan(share)
    ]
    # The rarer classes were never seen as often far away, and are not compared.
    assert len(shares) >= 4
    assert max(shares) < 0.6 * UNUSUAL
    if by == "class":
        # What is farther away is known less exactly, and so it is said to be.
        car, then = view.predicted["car"], usual.predicted["car"]
        assert car.entropy_mean > 1.2 * then.entropy_mean
        assert car.deviation_q50 > 2 * then.deviation_q50


def test_a_scene_that_is_new_is_not_compared():
    drive = Drive("class")
    drive.drive(11, near=1.0)
    drive.drive(5, near=0.0)
    car = drive.read()["car"]
    assert car.n > 500
    assert math.isnan(car.entropy_above_before)
    assert math.isnan(car.deviation_above_before)


def test_a_slice_of_which_single_objects_are_seen_is_not_compared():
    drive = Drive("class")
    drive.drive(11)
    for minute in range(5):
        # Trams in one minute of five: less than half of the panes hold some, though many in all.
        mix = (0.1, 0.1, 0.1, 0.7) if minute == 2 else (0.4, 0.3, 0.3, 0.0)
        drive.drive(1, mix=mix, alien=0.6)
    read = drive.read()
    shares = {name: one.entropy_above_before for name, one in read.items()}
    assert read["tram"].n > 200
    assert math.isnan(shares["tram"])
    assert shares["car"] > UNUSUAL


def test_what_is_answered_and_counted_is_in_the_sums_and_nothing_else():
    pipeline = pipeline_of()
    stream = opened(pipeline)
    rows = [sent(1), sent(2), BAD, MISSING]
    pipeline.process(stream, frame(rows, 1, SECOND))
    pipeline.process(stream, frame(rows, 1, SECOND))  # the same again
    pipeline.process(stream, frame(rows, None, SECOND))  # no label will ever find it
    pipeline.overload.shedding = True
    pipeline.process(stream, frame(rows, 2, SECOND))
    pipeline.overload.shedding = False
    reported(pipeline, labels([Label(1, (1.0, 2.0, 3.0))], 1))
    assert counted(pipeline) == 6
    # A recalibrator changes nothing of it, and neither does a label.
    readings = {one.slice: one for one in finished(pipeline.live.predicted_readings())}
    total = readings["total"]
    covariance = [row.covariance for row in rows[:2]]
    full = [np.array(one).reshape(3, 3) for one in covariance]
    wanted = np.mean([np.linalg.det(one) ** (1 / 6) for one in full])
    assert total.deviation_mean == pytest.approx(wanted, rel=1e-9)
    assert (total.classified, total.opinions) == (0, 0)
    assert math.isnan(total.entropy_mean)
    # A covariance that is assumed is apart.
    assert readings["total, no covariance"].deviation_mean == 1.0


def counted(pipeline: Pipeline) -> int:
    read = finished(pipeline.live.predicted_in_steps())
    return sum(statistics.n for name, statistics in read if not name.startswith("total"))


def test_the_sums_go_through_a_state_and_add_up_and_an_old_state_has_none():
    drive = Drive("class")
    drive.drive(2)
    state = state_of(drive.pipeline)
    assert [one.name for one in state.predicted] and state.slices
    assert bits(parsed(joined(StoredState(state))).state) == bits(state)
    other = Drive("class")
    finished(other.pipeline.live.import_in_steps(state))
    assert bits(state_of(other.pipeline).predicted) == bits(state.predicted)
    finished(other.pipeline.live.import_in_steps(replace(state, predicted=())))
    assert bits(state_of(other.pipeline).predicted) == bits(state.predicted)
    finished(other.pipeline.live.import_in_steps(state))
    assert counted(other.pipeline) == 2 * counted(drive.pipeline) == 2 * drive.frames * ROWS
    assert {one.space.names for one in state.predicted} == {("x", "y", "z")}
    assert {one.name for one in state.predicted} == set(CLASSES)
