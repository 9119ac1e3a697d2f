"""Values that pass through the monitor: spaces, detections, classes, slices, frames, labels."""
