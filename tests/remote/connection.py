"""One connection of a client to an ``HttpServer``: reads requests and answers them, with their faults.

Used only by the thread of the server's loop.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import Protocol

from tests.remote.faults import Cut, Drip, Fault, Garbage, Headers, Length, Redirect, Reset, Stall, Status, Whole
from tests.remote.requests import Reply, Request

PIECE = 256 << 10
LOOK = 0.05
"""Seconds between checks that the client of a silent connection is still there."""
FRAMING = {"connection", "content-length", "keep-alive", "transfer-encoding"}


class Over(Exception):
    """The connection ends here."""


class Served(Protocol):
    """What a connection needs of its server."""

    answer: Callable[[Request], Reply]
    delay: float
    flows: asyncio.Event

    def begin(self, request: Request) -> Fault | None: ...
    def end(self, request: Request) -> None: ...
    async def carry(self, size: int) -> None: ...


class Connection:
    def __init__(
        self, server: Served, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
    ) -> None:
        self._server = server
        self._number = number
        self._reader = reader
        self._writer = writer

    async def serve(self) -> None:
        """Answer requests until the client ends the connection. Raises Over, OSError or EOFError if it ends halfway."""
        while (request := await self._receive()) is not None:
            fault = self._server.begin(request)
            try:
                await self._answer(request, fault)
            finally:
                self._server.end(request)
            if request.headers.get("connection", "").lower() == "close":
                return

    def reset(self) -> None:
        """End the connection with RST."""
        raw: socket.socket = self._writer.get_extra_info("socket")
        with suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def close(self) -> None:
        """End the connection; bytes on the way still arrive."""
        self._writer.close()

    # Requests

    async def _receive(self) -> Request | None:
        """Return the next request; None at the end of the connection."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head[:-4].decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3:
            raise Over
        parted = (line.partition(":") for line in lines)
        request = Request(0, self._number, words[0], words[1], [(name, value.strip()) for name, _, value in parted])
        request.body = await self._reader.readexactly(int(request.headers.get("content-length", 0)))
        return request

    # Answers

    async def _answer(self, request: Request, fault: Fault | None) -> None:
        if self._server.delay:
            await asyncio.sleep(self._server.delay)
        reply: Reply
        match fault:
            case Stall(after=None):
                await self._be_silent(fault.seconds)
                reply = self._server.answer(request)
            case Reset(after=None):
                self.reset()
                raise Over
            case Garbage():
                await self._server.flows.wait()
                self._writer.write(fault.data)
                raise Over
            case Status():
                headers = [] if fault.retry_after is None else [("Retry-After", str(fault.retry_after))]
                reply = Reply(fault.code, headers, fault.body)
            case Redirect():
                reply = Reply(fault.code, [("Location", fault.to)])
            case Whole():
                reply = self._server.answer(request.without("range", "if-range"))
            case _:
                reply = self._server.answer(request)
        if isinstance(fault, Headers):
            for name, value in fault.changes.items():
                reply.change(name, value)
        await self._send(request, reply, fault)

    async def _send(self, request: Request, reply: Reply, fault: Fault | None) -> None:
        size, promised = reply.size, reply.size
        body = (reply.body,) if isinstance(reply.body, bytes) else reply.body
        has_body = request.method != "HEAD" and reply.status not in (204, 304)
        if isinstance(fault, Length) and has_body:
            if size is None:
                raise ValueError("a body of unknown size cannot have a wrong one")
            body = resized(body, size, fault.by)
            size = max(0, size + fault.by)
            promised = {"length": size, "chunks": None, "lie": promised}[fault.framed]
        headers = [line for line in reply.headers if line[0].lower() not in FRAMING]
        in_chunks = promised is None and has_body
        if in_chunks:
            headers.append(("Transfer-Encoding", "chunked"))
        elif promised is not None and reply.status not in (204, 304):
            headers.append(("Content-Length", str(promised)))
        text = "".join(f"{name}: {value}\r\n" for name, value in headers)
        reason = HTTPStatus(reply.status).phrase if reply.status in HTTPStatus._value2member_map_ else "Odd"
        head = f"HTTP/1.1 {reply.status} {reason}\r\n{text}\r\n".encode("latin-1")
        await self._server.flows.wait()
        request.status = reply.status
        if has_body:
            await self._send_body(request, head, body, promised, fault)
        else:
            request.is_done = True
            self._writer.write(head)
        await self._writer.drain()
        if not request.is_done:
            raise Over

    async def _send_body(
        self, request: Request, head: bytes, body: Iterable[bytes], promised: int | None, fault: Fault | None,
    ) -> None:
        """Send the body, in chunks if no size is promised, and the head with its first piece.

        The log has every byte before the client does.
        """
        in_chunks = promised is None
        stops = fault.after if isinstance(fault, Cut | Reset | Stall) and fault.after is not None else None
        step, pause = (fault.size, fault.pause) if isinstance(fault, Drip) else (PIECE, 0.0)
        for whole in body:
            at = 0
            while at < len(whole):
                if stops is not None and request.sent == stops:
                    self._writer.write(head)
                    head = b""
                    stops = await self._break_off(fault)
                room = step if stops is None else min(step, stops - request.sent)
                piece = whole[at:at + room]
                at += len(piece)
                await self._server.carry(len(piece))
                if pause:
                    await self._be_silent(pause)
                await self._server.flows.wait()
                request.sent += len(piece)
                request.is_done = request.sent == promised or request.is_done
                self._writer.write(b"%s%x\r\n%s\r\n" % (head, len(piece), piece) if in_chunks else head + piece)
                head = b""
                await self._writer.drain()
        request.is_done = promised is None or request.sent >= promised
        self._writer.write(head + b"0\r\n\r\n" if in_chunks else head)

    async def _break_off(self, fault: Fault | None) -> None:
        """Carry out a fault within a body. Returns only if the body goes on."""
        if isinstance(fault, Stall):
            await self._be_silent(fault.seconds)
            return
        if isinstance(fault, Reset):
            # A reset discards what the client has not read, so let it read first.
            await self._writer.drain()
            await asyncio.sleep(LOOK)
            self.reset()
        raise Over

    async def _be_silent(self, seconds: float | None) -> None:
        """Send nothing for so long, or forever. Raises Over if the client ends the connection."""
        loop = asyncio.get_running_loop()
        until = float("inf") if seconds is None else loop.time() + seconds
        while (left := until - loop.time()) > 0:
            await asyncio.sleep(min(LOOK, left))
            if self._reader.at_eof() or self._writer.is_closing():
                raise Over


def resized(body: Iterable[bytes], size: int, by: int) -> Iterator[bytes]:
    """Yield a body of ``size`` bytes, made longer or shorter by so many."""
    left = size + by
    for piece in body:
        if left > 0:
            yield piece[:left]
        left -= len(piece)
    if by > 0:
        yield b"X" * by
