"""The gRPC server: one event loop; listening, health, reflection and an orderly end."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass, field

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from monitor.edges.admin_service import AdminService, FitNow
from monitor.edges.calls import Handler, Settle, guarded
from monitor.edges.service import ADMIN, MONITOR, Service
from monitor.edges.state_service import StateService
from monitor.events import Health
from monitor.promotions import Promotions

# Seconds for what was said last to reach those who watch.
LAST_WORDS = 0.2


def _handlers(
    service: Service, states: StateService, admin: AdminService
) -> tuple[grpc.GenericRpcHandler, ...]:
    def unary(handler: Handler[bytes, bytes]) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(guarded(service, handler))

    monitor = {
        "Process": grpc.stream_stream_rpc_method_handler(service.process),
        "ProcessFrame": unary(service.process_frame),
        "ReportGroundTruth": grpc.stream_stream_rpc_method_handler(service.report_ground_truth),
        "GetCalibration": unary(service.get_calibration),
        "WatchEvents": grpc.unary_stream_rpc_method_handler(service.watch_events),
        "ExportStatistics": grpc.unary_stream_rpc_method_handler(
            guarded(service, states.export_statistics)
        ),
        "ImportStatistics": grpc.stream_unary_rpc_method_handler(
            guarded(service, states.import_statistics)
        ),
        "AcknowledgeDrift": unary(service.acknowledge_drift),
    }
    administration = {
        "List": unary(admin.list_recalibrators),
        "Get": unary(admin.get_recalibrator),
        "Promote": unary(admin.promote),
        "Fit": unary(admin.fit),
        "Rollback": unary(admin.rollback),
        "Pin": unary(admin.pin),
    }
    return (
        grpc.method_handlers_generic_handler(MONITOR, monitor),
        grpc.method_handlers_generic_handler(ADMIN, administration),
    )


class CannotListen(OSError):
    """An address is not to be had."""


@dataclass(slots=True)
class Server:
    """The running gRPC server."""

    service: Service
    promotions: Promotions
    fit_now: FitNow
    settle: Settle
    states: StateService = field(init=False)
    admin: AdminService = field(init=False)
    port: int = 0
    _grpc: grpc.aio.Server | None = None
    _health: health.aio.HealthServicer = field(default_factory=health.aio.HealthServicer)

    def __post_init__(self) -> None:
        self.states = StateService(self.service.pipeline)
        self.admin = AdminService(self.promotions, self.fit_now, self.settle)

    async def start(self) -> None:
        """Listen and serve. Raises CannotListen."""
        settings = self.service.pipeline.config.server
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", settings.transport_message_bytes),
                ("grpc.max_send_message_length", -1),
                # A second sidecar on the same port would silently take half of the streams.
                ("grpc.so_reuseport", 0),
            ]
        )
        server.add_generic_rpc_handlers(_handlers(self.service, self.states, self.admin))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (MONITOR, ADMIN, health.SERVICE_NAME)
        if settings.reflection:
            reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
        try:
            self.port = server.add_insecure_port(settings.grpc_address)
        except RuntimeError:
            self.port = 0
        if self.port == 0:
            raise CannotListen(
                f"[server] grpc_address = '{settings.grpc_address}': cannot listen there. "
                "Is another sidecar running? Choose a free port, or 0 for any."
            )
        await server.start()
        for name in ("", MONITOR, ADMIN):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._grpc = server
        self.service.announce(Health(True, "serving"))
        # What exists now stays; the collector need not look at it again.
        gc.collect()
        gc.freeze()

    async def stop(self) -> None:
        """Say so, finish the frames in work, then close."""
        assert self._grpc is not None
        await self._health.enter_graceful_shutdown()
        self.service.announce(Health(False, "shutting down"))
        self.service.events.close()
        self.service.drain()
        grace = self.service.pipeline.config.server.grace_seconds
        closing = asyncio.create_task(self._grpc.stop(grace))
        await self.service.drained(grace)
        # Who only watches, health for one, need not be waited for.
        await self._grpc.stop(min(grace, LAST_WORDS))
        await closing
