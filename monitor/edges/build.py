"""Which build of the sidecar this is. Only importer of importlib.metadata."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import version

from monitor import __version__

# Set where an image is built; it is no setting.
REVISION_VARIABLE = "CALIBRATION_MONITOR_REVISION"
# By label, the distributions whose behaviour ours depends on most.
_BUILT_ON = {"numpy": "numpy", "grpc": "grpcio", "protobuf": "protobuf"}


def build() -> Mapping[str, str]:
    """By label: the version, the revision of the source where it is known, and what it runs on."""
    return {
        "version": __version__,
        # Prometheus drops a label that is empty, and queries ask for it.
        "revision": os.environ.get(REVISION_VARIABLE, "")[:64] or "unknown",
        "python": platform.python_version(),
        **{label: version(name) for label, name in _BUILT_ON.items()},
    }
