"""An HTTP/1.1 server for tests on loopback: slow, narrow or broken on demand, and with a log of all requests.

The server answers by a function, in a thread of its own, from ``__enter__`` to ``__exit__``. Its attributes may be set
and its log read from any thread at any time. An exception of the function ends the connection and is raised again by
``__exit__``.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakSet

from tests.remote.faults import (
    Cut,
    Drip,
    Fault,
    Faults,
    Garbage,
    Headers,
    Length,
    Redirect,
    Reset,
    Stall,
    Status,
    Whole,
)
from tests.remote.ports import LOCALHOST
from tests.remote.requests import Reply, Request

BUFFERED = 4 << 20
SLACK = 0.02
"""Seconds of unused bandwidth that an idle line may use later."""
PATIENCE = 60.0
PIECE = 256 << 10
LOOK = 0.05
"""Seconds between checks that the client of a silent connection is still there."""
FRAMING = {"connection", "content-length", "keep-alive", "transfer-encoding"}

Result = TypeVar("Result")
Server = TypeVar("Server", bound="HttpServer")


def not_found(request: Request) -> Reply:
    return Reply(404)


class HttpServer:
    def __init__(
        self, answer: Callable[[Request], Reply] = not_found, *, delay: float = 0, bandwidth: float | None = None,
        faults: Faults | Iterable[Fault | None] = (), certificate: Path | None = None,
    ) -> None:
        """``delay``: seconds before the first byte of each answer. ``bandwidth``: bytes a second of all connections.

        ``faults``: a function that returns the fault of a request, or a fault (or None) for each of the next ones.
        ``certificate``: a PEM file with its key, for TLS.
        """
        self.delay = delay
        self.bandwidth = bandwidth
        self.faults = faults
        self.port = 0
        self.answer = answer
        self._tls = None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate)
        self._free_at = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writers: WeakSet[asyncio.StreamWriter] = WeakSet()
        self._errors: list[Exception] = []
        self.reset()

    @property
    def faults(self) -> Faults | Iterable[Fault | None]:
        return self._faults

    @faults.setter
    def faults(self, faults: Faults | Iterable[Fault | None]) -> None:
        self._faults = faults if callable(faults) else iter(tuple(faults))

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://{LOCALHOST}:{self.port}"

    # The log

    def reset(self) -> None:
        """Clear the log. Requests that are being answered are no longer in it."""
        self._log: list[Request] = []

    @property
    def requests(self) -> Sequence[Request]:
        return tuple(self._log)

    def count(self, method: str | None = None, where: Callable[[Request], bool] = lambda request: True) -> int:
        return sum(1 for request in self.requests if method in (None, request.method) and where(request))

    @property
    def sent(self) -> int:
        """Bytes of bodies."""
        return sum(request.sent for request in self.requests)

    # Life

    def __enter__(self: Server) -> Server:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="http server", daemon=True)
        self._thread.start()
        try:
            self._run(self._listen())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        self._run(self._leave())
        self._stop()
        if self._errors and error is None:
            raise self._errors[0]

    def hold(self) -> None:
        """Read requests but send nothing, not even the rest of answers already begun."""
        self._run(self._let_flow(False))

    def release(self) -> None:
        """End ``hold``: send what was held back."""
        self._run(self._let_flow(True))

    def _run(self, task: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(task, self._loop).result(PATIENCE)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    async def _let_flow(self, flows: bool) -> None:
        if flows:
            self.flows.set()
        else:
            self.flows.clear()

    async def _listen(self) -> None:
        self.flows = asyncio.Event()
        self.flows.set()
        self._server = await asyncio.start_server(
            self._serve, LOCALHOST, 0, limit=BUFFERED, ssl=self._tls, backlog=512,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _leave(self) -> None:
        self._server.close()
        # A connection that has just been accepted has no task yet.
        await asyncio.sleep(0)
        while self._tasks:
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.wait(self._tasks)
        # Clients that do not fetch their answers would keep connections that are closed already.
        for writer in tuple(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    # Requests

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        connection = Connection(self, reader, writer)
        try:
            await connection.serve()
        except (Over, EOFError, OSError):
            pass
        except asyncio.CancelledError:
            connection.reset()
        except Exception as error:
            self._errors.append(error)
            connection.reset()
        finally:
            connection.close()
            self._tasks.discard(task)

    def fault_of(self, request: Request) -> Fault | None:
        """Add a request to the log and return its fault."""
        self._log.append(request)
        faults = self._faults
        request.fault = fault = faults(request) if callable(faults) else next(faults, None)
        return fault

    async def carry(self, size: int) -> None:
        """Wait until the line, which all connections share, has carried so many bytes."""
        if self.bandwidth is None:
            return
        now = self._loop.time()
        self._free_at = max(self._free_at, now - SLACK) + size / self.bandwidth
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)


class Over(Exception):
    """The connection ends here."""


class Connection:
    """One connection of a client: reads requests and answers them, with their faults. Used by the loop's thread."""

    def __init__(self, server: HttpServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer

    async def serve(self) -> None:
        """Answer requests until the client ends the connection. Raises Over, OSError or EOFError if it ends halfway."""
        while (request := await self._receive()) is not None:
            await self._answer(request, self._server.fault_of(request))
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
        request = Request(words[0], words[1], [(name, value.strip()) for name, _, value in parted])
        request.body = await self._reader.readexactly(int(request.headers.get("content-length", 0)))
        return request

    # Answers

    async def _answer(self, request: Request, fault: Fault | None) -> None:
        if self._server.delay:
            await asyncio.sleep(self._server.delay)
        reply: Reply
        match fault:
            case Stall(after=None):
                await self._be_silent()
                raise Over
            case Reset(after=None):
                self.reset()
                raise Over
            case Garbage():
                await self._server.flows.wait()
                self._writer.write(b"\x00\xffSSH-2.0-nothing\r\n\r\n")
                raise Over
            case Status():
                reply = Reply(fault.code, [], fault.body)
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
        step, pause = (1, fault.pause) if isinstance(fault, Drip) else (PIECE, 0.0)
        for whole in body:
            at = 0
            while at < len(whole):
                if stops is not None and request.sent == stops:
                    self._writer.write(head)
                    head = b""
                    await self._break_off(fault)
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
        """Carry out a fault within a body, which does not go on. Raises Over."""
        if isinstance(fault, Stall):
            await self._be_silent()
        if isinstance(fault, Reset):
            # A reset discards what the client has not read, so let it read first.
            await self._writer.drain()
            await asyncio.sleep(LOOK)
            self.reset()
        raise Over

    async def _be_silent(self, seconds: float = float("inf")) -> None:
        """Send nothing for so long. Raises Over if the client ends the connection."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
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
