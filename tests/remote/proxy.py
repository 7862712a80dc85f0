"""A proxy in front of a server on loopback: a slow line, a narrow one, a broken one, and a log of what was asked.

It passes requests on as they came, the Host header and with it any signature too, and answers in pieces as they come.
Each connection of a client has one to the server. Delay, bandwidth, faults and log are those of ``HttpServer``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from tests.remote.connection import PIECE, Upstream, chunks
from tests.remote.faults import Fault, Faults
from tests.remote.http_server import BUFFERED, HttpServer
from tests.remote.ports import LOCALHOST
from tests.remote.requests import Reply, Request


class Proxy(HttpServer):
    def __init__(
        self, upstream: int, *, delay: float = 0, bandwidth: float | None = None,
        faults: Faults | Iterable[Fault | None] = (), certificate: Path | None = None,
    ) -> None:
        """``upstream``: the port of a server that speaks HTTP without TLS on 127.0.0.1."""
        super().__init__(delay=delay, bandwidth=bandwidth, faults=faults, certificate=certificate)
        self.upstream = upstream

    def open_upstream(self) -> Upstream:
        return _Upstream(self.upstream)


class _Upstream:
    """A connection to the server, opened again whenever it has ended. A server that cannot be asked makes a 502."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._is_idle = False
        """Whether nothing of an earlier answer is on the way."""

    async def ask(self, request: Request) -> Reply:
        lines = "".join(f"{name}: {value}\r\n" for name, value in request.lines)
        head = f"{request.method} {request.target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")
        while True:
            is_used = self._is_idle
            try:
                reader, writer = await self._connect()
                writer.write(head + request.body)
                await writer.drain()
                return await self._receive(reader, request.method)
            except (OSError, EOFError) as error:
                self.close()
                # A server may close a connection that it has answered on; the request is then asked once more.
                if not is_used:
                    return Reply(502, body=f"no answer from port {self._port}: {error!r}".encode())

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not self._is_idle:
            self.close()
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(LOCALHOST, self._port, limit=BUFFERED)
        self._is_idle = False
        return self._reader, self._writer

    async def _receive(self, reader: asyncio.StreamReader, method: str) -> Reply:
        status = 100
        while status < 200:
            first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
            status = int(first.split(" ")[1])
        parted = (line.partition(":") for line in lines)
        reply = Reply(status, [(name, value.strip()) for name, _, value in parted])
        headers = {name.lower(): value for name, value in reply.headers}
        reply.size = int(headers["content-length"]) if "content-length" in headers else None
        is_kept = first.startswith("HTTP/1.1") and headers.get("connection", "").lower() != "close"
        if method == "HEAD" or status in (204, 304) or reply.size == 0:
            self._finish(is_kept)
        elif headers.get("transfer-encoding", "").lower() == "chunked":
            reply.size, reply.body = None, self._chunks(reader, is_kept)
        else:
            reply.body = self._body(reader, reply.size, is_kept)
        return reply

    async def _body(self, reader: asyncio.StreamReader, size: int | None, is_kept: bool) -> AsyncIterator[bytes]:
        """So many bytes, or all until the connection ends."""
        left = size
        while left != 0:
            piece = await reader.read(PIECE if left is None else min(left, PIECE))
            if left is not None:
                if not piece:
                    raise EOFError("the server ended in the middle of a body")
                left -= len(piece)
            elif not piece:
                is_kept, left = False, 0
            if left == 0:
                self._finish(is_kept)
            if piece:
                yield piece

    async def _chunks(self, reader: asyncio.StreamReader, is_kept: bool) -> AsyncIterator[bytes]:
        async for piece in chunks(reader):
            yield piece
        self._finish(is_kept)

    def _finish(self, is_kept: bool) -> None:
        self._is_idle = is_kept
        if not is_kept:
            self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None
        self._is_idle = False
