"""Draws figures: values in, SVG and HTML text out, without a chart library."""
