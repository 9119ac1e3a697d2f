"""The floor: a gRPC server that sends every message back as it came."""

from __future__ import annotations

import asyncio
import json
import signal

import grpc


async def echo(_: object, context: grpc.aio.ServicerContext) -> None:
    while (data := await context.read()) is not grpc.aio.EOF:
        await context.write(data)


async def main() -> None:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    handlers = {"Process": grpc.stream_stream_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("monitor.v1.PerceptionMonitor", handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"listening {json.dumps({'grpc': f'127.0.0.1:{port}'})}", flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(main())
