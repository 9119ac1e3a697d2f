"""Online calibration monitor for detectors that report Gaussians."""

from __future__ import annotations

__version__ = "0.1.0"
