"""Covariances that are estimated for detections, whatever covariance they came with."""
