"""The live state of a sidecar: frames, ground truth, active recalibrators, restart."""
