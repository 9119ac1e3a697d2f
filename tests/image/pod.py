"""Runs the image as a runtime would: a container, and others in the same network; no tests here.

Network, processes and mounts are namespaces of their own, so the ports are the image's own ones,
and nothing of the machine is seen or touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.image.built import ROOT, Image

STATE = "/var/lib/calibration-monitor"
CONFIGURATION = "/etc/calibration-monitor/sidecar.toml"
_HTTP_PORT = 9464
_PATIENCE = 60  # s
_CONVERSATION = 400  # s
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of linux/sched.h
_OWN = ("--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--propagation", "private")


class Container:
    """Controls a container that runs; its first process is the command of the image."""

    def __init__(self, image: Image, starter: subprocess.Popen[bytes], log: Path) -> None:
        self.image, self.starter, self.log = image, starter, log

    @property
    def pid(self) -> int:
        """Finds its first process, as the machine counts."""
        starter = self.starter.pid
        (child,) = Path(f"/proc/{starter}/task/{starter}/children").read_text().split()
        return int(child)

    def status(self, key: str) -> str:
        """Reads a line of /proc/…/status."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith(key + ":"))

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs another command inside, as `docker exec` and health checks do."""
        user, _, group = self.image.config["User"].partition(":")
        return subprocess.run(
            [
                *("/usr/bin/nsenter", "--target", str(self.pid), "--root", "--wd"),
                *("--mount", "--pid", "--ipc", "--uts", "--net"),
                *("--setuid", user, "--setgid", group, *command),
            ],
            env=self.image.environment,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
        )

    def health_check(self) -> int:
        """Returns what the image's own check of its health ends with; 0 is healthy."""
        form, *command = self.image.config["Healthcheck"]["Test"]
        assert form == "CMD"
        return self.execute(*command).returncode

    def stop(self) -> int:
        """Stops it by the signal that the image names; returns what it ended with."""
        os.kill(self.pid, signal.Signals[self.image.config["StopSignal"]])
        return self.starter.wait(_PATIENCE)


@dataclass
class Pod:
    """Holds what shares one network.

    state   its volume, on the machine
    """

    image: Image
    folder: Path
    network: str  # the namespace, as a path
    state: Path
    containers: list[Container] = field(default_factory=list)

    def start(self, *arguments: str, config: str = "") -> Container:
        """Starts the image with these arguments, or as it is; config is mounted over its own."""
        mounts: list[tuple[str, str, bool]] = [(str(self.state), STATE, False)]
        if config:
            own = self.folder / "sidecar.toml"
            own.write_text(config, encoding="utf-8")
            mounts.append((str(own), CONFIGURATION, True))
        image = self.image
        job = {
            "tree": str(image.tree),
            "mounts": mounts,
            "user": image.config["User"],
            "environment": image.environment,
            "folder": image.config["WorkingDir"],
            "command": [*image.config["Entrypoint"], *(arguments or image.config["Cmd"])],
        }
        log = self.folder / f"log-{len(self.containers)}.txt"
        with log.open("wb") as output:
            starter = subprocess.Popen(
                [
                    *("nsenter", f"--net={self.network}", "unshare", *_OWN),
                    *(sys.executable, "-I", str(Path(__file__).with_name("container.py"))),
                    json.dumps(job),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.containers.append(Container(image, starter, log))
        return self.containers[-1]

    def get(self, path: str, port: int = _HTTP_PORT) -> tuple[int, str]:
        """Asks over HTTP from beside the container: status, 0 where nobody listens, and text."""
        address = f"http://127.0.0.1:{port}{path}"

        def ask() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(address, timeout=_PATIENCE) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as refused:
                return refused.code, refused.read().decode()
            except OSError:
                return 0, ""

        # A thread can be in another network than the rest of the process.
        with ThreadPoolExecutor(1, initializer=_enter, initargs=(self.network,)) as inside:
            return inside.submit(ask).result()

    def wait_ready(self, port: int = _HTTP_PORT) -> float:
        """Waits until the container that was started last says that it is ready; returns s."""
        began = time.monotonic()
        while self.get("/readyz", port) != (200, "ready\n"):
            container = self.containers[-1]
            assert container.starter.poll() is None, container.log.read_text("utf-8")
            assert time.monotonic() - began < _PATIENCE, container.log.read_text("utf-8")
            time.sleep(0.01)
        return time.monotonic() - began

    def converse(self, module: str) -> str:
        """Returns what a program of ours says beside the container; it must end in order."""
        return subprocess.check_output(
            ["nsenter", f"--net={self.network}", sys.executable, "-m", module],
            cwd=ROOT,
            text=True,
            timeout=_CONVERSATION,
        )


def _enter(network: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(network).open("rb") as namespace:
        if libc.setns(namespace.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter {network}")


@contextlib.contextmanager
def pod(image: Image, folder: Path) -> Iterator[Pod]:
    """Makes a network, and a volume that belongs to the user of the image."""
    state = folder / "state"
    state.mkdir()
    user, _, group = image.config["User"].partition(":")
    os.chown(state, int(user), int(group))
    holder = subprocess.Popen(
        ["unshare", "--net", sys.executable, "-I", str(Path(__file__).with_name("loopback.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None and holder.stdin is not None
    assert holder.stdout.readline() == b"up\n"
    own = Pod(image, folder, f"/proc/{holder.pid}/ns/net", state)
    try:
        yield own
    finally:
        for container in own.containers:
            container.starter.kill()
            container.starter.wait(_PATIENCE)
        holder.stdin.close()
        holder.wait(_PATIENCE)
        holder.stdout.close()
