"""What passes through the monitor, as values: spaces, detections, classes, slices and frames."""
