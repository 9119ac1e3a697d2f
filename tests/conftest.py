"""Sidecars for tests of the service over the wire, and the check of the marker `components`."""

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import components
from tests.served import BY_STREAM, running, starting

# No test asserts a time: a busy machine is not a failure. Examples depend on the commit alone:
# it is green or red, not now and then.
EVERYWHERE = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", EVERYWHERE, max_examples=20)
settings.register_profile("thorough", EVERYWHERE, max_examples=300)
settings.load_profile("quick")


def pytest_configure(config: pytest.Config) -> None:
    """Gives the processes that run tests the lowest priority.

    Fits run at it: beside tests of a higher one they would get next to nothing, and those who wait
    for them would wait in vain. A session of its own, since Linux may share processors by session.
    """
    if hasattr(config, "workerinput"):
        os.setsid()
        os.nice(19)
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text("19", encoding="ascii")


@pytest.hookimpl(tryfirst=True)  # before the fixtures
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fails a test that runs a program without its marker, wherever that program is installed."""
    components.permitted = item.get_closest_marker("components") is not None


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One sidecar for all tests that leave it as it is; each uses streams of its own."""
    with running(tmp_path_factory.mktemp("shared"), BY_STREAM) as sidecar:
        yield sidecar


@pytest.fixture
def start(tmp_path):
    """Starts sidecars that end with the test."""
    with starting(tmp_path, BY_STREAM) as begin:
        yield begin
