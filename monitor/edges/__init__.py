"""Thin edges: each file is the only importer of its library. No statistics here."""
