"""Files over HTTP: ranges, validators, types, errors, and what untrusted clients and containers try."""

from __future__ import annotations

import base64
import logging
import os
import random
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import quote

import make_samples
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.library import open_tree
from glassfs.serve import server as serving
from glassfs.serve.replies import span
from glassfs.tree import File
from tests.conftest import Scale
from tests.remote.servers import make_certificate
from tests.serve.serving import Served, served
from tests.waiting import wait_until

ARRAY = np.arange(200_000, dtype="<i8")
HOSTILE = [
    "<script>alert(1)</script>", "a b&c?d#e%2F", "\x01\x7f\n", "'\"><img src=x>", "javascript:alert(1)", "ü🤖",
    "x" * 300,
]
BROWSER = {"Accept": "text/html,*/*"}
PAGE = "<script>document.title = 'taken'</script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    make_samples.write_kinodb(folder / "robot.kdb")
    np.savez(folder / "many.npz", array=ARRAY, **{name: np.zeros(3) for name in HOSTILE})
    (folder / "page.html").write_text(PAGE)
    (folder / "raw.bin").write_bytes(bytes(range(256)) * 10)
    (folder / "inside").symlink_to("raw.bin")
    (folder / "outside").symlink_to("/etc/passwd")
    (folder / os.fsdecode(b"not\xffutf8.txt")).write_text("text")
    return folder


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[Served]:
    with served(folder) as site:
        yield site


def test_files_are_those_of_a_tree(site: Served, folder: Path) -> None:
    with open_tree(str(folder)) as tree:
        for path, node in tree.walk():
            if isinstance(node, File) and path != "/outside":  # what the library follows, but a server does not
                answer = site.ask(quote(path.encode("utf-8", "surrogateescape")))
                assert (answer.status, answer.body) == (200, node.read(0, node.size)), path
                assert int(answer.headers["content-length"]) == node.size
                assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(("asked", "start", "stop"), [
    ("bytes=0-9", 0, 10), ("bytes=5-", 5, None), ("bytes=-7", -7, None), ("bytes=0-99999999", 0, None),
    ("bytes=300000-300000", 300000, 300001),
])
def test_ranges(site: Served, asked: str, start: int, stop: int | None) -> None:
    whole = site.ask("/many.npz/array.npy").body
    answer = site.ask("/many.npz/array.npy", headers={"Range": asked})
    assert answer.status == 206
    assert answer.body == whole[start:stop]
    first = len(whole) + start if start < 0 else start
    assert answer.headers["content-range"] == f"bytes {first}-{first + len(answer.body) - 1}/{len(whole)}"


@pytest.mark.parametrize("asked", ["bytes=99999999-", "bytes=-0"])
def test_ranges_beyond_the_end_are_refused(site: Served, asked: str) -> None:
    answer = site.ask("/many.npz/array.npy", headers={"Range": asked})
    assert (answer.status, answer.headers["content-range"]) == (416, f"bytes */{len(ARRAY) * 8 + 128}")


@pytest.mark.parametrize("asked", ["bytes=0-1,5-6", "lines=1-2", "bytes=9-3", "bytes=-", "bytes=a-b", "bytes=１-２"])
def test_other_ranges_are_ignored(site: Served, asked: str) -> None:
    assert site.ask("/raw.bin", headers={"Range": asked.encode().decode("latin-1")}).status == 200


@given(text=st.text(st.sampled_from("bytes=-0123456789 ,"), max_size=30), size=st.integers(0, 10**6))
def test_ranges_stay_in_the_file(text: str, size: int) -> None:
    found = span(text, size)
    assert found is None or 0 <= found[0] <= found[1] <= size


