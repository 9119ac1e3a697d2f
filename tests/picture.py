"""Makes docs/status_page.png: the status page of the demo while a page fires; no tests.

python -m tests.picture [CHROMIUM], with Debian's package `chromium`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

OUTPUT = Path(__file__).parents[1] / "docs" / "status_page.png"
DEMO = (sys.executable, "-m", "monitor", "demo", "--duration", "20", "--seed", "1")
WIDTH, HEIGHT = 1160, 640
PATIENCE_S = 60.0


def main(chromium: str = "chromium") -> None:
    """Plays the demo until its status page tells of a page, and takes a picture of it."""
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        first = demo.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", first)
        assert found is not None, first
        end = time.monotonic() + PATIENCE_S
        while 'class="card page"' not in (html := read(found[0])):
            assert time.monotonic() < end, html
            time.sleep(0.5)
        try:
            take(chromium, found[0])
        finally:
            demo.terminate()


def read(address: str) -> str:
    """Reads a page."""
    with urllib.request.urlopen(address) as answer:
        return bytes(answer.read()).decode()


def take(chromium: str, address: str) -> None:
    """Takes the picture, with a browser that asks for nothing else."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
                *("--disable-background-networking", "--disable-component-update"),
                *("--disable-sync", "--hide-scrollbars", f"--user-data-dir={profile}"),
                *(f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={OUTPUT}", address),
            ],
            check=True,
            timeout=60,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
