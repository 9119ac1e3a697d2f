"""A detector beside the container, whose estimates are overconfident. A program, not a test: it
sends frames and their truth, asks for a fit, and says in JSON what came of it.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any

import grpc

from monitor.v1 import (
    perception_monitor_pb2,
    perception_monitor_pb2_grpc,
    recalibrator_admin_pb2,
    recalibrator_admin_pb2_grpc,
)
from tests.promoted import Traffic, drive_for
from tests.served import PATIENCE, eventually

_ADDRESS = "127.0.0.1:50051"
_TRACKS = 60
_VARIANCE = 0.25  # of what is true
# s; a fit is done within two, but has the lowest priority where others keep the machine busy.
_FIT_PATIENCE = 300


def fitted(sidecar: Any) -> Any:
    """Asks for a fit; returns nothing while the tracks that have ended are not known as ended."""
    request = recalibrator_admin_pb2.FitRequest(actor="test")
    try:
        return sidecar.admin.Fit(request, timeout=_FIT_PATIENCE).fits
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
            raise
        return []


def main() -> None:
    with grpc.insecure_channel(_ADDRESS) as channel:
        sidecar: Any = SimpleNamespace(
            monitor=perception_monitor_pb2_grpc.PerceptionMonitorStub(channel),
            admin=recalibrator_admin_pb2_grpc.RecalibratorAdminStub(channel),
        )
        traffic = Traffic(sidecar, variance={"car": _VARIANCE})
        drive_for(traffic, _TRACKS)
        traffic.close()
        fits = eventually(lambda: fitted(sidecar), _FIT_PATIENCE)
        found = sidecar.monitor.GetCalibration(
            perception_monitor_pb2.GetCalibrationRequest(), timeout=PATIENCE
        )
    told = {
        "frames": traffic.frames,
        # Each slice comes once for every window.
        "labelled": max(one.stages[0].n for one in found.slices),
        "factors": [factor.typical for one in fits for factor in one.factors],
        "reasons": [one.reason for one in fits],
    }
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
