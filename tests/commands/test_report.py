"""report: the page's numbers are the sidecar's own, and evidence notices a byte that changed."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from benchmarks.vehicles import BAD, fleets
from monitor.commands.merge import write_state
from monitor.commands.pages.report_page import Report, Said, Slice, digest_of, written
from monitor.commands.report.evidence import Indicator, indicators, statement_of
from monitor.commands.report.live import Seen, slices_of, verdict
from monitor.commands.sending import running_sidecar
from monitor.commands.sidecar_client import Client, DriftStandings, ask
from monitor.drift.alarms import DriftState, SliceStanding
from monitor.drift.charts import Quantity, Severity
from monitor.figures.svg import number
from monitor.frames.slices import TOTAL, marked
from monitor.frames.space import Dimension, Space
from monitor.statistics.exact_engine import evaluate_rows
from monitor.statistics.observations import finished
from monitor.statistics.state import StatisticsState
from monitor.store.statistics_state import StoredState
from tests import states
from tests.alarmed import STANDINGS, alarm
from tests.commands.spoken import done, found, refused
from tests.piped import SECOND, opened, pipeline_of, sent
from tests.received import frame
from tests.states import counted, random_rows

VOID = {"meta", "link", "br", "img", "rect", "circle", "path"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def reported(drive: Path, folder: Path) -> Iterator[tuple[Path, object]]:
    """Page and evidence of a sidecar that a drive went through, with its own answer."""
    with running_sidecar("[drift]\nwatch = true\n") as at:
        done("replay", drive, "--address", at.grpc)
        at_words = ("--address", at.grpc)
        done(
            *("report", *at_words, "--output", folder / "r.html"),
            *("--evidence", folder / "r.intoto.jsonl"),
        )
        calibration = ask(Client(at.grpc), lambda client: client.calibration(bins=20))
    yield folder, calibration


def cells_of(html: str) -> dict[str, str]:
    found = re.findall(r'<span data-of="([^"]+)">([^<]*)</span>', html)
    return {unescape(name): text for name, text in found}


def test_every_number_of_the_page_is_the_one_that_GetCalibration_gives(reported):
    folder, calibration = reported
    cells = cells_of((folder / "r.html").read_text("utf-8"))
    compared = 0
    for entry in calibration.slices:
        stage = next(one for one in entry.stages if one.stage == 1)
        for block in stage.dimensions:
            at = f"{entry.slice}/raw/{block.name}"
            for name in ("nees_mean", "ence", "ence_noise_floor", "uce", "qce", "bias"):
                assert cells[f"{at}/{name}"] == number(getattr(block, name)), (at, name)
                compared += 1
        for name in ("nees_over_k", "nees_median_ratio", "qce", "nll", "n_eff"):
            assert cells[f"{entry.slice}/raw/joint/{name}"] == number(getattr(stage.joint, name))
            compared += 1
        assert cells[f"{entry.slice}/raw/joint/n"] == number(stage.n)
    assert compared >= 2 * (6 * 2 + 5)


class Tags(HTMLParser):
    """Collects what would ask for another address, or runs, and tags that stay open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.outside += [
            f"{name}={value}"
            for name, value in attrs
            if name in ("src", "href", "style") or name.startswith("on")
            if not (value or "").startswith(("data:", "#"))
        ]

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass


def test_the_page_asks_for_nothing_from_outside_and_its_drawings_are_xml(reported):
    html = (reported[0] / "r.html").read_text("utf-8")
    tags = Tags()
    tags.feed(html)
    assert not tags.outside
    drawings = re.findall(r"<svg.*?</svg>", html)
    assert len(drawings) > 5
    for drawing in drawings:
        assert "nan" not in drawing and "inf" not in drawing
        ElementTree.fromstring(drawing)


def test_evidence_names_the_file_of_which_a_byte_has_changed(reported):
    folder, _ = reported
    statement = folder / "r.intoto.jsonl"
    done("report", "--verify", statement)
    subjects = json.loads(statement.read_text("utf-8"))["subject"]
    assert len(subjects) >= 3
    for subject in subjects:
        file = folder / subject["name"]
        before = file.read_bytes()
        middle = len(before) // 2
        file.write_bytes(before[:middle] + bytes([before[middle] ^ 1]) + before[middle + 1 :])
        assert f"{subject['name']} has changed" in refused("report", "--verify", statement)
        file.unlink()
        assert f"{subject['name']} is missing" in refused("report", "--verify", statement)
        file.write_bytes(before)
    done("report", "--verify", statement)


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "{}",
        "[" * 100_000,
        '{"_type":"https://in-toto.io/Statement/v1","subject":[{"name":"..","digest":{"sha256":"0"}}],'
        '"predicateType":"https://in-toto.io/attestation/test-result/v0.1"}',
        '{"_type":"https://in-toto.io/Statement/v1","subject":[{"name":"../x","digest":{"sha256":"0"}}],'
        '"predicateType":"https://in-toto.io/attestation/test-result/v0.1"}',
    ],
)
def test_what_is_no_statement_of_ours_is_refused(tmp_path, text):
    file = tmp_path / "other.jsonl"
    file.write_text(text, "utf-8")
    assert "no in-toto statement" in refused("report", "--verify", file)


