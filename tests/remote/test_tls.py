"""Servers that speak TLS where plain HTTP is named, and the other way around."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from glassfs.errors import DeviceFailed
from glassfs.source import Connection, locate
from tests.remote.faults import Stall, for_each
from tests.remote.http_server import HttpServer

NO_TLS = "the server does not speak TLS on this port: write http:// instead of https://, if that is safe here$"
TLS = "the server speaks TLS on this port: write https:// instead of http://$"


@pytest.mark.parametrize("path", ["data/run.kdb", "data/", "data", "data/run.kdb?sig=1"])
def test_https_to_a_plain_server_says_so(path: str) -> None:
    """This server says nothing to a TLS handshake and waits."""
    with HttpServer() as server:
        with pytest.raises(DeviceFailed, match=NO_TLS):
            locate([f"https://127.0.0.1:{server.port}/{path}"], Connection(timeout=1.0), lambda name: "." in name)
        assert [request.target for request in server.requests] == ["/"]


def test_https_to_a_server_that_refuses_says_so_at_once() -> None:
    """As nginx and others do."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        def answer() -> None:
            while True:
                with listening.accept()[0] as connection:
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

        def serve() -> None:
            with suppress(OSError):  # the end of the test
                answer()

        threading.Thread(target=serve, daemon=True).start()
        url = f"https://127.0.0.1:{listening.getsockname()[1]}/data/run.kdb"
        started = time.monotonic()
        with pytest.raises(DeviceFailed, match=NO_TLS):
            locate([url], Connection(timeout=60.0))
        assert time.monotonic() - started < 20


@pytest.mark.parametrize("path", ["data/run.kdb", "data/", "data"])
def test_http_to_a_server_with_tls_says_so(path: str, certificate: Path) -> None:
    with HttpServer(certificate=certificate) as server, pytest.raises(DeviceFailed, match=TLS):
        locate([f"http://127.0.0.1:{server.port}/{path}"], Connection(timeout=2.0), lambda name: "." in name)


def test_silent_server_is_not_taken_for_another_scheme() -> None:
    with HttpServer(faults=for_each(Stall())) as server, pytest.raises(DeviceFailed, match="answer"):
        locate([f"{server.url}/data/run.kdb"], Connection(timeout=0.5))
