"""README and docs, tried: commands are typed, examples of files are read, the client runs."""

from __future__ import annotations

import csv
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from benchmarks import decoupling
from monitor.cli import VERBS
from monitor.commands.sending import Addresses, running_sidecar
from monitor.options.recorded import Kind
from tests.commands.spoken import spoken

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
FAST_METRICS = "[metrics]\nrefresh_seconds = 0.1\n"


def blocks(text: str, *kinds: str) -> list[str]:
    return re.findall(
        rf"^```(?:{'|'.join(kinds)})\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE
    )


def commands(page: Path) -> list[list[str]]:
    """The lines of a page that call the program, as words, without comments."""
    lines = "\n".join(blocks(page.read_text("utf-8"), "sh", "bash", "console")).replace("\\\n", " ")
    return [
        shlex.split(line, comments=True)[1:]
        for line in lines.splitlines()
        if line.startswith("calibration-monitor ")
    ]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with all recorded files that the pages name."""
    folder = tmp_path_factory.mktemp("examples")
    samples = {
        "drive.csv": Kind.BOXES_3D,
        "detections.csv": Kind.DETECTIONS,
        "labels.csv": Kind.LABELS,
        "classes.npz": Kind.CLASSES,
    }
    for name, kind in samples.items():
        assert spoken("sample", "--kind", kind, "--output", folder / name)[0] == 0
    head, rest = (folder / "drive.csv").read_text().split("\n", 1)
    for ours, theirs in (("var_x", "x_variance"), ("gt_id", "object")):
        head = re.sub(rf"\b{ours}\b", theirs, head)
    (folder / "mine.csv").write_text(f"{head}\n{rest}")
    head, *rows = csv.reader((folder / "drive.csv").open())
    kept = [i for i, name in enumerate(head) if not name.startswith(("var_", "cov_"))]
    with (folder / "bare.csv").open("w") as text:
        csv.writer(text).writerows([row[i] for i in kept] for row in (head, *rows))
    assert spoken("fit", folder / "drive.csv", "--output", folder / "model.json")[0] == 0
    shutil.copy(folder / "model.json", folder / "car.json")
    return folder


OFFLINE = ("sample", "evaluate", "fit", "apply")
TYPED = [
    (page.name, words)
    for page in (ROOT / "README.md", ROOT / "docs" / "files.md")
    for words in commands(page)
    if words[0] in OFFLINE and not {"results.txt", "det.txt"} & set(words)
]


@pytest.mark.parametrize(("page", "words"), TYPED, ids=lambda value: str(value)[:60])
def test_a_command_of_the_readme_and_of_files_does_its_work(page, words, files, monkeypatch):
    monkeypatch.chdir(files)
    if words[0] == "evaluate" and words[1] == "mine.csv" and "--assume-std" in words:
        (files / "mine.csv").write_text("x,y,gt_x,gt_y\n1,2,1.1,2.1\n3,4,3.1,4.0\n")
    code, out, err = spoken(*words)
    assert code == 0, err
    assert out or "--output" in words


def test_each_verb_and_option_that_a_page_names_exists():
    verbs = {words[0] for page in PAGES for words in commands(page)}
    assert verbs <= set(VERBS)
    table = (ROOT / "docs" / "commands.md").read_text("utf-8")
    assert set(VERBS) <= set(re.findall(r"^\| `([a-z]+)[ `]", table, flags=re.MULTILINE))


@pytest.mark.parametrize(
    "text",
    blocks((ROOT / "docs" / "files.md").read_text("utf-8"), "csv"),
    ids=lambda text: text[:20],
)
def test_an_example_of_a_table_is_read(text, tmp_path):
    path = tmp_path / "example.csv"
    path.write_text(text, encoding="utf-8")
    if "gt_x" in text:
        code, out, err = spoken("evaluate", path)
    else:
        detections = tmp_path / "detections.csv"
        detections.write_text("seq,frame,class,x,y,var_x,var_y\ndrive,12,Car,8.3,2,0.1,0.1\n")
        code, out, err = spoken("evaluate", detections, "--labels", path)
    assert code == 0, err
    assert "too little data to say" in out.lower()


def test_the_verdicts_in_the_readme_are_those_of_the_sample(files):
    _, out, _ = spoken("evaluate", files / "drive.csv")
    shown = re.findall(r"^\w+, \w+: .*worth.*$", README, flags=re.MULTILINE)
    assert len(shown) >= 2
    for line in shown:
        assert line in out.splitlines()


def test_the_python_of_the_docs_runs(files):
    (code,) = blocks((ROOT / "docs" / "files.md").read_text("utf-8"), "python")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=files, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "Pedestrian, x: overconfident" in done.stdout


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory):
    store = tmp_path_factory.mktemp("uploads").as_uri()
    fleet = (
        f'[fleet]\nvehicle = "car"\nupload = "{store}/{{vehicle}}/{{epoch}}/{{sequence}}.state"\n'
    )
    with running_sidecar(FAST_METRICS + fleet) as addresses:
        yield addresses


def run_client(sidecar: Addresses) -> str:
    (code,) = blocks(README, "python")
    code = code.replace("127.0.0.1:50051", sidecar.grpc)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_client_in_the_readme_gets_its_detection_back(sidecar):
    printed = run_client(sidecar)
    assert printed.startswith("[[10.  2.  0.]]")
    assert "False" in printed


def test_every_metric_is_in_the_docs_and_the_other_way_round(sidecar):
    run_client(sidecar)
    section = (ROOT / "docs" / "metrics.md").read_text("utf-8").partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([a-z0-9_]+)`", row)}
    with urllib.request.urlopen(f"http://{sidecar.http}/metrics") as response:
        text = response.read().decode()
    exported = set(re.findall(r"^# TYPE calibration_(\S+) ", text, flags=re.MULTILINE))
    assert len(named) > 20
    assert named == exported


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


def test_the_readme_is_short():
    assert len(README.encode()) <= 9000


@pytest.mark.campaign
def test_the_picture_and_tables_of_disagreeing_measures_are_what_the_code_makes():
    sweeps = {name: decoupling.swept(one) for name, one in decoupling.CLASSIFIERS.items()}
    page = (ROOT / "docs" / "class_measures.md").read_text("utf-8")
    assert decoupling.best_temperatures(sweeps) in page
    assert decoupling.best_by_class(sweeps["rare classes"]) in page
    number = r"-?[0-9]+(?:\.[0-9]+)?"
    shown, made = decoupling.PICTURE.read_text("utf-8"), decoupling.picture(sweeps)
    assert re.sub(number, "", shown) == re.sub(number, "", made)
    # Another processor may round another way.
    numbers = ([float(one) for one in re.findall(number, text)] for text in (shown, made))
    assert next(numbers) == pytest.approx(next(numbers), abs=0.11)
