"""Compiles monitor/native/kernels.c: hatchling's build hook, and a program for a clone.

    python hatch_build.py     beside the source, unless it is there and newer

Without a C compiler or Python's headers everything is built and works without: that is a note, no
error. In the environment:

    CC                           the compiler, with options (default: cc, gcc or clang)
    CALIBRATION_MONITOR_NATIVE   off: is not compiled; required: not compiled is an error
    CALIBRATION_MONITOR_PLATFORM of the wheel, such as manylinux_2_17_aarch64 (default: this one)
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a program
    BuildHookInterface = object

ROOT = Path(__file__).parent
SOURCE = ROOT / "monitor" / "native" / "kernels.c"
IN_PLACE = SOURCE.with_name("_kernels.abi3.so")
BUILD = ROOT / "build"
# Each bit is that of NumPy: no fused operations. A wheel runs everywhere: no instructions but the
# oldest.
FLAGS = (
    "-std=c11",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-s",
)


class NotCompiled(Exception):
    """The kernels cannot be compiled here; the message says why."""


def compile_kernels(library: Path, source: Path = SOURCE, flags: tuple[str, ...] = FLAGS) -> None:
    """Writes the extension; raises NotCompiled."""
    told = os.environ.get("CC")
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    command = shlex.split(told) if told else [found] if found else None
    if command is None:
        raise NotCompiled("there is no C compiler")
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").exists():
        raise NotCompiled(f"the headers of Python are not in {headers}")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    library.parent.mkdir(parents=True, exist_ok=True)
    # Written anew and renamed: who has the one before loaded keeps it.
    fresh = library.with_name(f".{os.getpid()}.{library.name}")
    command += [*flags, f'-DSOURCE="{digest}"', f"-I{headers}", str(source), "-lm"]
    command += ["-o", str(fresh)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
        fresh.replace(library)
    except FileNotFoundError as error:
        raise NotCompiled(f"there is no {command[0]}") from error
    except subprocess.CalledProcessError as error:
        raise NotCompiled(f"{command[0]} failed:\n{error.stderr}") from error
    finally:
        fresh.unlink(missing_ok=True)


def built(library: Path) -> bool:
    """Compiles unless the environment says no; says why where that cannot be."""
    wanted = os.environ.get("CALIBRATION_MONITOR_NATIVE", "")
    if wanted == "off":
        return False
    try:
        compile_kernels(library)
    except NotCompiled as why:
        if wanted == "required":
            raise
        print(f"kernels: NumPy, as they are not compiled: {why}", file=sys.stderr)
        return False
    return True


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc]  # ships no types
    """Puts the extension into a wheel, or beside the source for an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles before hatchling gathers files; without the extension the wheel is pure."""
        if version == "editable":
            built(IN_PLACE)
            return
        here = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        platform = os.environ.get("CALIBRATION_MONITOR_PLATFORM", here)
        library = BUILD / platform / IN_PLACE.name
        if built(library):
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{platform}"
            build_data["force_include"][str(library)] = str(IN_PLACE.relative_to(ROOT))


def main() -> None:
    """Compiles beside the source where the extension is older than what it is made of."""
    made = IN_PLACE.stat().st_mtime if IN_PLACE.exists() else 0.0
    if made < max(SOURCE.stat().st_mtime, Path(__file__).stat().st_mtime):
        built(IN_PLACE)


if __name__ == "__main__":
    main()
