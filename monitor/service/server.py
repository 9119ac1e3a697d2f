"""The gRPC server: one event loop; listening, health, reflection and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from monitor.config import ServerConfig
from monitor.service.admin import AdminService, StateService
from monitor.service.calls import Context, Handler, guarded, refuse_call
from monitor.service.handlers import Service
from monitor.service.security import (
    MOST_PROBES,
    Authorisation,
    OpenCalls,
    Room,
    ServerCertificates,
    Tokens,
)
from monitor.wire.values import ADMIN, MONITOR, Health

log = logging.getLogger(__name__)

# Seconds for what was said last to reach those who watch.
LAST_WORDS = 0.2

# Milliseconds; who is slower to agree on TLS is sent away.
HANDSHAKE_MS = 10_000

# Milliseconds; clients that ping more often are sent away.
MOST_FREQUENT_PING_MS = 1000


# Calls that change something, and what is said of them where a stored state is shown.
_CHANGING = frozenset(
    {"Process", "ProcessFrame", "ReportGroundTruth", "ImportStatistics", "AcknowledgeDrift"}
    | {"Promote", "Fit", "Rollback", "Pin"}
)
READ_ONLY = (
    "this sidecar shows a stored state and takes nothing in (serve --read-only): call the "
    "sidecar of a vehicle."
)


class CannotListen(OSError):
    """An address is not to be had."""


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
        "GetStatus": unary(service.get_status),
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
    if service.read_only:
        for methods in (monitor, administration):
            methods |= {name: _refusing(methods[name]) for name in _CHANGING & methods.keys()}
    return (
        grpc.method_handlers_generic_handler(MONITOR, monitor),
        grpc.method_handlers_generic_handler(ADMIN, administration),
    )


def _refusing(handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
    """Makes a handler for calls of the same kind that refuses all of them."""

    async def refuse(_: object, context: Context) -> None:
        await refuse_call(context, grpc.StatusCode.FAILED_PRECONDITION, READ_ONLY)

    sides = (handler.request_streaming, handler.response_streaming)
    kind = "_".join("stream" if streaming else "unary" for streaming in sides)
    made: grpc.RpcMethodHandler = getattr(grpc, f"{kind}_rpc_method_handler")(refuse)
    return made


def _options(settings: ServerConfig) -> list[tuple[str, int]]:
    alive, answered = settings.keepalive_seconds, settings.keepalive_timeout_seconds
    return [
        ("grpc.max_receive_message_length", settings.transport_message_bytes),
        ("grpc.max_send_message_length", -1),
        # A second sidecar on the same port would silently take half of the streams.
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        # A client that has vanished without a word is noticed, and so is one without a call.
        ("grpc.keepalive_time_ms", round(1000 * alive)),
        ("grpc.keepalive_timeout_ms", round(1000 * answered)),
        # Of a minute otherwise, whatever the line above says.
        ("grpc.http2.ping_timeout_ms", round(1000 * answered)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Clients may ask the same of us, as often as that.
        ("grpc.http2.min_ping_interval_without_data_ms", MOST_FREQUENT_PING_MS),
    ]


class Server:
    """The running gRPC server."""

    def __init__(self, service: Service, admin: AdminService, states: StateService) -> None:
        """Raises InvalidConfiguration where a certificate or a token cannot be used."""
        self.service, self.admin, self.states, self.port = service, admin, states, 0
        config = service.pipeline.config
        self._certificates = ServerCertificates(config.security) if config.security.tls else None
        self._tokens = Tokens(config.security)
        self._grpc: grpc.aio.Server | None = None
        self._reloading: asyncio.Task[None] | None = None
        self._health = health.aio.HealthServicer()

    @property
    def address(self) -> str:
        """Returns host and port; once it listens, the port that it got."""
        stated = self.service.pipeline.config.server.grpc_address
        return f"{stated.rpartition(':')[0]}:{self.port}" if self.port else stated

    async def start(self) -> None:
        """Listens and serves. Raises CannotListen."""
        settings = self.service.pipeline.config.server
        authorisation = Authorisation(self._tokens, self.service.pipeline.counters)
        server = grpc.aio.server(
            options=_options(settings),
            # Who has no right takes no place.
            interceptors=(authorisation, OpenCalls(Room(settings.max_calls))),
            # Calls whose only message never comes do not reach a handler that would count them.
            maximum_concurrent_rpcs=2 * settings.max_calls + MOST_PROBES,
        )
        server.add_generic_rpc_handlers(_handlers(self.service, self.states, self.admin))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (MONITOR, ADMIN, health.SERVICE_NAME)
        if settings.reflection:
            reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
        with contextlib.suppress(RuntimeError):
            if self._certificates is None:
                self.port = server.add_insecure_port(settings.grpc_address)
            else:
                credentials = self._certificates.credentials()
                self.port = server.add_secure_port(settings.grpc_address, credentials)
        if self.port == 0:
            raise CannotListen(
                f"[server] grpc_address = '{settings.grpc_address}': cannot listen there. "
                "Is another sidecar running, or the host not of this machine? Choose a free port, "
                "or 0 for any."
            )
        await server.start()
        for name in ("", MONITOR, ADMIN):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._grpc = server
        self._reloading = asyncio.create_task(self._keep_credentials())
        self.service.pipeline.events.announce(Health(True, "serving"))

    async def _keep_credentials(self) -> None:
        """Makes changed files active soon after; no stream ends."""
        security = self.service.pipeline.config.security
        while security.tls or security.token_files:
            # The pause may be another one since a reload; which files there are may not.
            await asyncio.sleep(self.service.pipeline.config.security.reload_seconds)
            try:
                await asyncio.to_thread(self._tokens.look_again)
                if self._certificates is not None:
                    await asyncio.to_thread(self._certificates.look_again)
            except Exception:
                log.exception("certificates and tokens were not read again: those in use stay")

    async def stop(self) -> None:
        """Announces the end, finishes the frames in work, then closes."""
        assert self._grpc is not None
        assert self._reloading is not None
        self._reloading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reloading
        await self._health.enter_graceful_shutdown()
        self.service.pipeline.events.announce(Health(False, "shutting down"))
        self.service.pipeline.events.close()
        self.service.drain()
        grace = self.service.pipeline.config.server.grace_seconds
        closing = asyncio.create_task(self._grpc.stop(grace))
        await self.service.drained(grace)
        # Who only watches, health for one, need not be waited for.
        await self._grpc.stop(min(grace, LAST_WORDS))
        await closing