def sliced(name: str, factor: float, n: int = 4000, sigma: float = 1.0) -> Slice:
    """A slice whose errors are `factor` times what σ says."""
    generator = np.random.default_rng(7)
    space = Space((Dimension("x", "m"), Dimension("y", "m")))
    error = factor * sigma * generator.normal(size=(n, 2))
    covariance = np.broadcast_to(sigma**2 * np.eye(2), (n, 2, 2))
    return Slice(name, space, {"raw": evaluate_rows(space, np.zeros((n, 2)), covariance, error)})


def assumed(one: Slice) -> Slice:
    """The same, of detections that came without a covariance."""
    return replace(one, name=marked(one.name), space=one.space.with_assumed)


def verdicts(factor: float, n: int = 4000) -> dict[str, str]:
    found: list[Indicator] = list(indicators([sliced("Car", factor, n)], []))
    return {one.id: one.verdict for one in found}


def test_an_indicator_is_met_only_where_its_whole_interval_is():
    alike = {"alarms/page": "met"}
    assert verdicts(1.0) == alike | {
        "overconfidence/Car": "met", "underconfidence/Car": "met", "coverage/Car": "met",
    }  # fmt: skip
    assert verdicts(2.0) == alike | {
        "overconfidence/Car": "not met", "underconfidence/Car": "met", "coverage/Car": "not met",
    }  # fmt: skip
    assert verdicts(0.5)["underconfidence/Car"] == "not met"
    assert verdicts(2**0.5)["overconfidence/Car"] == "not shown"
    assert set(verdicts(1.0, 20).values()) == {"not shown", "met"}


def test_the_verdict_asks_whether_ground_truth_without_any_error_is_a_copy():
    (found,) = verdict([sliced("Car", 0.0)], [])
    assert found.kind == "ticket" and "Is the ground truth a copy of the mean?" in found.sentence


def test_a_statement_names_what_an_alarm_finds_wrong():
    biased = alarm(dimension="x", quantity=Quantity.BIAS, size=0.312, unit="m")
    standings = DriftStandings((replace(STANDINGS[0], alarm=biased),), ())
    seen = Seen(StatisticsState(states.BINNING, states.WINDOWS), standings=standings)
    (told,) = cast(Any, statement_of(seen, {}))["predicate"]["alarms"]
    assert (
        told.items() >= {"dimension": "x", "quantity": "bias", "size": 0.312, "unit": "m"}.items()
    )
    assert "car, biased as forwarded: x off by +0.31 m" in told["sentence"]


@pytest.mark.parametrize(
    ("state", "kinds"), [(DriftState.OK, ["note", "well"]), (DriftState.TOO_FEW, ["ticket"])]
)
def test_no_verdict_is_well_where_drift_has_left_out_most_labels(state, kinds):
    total = SliceStanding(TOTAL, Severity.PAGE, state, 0.0, 0.0, 1000.0, None)
    found = list(verdict([sliced("Car", 1.0)], [], (), DriftStandings((total,), (), {"late": 500})))
    assert [one.kind for one in found] == kinds
    assert found[0].sentence.startswith("Drift has left out 500 labelled detections: 500 late (")
    few = DriftStandings((total,), (), {"superseded": 500})
    assert [one.kind for one in verdict([sliced("Car", 1.0)], [], (), few)] == ["well"]


def test_evidence_wants_a_file_of_its_own():
    assert "Name a file of its own" in refused("report", "--evidence", "-")
    assert "Name a file of its own" in refused("report", "--evidence", "a", "--output", "a")


def test_no_verdict_rests_on_one_labelled_detection():
    (found,) = verdict([sliced("Car", 4.0, 1)], [])
    assert found.kind == "ticket" and "too little ground truth" in found.sentence


