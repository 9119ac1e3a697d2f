"""`python -m deploy.grafana` writes `dashboards/*.json` anew."""

from __future__ import annotations

import json
from pathlib import Path

from deploy.grafana.one_slice import SLICE
from deploy.grafana.overview import OVERVIEW
from deploy.grafana.recalibrators import RECALIBRATORS
from deploy.grafana.service import SERVICE

FOLDER = Path(__file__).parent / "dashboards"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for board in (OVERVIEW, SLICE, RECALIBRATORS, SERVICE):
        text = json.dumps(board, indent=2, sort_keys=True, ensure_ascii=False)
        (FOLDER / f"{board['uid']}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
