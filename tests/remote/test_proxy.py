"""The proxy that tests put before servers: it passes requests on, breaks some of them, and reports errors of tests."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.remote.faults import (
    Status,
    first,
    for_each,
)
from tests.remote.http_server import HttpServer
from tests.remote.proxy import Proxy
from tests.remote.requests import Reply, Request
from tests.remote.s3 import Bucket, S3Server
from tests.waiting import wait_until

PATIENCE = 30.0
IMPATIENCE = 0.3
"""Seconds until a client gives up waiting for what never comes."""
CONTENT = bytes(range(256)) * 400
RANGE = {"Range": "bytes=1000-1999"}
WANTED = CONTENT[1000:2000]
LARGE = bytes(6 << 20)


@pytest.fixture(scope="module")
def upstream() -> Iterator[S3Server]:
    with S3Server({"b": Bucket({"key": CONTENT, "empty": b"", "large": LARGE})}) as running:
        yield running


@pytest.fixture
def proxy(upstream: S3Server) -> Iterator[Proxy]:
    with Proxy(upstream.port) as running:
        yield running


class Client:
    """One connection, opened when it is needed."""

    def __init__(self, port: int, timeout: float = PATIENCE) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)

    def get(
        self, path: str = "/b/key", headers: dict[str, str] = RANGE, method: str = "GET",
    ) -> tuple[http.client.HTTPResponse, bytes]:
        self.connection.request(method, path, headers=headers)
        response = self.connection.getresponse()
        return response, response.read()


@pytest.fixture
def client(proxy: Proxy) -> Iterator[Client]:
    made = Client(proxy.port)
    with closing(made.connection):
        yield made


def test_requests_pass_unchanged(proxy: Proxy, client: Client, upstream: S3Server) -> None:
    upstream.reset()
    response, body = client.get("/b/k%65y?a=b%2F", {**RANGE, "If-Match": "*", "X-Own": "é"})
    assert (response.status, body) == (206, WANTED)
    assert response.headers["Content-Range"] == f"bytes 1000-1999/{len(CONTENT)}"
    (seen,), (asked,) = proxy.requests, upstream.requests
    assert (seen.lines, seen.target) == (asked.lines, asked.target)
    assert asked.headers["host"] == f"127.0.0.1:{proxy.port}"
    assert (seen.path, seen.query, seen.span, seen.if_match) == ("/b/key", {"a": "b/"}, (1000, 2000), "*")
    assert (seen.status, seen.sent, seen.is_done, seen.fault) == (206, 1000, True, None)


def test_faults_by_rules(proxy: Proxy, client: Client) -> None:
    def is_range(request: Request) -> bool:
        return request.range is not None

    proxy.faults = first(2, Status(503), is_range)
    assert [client.get(headers=headers)[0].status for headers in (RANGE, {}, RANGE, RANGE)] == [503, 200, 503, 206]
    proxy.faults = for_each(Status(500), is_range)
    assert [client.get(headers=headers)[0].status for headers in (RANGE, {}, RANGE, RANGE)] == [500, 200, 500, 500]


def test_everything_is_swallowed_until_it_is_released(proxy: Proxy, client: Client) -> None:
    assert client.get()[1] == WANTED
    proxy.hold()
    client.connection.sock.settimeout(IMPATIENCE)
    with pytest.raises(TimeoutError):
        client.get()
    wait_until(lambda: proxy.count() == 2)
    assert not proxy.requests[1].is_done
    client.connection.close()
    proxy.release()
    assert client.get()[1] == WANTED


def test_a_server_that_is_away_and_comes_back(proxy: Proxy, client: Client) -> None:
    assert client.get()[1] == WANTED
    with proxy.away():
        with pytest.raises(ConnectionError):
            client.get()
        client.connection.close()
        with pytest.raises(ConnectionRefusedError):
            client.get()
        client.connection.close()
    assert client.get()[1] == WANTED


def test_tls(certificate: Path) -> None:
    context = ssl.create_default_context(cafile=str(certificate))
    with S3Server({"b": Bucket({"key": CONTENT})}, certificate=certificate) as server:
        assert server.url == f"https://127.0.0.1:{server.port}"
        trusting = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=PATIENCE, context=context)
        with closing(trusting):
            trusting.request("GET", "/b/key", headers=RANGE)
            assert trusting.getresponse().read() == WANTED
        suspicious = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=PATIENCE)
        with closing(suspicious), pytest.raises(ssl.SSLCertVerificationError):
            suspicious.request("GET", "/b/key")


def test_an_error_of_a_script_is_seen() -> None:
    def broken(request: Request) -> Reply:
        raise KeyError("of the script")

    with (
        pytest.raises(KeyError, match="of the script"), HttpServer(broken) as server,
        closing(Client(server.port).connection) as connection, suppress(ConnectionError),
    ):
        connection.request("GET", "/")
        connection.getresponse()