def test_validators(site: Served) -> None:
    first = site.ask("/many.npz/array.npy")
    tag = first.headers["etag"]
    assert parsedate_to_datetime(first.headers["last-modified"])
    for asked in (tag, f'"other", {tag}', f"W/{tag}", "*"):
        answer = site.ask("/many.npz/array.npy", headers={"If-None-Match": asked})
        assert (answer.status, answer.body) == (304, b"")
        assert "content-length" not in answer.headers  # caches would take it for the file's
    assert site.ask("/many.npz/array.npy", headers={"If-None-Match": '"other"'}).status == 200
    assert site.ask("/many.npz/array.npy", headers={"If-Range": tag, "Range": "bytes=0-1"}).status == 206
    for asked in ("bytes=0-1", "bytes=99999999-"):
        answer = site.ask("/many.npz/array.npy", headers={"If-Range": '"other"', "Range": asked})
        assert (answer.status, len(answer.body)) == (200, len(first.body))
        head = site.ask("/many.npz/array.npy", "HEAD", {"Range": asked})
        assert head.headers["content-length"] == str(len(first.body))
        assert site.ask("/", headers=BROWSER | {"Range": asked}).status == 200  # a page that has no tag
    head = site.ask("/many.npz/array.npy", "HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers | {"date": ""} == first.headers | {"date": ""}


def test_another_version_has_another_tag(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(10))
    with served(tmp_path) as site:
        first = site.ask("/a.npz/x.npy")
        np.savez(tmp_path / "new.npz", x=np.ones(10))
        os.replace(tmp_path / "new.npz", tmp_path / "a.npz")
        wait_until(lambda: site.ask("/a.npz/x.npy").body != first.body)
        answer = site.ask("/a.npz/x.npy", headers={"If-None-Match": first.headers["etag"]})
        assert answer.status == 200


def test_containers_cannot_pass_pages_to_browsers(site: Served) -> None:
    """Only pages of the html view are text/html."""
    answer = site.ask("/page.html")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-security-policy"] == "sandbox"
    page = site.ask("/robot.kdb/", headers=BROWSER)
    assert page.headers["content-type"] == "text/html; charset=utf-8" and b"data.js" in page.body
    assert site.ask("/robot.kdb/episodes/0/images/front/000003.png").headers["content-type"] == "image/png"


def test_hostile_names_are_inert(site: Served) -> None:
    page = site.ask("/many.npz/?list")
    assert page.status == 200
    assert b"<script" not in page.body and b"<img" not in page.body
    assert "script-src" not in page.headers["content-security-policy"]
    assert "default-src 'none'" in page.headers["content-security-policy"]
    links = [part.split(b'"')[0].decode() for part in page.body.split(b'href="./')[1:]]
    assert len(links) == len(HOSTILE) + 1
    assert all(site.ask(f"/many.npz/{link}").status == 200 for link in links)


@pytest.mark.parametrize("path", [
    "/none", "/robot.kdb/none", "/raw.bin/", "/raw.bin/none", "/outside", "/../../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2fetc%2fpasswd", "/robot.kdb/%00", "/%ff",
    "/robot.kdb/" + "a" * 5000, "/.glassfs/status.json",
])
def test_what_is_not_served_is_not_found(site: Served, path: str) -> None:
    answer = site.ask(path)
    assert (answer.status, answer.body) == (404, b"there is no such file here\n")


def test_links_inside_are_followed(site: Served, folder: Path) -> None:
    assert site.ask("/inside").body == (folder / "raw.bin").read_bytes()


def test_directories_end_with_a_slash(site: Served) -> None:
    answer = site.ask("/robot.kdb/episodes?list")
    assert (answer.status, answer.headers["location"]) == (301, "/robot.kdb/episodes/?list")
    assert site.ask("/robot.kdb/..").status == 200  # "//" would be the name of a server


@pytest.mark.parametrize("method", [
    "PUT", "POST", "DELETE", "MKCOL", "MOVE", "COPY", "LOCK", "PROPPATCH", "PATCH", "GE",
])
def test_nothing_can_be_written(site: Served, method: str) -> None:
    answer = site.ask("/raw.bin", method, body=b"x")
    assert answer.status == 405 and "GET" in answer.headers["allow"]


def test_damage_is_an_error_and_never_short_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.savez_compressed(tmp_path / "bad.npz", x=np.random.default_rng(0).integers(0, 255, 1 << 20, dtype=np.uint8))
    data = bytearray((tmp_path / "bad.npz").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "bad.npz").write_bytes(data)
    with served(tmp_path) as site:
        answer = site.send(b"GET /bad.npz/x.npy HTTP/1.0\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b" 502 " in head.splitlines()[0] or len(body) < 1 << 20
    assert any("bad.npz" in record.getMessage() for record in caplog.records)
    assert not any(record.exc_info for record in caplog.records)


def test_large_directories_are_shown_in_parts(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **{f"k{number:05d}": np.zeros(1) for number in range(2500)})
    with served(tmp_path / "a.npz") as site:
        assert site.ask("/").body.count(b"href=") == 2500  # programs follow no pages
        page = site.ask("/", headers=BROWSER)
        assert page.body.count(b"href=") == 1001 and b"1 to 1,000 of 2,500" in page.body
        assert b"k02499.npy" in site.ask("/?from=2000", headers=BROWSER).body
        for start in ("2500", "99999999", "-1", "x", "9" * 30):
            assert site.ask(f"/?from={start}", headers=BROWSER).status == 200


def test_password(folder: Path) -> None:
    with served(folder, password="pässword".encode()) as site:
        for header in ({}, {"Authorization": "Basic"}, {"Authorization": "Basic ä"}, {"Authorization": "Bearer x"},
                       {"Authorization": "Basic " + base64.b64encode(b"a:wrong").decode()}):
            answer = site.ask("/", headers=header)
            assert answer.status == 401 and answer.headers["www-authenticate"].startswith("Basic ")
            assert b"robot" not in answer.body
        given = {"Authorization": "Basic " + base64.b64encode("anyone:pässword".encode()).decode()}
        assert site.ask("/", headers=given).status == 200
        assert site.ask("/", "PROPFIND", {"Depth": "1"}).status == 401


@pytest.mark.parametrize(("name", "status"), [
    ("localhost:8000", 200), ("127.0.0.1", 200), ("[::1]:8000", 200), ("LOCALHOST", 200), ("evil.example", 403),
    ("localhost.evil.example:80", 403),
])
def test_other_names_do_not_lead_to_a_local_server(site: Served, name: str, status: int) -> None:
    """Pages of other sites could read what is served if their name led here."""
    assert site.ask("/", headers={"Host": name}).status == status


def test_https(folder: Path, tmp_path: Path) -> None:
    both = str(make_certificate(tmp_path / "tls"))
    with served(folder, tls=(both, both)) as site:
        silent = socket.create_connection(("127.0.0.1", site.port))  # its handshake never comes
        context = ssl.create_default_context(cafile=both)
        with socket.create_connection(("127.0.0.1", site.port)) as plain, context.wrap_socket(
            plain, server_hostname="localhost",
        ) as connection:
            connection.sendall(b"GET /raw.bin HTTP/1.0\r\n\r\n")
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")
        assert site.send(b"GET / HTTP/1.1\r\n\r\n") == b""
        silent.close()


def test_slow_clients_hold_no_thread(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte now and then does not help, neither in the request nor in reading the answer."""
    monkeypatch.setattr(serving, "PATIENCE", 2)
    with served(folder) as site:
        slow = [socket.create_connection(("127.0.0.1", site.port)) for _ in range(serving.THREADS)]
        ended = threading.Event()

        def drip() -> None:
            while not ended.wait(0.2):
                for connection in slow:
                    with suppress(OSError):
                        connection.send(b"X")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            wait_until(lambda: len(site.server.busy) == serving.THREADS)
            assert site.ask("/raw.bin").status == 200
            wait_until(lambda: not site.server.busy)
        finally:
            ended.set()
            thread.join()
            for connection in slow:
                connection.close()
    (tmp_path / "large").write_bytes(bytes(64 << 20))  # more than buffers of sockets hold
    with served(tmp_path) as site, socket.create_connection(("127.0.0.1", site.port)) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: site.server.busy)
        wait_until(lambda: not site.server.busy)


def malformed(choose: random.Random) -> bytes:
    """Return a request with mistakes: of the line, the headers, the body, or of all bytes."""
    methods = [b"GET", b"HEAD", b"PROPFIND", b"OPTIONS", b"get", b"", b"G\0T", b"CONNECT", b"X" * 5000]
    paths = [
        b"/", b"/robot.kdb/", b"*", b"", b"/%", b"/%zz", b"/\xff\xfe", b"//[", b"http://[/", b"http://a:b@c:99999/",
        b"/a" * 9000, b"/?where=(((", b"/?where=" + b"not+" * 2000 + b"x", b"/?from=-1", b"/?list&list&from=1e9",
        b"/%00", b"/#x", b"\\..\\", b"/many.npz/array.npy", b"/" + bytes(choose.randrange(33, 256) for _ in range(9)),
    ]
    versions = [b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9.9", b"HTTP/", b"", b"HTTP/1.1 x", b"SIP/2.0"]
    headers = [
        b"Range: bytes=%d-" % choose.randrange(-10, 10**19), b"Range: " + b"0-1," * 100, b"Depth: 1", b"Depth: x",
        b"Content-Length: -1", b"Content-Length: 1e3", b"Content-Length: 99999999999999999999", b"Content-Length: 5",
        b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Host: localhost", b"Host: [", b"Host", b": x",
        b"A\0: b", b"If-None-Match: " + b'"' * 100, b"If-Range: \xff", b"Authorization: Basic ====",
        b"Expect: 100-continue", b" folded", b"X: " + b"y" * 40_000, b"Connection: close", b"\xff: \xff",
    ]
    bodies = [
        b"", b"12345", b"<", b"zz\r\n", b"<!DOCTYPE a [<!ENTITY b 'c'>]><a/>",
        b'<?xml version="1.0" encoding="x"?><a/>',
        b'<D:propfind xmlns:D="DAV:"><D:prop/></D:propfind>',
    ]
    line = b" ".join([choose.choice(methods), choose.choice(paths), choose.choice(versions)])
    head = b"\r\n".join([line, *choose.sample(headers, choose.randrange(4))])
    made = head + choose.choice([b"\r\n\r\n", b"\n\n", b"\r\n", b""]) + choose.choice(bodies)
    if choose.random() < 0.2:
        made = bytearray(made)
        for _ in range(choose.randrange(1, 20)):
            made[choose.randrange(len(made))] = choose.randrange(256)
    return bytes(made)


def test_malformed_requests_are_the_client_s_fault(
    folder: Path, scale: Scale, caplog: pytest.LogCaptureFixture,
) -> None:
    """Never a 500, a record of an error, or a thread that stays busy."""
    caplog.set_level(logging.INFO)
    choose = random.Random(41)
    with served(folder) as site:
        for number in range(scale(500, 10_000)):
            request = malformed(choose)
            answer = site.send(request)
            status = answer.split(b" ", 2)[1] if answer else b"closed"
            assert status[:1] in b"1234c" or status in (b"501", b"505"), (number, request[:200], answer[:200])
        assert site.ask("/raw.bin").status == 200
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING or record.exc_info]


def test_many_clients_take_little_memory(folder: Path) -> None:
    with served(folder) as site:
        connections = [socket.create_connection(("127.0.0.1", site.port)) for _ in range(serving.THREADS + 20)]
        for connection in connections:
            connection.sendall(b"GET /many.npz/array.npy HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for connection in connections:
            size = 0
            while size < len(ARRAY) * 8:
                size += len(connection.recv(1 << 20))
            connection.close()
