"""URLs that lead elsewhere: no other host is told what is in the query of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from glassfs.errors import DeviceFailed, NotFound, Refused
from glassfs.source import Connection, Store, locate
from glassfs.source.remote import objects, redirects
from glassfs.source.remote.url import parsed
from tests.remote.faults import Fault, Garbage, Redirect, Reset, Stall, Status, first, for_each
from tests.remote.http_server import HttpServer
from tests.remote.ports import free_port
from tests.remote.requests import Reply, Request


def an_object(request: Request) -> Reply:
    return Reply(206, [("Content-Range", "bytes 0-0/1"), ("ETag", '"x"')], b"x")


@pytest.fixture
def elsewhere() -> Iterator[HttpServer]:
    with HttpServer(an_object) as server:
        yield server


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(redirects, "PAUSE", 0.01)


def store_of(name: str, **options: object) -> Store:
    (found,) = locate([name], Connection(**{"timeout": 6.0, **options}))  # type: ignore[arg-type]
    return found.store


def to(server: HttpServer, path: str = "/there") -> str:
    return f"http://localhost:{server.port}{path}"


@pytest.mark.parametrize("query", ["X-Amz-Signature=hunter2", "sig=hunter2", "hmac=hunter2", "hunter2", "q=%20hunter2"])
@pytest.mark.parametrize("code", [302, 307])
def test_another_host_is_not_told_what_is_in_a_query(query: str, code: int, elsewhere: HttpServer) -> None:
    with HttpServer(faults=for_each(Redirect(to(elsewhere), code))) as server:
        with pytest.raises(Refused, match=r"/data: leads to another host") as raised:
            store_of(f"{server.url}/data?{query}")
        assert "hunter2" not in str(raised.value)
        assert elsewhere.count() == 0
        # Where there is none, it is followed.
        assert store_of(f"{server.url}/data").entry(("data",)).size == 1


def test_not_on_a_later_hop_either(elsewhere: HttpServer) -> None:
    def faults(request: Request) -> Fault:
        return Redirect("second?sig=hunter2" if request.path == "/a/data" else to(elsewhere))

    with HttpServer(faults=faults) as server:
        with pytest.raises(Refused, match="leads to another host"):
            store_of(f"{server.url}/a/data?sig=hunter2")
        assert [request.path for request in server.requests] == ["/a/data", "/a/second"]
        assert elsewhere.count() == 0


def test_a_hop_without_the_query_tells_nothing(elsewhere: HttpServer) -> None:
    def faults(request: Request) -> Fault:
        return Redirect("/second" if request.path == "/data" else to(elsewhere))

    with HttpServer(faults=faults) as server:
        assert store_of(f"{server.url}/data?sig=hunter2").entry(("data",)).size == 1
        assert elsewhere.count() > 0
        assert not any("hunter2" in f"{request.target} {request.lines}" for request in elsewhere.requests)


def test_not_by_what_part_is_asked_for(elsewhere: HttpServer) -> None:
    """What is asked first is what is asked then."""
    def faults(request: Request) -> Fault | None:
        return Redirect(to(elsewhere)) if request.range != "bytes=0-0" else None

    with HttpServer(an_object, faults=faults) as server, pytest.raises(Refused, match="leads to another host"):
        store_of(f"{server.url}/data?sig=hunter2")
    assert elsewhere.count() == 0


def test_not_by_who_asks(elsewhere: HttpServer) -> None:
    def faults(request: Request) -> Fault:
        return Redirect(to(elsewhere)) if "authorization" in request.headers else Status(401)

    with HttpServer(faults=faults) as server, pytest.raises(Refused, match="leads to another host"):
        store_of(f"{server.url}/data?sig=hunter2", key="me", secret="hunter3")
    assert elsewhere.count() == 0


@pytest.mark.parametrize("location", [
    "http:/localhost:{0}/x", "http:localhost:{0}/x", "///localhost:{0}/x", "//localhost:{0}/x", "/\\localhost:{0}/x",
    "http://localhost:{0}\\@127.0.0.1/x", "http://127.0.0.1@localhost:{0}/x",
    "\thttp://local\thost:{0}/x", "//%6cocalhost:{0}/x",
])
def test_what_not_all_read_in_the_same_way_is_another_host(location: str, elsewhere: HttpServer) -> None:
    with HttpServer(faults=for_each(Redirect(location.format(elsewhere.port)))) as server:
        with pytest.raises((Refused, DeviceFailed)):
            store_of(f"{server.url}/data?sig=hunter2")
        assert elsewhere.count() == 0


def test_on_the_same_host_it_is_followed() -> None:
    def faults(request: Request) -> Fault | None:
        return None if request.path == "/second" else Redirect("/second?sig=hunter2")

    with HttpServer(an_object, faults=faults) as server:
        assert store_of(f"{server.url}/data?sig=hunter2").entry(("data",)).size == 1


def test_the_same_host_over_tls_is_no_other(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with HttpServer(an_object, certificate=certificate) as secure, HttpServer() as server:
        server.faults = for_each(Redirect(f"{secure.url}/data?sig=hunter2"))
        url = parsed(f"{server.url}/data?sig=hunter2")
        redirects.demand_same_host(url, "Bearer hunter3", 6.0)
        assert secure.count() == 1
        assert "authorization" not in secure.requests[0].headers
        secure.faults = for_each(Redirect("https://elsewhere.invalid/there"))
        with pytest.raises(Refused, match="leads to another host"):
            redirects.demand_same_host(url, "", 6.0)
        assert secure.count() == 2


@pytest.mark.parametrize("fault", [
    Status(503), Status(429), Reset(), Garbage(), pytest.param(Stall(), marks=pytest.mark.slow),
])
def test_what_passes_is_asked_again(fault: Fault, elsewhere: HttpServer) -> None:
    """It is not known before somebody else would be told."""
    times = iter([fault])
    with HttpServer(faults=lambda request: next(times, Redirect(to(elsewhere)))) as server:
        with pytest.raises(Refused, match="leads to another host"):
            store_of(f"{server.url}/data?sig=hunter2", timeout=1.5)
        assert elsewhere.count() == 0


@pytest.mark.parametrize("fault", [Status(503), Reset(), Garbage(), pytest.param(Stall(), marks=pytest.mark.slow)])
def test_what_cannot_be_found_out_is_an_error(fault: Fault, elsewhere: HttpServer) -> None:
    times = first(redirects.TRIES, fault)
    with HttpServer(faults=lambda request: times(request) or Redirect(to(elsewhere))) as server:
        with pytest.raises(DeviceFailed, match="/data: "):
            store_of(f"{server.url}/data?sig=hunter2", timeout=1.5)
        assert elsewhere.count() == 0


def test_a_certificate_that_nobody_knows_is_an_error(certificate: Path) -> None:
    with HttpServer(an_object, certificate=certificate) as server:
        with pytest.raises(DeviceFailed, match=r"/data: its certificate is not trusted$"):
            store_of(f"{server.url}/data?sig=hunter2")
        assert server.count() == 0


def test_other_errors_are_those_without_a_query() -> None:
    with pytest.raises(DeviceFailed, match="the connection is refused"):
        store_of(f"http://127.0.0.1:{free_port()}/data?sig=hunter2", timeout=0.2)
    with HttpServer() as server:
        with pytest.raises(NotFound, match="there is no such object"):
            store_of(f"{server.url}/data?sig=hunter2")
        server.faults = for_each(Redirect("/data?sig=hunter2"))
        with pytest.raises(DeviceFailed, match="it redirects without end"):
            store_of(f"{server.url}/data?sig=hunter2")
