"""Matching of ground truth to the detections that it belongs to."""
