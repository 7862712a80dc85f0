"""Hugging Face, against a small server that imitates its API."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterator
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from glassfs.errors import Changed, NotAllowed, NotFound
from glassfs.source.remote.connection import Connection
from glassfs.source.remote.server import Facts
from tests.optional import package
from tests.source.remote.helpers import check_reads, listing, server

package("huggingface_hub")

DATA = random.Random(6).randbytes(100_000)
TOKEN = "hf_hushhushhush"
RESOLVE = re.compile(r"/datasets/org/name/resolve/([^/]+)/(.*)")
API = re.compile(r"/api/datasets/org/name(?:/([a-z-]+)/([^/]+)/?(.*))?")


class Hub(ThreadingHTTPServer):
    """The dataset ``org/name`` in commits; the branch main points to the last one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.commits: list[dict[str, bytes]] = [{"README.md": b"read", "runs/a.kdb": DATA, "runs/more/b.kdb": b"b"}]
        self.requests: list[str] = []
        self.is_private = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.answer_to(asked["paths"])

    def do_GET(self) -> None:
        self.answer_to([])

    def answer_to(self, paths: list[str]) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        if self.server.is_private and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.give(401, b"{}", "X-Error-Code: RepoNotFound")
        elif found := RESOLVE.fullmatch(path):
            self.give_range(self.files(found[1]).get(found[2]))
        elif found := API.fullmatch(path):
            files = self.files(found[2] or "main")
            if found[1] == "tree" and not children(files, found[3]):
                self.give(404, b"{}", "X-Error-Code: EntryNotFound")
            elif found[1] == "tree":
                self.give_json([entry(files, name) for name in children(files, found[3])])
            elif found[1] == "paths-info":
                self.give_json([entry(files, name) for name in paths if name in files or children(files, name)])
            else:
                self.give_json({"id": "org/name", "sha": commit(len(self.server.commits) - 1), "private": False})
        else:
            self.give(404, b"{}")

    def files(self, revision: str) -> dict[str, bytes]:
        numbers = {commit(number): number for number in range(len(self.server.commits))}
        return self.server.commits[numbers.get(revision, -1)]

    def give_json(self, what: object) -> None:
        self.give(200, json.dumps(what).encode())

    def give_range(self, data: bytes | None) -> None:
        if data is None:
            self.give(404, b"", "X-Error-Code: EntryNotFound")
            return
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        self.give(206, data[first : last + 1], f"Content-Range: bytes {first}-{last}/{len(data)}")

    def give(self, status: int, body: bytes, *headers: str) -> None:
        self.send_response(status)
        for header in (*headers, f"Content-Length: {len(body)}", "Content-Type: application/json"):
            self.send_header(*header.split(": "))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def commit(number: int) -> str:
    return sha1(f"commit {number}".encode()).hexdigest()


def children(files: dict[str, bytes], folder: str) -> list[str]:
    start = f"{folder}/" if folder else ""
    below = [name.removeprefix(start) for name in files if name.startswith(start)]
    return sorted({start + name.partition("/")[0] for name in below})


def entry(files: dict[str, bytes], name: str) -> dict[str, object]:
    if name not in files:
        return {"type": "directory", "oid": sha1(name.encode()).hexdigest(), "path": name}
    return {"type": "file", "oid": sha1(files[name]).hexdigest(), "size": len(files[name]), "path": name}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def patient(hub: Hub, **options: object) -> Connection:
    return Connection(timeout=60, endpoint=hub.url, **options)  # type: ignore[arg-type]


def test_dataset_is_listed_and_read(hub: Hub) -> None:
    found = server("hf://datasets/org/name", patient(hub))
    assert found.shown(("org", "name", "runs")) == "hf://datasets/org/name/runs"
    names = listing(found.list(("org", "name")))
    assert names == {"README.md": Facts(4, sha1(b"read").hexdigest(), 0), "runs": None}
    assert listing(found.list(("org", "name", "runs"))) == {
        "a.kdb": Facts(len(DATA), sha1(DATA).hexdigest(), 0), "more": None,
    }
    check_reads(found, ("org", "name", "runs", "a.kdb"), DATA, 20)
    with pytest.raises(NotFound):
        found.begin(("org", "name", "nothing"), 1)
    with pytest.raises(NotFound, match="is a folder"):
        found.begin(("org", "name", "runs"), 1)
    with pytest.raises(NotFound):
        found.list(("org", "name", "nothing"))
    found.close()


def test_read_costs_one_request(hub: Hub) -> None:
    """A commit never changes, so its facts are not requested again."""
    found = server("hf://datasets/org/name", patient(hub))
    path = ("org", "name", "runs", "a.kdb")
    facts, _ = found.begin(path, 10) or pytest.fail()
    hub.requests.clear()
    for offset in range(5):
        assert found.fetch(path, offset, 100, facts).result() == DATA[offset : offset + 100]
    assert hub.requests == [f"GET /datasets/org/name/resolve/{commit(0)}/runs/a.kdb"] * 5
    found.close()


def test_new_commit_is_a_new_version(hub: Hub) -> None:
    found = server("hf://datasets/org/name", patient(hub, poll=0.0))
    path = ("org", "name", "runs", "a.kdb")
    facts, _ = found.begin(path, 10) or pytest.fail()
    hub.commits.append({**hub.commits[-1], "runs/more/b.kdb": b"other"})
    assert found.begin(path, 10, facts) is None
    hub.commits.append({**hub.commits[-1], "runs/a.kdb": DATA[::-1]})
    # The open object stays readable in its version.
    assert found.fetch(path, 5, 10, facts).result() == DATA[5:15]
    other, first = found.begin(path, 10, facts) or pytest.fail()
    assert first == DATA[::-1][:10]
    with pytest.raises(Changed):
        server("hf://datasets/org/name", patient(hub)).fetch(path, 5, 10, facts).result()
    assert found.fetch(path, 5, 10, other).result() == DATA[::-1][5:15]
    found.close()


def test_commit_can_be_part_of_the_path(hub: Hub) -> None:
    hub.commits.append({"runs/a.kdb": DATA[::-1]})
    found = server("hf://datasets/org", patient(hub))
    for number, data in enumerate((DATA, DATA[::-1])):
        at = f"name@{commit(number)}"
        assert (found.begin(("org", at, "runs", "a.kdb"), 10) or pytest.fail())[1] == data[:10]
        assert "a.kdb" in listing(found.list(("org", at, "runs")))
    found.close()


def test_private_dataset_needs_the_token(hub: Hub) -> None:
    hub.is_private = True
    with pytest.raises((NotAllowed, NotFound)) as caught:
        server("hf://datasets/org/name", patient(hub, token="hf_wrongwrong")).begin(("org", "name", "README.md"), 10)
    assert "wrongwrong" not in str(caught.value)
    found = server("hf://datasets/org/name", patient(hub, token=TOKEN))
    assert (found.begin(("org", "name", "README.md"), 10) or pytest.fail())[1] == b"read"
    found.close()
