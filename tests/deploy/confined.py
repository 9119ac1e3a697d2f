"""Runs a program under the system call filters that a unit of systemd asks for, without systemd
being in charge: the same names, resolved by the same library; no tests.

    python tests/deploy/confined.py UNIT COMMAND…
"""

import ctypes
import errno
import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# Of seccomp.h: actions, and how an argument is compared.
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_EQUAL, _MASKED_EQUAL = 4, 7
# Of socket(family, …), and of mmap and mprotect(address, length, protection, …).
_FAMILY, _PROTECTION = 0, 2


class _Comparison(ctypes.Structure):
    """struct scmp_arg_cmp of libseccomp."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def settings(unit: Path) -> dict[str, list[str]]:
    """Reads the values of each setting, in the order of its lines."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text("utf-8").splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith(("#", ";")):
            found.setdefault(key, []).append(value)
    return found


def groups() -> dict[str, set[str]]:
    """Reads systemd's sets of system calls, each with what is in the sets that it names."""
    command = ["systemd-analyze", "syscall-filter", "--no-pager"]
    listed = subprocess.check_output(command, text=True)
    members: dict[str, set[str]] = {}
    current: set[str] = set()
    for line in listed.splitlines():
        word = line.strip()
        if line.startswith("@"):
            current = members.setdefault(word, set())
        elif line.startswith(" ") and not word.startswith("#"):
            current.add(word)

    def all_of(name: str) -> set[str]:
        parts = members[name]
        return {part for part in parts if part[0] != "@"}.union(
            *(all_of(part) for part in parts if part[0] == "@")
        )

    return {name: all_of(name) for name in members}


def allowed(filters: list[str]) -> set[str]:
    """Finds the names that lines of SystemCallFilter= leave, read in order as systemd does."""
    known = groups()
    names = set(known["@default"])
    for line in filters:
        for word in line.lstrip("~").split():
            these = known[word] if word.startswith("@") else {word}
            names = names - these if line.startswith("~") else names | these
    return names


def confine(unit: Path) -> None:
    """Filters from now on, and for whatever this process becomes and starts. Raises OSError."""
    asked = settings(unit)
    names = " ".join(asked["RestrictAddressFamilies"]).split()
    families = [int(getattr(socket, name)) for name in names]
    no_new_code = asked["MemoryDenyWriteExecute"] == ["yes"]
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_REFUSE)))
    for name in sorted(allowed(asked["SystemCallFilter"])):
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:
            continue  # of another architecture
        for rule in _rules(name, families, no_new_code):
            comparisons = (_Comparison * len(rule))(*rule)
            failed = library.seccomp_rule_add_array(
                context, ctypes.c_uint32(_ALLOW), number, len(rule), comparisons
            )
            if failed:
                raise OSError(-failed, f"the rule of {name} was not taken")
    failed = library.seccomp_load(context)
    if failed:
        raise OSError(-failed, "the filter was not taken")


def _rules(name: str, families: list[int], no_new_code: bool) -> Iterator[tuple[_Comparison, ...]]:
    """Yields what is enough, each alone, for a call to be allowed."""
    if name == "socket":
        for family in families:
            yield (_Comparison(_FAMILY, _EQUAL, family),)
    elif name == "mmap" and no_new_code:
        for bit in (mmap.PROT_EXEC, mmap.PROT_WRITE):
            yield (_Comparison(_PROTECTION, _MASKED_EQUAL, bit, 0),)
    elif name in ("mprotect", "pkey_mprotect") and no_new_code:
        yield (_Comparison(_PROTECTION, _MASKED_EQUAL, mmap.PROT_EXEC, 0),)
    else:
        yield ()


if __name__ == "__main__":
    confine(Path(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
