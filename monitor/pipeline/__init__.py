"""The live state of a sidecar: frames, ground truth, recalibrators in force, restart."""
