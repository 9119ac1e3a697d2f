"""The process that a sidecar runs in, as its service manager and its C library know it.

Nothing here knows frames or statistics.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from monitor.config import Config
from monitor.service.log import LogCounts

log = logging.getLogger(__name__)

# systemd drops a datagram above PIPE_BUF, 4,096 bytes; a character has up to four bytes.
MOST_CHARACTERS = 900

# From glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3

# Bytes; blocks up to this size come from the heap, not from the system one by one.
_LARGEST_BLOCK = 2**25

# Bytes; the heap gives back free memory at its end only beyond this size.
_KEPT = 2**26


@dataclass(slots=True, eq=False)
class ServiceManager:
    """Tells the service manager that started the process in which state the sidecar is.

    Speaks systemd's notification protocol: datagrams to a socket, none without a manager. No
    method raises or blocks: a sidecar serves whether or not it is watched. A failure to send is
    logged once, and a change of state (ready, reloading, stopping) is sent again before the next
    `alive`, since without READY the manager would end the process as one that never began.

    watchdog_seconds  s between two calls of `alive`, half of what is allowed; None: there is no
                      watchdog
    source            sd_notify(3) and sd_watchdog_enabled(3)
    """

    _address: bytes | None
    watchdog_seconds: float | None
    _owed: str = ""
    _well: bool = True
    _socket: socket.socket | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str], pid: int) -> ServiceManager:
        """Reads the variables NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.

        pid  of this process; another one in WATCHDOG_PID means that another process is watched
        """
        address = _address(environment.get("NOTIFY_SOCKET", ""))
        seconds = None if address is None else _watchdog_seconds(environment, pid)
        return cls(address, seconds)

    def ready(self, status: str) -> None:
        """Tells that the start, or a reload, is over, with a line for operators."""
        self._change(f"READY=1\nSTATUS={_line(status)}")

    def reloading(self, monotonic_us: int) -> None:
        """Tells that a reload began at that moment of CLOCK_MONOTONIC, in µs."""
        self._change(f"RELOADING=1\nMONOTONIC_USEC={monotonic_us:d}\nSTATUS=reloading")

    def stopping(self) -> None:
        """Tells that the end has begun."""
        self._change("STOPPING=1\nSTATUS=stopping")

    def alive(self) -> None:
        """Tells that the loop still turns; a message that cannot be sent is lost."""
        if self._owed and self._send(self._owed):
            self._owed = ""
        if not self._owed:
            self._send("WATCHDOG=1")

    def _change(self, message: str) -> None:
        # Only the newest state counts: an older one that was not sent is forgotten.
        self._owed = ""
        if not self._send(message):
            self._owed = message

    def _send(self, message: str) -> bool:
        """Returns False if somebody listens and the message could not be sent."""
        if self._address is None:
            return True
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            # Not connected once: a manager that restarts binds the same path anew.
            self._socket.sendto(message.encode("utf-8", "replace"), self._address)
        except OSError as error:
            if self._well:
                log.warning(
                    "the service manager at NOTIFY_SOCKET = '%s' was not told of our state (%s); "
                    "it is told as soon as it listens",
                    *(os.fsdecode(self._address).replace("\0", "@"), error.strerror or error),
                )
            self._well = False
            return False
        self._well = True
        return True


def _address(text: str) -> bytes | None:
    """Reads the address of a datagram socket: a path, or `@` with an abstract name of Linux.

    returns  None for anything else: `vsock:` and others are for virtual machines that boot
    """
    if text[:1] not in ("/", "@") or len(text) == 1:
        return None
    encoded = os.fsencode(text)
    return b"\0" + encoded[1:] if encoded[:1] == b"@" else encoded


def _watchdog_seconds(environment: Mapping[str, str], pid: int) -> float | None:
    microseconds = environment.get("WATCHDOG_USEC", "")
    watched = environment.get("WATCHDOG_PID", str(pid))
    # 2^64 - 1, systemd's infinity, has 20 digits: a number so long is no time.
    if watched != str(pid) or not re.fullmatch("[0-9]{1,19}", microseconds):
        return None
    return int(microseconds) / 2e6 or None


def _line(text: str) -> str:
    """Removes line ends, each of which would begin an assignment of its own."""
    return " ".join(text.split())[:MOST_CHARACTERS]


@dataclass(frozen=True, slots=True)
class Host:
    """The process as the sidecar uses it.

    reread    reads the configuration as it is now; raises InvalidConfiguration
    path      of the configuration file; empty: there is none
    logs      counts of the lines logged
    adjusted  is called with the settings that hold after a reload, if anybody asks for them
    manager   the service manager
    """

    reread: Callable[[], Config] = Config
    path: str = ""
    logs: LogCounts = field(default_factory=LogCounts)
    adjusted: Callable[[Config], None] | None = None
    manager: ServiceManager = field(default_factory=lambda: ServiceManager(None, None))


def keep_freed_memory() -> bool:
    """Lets glibc keep freed memory: without it half the time of array work goes into new pages.

    returns  False if the C library is not glibc; another library is left alone
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))
