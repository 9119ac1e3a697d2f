"""calibration-monitor serve: the sidecar."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from typing import Any

from monitor.config import Config, load
from monitor.sidecar import Sidecar, build_pipeline, serve

log = logging.getLogger(__name__)

EXAMPLE = """examples:
  calibration-monitor serve
  calibration-monitor serve --config deploy/sidecar.toml --check
  calibration-monitor serve --grpc-address 127.0.0.1:0 --http-address 127.0.0.1:0"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument(
        "--config", metavar="F", help="TOML file; deploy/sidecar.toml lists all keys"
    )
    parser.add_argument("--check", action="store_true", help="validate the configuration and exit")
    parser.add_argument("--grpc-address", metavar="H:P", help="overrides [server] grpc_address")
    parser.add_argument("--http-address", metavar="H:P", help="overrides [server] http_address")
    parser.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error")
    )


def run(options: argparse.Namespace) -> int:
    """0 after an orderly end. Raises InvalidConfiguration, CannotListen."""
    logging.basicConfig(
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    config = _overridden(load(options.config) if options.config else Config(), options)
    if options.check:
        pipeline = build_pipeline(config)
        print(f"configuration is valid; recalibrator {pipeline.selection.version}")
        return 0
    sidecar = serve(config, _listening)
    counters = sidecar.pipeline.counters
    log.info(
        "stopped: %d frames, %d detections, %d with ground truth",
        counters.frames,
        counters.detections,
        counters.truth.matched,
    )
    return 0


def _overridden(config: Config, options: argparse.Namespace) -> Config:
    changes: dict[str, Any] = {}
    for key in ("grpc_address", "http_address"):
        if getattr(options, key):
            changes[key] = getattr(options, key)
    return config.model_copy(update={"server": config.server.model_copy(update=changes)})


def _listening(sidecar: Sidecar) -> None:
    """One line for people and programs that wait for the ports."""
    settings = sidecar.config.server
    line = {
        "grpc": f"{settings.grpc_address.rpartition(':')[0]}:{sidecar.server.port}",
        "http": f"{settings.http_address.rpartition(':')[0]}:{sidecar.http_port}",
    }
    print(f"listening {json.dumps(line)}", flush=True)
    for key, address in line.items():
        if not address.startswith(("127.", "localhost", "[::1]")):
            log.warning("%s at %s can be reached from other machines, unencrypted", key, address)
