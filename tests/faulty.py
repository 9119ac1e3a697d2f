"""A disk that can lose power, be full or take nothing, under the files of one folder. No tests."""

from __future__ import annotations

import errno
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.components import program

_SOURCE = Path(__file__).parent / "faulty_disk.c"
FULL, READ_ONLY = errno.ENOSPC, errno.EROFS


@dataclass(frozen=True, slots=True)
class FaultyDisk:
    """Under a folder, for processes that get its environment.

    library  to preload
    shadow   has each file as it was when it was last synced
    switch   is there while writes fail
    """

    folder: Path
    library: Path
    shadow: Path
    switch: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self.library),
            "DISK_FOLDER": str(self.folder),
            "DISK_SHADOW": str(self.shadow),
            "DISK_FAULT": str(self.switch),
        }

    def fail(self, code: int) -> None:
        """From now on, whatever writes fails with an errno."""
        half = self.switch.with_suffix(".half")
        half.write_text(str(code), encoding="ascii")
        half.replace(self.switch)

    def heal(self) -> None:
        self.switch.unlink()

    def after_power_loss(self, to: Path) -> None:
        """What a disk would have; to is made."""
        shutil.copytree(self.shadow, to, ignore=shutil.ignore_patterns("*.copying*"))


def faulty_disk(tmp_path: Path) -> FaultyDisk:
    """Of a new folder. Needs gcc."""
    library = tmp_path / "faulty_disk.so"
    command = [program("gcc"), "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library)]
    subprocess.run([*command, str(_SOURCE), "-ldl"], check=True)
    disk = FaultyDisk(tmp_path / "disk", library, tmp_path / "shadow", tmp_path / "switch")
    disk.folder.mkdir()
    disk.shadow.mkdir()
    return disk
