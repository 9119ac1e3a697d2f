"""The verb `alarms` against a server: what it asks for, what it prints, how it fails."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from monitor.cli import main
from monitor.commands.output import plain
from monitor.drift.alarms import AlarmChange, AlarmReason, DriftReading, alarm_sentence
from monitor.drift.charts import Quantity
from monitor.options.values import this_person
from tests.alarmed import RAISED, STAGES, STANDINGS, UNKNOWN, FixedWatch, alarm, served
from tests.piped import pipeline_of

LISTED = """\
slice  severity  state                evidence   threshold  log10        raised at  size                          since   tracks
car    page      alarm, as forwarded  0.121 h    1,000 h    -0.9 of 3.0  1,030 h    σ too small by 2.2 (1.9–2.6)  12.3 s  7
car    ticket    ok                   0 h        500 h      -∞ of 2.7    -          -                             -       -
truck  page      warning              250 h      1,000 h    2.4 of 3.0   -          -                             -       -
truck  ticket    too few watched      10^-7.0 h  500 h      -7.0 of 2.7  -          -                             -       -
total  page      warning              1,280 h    10^7.0 h   3.1 of 7.0   -          -                             -       -

evidence is as of now: healthy driving gives as much once in so many hours at most; an alarm is raised at the threshold, and evidence begins anew

slice  stage         size                        one is worth  counted by    reference
car    as sent       σ too large by 2 (1.6–2.5)  0.12          track-second  learned: 31 tracks, 2,040 detections
truck  as forwarded  -                           1             detection     shipped

to end alarms: alarms acknowledge [SLICE ...]
"""  # noqa: E501 -- the table as it is printed
LATE = (
    "drift has left out 12,500 labelled detections: 12,499 late (behind newer labels of their "
    "stream: send the labels of a stream in the order of its frames, or raise [pending] "
    "max_disorder_seconds above how far they come behind); 1 undated (of frames without a "
    "believable capture time: send stamp_ns)"
)
NOON_NS = 1_750_000_000_123_456_789


@pytest.fixture
def sidecar():
    with served(pipeline_of(), FixedWatch()) as found:
        yield found


@pytest.fixture
def said(capsys, sidecar):
    """What the verb prints; its errors where it cannot do its work."""

    def done(*words, code=0):
        assert main(["alarms", *words, "--address", sidecar.address]) == code
        found = capsys.readouterr()
        return found.err if code else found.out

    return done


def test_list_says_what_was_left_out_and_what_to_do_also_where_nothing_was_watched(said, sidecar):
    told = ("late", 12_499), ("undated", 1), ("superseded", 7), ("overload", 0), ("tracks", 3)
    sidecar.watch.answer = replace(sidecar.watch.answer, left_out=told)
    assert said("list") == f"{LISTED}\n{LATE}\n"
    assert json.loads(said("list", "--json"))["left_out"] == dict(told)
    sidecar.watch.answer = DriftReading(left_out=told)
    assert said("list").endswith(f"\n\n{LATE}\n")


@pytest.fixture
def heard(capsys, sidecar):
    """The lines of `alarms watch` up to the end of the sidecar."""

    def lines(*words):
        assert main(["alarms", "watch", *words, "--address", sidecar.address]) == 1
        said = capsys.readouterr()
        assert said.err == (
            f"calibration-monitor alarms: the sidecar at {sidecar.address} was shut down: "
            "watch again when it serves.\n"
        )
        return said.out.splitlines()

    return lines


def test_list_shows_slices_by_severity_then_what_is_known_of_them_and_how_alarms_end(said, sidecar):
    assert said("list").splitlines() == LISTED.splitlines()
    some = said("list", "truck", "total")
    heads = [line.split()[0] for line in some.splitlines() if line]
    assert heads == ["slice", "truck", "truck", "total", "evidence", "slice", "truck"]
    assert "alarms acknowledge" not in some
    assert "where a recalibrator changes it" not in some
    sidecar.watch.answer = DriftReading(STANDINGS, (replace(STAGES[0], scale=UNKNOWN),))
    assert "as sent: watched where a recalibrator changes it" in said("list")
    sidecar.watch.answer = DriftReading()
    assert "no slice is watched: no truth has come yet, or" in said("list")


def test_an_alarm_of_one_quantity_is_listed_in_words_and_in_fields(said, sidecar):
    biased = {"dimension": "x\x1b", "quantity": Quantity.BIAS, "size": 0.312, "unit": "m"}
    sidecar.watch.answer = DriftReading((replace(STANDINGS[0], alarm=alarm(**biased)),))
    assert "  x� off by +0.31 m (true − reported)  " in said("list")
    (told,) = json.loads(said("list", "--json"))["standings"]
    assert told["alarm"].items() >= {**biased, "quantity": "bias"}.items()


def test_acknowledge_says_which_alarms_are_over_or_that_there_were_none(said, sidecar):
    assert said("acknowledge") == f"over: {alarm_sentence(alarm())}\n"
    assert said("acknowledge", "truck", "--actor", "anna") == "there were no alarms\n"
    assert sidecar.watch.asked == [((), this_person()), (("truck",), "anna")]
    assert json.loads(said("acknowledge", "car", "--json")) == {"acknowledged": [plain(alarm())]}


def test_what_cannot_be_done_is_a_line_in_the_words_of_the_sidecar(said, capsys, monkeypatch):
    assert "nothing is watched of 'tram'; there is a bus." in said("acknowledge", "tram", code=1)
    assert "no statistics of tram; there are car, total, truck." in said("list", "tram", code=1)
    monkeypatch.setattr("monitor.commands.sidecar_client.PATIENCE", 0.3)
    assert main(["alarms", "list", "--address", "127.0.0.1:1"]) == 1
    assert "no sidecar answers at 127.0.0.1:1: start one with" in capsys.readouterr().err


def test_watch_tells_a_line_for_each_change_until_the_sidecar_ends(heard, sidecar):
    over = AlarmChange(AlarmReason.ACKNOWLEDGED, alarm(), actor="anna")
    sidecar.say(RAISED, over, None, time_ns=NOON_NS)
    sentence = alarm_sentence(alarm())
    assert heard() == [
        f"2025-06-15 15:06:40.1  raised: {sentence}; slices that may be meant as well: truck",
        f"2025-06-15 15:06:40.1  over, acknowledged by anna: {sentence}",
    ]


def test_words_of_others_cannot_move_the_cursor_of_a_terminal(heard, sidecar):
    sidecar.say(AlarmChange(AlarmReason.ACKNOWLEDGED, alarm("c\rar"), actor="an\x1b[2Jna"), None)
    (line,) = heard()
    assert "acknowledged by an�[2Jna: page: c�ar" in line


def test_watch_of_a_slice_hears_of_it_also_where_it_may_be_meant(heard, sidecar):
    sidecar.say(AlarmChange(AlarmReason.RAISED, alarm("bus")), RAISED, None)
    (line,) = heard("truck")
    assert "raised: page: car" in line
