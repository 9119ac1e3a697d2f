"""calibration-monitor serve: runs the sidecar.

Composition and life of the sidecar are in `monitor.sidecar`.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import logging
import os
import signal
import stat
import sys
from pathlib import Path

from monitor import __version__
from monitor.config import Config, InvalidConfiguration, load, replaced
from monitor.fleet.uploads import store_of
from monitor.pipeline.checkpoints import configured_folder
from monitor.pipeline.recalibrators import Recalibrators, configured
from monitor.pipeline.shown import ShownState
from monitor.recalibration.selection import IDENTITY
from monitor.service.log import Logs, standard_error, start_logging
from monitor.service.security import ServerCertificates, Tokens
from monitor.sidecar import Host, ServiceManager, Sidecar, serve
from monitor.wire.access import is_loopback, split_address

log = logging.getLogger(__name__)
_STDIN = 0


def run(options: argparse.Namespace) -> int:
    """0 after an orderly end. Raises InvalidConfiguration, CannotListen."""
    if options.print_config:
        beside = Path(__file__).with_name("sidecar.toml")  # in a wheel; else in the clone
        clone = Path(__file__).parents[2] / "deploy" / "sidecar.toml"
        sys.stdout.write((beside if beside.is_file() else clone).read_text(encoding="utf-8"))
        return 0
    if bool(options.state) != options.read_only:
        raise ValueError("--state F shows a file as it is, and --read-only says so: give both.")
    shown = ShownState.of(Path(options.state)) if options.state else None
    config = _configured(options, shown)
    with start_logging(config.log, standard_error()) as logs:
        for key in config.old_keys:
            log.warning("configuration: %s is deprecated: [state] has its place", key)
        if options.check:
            print(f"configuration is valid; {_at_start(config)}")
            return 0
        if options.exit_with_parent and not stat.S_ISFIFO(os.fstat(_STDIN).st_mode):
            raise ValueError(
                "--exit-with-parent: standard input is not a pipe: start the sidecar with one, "
                "or leave the option out."
            )
        host = Host(
            reread=functools.partial(_configured_again, options, shown),
            path=options.config or "",
            logs=logs.counts,
            adjusted=lambda config: logs.apply(config.log),
            manager=ServiceManager.of(os.environ, os.getpid()),
        )
        listening = functools.partial(_listening, options.exit_with_parent, logs)
        sidecar = serve(config, listening, host, shown)
        # A handler of ours would be gone before the process is.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        counters = sidecar.pipeline.counters
        text = "stopped: %d frames, %d detections, %d with ground truth"
        log.info(text, counters.frames, counters.detections, counters.truth.matched)
        return 0


def _configured_again(options: argparse.Namespace, shown: ShownState | None) -> Config:
    """Reads the configuration again; a file that is being written is not taken for defaults."""
    if options.config and Path(options.config).exists() and not Path(options.config).stat().st_size:
        raise InvalidConfiguration(
            f"{options.config} is empty: is it being written? Write beside it and rename, or leave "
            "a comment in it where the defaults are meant."
        )
    return _configured(options, shown)


def _configured(options: argparse.Namespace, shown: ShownState | None) -> Config:
    """Reads the file as it is now, then the options, then what a shown state says.

    raises  InvalidConfiguration, IncompatibleStatistics
    """
    config = load(options.config) if options.config else Config()
    shed = 0 if options.never_shed else None
    changes = {
        ("server", "grpc_address"): options.grpc_address,
        ("server", "http_address"): options.http_address,
        ("server", "shed_lag_seconds"): shed,
        ("server", "shed_rows"): shed,
        ("state", "folder"): "" if options.no_state else None,
        ("log", "level"): options.log_level,
    }
    config = replaced(config, changes)
    return config if shown is None else shown.configured(config)


def _at_start(config: Config) -> str:
    """Names what will be active. Raises InvalidConfiguration where a file cannot be used."""
    Tokens(config.security)
    if config.security.tls:
        ServerCertificates(config.security)
    if config.fleet.upload:
        store_of(config.fleet)
    named = configured(Recalibrators(), config)
    active = [named["recalibrator"] or IDENTITY.version, named["class_recalibrator"]]
    text = ", ".join(f"recalibrator {version}" for version in active if version)
    folder = configured_folder(config, os.environ)
    return text if folder is None else f"{text}, or what the last run left in {folder}"


def _listening(exit_with_parent: bool, logs: Logs, sidecar: Sidecar) -> None:
    """Prints one line for people and programs that wait for the ports."""
    if exit_with_parent:
        loop = asyncio.get_running_loop()
        loop.add_reader(_STDIN, _stop_at_end_of_input, loop)
    settings = sidecar.config.server
    line = {
        "grpc": sidecar.server.address,
        "http": f"{settings.http_address.rpartition(':')[0]}:{sidecar.http_port}",
    }
    # Who reads this line finds what was said of the start already written.
    logs.flush()
    log.info("version %s: gRPC at %s, HTTP at %s", __version__, line["grpc"], line["http"])
    print(f"listening {json.dumps(line)}", flush=True)
    plain = ("http",) if sidecar.config.security.tls else ("grpc", "http")
    for key in plain:
        if not is_loopback(split_address(line[key], key)[0]):
            log.warning("%s at %s can be reached from other machines, unencrypted", key, line[key])


def _stop_at_end_of_input(loop: asyncio.AbstractEventLoop) -> None:
    if not os.read(_STDIN, 4096):
        loop.remove_reader(_STDIN)
        log.info("standard input closed: stopping")
        signal.raise_signal(signal.SIGTERM)
