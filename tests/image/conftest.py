"""The image under test. Collected where it is asked for by name alone: `make test-image` builds an
image first, as root, which takes minutes.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.image.built import Image, build
from tests.image.pod import Pod, pod

HERE = Path(__file__).parent


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    asked = [(config.invocation_params.dir / arg.partition("::")[0]) for arg in config.args]
    return None if any(path.resolve().is_relative_to(HERE) for path in asked) else True


@pytest.fixture(scope="session")
def image() -> Iterator[Image]:
    with build() as built:
        yield built


@pytest.fixture
def own_pod(image: Image, tmp_path: Path) -> Iterator[Pod]:
    """Makes a network of its own for one container and those who ask it."""
    with pod(image, tmp_path) as own:
        yield own
