"""Shows whether the work tree behaves as another commit: `python -m tests.same --base REV`.

Both trees play the same scene; every document they leave must be the same, byte for byte. That it
can fail shows `--prove`: it puts small changes in on purpose, and looks whether each is named.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import hatch_build
from tests.same.compare import Comparison, compare
from tests.same.play import PARTS, CannotPlay, Place, play
from tests.same.scene import write_files

ROOT = Path(__file__).parents[2]
_SHOWN = 40  # documents that differ


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 where they are the same, 1 where they are not, or one cannot be played."""
    options = _parser().parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="same-"))
    try:
        if options.prove:
            found_all = prove(folder, options.jobs)
            print("every change is found" if found_all else "the net has a hole")
            return 0 if found_all else 1
        parts = options.parts.split(",")
        print(f"the work tree beside {options.base}: {', '.join(parts)}", flush=True)
        began = time.monotonic()
        trees = {"base": extracted(options.base, folder / "tree"), "work": ROOT}
        # In opposite orders: one computes while the other waits for its sidecar.
        base, work = played(folder, trees, [parts, parts[::-1]], options.jobs)
        found = compare(base, work, whole=set(parts) == set(PARTS))
        print(told(found))
        print(f"{time.monotonic() - began:.0f} s")
        return 0 if found.same else 1
    except CannotPlay as error:
        print(error)
        return 1
    finally:
        if options.keep:
            print(f"documents are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.same", description=__doc__)
    add = parser.add_argument
    add("--base", metavar="REV", default="HEAD", help="commit (default HEAD)")
    add("--jobs", type=int, default=2, help="trees that play at a time (default 2)")
    add("--parts", default=",".join(PARTS), help="what is played (default %(default)s)")
    add("--prove", action="store_true", help="see that changes of the work tree are found")
    add("--keep", action="store_true", help="leave all documents, and say where")
    return parser


def extracted(revision: str, folder: Path) -> Path:
    """Returns a folder with the package of a commit."""
    folder.mkdir()
    archive = subprocess.run(
        ["git", "archive", revision, "monitor"], cwd=ROOT, check=False, stdout=subprocess.PIPE
    )
    if archive.returncode:
        raise CannotPlay(f"{revision} is no commit with a package `monitor`: give another --base.")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    source = folder / hatch_build.SOURCE.relative_to(ROOT)
    if hatch_build.IN_PLACE.exists() and source.exists():  # both are played on kernels, or none
        hatch_build.compile_kernels(source.with_name(hatch_build.IN_PLACE.name), source)
    return folder


def played(
    folder: Path, trees: dict[str, Path], parts: Sequence[Sequence[str]], jobs: int
) -> list[Path]:
    """Plays parts on each tree; returns the folders of documents. Raises CannotPlay."""
    recorded = folder / "recorded"
    recorded.mkdir()
    write_files(recorded)
    places = []
    for name, tree in trees.items():
        place = Place(tree, folder / name / "files", folder / name / "documents")
        shutil.copytree(recorded, place.files)
        place.documents.mkdir()
        places.append(place)
    with ThreadPoolExecutor(jobs) as pool:
        for each in [pool.submit(play, *one) for one in zip(places, parts, strict=True)]:
            each.result()
    return [place.documents for place in places]


def told(found: Comparison) -> str:
    """Says for people what was found."""
    lines = [str(difference) for difference in found.differences[:_SHOWN]]
    if len(found.differences) > _SHOWN:
        lines.append(f"and {len(found.differences) - _SHOWN} more documents")
    lines += [
        f"nothing in {entry.documents} is called {entry.field}: take it off the list of what is "
        "left out"
        for entry in found.unused
    ]
    verdict = "the same" if found.same else f"{len(found.differences)} differ"
    return "\n".join([*lines, f"{found.documents} documents: {verdict}"])


# ---- the proof


@dataclass(frozen=True, slots=True)
class Mutation:
    """Changes one expression, and says where that must be found.

    text      as it stands in exactly one place of the package, wherever that is
    instead   what is put in its place
    document  name of a document that must differ
    field     regular expression of a part of what is told of it
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
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "monitor", folder / "monitor", ignore=ignored)
    texts = {path: path.read_text("utf-8") for path in (folder / "monitor").rglob("*.py")}
    places = [path for path, text in texts.items() for _ in range(text.count(mutation.text))]
    if len(places) != 1:
        raise CannotPlay(
            f"{mutation.name}: {mutation.text!r} stands in {len(places)} places of monitor/, not "
            "in one. Name another text in tests/same/__main__.py."
        )
    text = texts[places[0]].replace(mutation.text, mutation.instead)
    places[0].write_text(text, "utf-8")
    return folder


def prove(folder: Path, jobs: int) -> bool:
    """Plays the live drive of the work tree and of each change; says what was found."""
    trees = {"work": ROOT}
    trees |= {f"play{i}": mutated(one, folder / f"tree{i}") for i, one in enumerate(MUTATIONS)}
    work, *changed = played(folder, trees, [["live"]] * len(trees), jobs)
    found = [
        _said(mutation, compare(work, documents, whole=False))
        for mutation, documents in zip(MUTATIONS, changed, strict=True)
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


if __name__ == "__main__":
    sys.exit(main())
