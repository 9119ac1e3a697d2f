"""What a container runtime does, as far as the tests need it. A program, not a test: started by
`unshare` in namespaces of its own, it becomes the command of the image.

The root file system is read-only; /tmp is new, /dev has what every runtime gives, and what is
mounted is what the arguments say. The user is that of the image, without any privilege.
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

_DEVICES = ("null", "zero", "full", "random", "urandom")
_NO_NEW_PRIVILEGES = 38  # linux/prctl.h


def mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *arguments], check=True)


def bind(source: Path, target: Path, *, read_only: bool = False) -> None:
    mount("--bind", source, target)
    if read_only:
        mount("-o", "remount,bind,ro", target)


def main(job: str) -> None:
    """job  JSON: tree, mounts [[source, target, read_only]], user, environment, folder, command"""
    wanted = json.loads(job)
    tree = Path(wanted["tree"])
    bind(tree, tree, read_only=True)
    mount("-t", "proc", "proc", tree / "proc")
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", tree / "tmp")
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", tree / "dev")
    for name in _DEVICES:
        device = tree / "dev" / name
        device.touch()
        bind(Path("/dev") / name, device)
    for source, target, read_only in wanted["mounts"]:
        bind(Path(source), tree / target.lstrip("/"), read_only=read_only)
    os.chroot(tree)
    os.chdir(wanted["folder"])
    user, _, group = wanted["user"].partition(":")
    os.setgroups([])
    os.setgid(int(group))
    os.setuid(int(user))
    if ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        raise OSError("no_new_privs was refused")
    command, environment = wanted["command"], wanted["environment"]
    os.environ["PATH"] = environment["PATH"]  # where the command is looked for
    os.execvpe(command[0], command, environment)


if __name__ == "__main__":
    main(sys.argv[1])
