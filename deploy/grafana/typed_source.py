"""A dashboard as TypeScript, for the check against Grafana's own types.

As a literal, since types of imported JSON are wide: its `"multi"` would be any string.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# package.json with its lock file, the compiler's settings, and types.ts.
TYPES = Path(__file__).parent / "typed"


def source(dashboard: Mapping[str, Any]) -> str:
    """One file; it does not compile where anything in it is not of Grafana's types."""
    literal = json.dumps(dashboard, indent=2, sort_keys=True, ensure_ascii=False)
    return (
        "import type { Dashboard } from './types';\n\n"
        f"export const dashboard: Dashboard = {literal};\n"
    )
