"""Protocols through fsspec: its file system in memory, and one that lies."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.registry import _registry
from hypothesis import given
from hypothesis import strategies as st

from glassfs.errors import DeviceFailed, GlassfsError, NotAllowed, NotFound, Refused
from glassfs.settings import settings
from glassfs.source.remote import fsspecs
from glassfs.source.remote import server as requests
from glassfs.source.remote.server import ATTEMPTS, MOST_HANGING, NO_NAME, Facts, is_name
from glassfs.source.remote.url import Connection, parsed
from tests.conftest import Scale
from tests.source.remote.helpers import check_reads, listed, server
from tests.source.remote.hostile import FAULTS, Hostile
from tests.waiting import wait_until

DATA = random.Random(5).randbytes(300_000)


# Memory


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    system = fsspec.filesystem("memory")
    yield system
    if system.exists("/glass"):
        system.rm("/glass", recursive=True)


def test_memory_lists_and_reads(memory: fsspec.AbstractFileSystem, scale: Scale) -> None:
    memory.pipe_file("/glass/runs/a.kdb", DATA)
    memory.pipe_file("/glass/b.kdb", b"b")
    memory.mkdir("/glass/empty")
    for url, above in ("memory://glass", ()), ("memory:///glass", ("glass",)):
        found = server(url)
        assert found.shown((*above, "b.kdb")) == f"{url}/b.kdb"
        names = listed(found, above)
        assert names["runs"] is None and names["empty"] is None
        assert names["b.kdb"] is not None and names["b.kdb"].size == 1 and names["b.kdb"].mtime_ns > 10**18
        assert found.list((*above, "empty")) == []
        begun = found.begin((*above, "b.kdb"), 10)
        assert begun == (names["b.kdb"], b"b")
        check_reads(found, (*above, "runs", "a.kdb"), DATA, scale(50, 500))


def test_missing_objects_are_not_found(memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe_file("/glass/a.kdb", DATA)
    found = server("memory://glass")
    with pytest.raises(NotFound, match=r"^memory://glass/nothing: does not exist$"):
        found.begin(("nothing",), 10)
    with pytest.raises(NotFound):
        found.list(("nothing",))
    with pytest.raises(NotFound, match="is a file"):
        found.list(("a.kdb",))
    with pytest.raises(NotFound, match="is a folder"):
        server("memory://").begin(("glass",), 10)


# Refused URLs


@pytest.mark.parametrize(("url", "reason"), [
    ("nonsense://host/a", "^nonsense://host/a: unknown protocol nonsense://$"),
    ("simplecache://a", "is not read through fsspec"),
    ("asynclocal:///etc/passwd", "is not read through fsspec"),
    ("sftp://me:hush@host/a", "^sftp://host/a: credentials are taken"),
    ("ftp://me:hush@host/a", "^ftp://host/a: credentials are taken"),
    ("sftp:///a", "names no host"),
    ("sftp://host:port/a", "is not a URL"),
])
def test_unusable_urls_are_refused(url: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason) as caught:
        server(url)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(("package", "url", "needed"), [
    ("fsspec", "memory://a", r"needs more than is installed: .*\[remote\]"),
    ("paramiko", "sftp://host", r"needs more than is installed: .*\[ssh\]"),
    ("huggingface_hub", "hf://datasets/a/b", "needs another package: .*huggingface_hub"),
    ("smbprotocol", "smb://host/a", "needs another package: .*smbprotocol"),
])
def test_missing_package_is_named(package: str, url: str, needed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(_registry, parsed(url).scheme, raising=False)
    imported = ("fsspec.implementations", "glassfs.source.remote.ssh")
    for name in [name for name in sys.modules if name.startswith(imported)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Refused, match=needed):
        server(url)


def test_identity_distinguishes_users_without_secrets() -> None:
    """Users of one host may see different objects."""
    secret = Connection(key="hush", secret="hush", token="hush", extra={"password": "hush"})
    urls = ("sftp://host", "sftp://me@host", "sftp://you@host", "sftp://host:23", "ftp://me@host", "memory://host")
    found = [server(url, secret) for url in urls]
    assert len({each.identity for each in found}) == len(urls)
    assert not [each.identity for each in found if "hush" in each.identity]
    assert not [each.name for each in found if "me@" in each.name]
    assert not any(each.has_lasting_versions for each in found)


# Hostile file systems


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hostile]]:
    class Own(Hostile):
        """Threads abandoned by one test must not count as requests of another."""

        connections: ClassVar[list[dict[str, Any]]] = []
        asked: ClassVar[list[str]] = []

    fsspec.register_implementation("hostile", Own, clobber=True)
    monkeypatch.setattr(settings, "server_first_pause", 0.0001)
    Own.reset()
    yield Own
    if Own.hangs is not None:
        Own.hangs.set()
    _registry.pop("hostile")


@given(
    faults=st.lists(st.sampled_from(FAULTS), max_size=30), data=st.binary(min_size=0, max_size=50),
    ranges=st.lists(st.tuples(st.integers(0, 49), st.integers(0, 50)), max_size=5),
)
def test_hostile_file_system_gives_right_bytes_or_errors(
    hostile: type[Hostile], faults: list[str], data: bytes, ranges: list[tuple[int, int]],
) -> None:
    hostile.reset(data)
    hostile.faults = iter(faults)
    found = server("hostile://host")
    begun = None
    for _ in range(3):
        try:
            begun = found.begin(("x",), 20) or begun
            break
        except GlassfsError as error:
            assert str(error).startswith("hostile://host/x: ")
    if begun is None:
        return
    facts, first = begun
    version = hostile.versions[int(facts.etag.split()[1])]
    if facts.size == len(version):  # else its size was a lie, told twice in the same way
        assert first == version[:20]
    for offset, size in ranges:
        offset = min(offset, facts.size)
        size = min(size, facts.size - offset)
        try:
            assert found.fetch(("x",), offset, size, facts).result() == version[offset : offset + size]
        except GlassfsError as error:
            assert str(error).startswith("hostile://host/x: ")
    found.close()


@pytest.mark.parametrize("fault", ["error", "end", "odd error", "short", "nothing", "long", "text", "none"])
def test_passing_errors_are_retried_on_a_new_connection(hostile: type[Hostile], fault: str) -> None:
    found = server("hostile://host")
    facts, _ = found.begin(("x",), 10) or pytest.fail()
    hostile.faults = iter(["", fault])  # it is opened, then read
    assert found.fetch(("x",), 3, 10, facts).result() == hostile.versions[0][3:13]
    assert len(hostile.connections) == 2


@pytest.mark.parametrize(("fault", "raised"), [
    ("gone", NotFound), ("not allowed", NotAllowed), ("wrong size", DeviceFailed),
])
def test_lasting_errors_are_not_retried(
    hostile: type[Hostile], fault: str, raised: type[GlassfsError],
) -> None:
    hostile.faults = iter([fault])
    with pytest.raises(raised):
        server("hostile://host").begin(("x",), 10)
    assert hostile.asked == ["info"]


def test_number_of_attempts_is_limited(hostile: type[Hostile]) -> None:
    hostile.faults = iter(["error"] * 100)
    with pytest.raises(DeviceFailed, match=r"^hostile://host/x: OSError$"):
        server("hostile://host").begin(("x",), 10)
    assert hostile.asked == ["info"] * ATTEMPTS


def test_unchanged_object_is_not_read(hostile: type[Hostile]) -> None:
    found = server("hostile://host")
    facts, _ = found.begin(("x",), 10) or pytest.fail()
    hostile.asked.clear()
    assert found.begin(("x",), 10, facts) is None
    assert hostile.asked == ["info"]


def test_hanging_calls_time_out_and_are_limited(hostile: type[Hostile]) -> None:
    """While too many threads hang, requests fail at once; when they return, requests succeed again."""
    hostile.hangs = threading.Event()
    found = server("hostile://host", Connection(timeout=0.1))
    before = threading.active_count()
    errors: set[str] = set()
    for _ in range(2 * MOST_HANGING // 8):
        answers = [found.fetch(("x",), 0, 1, Facts(1, "e", 0)) for _ in range(8)]
        errors |= {str(answer.exception()) for answer in answers}
    assert errors == {f"hostile://host/x: {reason}" for reason in ("no answer within 0.1 seconds", "does not answer")}
    assert threading.active_count() <= before + MOST_HANGING + 8 + 1
    hostile.hangs.set()
    hostile.hangs = None
    found.timeout = 60.0

    def answers_again() -> bool:
        with suppress(DeviceFailed):
            return found.begin(("x",), 10) is not None
        return False

    wait_until(answers_again)


def test_canceled_requests_are_not_made(hostile: type[Hostile]) -> None:
    hostile.hangs = threading.Event()
    found = server("hostile://host")
    begun = [found.fetch(("x",), 0, 1, Facts(100, "version 0", 0)) for _ in range(30)]
    wait_until(lambda: hostile.asked.count("open") == 8)
    assert all(answer.cancel() for answer in begun)
    wait_until(lambda: not asyncio.all_tasks(requests._loop.get()))  # the loop has canceled all of them
    hostile.hangs.set()
    hostile.hangs = None
    assert (found.begin(("x",), 10) or pytest.fail())[1] == hostile.versions[0][:10]
    assert hostile.asked.count("open") == 8 + 1


def test_objects_that_no_file_can_show_are_omitted(hostile: type[Hostile]) -> None:
    def file(name: object, **told: object) -> dict[str, object]:
        return {"name": name, "size": 3, "type": "file", "etag": "e", **told}

    hostile.listing = [
        file("/host/dir/good"), file("host/dir/also good"), file("alone"), file("/host/dir/twice"),
        file("/host/dir/twice", size=4),
        file("/host/dir/sub", type="directory"), file("/host/dir/sub2/", type="directory"),
        file("/host/dir/.."), file("/host/dir/."), file("/host/dir/"), file("/host/dir/n\0l"), file("/host/dir/a/b"),
        file("/host/dir/../x"), file("/elsewhere"), file("/host/dir/link", type="link"),
        file("/host/dir/half", size=None),
        file("/host/dir/less", size=-1), file("/host/dir/true", size=True), file("/host/dir/more", size=1 << 80),
        file(3), file(b"bytes"), {}, None, 7, file("/host/dir/\ud800"), file("/host/dir/new\nline"),
        file("/host/dir", size=0),
    ]
    found = listed(server("hostile://host"), ("dir",))
    three = Facts(3, "e", 0)
    assert found == {
        "good": three, "also good": three, "alone": three, "twice": three, "new\nline": three,
        "sub": None, "sub2": None,
    }
    others = {one.name: one.omitted for one in server("hostile://host").list(("dir",)) if one.name not in found}
    assert others.keys() == {"..", ".", "n\0l", "?", "link", "half", "less", "true", "more"}
    assert {name for name in others if not is_name(name)} == {"..", ".", "n\0l"}
    reasons = {name: reason for name, reason in others.items() if is_name(name)}
    assert reasons["?"] == NO_NAME
    assert reasons["link"] == "unreadable object: is neither a file nor a folder"


@pytest.mark.parametrize("listing", [7, None])
def test_invalid_listing_is_an_error(hostile: type[Hostile], listing: object) -> None:
    hostile.listing = listing
    with pytest.raises(DeviceFailed):
        server("hostile://host").list(())


def test_endless_listing_is_an_error(hostile: type[Hostile], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspecs, "MOST_NAMES", 1000)
    hostile.listing = iter(lambda: {"name": "/host/same", "size": 1, "type": "file"}, None)
    with pytest.raises(DeviceFailed, match="does not end"):
        server("hostile://host").list(())


def test_errors_contain_no_credentials(hostile: type[Hostile], monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ["USER", "KEY+1", "SECRET", "TOKEN", "NESTED"]

    def fail(self: Hostile, question: str) -> str:
        raise OSError(f"{' '.join(secrets)} https://u:p@host/x?signature=abc\n\x1b[2J" + "long " * 100)

    monkeypatch.setattr(hostile, "meets", fail)
    connection = Connection(timeout=60, key="KEY+1", secret="SECRET", token="TOKEN", extra={"more": {"a": ["NESTED"]}})
    with pytest.raises(DeviceFailed, match=r"^hostile://host/a: OSError$"):
        server("hostile://USER@host/a", connection).begin(("a",), 1)
    assert hostile.connections[-1]["more"] == {"a": ["NESTED"]}
