"""Shows whether the work tree behaves as another commit: `python -m tests.same --base REV`.

Both trees play the same scene; every document they leave must be the same, byte for byte.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.same.compare import Comparison, compare
from tests.same.play import PARTS, CannotPlay, Place, play
from tests.same.proof import ROOT, prove
from tests.same.scene import write_files

_SHOWN = 40  # documents that differ


def main(arguments: Sequence[str] | None = None) -> int:
    """0: the same; 1: not the same, or one of them cannot be played."""
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
        base = extracted(options.base, folder / "tree")
        found = compared(folder, base, ROOT, parts, options.jobs)
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
    parser.add_argument("--base", metavar="REV", default="HEAD", help="commit (default HEAD)")
    parser.add_argument("--jobs", type=int, default=2, help="trees that play at a time (default 2)")
    parser.add_argument(
        "--parts", default=",".join(PARTS), help="what is played (default %(default)s)"
    )
    parser.add_argument(
        "--prove",
        action="store_true",
        help="change the work tree in three places, one at a time, and see that each is found",
    )
    parser.add_argument("--keep", action="store_true", help="leave all documents, and say where")
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
    return folder


def compared(folder: Path, base: Path, work: Path, parts: Sequence[str], jobs: int) -> Comparison:
    """Plays both trees, and compares what they leave. Raises CannotPlay."""
    recorded = folder / "recorded"
    recorded.mkdir()
    write_files(recorded)
    places = []
    for name, tree in (("base", base), ("work", work)):
        place = Place(tree, folder / name / "files", folder / name / "documents")
        shutil.copytree(recorded, place.files)
        place.documents.mkdir()
        places.append(place)
    with ThreadPoolExecutor(jobs) as pool:
        # In opposite orders: one computes while the other waits for its sidecar.
        orders = (list(parts), list(reversed(parts)))
        plays = [pool.submit(play, *each) for each in zip(places, orders, strict=True)]
        for played in plays:
            played.result()
    return compare(places[0].documents, places[1].documents, whole=set(parts) == set(PARTS))


def told(found: Comparison) -> str:
    """What was found, for people."""
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


if __name__ == "__main__":
    sys.exit(main())
