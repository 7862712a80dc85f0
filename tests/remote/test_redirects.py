"""URLs with a query are refused if they redirect: the next host would learn the query."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from glassfs.errors import DeviceFailed, NotFound, Refused
from glassfs.settings import settings
from glassfs.source.remote.server import ATTEMPTS
from tests.remote import servers
from tests.remote.faults import Fault, Garbage, Redirect, Reset, Stall, Status, first, for_each
from tests.remote.http_server import HttpServer
from tests.remote.ports import free_port
from tests.remote.requests import Reply, Request


def an_object(request: Request) -> Reply:
    return Reply(206, [("Content-Range", "bytes 0-0/1"), ("ETag", '"x"')], b"x")


@pytest.fixture
def other() -> Iterator[HttpServer]:
    with HttpServer(an_object) as server:
        yield server


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "server_first_pause", 0.01)


store_of = partial(servers.store_of, timeout=6.0)


def to(server: HttpServer) -> Redirect:
    return Redirect(f"http://localhost:{server.port}/there")


@pytest.mark.parametrize("query", ["X-Amz-Signature=hunter2", "hunter2", "q=%20hunter2"])
@pytest.mark.parametrize("code", [302, 307])
def test_redirect_is_followed_only_without_a_query(query: str, code: int, other: HttpServer) -> None:
    with HttpServer(faults=for_each(Redirect(to(other).to, code))) as server:
        with pytest.raises(Refused, match=r"/data: redirects, and the next host would learn its query") as raised:
            store_of(f"{server.url}/data?{query}")
        assert "hunter2" not in str(raised.value)
        assert other.count() == 0
        assert store_of(f"{server.url}/data").entry(("data",)).size == 1


def test_redirect_on_the_same_host_is_refused_too() -> None:
    with HttpServer(an_object, faults=for_each(Redirect("/second?sig=hunter2"))) as server:
        with pytest.raises(Refused, match="redirects"):
            store_of(f"{server.url}/data?sig=hunter2")
        assert server.count() == 1


def test_check_sends_the_range_of_the_first_request(other: HttpServer) -> None:
    def faults(request: Request) -> Fault | None:
        return to(other) if request.range != "bytes=0-0" else None

    with HttpServer(an_object, faults=faults) as server, pytest.raises(Refused, match="redirects"):
        store_of(f"{server.url}/data?sig=hunter2")
    assert other.count() == 0


def test_check_sends_the_credentials(other: HttpServer) -> None:
    def faults(request: Request) -> Fault:
        return to(other) if "authorization" in request.headers else Status(401)

    with HttpServer(faults=faults) as server, pytest.raises(Refused, match="redirects"):
        store_of(f"{server.url}/data?sig=hunter2", key="me", secret="hunter3")
    assert other.count() == 0


@pytest.mark.parametrize("fault", [
    Status(503), Status(429), Reset(), Garbage(), pytest.param(Stall(), marks=pytest.mark.slow),
])
def test_check_is_retried(fault: Fault, other: HttpServer) -> None:
    times = iter([fault])
    with HttpServer(faults=lambda request: next(times, to(other))) as server:
        with pytest.raises(Refused, match="redirects"):
            store_of(f"{server.url}/data?sig=hunter2", timeout=6.0)
        assert other.count() == 0


@pytest.mark.parametrize("fault", [Status(503), Reset(), Garbage(), pytest.param(Stall(), marks=pytest.mark.slow)])
def test_check_without_an_answer_is_an_error(fault: Fault, other: HttpServer) -> None:
    times = first(ATTEMPTS, fault)
    with HttpServer(faults=lambda request: times(request) or to(other)) as server:
        with pytest.raises(DeviceFailed, match="/data: "):
            store_of(f"{server.url}/data?sig=hunter2", timeout=1.5)
        assert other.count() == 0


def test_untrusted_certificate_is_an_error(certificate: Path) -> None:
    with HttpServer(an_object, certificate=certificate) as server:
        with pytest.raises(DeviceFailed, match=r"/data: its certificate is not trusted$"):
            store_of(f"{server.url}/data?sig=hunter2")
        assert server.count() == 0


def test_other_errors_are_those_without_a_query() -> None:
    with pytest.raises(DeviceFailed, match="it does not answer as a web server does"):
        store_of(f"http://127.0.0.1:{free_port()}/data?sig=hunter2")
    with HttpServer() as server, pytest.raises(NotFound, match="there is no such object"):
        store_of(f"{server.url}/data?sig=hunter2")
