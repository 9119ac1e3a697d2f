"""Online calibration monitor for detectors that report Gaussians."""

__version__ = "0.1.0"
