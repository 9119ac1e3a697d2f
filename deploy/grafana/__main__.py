"""`python -m deploy.grafana` writes `dashboards/*.json` anew."""

from __future__ import annotations

from pathlib import Path

from deploy.grafana.all_boards import BOARDS
from deploy.grafana.boards import text

FOLDER = Path(__file__).parent / "dashboards"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for board in BOARDS:
        (FOLDER / f"{board.uid}.json").write_text(text(board), encoding="utf-8")


if __name__ == "__main__":
    main()
