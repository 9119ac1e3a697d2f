"""A recorded drive as arrays and as a file, and verbs as functions that a test may call."""

from tests.verbs.conftest import applied, drive, evaluate, fitted, refused, rows, run  # noqa: F401
