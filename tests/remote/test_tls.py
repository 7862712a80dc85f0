"""Servers that speak TLS where plain HTTP is named, and the other way around."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassfs.errors import DeviceFailed
from glassfs.source import Connection, locate
from tests.remote.http_server import HttpServer

NO_TLS = r"does the server speak TLS\?$"
TLS = r"does the server speak plain HTTP instead of TLS\?$"


@pytest.mark.parametrize("path", ["data/run.kdb", "data/", "data", "data/run.kdb?sig=1"])
def test_error_of_a_server_without_tls_asks_for_it(path: str) -> None:
    """This server says nothing to a TLS handshake and waits."""
    with HttpServer() as server, pytest.raises(DeviceFailed, match=NO_TLS):
        locate([f"https://127.0.0.1:{server.port}/{path}"], Connection(timeout=1.0), lambda name: "." in name)


@pytest.mark.parametrize("path", ["data/run.kdb", "data/", "data"])
def test_error_of_a_server_with_tls_asks_for_it(path: str, certificate: Path) -> None:
    with HttpServer(certificate=certificate) as server, pytest.raises(DeviceFailed, match=TLS):
        locate([f"http://127.0.0.1:{server.port}/{path}"], Connection(timeout=2.0), lambda name: "." in name)
