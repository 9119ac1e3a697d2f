"""The programs beside Python that tests run, and the Debian packages that have them.

Imports nothing but the standard library: `make test-all` and .ci/run ask it what is missing before
anything is installed.
"""

from __future__ import annotations

import argparse
import shutil
import sys

PACKAGES = {
    "openssl": ("openssl",),  # makes certificates
    "gcc": ("gcc", "libc6-dev"),  # builds a disk that fails, and the kernels
    "python3-config": ("python3-dev",),  # is there where the headers are
    "promtool": ("prometheus",),  # rules and queries are compared with NumPy
    "prometheus": ("prometheus",),
    "amtool": ("prometheus-alertmanager",),  # alarms are followed to a webhook
    "prometheus-alertmanager": ("prometheus-alertmanager",),
    "node": ("nodejs",),  # compares the dashboards with the types of Grafana
    "npm": ("npm",),
    "systemd-analyze": ("systemd",),  # checks the unit
}
# The tests of `make test-image` alone, which need root.
IMAGE_PACKAGES = {"buildah": ("buildah",), "debootstrap": ("debootstrap",)}

# tests/conftest.py sets it before each test; outside pytest every program may run.
permitted = True


class NotMarked(Exception):
    """A test without the marker `components` runs a program that `make test` does without."""


class NotInstalled(Exception):
    """A program is missing on this machine."""


def program(name: str) -> str:
    """Finds the path of a program; fails the test, never skips it, where that cannot be."""
    if not permitted:
        raise NotMarked(f"this test runs {name}: mark it with @pytest.mark.components")
    found = shutil.which(name)
    if found is None:
        packages = " ".join(PACKAGES[name])
        raise NotInstalled(f"{name} is not installed; on Debian: apt-get install {packages}")
    return found


def missing_packages(packages: dict[str, tuple[str, ...]]) -> list[str]:
    """Lists the Debian packages of the programs that are not on the PATH, each once."""
    absent = (of for name, of in packages.items() if shutil.which(name) is None)
    return list(dict.fromkeys(package for of in absent for package in of))


def main() -> int:
    """Prints the line that installs what is missing; 1 where anything is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", action="store_true", help="print the packages alone; 0")
    parser.add_argument("--image", action="store_true", help="with those of make test-image")
    arguments = parser.parse_args()
    missing = missing_packages(PACKAGES | IMAGE_PACKAGES if arguments.image else PACKAGES)
    if arguments.packages:
        print(*missing)
        return 0
    if missing:
        print(f"Programs are missing; on Debian: apt-get install {' '.join(missing)}")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
