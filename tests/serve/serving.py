"""A server in this process, on a port of its own, and requests to it."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from glassfs.cli.serve import opened_paths
from glassfs.mount.options import MountOptions
from glassfs.serve.server import Server
from glassfs.serve.site import Site
from tests.waiting import wait_until

HOST = "127.0.0.1"


class Answer(NamedTuple):
    """An answer; the names of its headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Served:
    """A server: ``address`` begins the addresses of what it serves."""

    def __init__(self, server: Server, scheme: str) -> None:
        self.server = server
        self.port: int = server.bind_addr[1]
        self.address = f"{scheme}://{HOST}:{self.port}"

    def ask(
        self, path: str, method: str = "GET", headers: Mapping[str, str] | None = None, body: bytes | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def send(self, data: bytes) -> bytes:
        """Send bytes, and return what the server answers until it closes the connection or nothing more comes."""
        with socket.create_connection((HOST, self.port), timeout=60) as connection:
            found = b""
            with suppress(OSError):  # the server may have closed it before
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                while read := connection.recv(1 << 16):
                    found += read
            return found


@contextmanager
def served(
    *sources: Path, options: str = "", password: bytes = b"", tls: tuple[str, str] | None = None,
) -> Iterator[Served]:
    """Serve sources until the end of the block."""
    paths = opened_paths([*map(str, sources)], MountOptions.parse([options]))
    server = Server(Site(paths, sources[0].name), HOST, 0, password, tls)
    server.prepare()
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield Served(server, "https" if tls else "http")
        wait_until(lambda: not server.busy)
    finally:
        server.stop()
        thread.join()
        paths.sources.close()
