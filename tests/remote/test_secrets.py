"""Servers that repeat the secrets they were sent: nothing of these is in messages, logs and attributes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from glassfs.errors import GlassfsError
from tests.mount.conftest import Mounted
from tests.mount.mounts import glassfs
from tests.remote.conftest import Serving
from tests.remote.faults import Faults, Status
from tests.remote.http_server import HttpServer
from tests.remote.requests import Request
from tests.remote.s3 import Bucket
from tests.remote.test_bad_networks import store_of

# As a code of an error may have letters, digits and underscores.
TOKEN = "IQoJb3JpZ2luX2VjEJr4aCXVzLWVhc3QtMSJHMEUCIQDx7r0123456789abcdef"
CONTENT = b"x" * 1000
PART = 8
"""Characters of a secret that may not occur together."""


def repeated(request: Request, name: str, code: int = 403) -> Status:
    """Answer with a header as the code of an error."""
    said = request.headers[name].rpartition(" ")[2][:60]
    return Status(code, f"<Error><Code>{said}</Code><Message>{said}</Message></Error>".encode())


def repeating(code: int, where: Callable[[Request], bool] = lambda request: True) -> Faults:
    return lambda request: repeated(request, "x-amz-security-token", code) if where(request) else None


def demand_none_of(token: str, text: str) -> None:
    assert text
    assert not any(token[at : at + PART] in text for at in range(len(token) - PART + 1)), text


@pytest.mark.parametrize("code", [400, 401, 403])
def test_session_token_is_not_repeated(code: int, serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by obstore nor by botocore, which lists folders with odd names."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    with serving(Bucket({"data": CONTENT, "a//b": CONTENT})) as server:
        store = store_of("s3://bucket/")
        server.faults = repeating(code)
        for ask in (lambda: store.open(("data",)).read(0, 10), lambda: store_of("s3://bucket/")):
            with pytest.raises(GlassfsError) as caught:
                ask()
            demand_none_of(TOKEN, str(caught.value))
        server.faults = repeating(code, lambda request: "Botocore" in request.headers["user-agent"])
        with pytest.raises(GlassfsError) as caught:
            list(store.list(("a",)))
        demand_none_of(TOKEN, str(caught.value))


@pytest.mark.parametrize("options", [
    {"token": "bearer_and_hunter2"}, {"key": "me", "secret": "hunter2_and_even_more"},
], ids=["bearer", "basic"])
def test_authorization_of_web_servers_is_not_repeated(options: dict[str, str]) -> None:
    with HttpServer() as server:
        server.faults = lambda request: repeated(request, "authorization")
        with pytest.raises(GlassfsError) as caught:
            store_of(f"{server.url}/data", **options)
        demand_none_of(server.requests[-1].headers["authorization"].rpartition(" ")[2], str(caught.value))


def test_command_and_mount_show_no_session_token(
    serving: Serving, mounted: Mounted, store: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_bad(request: Request) -> bool:
        return request.path.endswith(("/bad.trees", "/plain")) and request.method == "GET"

    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    bucket = Bucket({"data/bad.trees": store, "data/good.kas": store, "data/plain": CONTENT})
    with serving(bucket, faults=repeating(403, is_bad)), mounted("s3://bucket/data") as mount:
        done = glassfs("ls", "s3://bucket/data/bad.trees")
        assert done.returncode == 1
        demand_none_of(TOKEN, done.stderr)
        assert os.listdir(mount.path / "good.kas")
        demand_none_of(TOKEN, os.getxattr(mount.path / ".glassfs/views/trees.jsonl", "user.glassfs.error").decode())
        with pytest.raises(PermissionError):
            (mount.path / "plain").read_bytes()
        demand_none_of(TOKEN, "\n".join(mount.log_lines()))
