"""An HTTP/1.1 server for tests on loopback: slow, narrow or broken on demand, and with a log of all requests.

The server answers by a function, in a thread of its own, from ``__enter__`` to ``__exit__``. Its attributes may be set
and its log read from any thread at any time. An exception of the function ends the connection and is raised again by
``__exit__``.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakSet

from tests.remote.connection import Connection, Over
from tests.remote.faults import Fault, Faults
from tests.remote.ports import LOCALHOST, free_port
from tests.remote.requests import Reply, Request

BUFFERED = 4 << 20
SLACK = 0.02
"""Seconds of unused bandwidth that an idle line may use later."""
PATIENCE = 60.0
ATTEMPTS = 5

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
        self._busy = 0
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
        self.most_at_once = 0
        """The most requests that were being answered at the same time."""
        self.connections = 0
        """How many connections were opened."""

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

    @contextmanager
    def away(self) -> Iterator[None]:
        """Stop the server meanwhile: its connections are reset, and new ones are refused."""
        self._run(self._leave())
        try:
            yield
        finally:
            self._run(self._listen())

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
        for attempts_left in reversed(range(ATTEMPTS)):
            port = self.port or free_port()
            try:
                self._server = await asyncio.start_server(
                    self._serve, LOCALHOST, port, limit=BUFFERED, ssl=self._tls, backlog=512,
                )
                break
            except OSError:
                # Another process has taken the port meanwhile.
                if attempts_left == 0:
                    raise
        self.port = port

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
        number, self.connections = self.connections, self.connections + 1
        connection = Connection(self, number, reader, writer)
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

    def begin(self, request: Request) -> Fault | None:
        """Add a request to the log and return its fault."""
        request.number = len(self._log)
        self._log.append(request)
        self._busy += 1
        self.most_at_once = max(self.most_at_once, self._busy)
        faults = self._faults
        fault = faults(request) if callable(faults) else next(faults, None)
        request.fault = fault
        return fault

    def end(self, request: Request) -> None:
        self._busy -= 1

    async def carry(self, size: int) -> None:
        """Wait until the line, which all connections share, has carried so many bytes."""
        if self.bandwidth is None:
            return
        now = self._loop.time()
        self._free_at = max(self._free_at, now - SLACK) + size / self.bandwidth
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)
