"""The proxy does what it says: each fault as a plain client sees it, delays, the line, and the log."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.remote.faults import (
    Cut,
    Drip,
    Fault,
    Garbage,
    Headers,
    Length,
    Redirect,
    Reset,
    Stall,
    Status,
    Whole,
    first,
    for_each,
)
from tests.remote.http_server import HttpServer
from tests.remote.proxy import Proxy
from tests.remote.requests import Reply, Request
from tests.remote.s3 import Bucket, S3Server

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


def test_one_connection_serves_many_requests(proxy: Proxy, client: Client) -> None:
    for path, method, status, size in (
        ("/b/key", "GET", 200, len(CONTENT)), ("/b/key", "HEAD", 200, 0), ("/b/empty", "GET", 200, 0),
        ("/b/none", "HEAD", 404, 0), ("/b/large", "GET", 200, len(LARGE)), ("/b?list-type=2", "GET", 200, None),
    ):
        response, body = client.get(path, {}, method)
        assert response.status == status
        assert size in (None, len(body))
    assert response.headers["Content-Type"] == "application/xml"
    assert (proxy.connections, proxy.count(), proxy.count("HEAD"), proxy.most_at_once) == (1, 6, 2, 1)
    assert proxy.count(where=lambda request: request.is_listing) == 1
    assert proxy.sent == len(CONTENT) + len(LARGE) + len(body)
    proxy.reset()
    assert (proxy.connections, proxy.count(), proxy.sent) == (0, 0, 0)


def test_bodies_of_requests_pass(proxy: Proxy) -> None:
    with HttpServer(lambda request: Reply(201, body=request.body)) as echo:
        proxy.upstream = echo.port
        with closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=PATIENCE)) as connection:
            connection.request("PUT", "/some", LARGE)
            assert connection.getresponse().read() == LARGE
            connection.request("PUT", "/some", iter([b"one", b"two"]), {"Expect": "100-continue"}, encode_chunked=True)
            assert connection.getresponse().read() == b"onetwo"


def test_an_answer_comes_after_the_delay_at_the_earliest(proxy: Proxy, client: Client) -> None:
    proxy.delay = 0.05
    began = time.monotonic()
    for _ in range(3):
        client.get()
    assert time.monotonic() - began >= 0.15


def test_requests_are_answered_at_the_same_time(proxy: Proxy) -> None:
    clients = [Client(proxy.port) for _ in range(4)]
    proxy.hold()
    for each in clients:
        each.connection.request("GET", "/b/key")
    until = time.monotonic() + PATIENCE
    while proxy.count() < 4 and time.monotonic() < until:
        time.sleep(0.01)
    proxy.release()
    for each in clients:
        assert each.connection.getresponse().read() == CONTENT
        each.connection.close()
    assert (proxy.connections, proxy.most_at_once) == (4, 4)


@pytest.mark.slow
def test_all_connections_together_have_the_bandwidth(proxy: Proxy) -> None:
    proxy.bandwidth = 40e6
    clients = [Client(proxy.port) for _ in range(2)]
    began = time.monotonic()
    threads = [threading.Thread(target=each.get, args=("/b/large", {})) for each in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    for each in clients:
        each.connection.close()
    assert took >= 2 * len(LARGE) / 40e6 - 0.05
    assert proxy.sent == 2 * len(LARGE)


def test_answers_with_other_headers_or_other_codes(proxy: Proxy, client: Client) -> None:
    proxy.faults = [
        Status(503, retry_after=2), Status(429, body=b"slowly"), Redirect("http://127.0.0.1:1/else"), Whole(),
        Headers({"ETag": '"other"'}), Headers({"ETag": None, "Content-Range": "bytes 0-999/1000"}), None,
    ]
    answers = [client.get() for _ in range(8)]
    heads = [response for response, _ in answers]
    assert [head.status for head in heads] == [503, 429, 307, 200, 206, 206, 206, 206]
    assert [body for _, body in answers] == [b"", b"slowly", b"", CONTENT, *[WANTED] * 4]
    assert heads[0].headers["Retry-After"] == "2"
    assert heads[2].headers["Location"] == "http://127.0.0.1:1/else"
    assert (heads[3].headers["Content-Range"], heads[3].headers["Content-Length"]) == (None, str(len(CONTENT)))
    assert heads[4].headers["ETag"] == '"other"'
    assert (heads[5].headers["ETag"], heads[5].headers["Content-Range"]) == (None, "bytes 0-999/1000")
    assert heads[6].headers["ETag"] == heads[7].headers["ETag"] not in (None, '"other"')
    assert proxy.connections == 1


@pytest.mark.parametrize(("fault", "wanted"), [
    (Length(5), WANTED + b"XXXXX"), (Length(-5), WANTED[:-5]), (Length(-1000), b""),
    (Length(5, "chunks"), WANTED + b"XXXXX"), (Length(-5, "chunks"), WANTED[:-5]),
    (Drip(400, 0.01), WANTED),
    (Stall(after=10, seconds=0.1), WANTED), (Stall(seconds=0.1), WANTED),
])
def test_bodies_of_another_length_or_pace(proxy: Proxy, client: Client, fault: Fault, wanted: bytes) -> None:
    proxy.faults = [fault]
    response, body = client.get()
    assert (response.status, body) == (206, wanted)
    is_chunked = isinstance(fault, Length) and fault.framed == "chunks"
    assert response.headers["Content-Length"] == (None if is_chunked else str(len(wanted)))
    assert client.get()[1] == WANTED
    assert proxy.connections == 1


@pytest.mark.parametrize(("fault", "error"), [
    (Cut(100), http.client.IncompleteRead), (Cut(0), http.client.IncompleteRead),
    (Length(-900, "lie"), http.client.IncompleteRead),
    (Reset(100), ConnectionResetError), (Reset(0), ConnectionResetError), (Reset(), ConnectionResetError),
    *(pytest.param(stall, TimeoutError, marks=pytest.mark.slow) for stall in (Stall(100), Stall(0), Stall())),
    (Garbage(), http.client.BadStatusLine),
])
def test_answers_that_do_not_come_to_their_end(
    proxy: Proxy, client: Client, fault: Fault, error: type[Exception],
) -> None:
    proxy.faults = [fault]
    if isinstance(fault, Stall):
        client.connection.timeout = IMPATIENCE
    with pytest.raises(error) as caught:
        client.get()
    if isinstance(caught.value, http.client.IncompleteRead):
        assert caught.value.partial == (b"" if fault == Cut(0) else WANTED[:100])
    assert not proxy.requests[0].is_done
    client.connection.close()
    client.connection.timeout = PATIENCE
    assert client.get()[1] == WANTED
    assert proxy.connections == 2


def test_bytes_beyond_the_promised_length_stand_before_the_next_answer(proxy: Proxy) -> None:
    proxy.faults = [Length(5, "lie")]
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE) as connection:
        connection.sendall(b"GET /b/key HTTP/1.1\r\nRange: bytes=1000-1999\r\n\r\n" * 2)
        received = b""
        while received.count(WANTED) < 2:
            received += connection.recv(1 << 16)
    assert f"Content-Length: {len(WANTED)}".encode() in received
    assert WANTED + b"XXXXXHTTP/1.1 206" in received


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
    assert (proxy.count(), proxy.requests[1].is_done) == (2, False)
    client.connection.close()
    proxy.release()
    assert client.get()[1] == WANTED


@pytest.mark.slow
def test_what_is_held_in_the_middle_goes_on(proxy: Proxy, client: Client) -> None:
    client.connection.request("GET", "/b/large")
    proxy.bandwidth = 20e6
    response = client.connection.getresponse()
    start = response.read(1 << 20)
    proxy.hold()
    threading.Timer(0.2, proxy.release).start()
    assert start + response.read() == LARGE


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


def test_a_proxy_whose_server_is_away(proxy: Proxy, client: Client) -> None:
    with S3Server({"b": Bucket({"key": CONTENT})}) as other:
        proxy.upstream = other.port
        assert client.get()[1] == WANTED
        with other.away():
            response, body = client.get()
            assert response.status == 502
            assert body.startswith(b"no answer from port %d" % other.port)
        assert client.get()[1] == WANTED
    assert proxy.connections == 1


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


def test_a_body_without_an_end(proxy: Proxy) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"<Contents/>" * 1000

    with HttpServer(lambda request: Reply(body=endless())) as server:
        proxy.upstream = server.port
        with closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=PATIENCE)) as connection:
            connection.request("GET", "/")
            assert len(connection.getresponse().read(10 << 20)) == 10 << 20


def test_an_error_of_a_script_is_seen() -> None:
    def broken(request: Request) -> Reply:
        raise KeyError("of the script")

    with (
        pytest.raises(KeyError, match="of the script"), HttpServer(broken) as server,
        closing(Client(server.port).connection) as connection, suppress(ConnectionError),
    ):
        connection.request("GET", "/")
        connection.getresponse()


@pytest.mark.slow
def test_no_thread_and_no_descriptor_is_left(upstream: S3Server) -> None:
    before, threads = len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
    with Proxy(upstream.port, faults=[Stall()]) as proxy:
        impatient, other = Client(proxy.port, timeout=IMPATIENCE), Client(proxy.port)
        with pytest.raises(TimeoutError):
            impatient.get()
        impatient.connection.close()
        other.get()
    other.connection.close()
    assert threading.active_count() == threads
    # The server behind the proxy sees a moment later that it has gone.
    until = time.monotonic() + PATIENCE
    while (left := len(list(Path("/proc/self/fd").iterdir()))) > before and time.monotonic() < until:
        time.sleep(0.01)
    assert left <= before
