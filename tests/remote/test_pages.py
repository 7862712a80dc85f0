"""Folders of web servers without WebDAV: listings are the pages that the servers send for them."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from functools import partial
from html import escape
from pathlib import Path

import pytest

from glassfs.errors import Changed, DeviceFailed, GlassfsError, NotFound, Refused, TooLarge
from glassfs.settings import settings
from glassfs.source import Kind, Store
from glassfs.source.remote import web
from tests.remote import pages, servers
from tests.remote.faults import Drip, Redirect, Status, for_each
from tests.remote.http_server import HttpServer
from tests.remote.requests import Reply, Request
from tests.remote.s3 import Object, answer_object

SIZE = 700_000
CONTENT = random.Random(4).randbytes(SIZE)
THEN = 1_700_000_000.0
ODD = "a b&c#d?e%20<f>;é:\"g'.txt"
LONG = "long-name-" * 8 + ".kdb"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "server_first_pause", 0.01)


store_of = partial(servers.store_of, is_file=lambda name: name.endswith(".kdb"), poll=3600.0)


def names_in(store: Store) -> dict[str, int | None]:
    """Return the sizes of files, and None for folders."""
    return {
        name: entry.size if entry.kind is Kind.FILE else None for name, entry in store.list(()) if not entry.omitted
    }


class Site:
    """A folder ``/data/`` of a web server with listings in this layout."""

    def __init__(self, layout: pages.Layout, objects: dict[str, Object]) -> None:
        self.layout = layout
        self.objects = objects
        self.folders = ["sub/"]

    def __call__(self, request: Request) -> Reply:
        if request.method not in ("GET", "HEAD"):
            return Reply(405)
        if request.path == "/data":
            return Reply(301, [("Location", "http://{}/data/".format(request.headers["host"]))])
        if request.path == "/data/":
            names = {name: (made.size, made.modified) for name, made in self.objects.items()}
            return page(self.layout("/data/", {**names, **dict.fromkeys(self.folders, (0, THEN))}))
        found = self.objects.get(request.path.removeprefix("/data/"))
        return Reply(404) if found is None else answer_object(found, request)


def page(text: str, kind: str = "text/html") -> Reply:
    return Reply(200, [("Content-Type", kind)], text.encode())


def page_of(*links: str, title: str = "Index of /data/") -> str:
    anchors = "".join(f'<li><a href="{escape(link)}">x</a>\n' for link in links)
    return f"<html><title>{title}</title><body>{anchors}</body></html>"


@pytest.fixture
def site() -> Iterator[Site]:
    objects = {
        "run.kdb": Object(CONTENT, '"1"', THEN), ODD: Object(b"odd", '"2"', THEN),
        LONG: Object(b"x" * 2000, '"3"', THEN),
    }
    yield Site(pages.nginx, objects)


@pytest.mark.parametrize("layout", pages.LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("name", ["data/", "data"])
def test_folder_is_listed_by_its_page(layout: pages.Layout, name: str, site: Site) -> None:
    site.layout = layout
    with HttpServer(site) as server:
        store = store_of(f"{server.url}/{name}")
        assert names_in(store) == {"run.kdb": SIZE, ODD: 3, LONG: 2000, "sub": None}
        assert {entry.mtime_ns for name, entry in store.list(()) if name != "sub"} == {int(THEN) * 10**9}
        assert store.open(("run.kdb",)).read(0, SIZE) == CONTENT
        assert store.open((ODD,)).read(0, 3) == b"odd"
        asked = {request.path for request in server.requests if request.method == "HEAD"} - {"/data/script"}
        assert len(asked) == server.count("HEAD", lambda request: request.path != "/data/script") == 3


@pytest.mark.parametrize("kind", ["http.server", "rclone"])
def test_real_servers_are_listed_and_read(kind: str, tmp_path: Path) -> None:
    served = tmp_path / "served"
    (served / "data" / "sub").mkdir(parents=True)
    (served / "data" / "empty").mkdir()
    (served / "data" / "run.kdb").write_bytes(CONTENT)
    (served / "data" / ODD).write_bytes(b"odd")
    (served / "data" / "none").touch()
    os.utime(served / "data" / "run.kdb", (THEN, THEN))
    with servers.rclone("http", served, tmp_path) if kind == "rclone" else servers.running(
        lambda port: [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", served],
        servers.speaks_http, tmp_path,
    ) as port:
        for name in ("data/", "data"):
            store = store_of(f"http://127.0.0.1:{port}/{name}")
            assert names_in(store) == {"run.kdb": SIZE, ODD: 3, "none": 0, "sub": None, "empty": None}
            assert store.entry(("run.kdb",)).mtime_ns == THEN * 10**9
            assert list(store.list(("empty",))) == []
            assert store.open(("run.kdb",)).read(600_000, 100_000) == CONTENT[600_000:]
            assert store.open((ODD,)).read(0, 3) == b"odd"
            assert store.open(("none",)).read(0, 0) == b""
        assert store_of(f"http://127.0.0.1:{port}/data/run.kdb").open(("run.kdb",)).read(0, SIZE) == CONTENT
        with pytest.raises(NotFound):
            store_of(f"http://127.0.0.1:{port}/nothing")


def test_only_links_directly_below_the_folder_count() -> None:
    links = (
        "a", "a", "./b", "/data/c", "c%41", "sub/", "sub/deep", "sub", "../", "..", "../up", "/", "/etc/passwd",
        "/data", "", "#top", "?C=N;O=D", "a?x", "d#e", "http://other.example/data/f", "//other.example/data/g",
        "mailto:a@b", "javascript:alert(1)", "file:///data/h", "ftp://127.0.0.1/data/i", "x%2Fy", "%2e%2e", "%2E",
        "z%00", "\0", "sub/../j", "http://[", "http://127.0.0.1:x/data/k", "/data//l", "data/", "%ff", " m ", "n&amp;o",
    )
    with HttpServer(lambda request: Reply(405) if request.method == "PROPFIND" else (
        page(page_of(*links)) if request.path == "/data/" else answer_object(Object(b"1", '"1"', THEN), request)
    )) as server:
        store = store_of(f"{server.url}/data/")
        assert names_in(store) == dict.fromkeys(("a", "b", "c", "cA", "j", "m", "n&amp;o"), 1) | {
            "data": None, "sub": None,
        }


def test_server_that_fails_while_it_is_asked_is_reported(site: Site) -> None:
    def faults(request: Request) -> Status | None:
        return Status(503) if request.method != "PROPFIND" and request.path == "/data/run.kdb" else None

    with HttpServer(site, faults=faults) as server:
        with pytest.raises(DeviceFailed, match="answers 503"):
            store_of(f"{server.url}/data/")
        server.faults = ()
        assert names_in(store_of(f"{server.url}/data/"))["run.kdb"] == SIZE


def test_object_that_redirects_without_end_costs_its_name_only(site: Site) -> None:
    def faults(request: Request) -> Redirect | Status | None:
        if request.path.startswith("/data/run.kdb"):
            return Redirect(f"http://{request.headers['host']}{request.path}?again")
        return Status(403) if request.path == f"/data/{LONG}" else None

    with HttpServer(site, faults=faults) as server:
        store = store_of(f"{server.url}/data/")
        listed = dict(store.list(()))
        assert {name: entry.size for name, entry in listed.items() if entry.kind is Kind.FILE} == {ODD: 3}
        assert {name: entry.omitted for name, entry in listed.items() if entry.omitted} == {
            "run.kdb": "unreadable object: it redirects without end",
            LONG: "unreadable object: access denied (HTTP 403): check the credentials",
        }
        with pytest.raises(DeviceFailed, match=r"run\.kdb: unreadable object: it redirects without end"):
            store.open(("run.kdb",))
        server.faults = ()
        assert store_of(f"{server.url}/data/").open(("run.kdb",)).read(0, 10) == CONTENT[:10]


def test_objects_on_an_unchanged_page_are_not_asked_again(site: Site) -> None:
    with HttpServer(site) as server:
        store = store_of(f"{server.url}/data/", poll=0.001)
        names_in(store)
        server.reset()
        names_in(store)
        assert server.count("HEAD") == 0
        site.objects["run.kdb"] = Object(b"changed", '"4"', THEN + 60)
        assert names_in(store)["run.kdb"] == 7
        assert server.count("HEAD") == 3


def test_change_that_a_page_does_not_show_is_found_by_a_read(site: Site) -> None:
    with HttpServer(site) as server:
        store = store_of(f"{server.url}/data/", poll=0.001)
        names_in(store)
        site.objects[ODD] = Object(b"new", '"5"', THEN + 1)
        with pytest.raises(Changed):
            store.open((ODD,)).read(0, 3)
        assert store.open((ODD,)).read(0, 3) == b"new"


@pytest.mark.parametrize("status", [405, 403, 501, 404, 400])
def test_servers_that_know_only_get_are_read(status: int, site: Site) -> None:
    with HttpServer(site, faults=lambda request: Status(status) if request.method != "GET" else None) as server:
        names = names_in(store_of(f"{server.url}/data/"))
        # A missing object and a HEAD that the server does not know look the same.
        assert names == ({"sub": None} if status == 404 else {"run.kdb": SIZE, ODD: 3, LONG: 2000, "sub": None})


NO_LISTING = "is no listing|no listing for it|lists no folders"


@pytest.mark.parametrize("reply", [
    page("<html><title>Our lab</title><h1>Welcome</h1><a href='about.html'>About</a><a href='team/'>Team</a></html>"),
    page(page_of("a", "b", "/home", "/team", "https://other.example/", title="data")),
    page("<html><body><h1>It works!</h1></body></html>"), page("plain text"), page(""),
    page(page_of("a"), "application/json"), page(page_of("a"), "application/octet-stream"),
    Reply(403, [("Content-Type", "text/html")], page_of("a").encode()),
    Reply(302, [("Location", "/login/")]), Reply(302, [("Location", "http://localhost:9/data/")]),
], ids=range(10))
def test_page_that_is_no_listing_is_refused(reply: Reply) -> None:
    with HttpServer(lambda request: Reply(405) if request.method == "PROPFIND" else reply) as server:
        with pytest.raises(Refused, match=NO_LISTING) as raised:
            store_of(f"{server.url}/data/")
        assert str(raised.value).count(server.url) == 1


@pytest.mark.parametrize("end", [f"<a href='{'x' * 100_000}'>", f"<!-- {'x' * 100_000}", "<a " * 100_000])
def test_malformed_end_of_a_page_is_ignored(end: str, site: Site) -> None:
    with HttpServer(lambda request: page(page_of("run.kdb") + end) if request.path == "/data/" and (
        request.method == "GET"
    ) else site(request)) as server:
        assert names_in(store_of(f"{server.url}/data/")) == {"run.kdb": SIZE}


def test_endless_page_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless() -> Iterator[bytes]:
        yield b"<title>Index of /</title>"
        while True:
            yield b"<p>and so on</p>" * 1000

    monkeypatch.setattr(web, "MOST_BYTES", 1 << 18)
    with HttpServer(lambda request: Reply(405) if request.method == "PROPFIND" else Reply(
        200, [("Content-Type", "text/html")], endless(),
    )) as server, pytest.raises(TooLarge):
        store_of(f"{server.url}/data/")


def test_too_many_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "MOST_NAMES", 1000)
    with HttpServer(lambda request: Reply(405) if request.method == "PROPFIND" else page(
        page_of(*map(str, range(5000))),
    )) as server, pytest.raises(TooLarge):
        store_of(f"{server.url}/data/")


@pytest.mark.slow
def test_slow_page_ends_with_the_timeout(site: Site) -> None:
    with HttpServer(site, faults=for_each(Drip(0.2))) as server, pytest.raises(DeviceFailed):
        store_of(f"{server.url}/data/", timeout=1.5)


def test_page_that_breaks_off_is_fetched_again(site: Site) -> None:
    torn = [True]

    def answer(request: Request) -> Reply:
        reply = site(request)
        if request.path == "/data/" and request.method == "GET" and torn:
            torn.clear()
            assert isinstance(reply.body, bytes)
            reply = Reply(200, reply.headers, iter([reply.body[:200]]), len(reply.body))
        return reply

    with HttpServer(answer) as server:
        assert len(names_in(store_of(f"{server.url}/data/"))) == 4


def test_credentials_are_sent_only_to_the_server(site: Site) -> None:
    with HttpServer() as other, HttpServer(site) as server:
        names_in(store_of(f"{server.url}/data/", key="me", secret="hunter2"))
        assert all("authorization" in request.headers for request in server.requests)
        elsewhere = Redirect(f"http://127.0.0.1:{other.port}/data/")
        server.faults = lambda request: elsewhere if request.method == "GET" else None
        with pytest.raises(GlassfsError):
            names_in(store_of(f"{server.url}/data/", key="me", secret="hunter2"))
        assert not any("authorization" in request.headers for request in other.requests)


def test_whole_files_are_read_only_up_to_a_size(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Request) -> Reply:
        return site(request.without("range"))

    with HttpServer(answer) as server:
        assert store_of(f"{server.url}/data/").open(("run.kdb",)).read(300_000, 1000) == CONTENT[300_000:301_000]
        monkeypatch.setattr(web, "MOST_WHOLE", SIZE - 1)
        with pytest.raises(DeviceFailed, match="ignores the Range header"):
            store_of(f"{server.url}/data/").open(("run.kdb",)).read(300_000, 1000)
