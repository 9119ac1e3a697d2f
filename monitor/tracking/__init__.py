"""Pure: tracks of the objects that detections report, one batch of arrays a stream."""