def test_nothing_is_claimed_and_nothing_called_wrong_where_sigma_is_assumed():
    bare = assumed(sliced("Car", 0.1))
    found, well = verdict([sliced("Van", 1.0), bare], [])
    assert (found.kind, well.kind) == ("note", "well")
    assert re.fullmatch(
        r"Car, no covariance: σ of . is assumed, 1\.00 m; its errors are 0\.\d+ m\.", found.sentence
    )
    assert [one.kind for one in verdict([bare], [])] == ["note"]
    assert [one.id for one in indicators([bare], [])] == ["alarms/page"]
    made = replace(bare, stages={**bare.stages, "recalibrated": sliced("Car", 0.5, sigma=0.2).last})
    assert {one.id for one in indicators([made], [])} > {"underconfidence/Car, no covariance"}
    (ticket,) = verdict([made], [])
    assert "Car, no covariance: underconfident" in ticket.sentence


def test_covariances_that_were_sent_are_never_added_to_those_that_are_assumed():
    pipeline = pipeline_of()
    rows = [replace(sent(i, truth=True), class_index=i // 4) for i in range(8)]
    for i in (1, 3, 5):
        rows[i] = replace(rows[i], covariance=())
    pipeline.process(opened(pipeline), frame(rows, 1, SECOND))
    found = {one.name: one for one in slices_of(finished(pipeline.live.state_in_steps()))}
    assert {name: one.last.rows for name, one in found.items()} == {
        "car": 2,
        "truck": 3,
        "car, no covariance": 2,
        "truck, no covariance": 1,
        "total": 5,
        "total, no covariance": 3,
    }


def test_slices_of_one_name_in_two_spaces_are_told_apart():
    held = counted(random_rows(3, 200))
    alike = replace(held, slices=tuple(replace(one, name="total") for one in held.slices))
    names = [one.name for one in slices_of(alike)]
    assert len(set(names)) == len(names) > len(alike.slices)


def test_the_hash_of_a_folder_is_that_of_what_sha256sum_prints(tmp_path):
    (tmp_path / "0001.txt").write_bytes(b"b")
    (tmp_path / "0000.txt").write_bytes(b"a")
    printed = "".join(
        f"{sha256(one).hexdigest()}  000{i}.txt\n" for i, one in enumerate((b"a", b"b"))
    )
    assert digest_of(tmp_path).endswith(sha256(printed.encode()).hexdigest())


def test_a_report_of_any_number_of_slices_stays_below_a_megabyte():
    one = sliced("Car", 1.5)
    many = [Slice(f"slice <script>alert({i})</script>", one.space, one.stages) for i in range(512)]
    html = written(Report("512 slices", [Said("page", "wrong & <b>bold</b>")], many))
    assert len(html.encode()) < 2**20
    assert "<script" not in html and "<b>" not in html
    assert "more slices are left out" in html and "Without figures of their own" in html


def test_every_number_of_a_file_s_report_is_the_one_that_evaluate_prints(drive, folder):
    """With a recalibrator, raw numbers are those without it."""
    model, page = folder / "model.json", folder / "file.html"
    done("fit", drive, "--by", "class", "--output", model, "--no-held-out")
    after = found("evaluate", drive, "--model", model, "--report", page)["groups"]
    before = found("evaluate", drive)["groups"]
    cells = cells_of(page.read_text("utf-8"))
    compared = 0
    for stage, groups in (("raw", before), ("recalibrated", after)):
        for group, measures in groups.items():
            for name, block in {**measures["dimensions"], "joint": measures["joint"]}.items():
                for at, text in cells.items():
                    head = f"{group}/{stage}/{name}/"
                    if at.startswith(head) and (value := block[at.removeprefix(head)]) is not None:
                        assert text == number(value), at
                        compared += 1
    assert compared == sum(text != "–" for text in cells.values()) > 100


def test_a_report_of_standard_input_is_refused():
    assert "- has none" in refused("evaluate", "-", "--report", "r.html")


def test_a_fleet_s_report_names_the_vehicle_that_differs(tmp_path):
    rows = dict(fleets(seed=4, vehicles=60, spread=0.05))["variance ÷ 2.5"]
    state = replace(counted(random_rows(1, 40)), vehicles=rows)
    write_state(tmp_path / "fleet.state", StoredState(state))
    page = tmp_path / "fleet.html"
    told = found("report", "--state", tmp_path / "fleet.state", "--output", page)
    different = told["vehicles"]["different"]
    assert {one["vehicle"] for one in different} == {f"car {BAD}"}
    text = unescape(page.read_text("utf-8"))
    assert "1 of 60 vehicles differ from the fleet" in text
    assert different[0]["words"] in text
    assert f"Vehicles that differ from the fleet: car {BAD}, of 60." in told["verdict"][0]
