"""Hugging Face, against a small server that imitates its API."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from hashlib import sha1
from urllib.parse import parse_qs

import pytest

from glassfs.errors import Changed, NotAllowed, NotFound
from glassfs.source.remote.server import Facts
from glassfs.source.remote.url import Connection
from tests.optional import package
from tests.remote.http_server import HttpServer
from tests.remote.requests import Reply, Request
from tests.source.remote.helpers import check_reads, listed, server

package("huggingface_hub")

DATA = random.Random(6).randbytes(100_000)
TOKEN = "hf_hushhushhush"
RESOLVE = re.compile(r"/datasets/org/name/resolve/([^/]+)/(.*)")
API = re.compile(r"/api/datasets/org/name(?:/([a-z-]+)/([^/]+)/?(.*))?")


class Hub:
    """The dataset ``org/name`` in commits; the branch main points to the last one."""

    server: HttpServer

    def __init__(self) -> None:
        self.commits: list[dict[str, bytes]] = [{"README.md": b"read", "runs/a.kdb": DATA, "runs/more/b.kdb": b"b"}]
        self.is_private = False

    def answer(self, request: Request) -> Reply:
        if self.is_private and request.headers.get("authorization") != f"Bearer {TOKEN}":
            return failure(401, "RepoNotFound")
        if found := RESOLVE.fullmatch(request.path):
            data = self.files(found[1]).get(found[2])
            if data is None:
                return failure(404, "EntryNotFound")
            assert request.span is not None
            first, end = request.span
            return Reply(206, [("Content-Range", f"bytes {first}-{end - 1}/{len(data)}")], data[first:end])
        found = API.fullmatch(request.path)
        if not found:
            return failure(404, "RepoNotFound")
        files = self.files(found[2] or "main")
        if found[1] == "tree":
            names = children(files, found[3])
            return as_json([entry(files, name) for name in names]) if names else failure(404, "EntryNotFound")
        if found[1] == "paths-info":
            names = parse_qs(request.body.decode())["paths"]
            return as_json([entry(files, name) for name in names if name in files or children(files, name)])
        return as_json({"id": "org/name", "sha": commit(len(self.commits) - 1), "private": False})

    def files(self, revision: str) -> dict[str, bytes]:
        numbers = {commit(number): number for number in range(len(self.commits))}
        return self.commits[numbers.get(revision, -1)]


def failure(status: int, code: str) -> Reply:
    return Reply(status, [("X-Error-Code", code)], b"{}")


def as_json(what: object) -> Reply:
    return Reply(200, [("Content-Type", "application/json")], json.dumps(what).encode())


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
    made = Hub()
    with HttpServer(made.answer) as made.server:
        yield made


def patient(hub: Hub, **options: object) -> Connection:
    return Connection(timeout=60, endpoint=hub.server.url, **options)  # type: ignore[arg-type]


def test_dataset_is_listed_and_read(hub: Hub) -> None:
    found = server("hf://datasets/org/name", patient(hub))
    assert found.shown(("org", "name", "runs")) == "hf://datasets/org/name/runs"
    names = listed(found, ("org", "name"))
    assert names == {"README.md": Facts(4, sha1(b"read").hexdigest(), 0), "runs": None}
    assert listed(found, ("org", "name", "runs")) == {
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
    hub.server.reset()
    for offset in range(5):
        assert found.fetch(path, offset, 100, facts).result() == DATA[offset : offset + 100]
    asked = [f"{request.method} {request.path}" for request in hub.server.requests]
    assert asked == [f"GET /datasets/org/name/resolve/{commit(0)}/runs/a.kdb"] * 5
    found.close()


def test_new_commit_is_a_new_version(hub: Hub) -> None:
    found = server("hf://datasets/org/name", patient(hub, poll=0.0))
    path = ("org", "name", "runs", "a.kdb")
    facts, _ = found.begin(path, 10) or pytest.fail()
    hub.commits.append({**hub.commits[-1], "runs/more/b.kdb": b"other"})
    assert found.begin(path, 10, facts) is None
    hub.commits.append({**hub.commits[-1], "runs/a.kdb": DATA[::-1]})
    with pytest.raises(Changed):
        found.fetch(path, 5, 10, facts).result()
    other, first = found.begin(path, 10, facts) or pytest.fail()
    assert first == DATA[::-1][:10]
    assert found.fetch(path, 5, 10, other).result() == DATA[::-1][5:15]
    found.close()


def test_commit_can_be_part_of_the_path(hub: Hub) -> None:
    hub.commits.append({"runs/a.kdb": DATA[::-1]})
    found = server("hf://datasets/org", patient(hub))
    for number, data in enumerate((DATA, DATA[::-1])):
        at = f"name@{commit(number)}"
        assert (found.begin(("org", at, "runs", "a.kdb"), 10) or pytest.fail())[1] == data[:10]
        assert "a.kdb" in listed(found, ("org", at, "runs"))
    found.close()


def test_private_dataset_needs_the_token(hub: Hub) -> None:
    hub.is_private = True
    with pytest.raises((NotAllowed, NotFound)) as caught:
        server("hf://datasets/org/name", patient(hub, token="hf_wrongwrong")).begin(("org", "name", "README.md"), 10)
    assert "wrongwrong" not in str(caught.value)
    found = server("hf://datasets/org/name", patient(hub, token=TOKEN))
    assert (found.begin(("org", "name", "README.md"), 10) or pytest.fail())[1] == b"read"
    found.close()
