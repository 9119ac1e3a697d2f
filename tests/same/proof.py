"""Proves that `same` can fail: puts small changes in on purpose, and looks whether it names them.

A change is found in the sources by its text, wherever that stands.
"""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.same.compare import Comparison, compare
from tests.same.play import CannotPlay, Place, play
from tests.same.scene import write_files

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change of one expression, and where it must be found.

    text         as it stands in exactly one place of the package
    instead      what is put in its place
    document     name of a document that must differ
    field        regular expression of a part of what is told of it
    """

    name: str
    text: str
    instead: str
    document: str
    field: str


MUTATIONS = (
    Mutation(
        name="a statistic",
        text="(kurtosis - 1.0)",
        instead="(kurtosis - 1.0000001)",
        document="live/1-alone/calibration.json",
        field=r"\.ence_noise_floor$",
    ),
    Mutation(
        name="an answer",
        text="acceleration_density: Density = 1.0 ",
        instead="acceleration_density: Density = 1.0000000001 ",
        document="live/1-alone/answers-lidar.json",
        field=r"\.frame\.tracks\[\d+\]\.(nis|(state|covariance)\[\d+\])$",
    ),
    Mutation(
        name="a text",
        text='"Streams registered."',
        instead='"Streams  registered."',
        document="live/1-alone/metrics.txt",
        field=r"^line \d+$",
    ),
)


def mutated(mutation: Mutation, folder: Path) -> Path:
    """Returns a copy of the work tree's package with the change. Raises CannotPlay."""
    shutil.copytree(
        ROOT / "monitor", folder / "monitor", ignore=shutil.ignore_patterns("__pycache__")
    )
    places = [
        path
        for path in sorted((folder / "monitor").rglob("*.py"))
        for _ in range(path.read_text("utf-8").count(mutation.text))
    ]
    if len(places) != 1:
        raise CannotPlay(
            f"{mutation.name}: {mutation.text!r} stands in {len(places)} places of monitor/, not "
            "in one. Name another text in tests/same/proof.py."
        )
    text = places[0].read_text("utf-8")
    places[0].write_text(text.replace(mutation.text, mutation.instead), "utf-8")
    return folder


def prove(folder: Path, jobs: int) -> bool:
    """Plays the live drive of the work tree and of each change; says what was found."""
    recorded = folder / "recorded"
    recorded.mkdir(parents=True)
    write_files(recorded)
    trees = [ROOT, *(mutated(one, folder / f"tree{i}") for i, one in enumerate(MUTATIONS))]
    places = []
    for number, tree in enumerate(trees):
        place = Place(tree, folder / f"play{number}" / "files", folder / f"play{number}" / "said")
        shutil.copytree(recorded, place.files)
        place.documents.mkdir()
        places.append(place)
    with ThreadPoolExecutor(jobs) as pool:
        for played in [pool.submit(play, place, ["live"]) for place in places]:
            played.result()
    found = [
        _said(mutation, compare(places[0].documents, place.documents, whole=False))
        for mutation, place in zip(MUTATIONS, places[1:], strict=True)
    ]
    return all(found)


def _said(mutation: Mutation, comparison: Comparison) -> bool:
    for difference in comparison.differences:
        if difference.document == mutation.document and re.search(mutation.field, difference.field):
            print(f"{mutation.name}: {mutation.text!r} → {mutation.instead!r} is found:")
            print(difference)
            print(f"    and in {len(comparison.differences) - 1} other documents")
            return True
    print(f"{mutation.name}: NOT FOUND in {mutation.document}")
    return False
