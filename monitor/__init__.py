"""Online calibration monitor for detectors that report Gaussians."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monitor.commands.python_api import apply, evaluate, fit, load_recalibrator

__version__ = "0.1.0"
__all__ = ["apply", "evaluate", "fit", "load_recalibrator"]


def __getattr__(name: str) -> object:
    """Imports the Python API when it is asked for: `import monitor` alone takes no time."""
    if name in __all__:
        from monitor.commands import python_api

        return getattr(python_api, name)
    raise AttributeError(f"module 'monitor' has no attribute {name!r}")
