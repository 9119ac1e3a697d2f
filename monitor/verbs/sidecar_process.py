"""A real sidecar as a process of its own, for verbs that need one; never the sidecar itself."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_START_SECONDS = 30.0
_STOP_SECONDS = 15.0  # above [server] grace_seconds
_LISTENING = "listening "
_TAIL_LINES = 10


class SidecarFailed(ConnectionError):
    """The sidecar that was started here did not start, did not stop, or ended by itself."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a sidecar listens, each as host:port."""

    grpc: str
    http: str


@contextlib.contextmanager
def running_sidecar(config_toml: str) -> Iterator[Addresses]:
    """A sidecar with this configuration on free ports, as long as the context lasts.

    What it counts ends with it, whatever [snapshot] says. At the end it is asked to
    stop by SIGTERM and must end with code 0. It never outlives this process, however
    that ends: its standard input closes with us. An error of the body that comes from
    the sidecar's own end is replaced by one that says so.

    Raises SidecarFailed, with the end of the sidecar's log.
    """
    with tempfile.TemporaryDirectory(prefix="calibration-monitor-") as folder:
        config, log = Path(folder) / "sidecar.toml", Path(folder) / "log"
        config.write_text(config_toml, encoding="utf-8")
        process = _start(config, log)
        try:
            yield _addresses(process, log)
            if process.poll() is not None:
                raise _ended(process, log)
            _stop(process, log)
        except ConnectionError as error:
            # The stream breaks a moment before the process is gone.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            if process.returncode is None or isinstance(error, SidecarFailed):
                raise
            raise _ended(process, log) from error
        finally:
            _end(process)


def _start(config: Path, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "monitor", "serve", "--config", str(config)]
    command += ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
    with log.open("wb") as stderr:
        return subprocess.Popen(
            [*command, "--exit-with-parent", "--no-snapshot", "--never-shed"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            process_group=0,  # Ctrl-C in the terminal is for us; we stop the sidecar
        )


def _addresses(process: subprocess.Popen[bytes], log: Path) -> Addresses:
    assert process.stdout is not None
    too_late = threading.Timer(_START_SECONDS, process.kill)
    too_late.start()
    try:
        line = process.stdout.readline().decode("utf-8", "replace")
    finally:
        too_late.cancel()
    if not line.startswith(_LISTENING):
        code = process.wait()
        raise SidecarFailed(f"the sidecar did not start (exit code {code}).{_tail(log)}")
    listening = json.loads(line.removeprefix(_LISTENING))
    return Addresses(listening["grpc"], listening["http"])


def _stop(process: subprocess.Popen[bytes], log: Path) -> None:
    process.terminate()
    try:
        code = process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        raise SidecarFailed(
            f"the sidecar did not stop within {_STOP_SECONDS:g} s of SIGTERM.{_tail(log)}"
        ) from None
    if code != 0:
        raise SidecarFailed(f"the sidecar stopped with exit code {code}.{_tail(log)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Whatever happened, nothing of it stays."""
    try:
        if process.poll() is None:
            process.terminate()
            process.wait(_STOP_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        pass
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _ended(process: subprocess.Popen[bytes], log: Path) -> SidecarFailed:
    code = process.returncode
    how = f"was killed by signal {-code}" if code < 0 else f"ended by itself with exit code {code}"
    return SidecarFailed(f"the sidecar {how} while it was needed.{_tail(log)}")


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
    return "\n".join(["\nThe end of its log:", *(f"  {line}" for line in lines)]) if lines else ""
