"""Measures upper limits of this machine without RocketSim's code: the rates of gRPC, Unix sockets, the disk and Python.

`python -m benchmarks.raw` is a load process, which starts a server of raw bytes as another process.
"""

import asyncio
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from benchmarks.driver_loop import serve
from benchmarks.figures import percentile

FRAME = 1 << 20
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
STREAM, ECHO = "/raw.Raw/Stream", "/raw.Raw/Echo"


# --- the server -----------------------------------------------------------------------------------------------------


class _Handlers(grpc.GenericRpcHandler):
    """Serves raw bytes: `Stream` sends as many frames as the request says, and `Echo` sends the request back."""

    def service(self, call: Any) -> Any:
        if call.method == STREAM:
            return grpc.unary_stream_rpc_method_handler(_frames)
        return grpc.unary_unary_rpc_method_handler(_echo) if call.method == ECHO else None


async def _frames(request: bytes, _: Any) -> Any:
    frame = b"x" * FRAME
    for _number in range(int(request)):
        yield frame


async def _echo(request: bytes, _: Any) -> bytes:
    return request


def _serve_sockets(listening: socket.socket) -> None:
    """Serves connections.  A client sends the number of frames that it wants, and the server answers with these
    frames.
    """
    frame = b"x" * FRAME
    while True:
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            for _number in range(int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "little")):
                connection.sendall(frame)


async def _serve(unix_name: str) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"\0{unix_name}")
    listening.listen()
    threading.Thread(target=_serve_sockets, args=(listening,), daemon=True).start()
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((_Handlers(),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # ends with the driver
    await server.stop(None)


# --- the driver -----------------------------------------------------------------------------------------------------


class Raw:
    def __init__(self, port: int, unix_name: str) -> None:
        self._unix_name = unix_name
        self._channel: Any = grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS)

    def stream(self, frames: int) -> dict[str, Any]:
        """Reads a gRPC server stream of 1 MiB frames."""
        begun = time.perf_counter()
        size = sum(len(frame) for frame in self._channel.unary_stream(STREAM)(str(frames).encode()))
        seconds = time.perf_counter() - begun
        return {"bytes": size, "seconds": seconds, "bytes_rate": size / seconds}

    def socket_stream(self, frames: int) -> dict[str, Any]:
        """Reads 1 MiB frames from a Unix socket into one buffer."""
        frame, size = bytearray(FRAME), 0
        begun = time.perf_counter()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"\0{self._unix_name}")
            connection.sendall(frames.to_bytes(8, "little"))
            for _ in range(frames):
                size += connection.recv_into(frame, 0, socket.MSG_WAITALL)
        seconds = time.perf_counter() - begun
        if size != frames * FRAME:
            raise RuntimeError(f"only {size} bytes came for {frames} requested frames")
        return {"bytes": size, "seconds": seconds, "bytes_rate": size / seconds}

    def round_trips(self, size: int, seconds: float) -> dict[str, Any]:
        """Makes unary gRPC calls, one after the other, from one thread."""
        echo, request = self._channel.unary_unary(ECHO), b"x" * size
        took = []
        begun = time.perf_counter()
        while (before := time.perf_counter()) < begun + seconds:
            echo(request)
            took.append(time.perf_counter() - before)
        return {"rate": len(took) / seconds, "p50_ms": percentile(took, 0.5) * 1000}

    def write(self, folder: str, megabytes: int, block: int, sync: int) -> dict[str, Any]:
        """Writes blocks with `pwrite` into a preallocated file, and calls `fdatasync` after each block if `sync` is
        set.
        """
        path = Path(folder) / "raw"
        data = b"x" * block
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            os.posix_fallocate(file, 0, megabytes << 20)
            os.fsync(file)
            begun = time.perf_counter()
            for at in range(0, megabytes << 20, block):
                os.pwrite(file, data, at)
                if sync:
                    os.fdatasync(file)
            seconds = time.perf_counter() - begun
        finally:
            os.close(file)
            path.unlink()
        return {
            "seconds": seconds,
            "bytes_rate": (megabytes << 20) / seconds,
            "rate": (megabytes << 20) / block / seconds,
        }


def main() -> None:
    if sys.argv[1:2] == ["server"]:
        asyncio.run(_serve(sys.argv[2]))
        return
    unix_name = f"rocketsim-raw-{secrets.token_hex(8)}"
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.raw", "server", unix_name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout and server.stdin
        raw = Raw(int(server.stdout.readline()), unix_name)
        serve(
            {
                "stream": raw.stream,
                "socket_stream": raw.socket_stream,
                "round_trips": raw.round_trips,
                "write": raw.write,
            }
        )
        server.stdin.close()


if __name__ == "__main__":
    main()
