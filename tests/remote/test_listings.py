"""Untrusted listings: impossible facts, odd names, and listings without end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain, count, repeat

import pytest

from glassfs.errors import DeviceFailed, TooLarge
from glassfs.settings import settings
from glassfs.source import Connection, Kind, locate
from glassfs.source.remote import open as opening
from tests.remote import servers
from tests.remote.conftest import Serving
from tests.remote.http_server import HttpServer
from tests.remote.requests import Reply, Request
from tests.remote.s3 import Bucket, listing

ODD = ("\n", "1", '"0"')
"""obstore does not list a folder with this name."""
Listing = Callable[[Request], Reply]


store_of = partial(servers.store_of, timeout=30.0, poll=3600.0)


def page(*found: tuple[str, str, str], when: str = "2026-01-01T00:00:00.000Z", following: str | None = None) -> Reply:
    """Names with their sizes and ETags."""
    contents = "".join(
        f"<Contents><Key>{name}</Key><LastModified>{when}</LastModified><ETag>{etag}</ETag><Size>{size}</Size></Contents>"
        for name, size, etag in found
    )
    reply = listing("bucket", [], following=following)
    assert isinstance(reply.body, bytes)
    end = b"</ListBucketResult>"
    return Reply(200, reply.headers, reply.body.replace(end, contents.encode() + end))


@pytest.fixture
def said(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> Callable[[Listing], dict[str, tuple[int, int, str]]]:
    """What is shown of a bucket with that listing: sizes, times in microseconds, and what tells versions."""

    def shown(answer: Listing) -> dict[str, tuple[int, int, str]]:
        with serving(Bucket()), HttpServer(answer) as server:
            monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
            return {
                name: (entry.size, entry.mtime_ns // 1000, str(entry.version).partition("|")[2])
                for name, entry in store_of("s3://bucket/").list(())
            }

    return shown


@pytest.mark.parametrize("size", [
    "-5", str((1 << 62) + 1),
    *(pytest.param(each, marks=pytest.mark.slow) for each in ("18446744073709551615", "99999999999999999999999999")),
])
def test_name_with_an_impossible_size_is_skipped(size: str, said: Callable[[Listing], dict[str, object]]) -> None:
    assert set(said(lambda request: page(("good", "5", '"0"'), ("bad", size, '"0"')))) == {"good"}


def test_long_etag_is_ignored(said: Callable[[Listing], dict[str, tuple[int, int, str]]]) -> None:
    long = "e" * 1100
    for others in ((), (ODD,)):
        found = said(lambda request, others=others: page(("x", "5", f'"{long}"'), ("y", "5", '"eee"'), *others))  # type: ignore[misc]
        assert found["x"][2].endswith("|") and found["y"][2].endswith('|"eee"')


@pytest.mark.parametrize("etag", ['"0"', "0", "", "W/&quot;0&quot;"])
def test_obstore_and_botocore_list_the_same_facts(
    etag: str, said: Callable[[Listing], dict[str, tuple[int, int, str]]],
) -> None:
    """So a listing that changes the way does not change versions."""
    when = "2026-01-01T00:00:00.345678Z"
    first = said(lambda request: page(("x", "5", etag), when=when))
    second = said(lambda request: page(("x", "5", etag), ODD, when=when))
    assert first["x"][:2] == (5, 1_767_225_600_345_678)
    assert first["x"] == second["x"]


@pytest.mark.parametrize(("limit", "most"), [("MOST_BYTES", 400_000), ("MOST_NAMES", 350)])
def test_endless_listing_is_bounded_by_names_and_their_length(
    limit: str, most: int, said: Callable[[Listing], object], monkeypatch: pytest.MonkeyPatch,
) -> None:
    """obstore, which does not count, is stopped by time."""
    monkeypatch.setattr(settings, "long_listing", 0.1)
    monkeypatch.setattr(opening, limit, most)
    numbers, asked = count(), []

    def answer(request: Request) -> Reply:
        number = next(numbers)
        asked.append(request.query.get("encoding-type"))
        etag = '"' + "e" * 1000 + '"'
        return page(*((f"{number}-{each}", "1", etag) for each in range(100)), following=str(number))

    with pytest.raises(TooLarge, match="s3://bucket: has more than"):
        said(answer)
    assert asked.count("url") == 4


@pytest.mark.parametrize("scheme", ["gs", pytest.param("az", marks=pytest.mark.slow)])
def test_endless_listing_times_out_early(scheme: str) -> None:
    """obstore does not count names, so the time is limited to a part of the timeout."""
    numbers = count()

    def answer(request: Request) -> Reply:
        if scheme == "gs":
            number = next(numbers)
            return page(*((f"data/{number}-{each}", "1", "0") for each in range(500)), following=str(number))
        return Reply(200, [], chain([b'<?xml version="1.0"?><EnumerationResults>'], repeat(b" " * 65536)))

    with HttpServer(answer, bandwidth=20e6) as server:
        options = {"key": "account", "anonymous": True} if scheme == "az" else {"token": "token"}
        with pytest.raises(DeviceFailed, match=r"/data: the listing takes more than 0.3 seconds"):
            locate([f"{scheme}://bucket/data/"], Connection(timeout=0.9, endpoint=server.url, **options))  # type: ignore[arg-type]
        assert server.count() > 0


def test_objects_that_no_file_can_show_are_named(serving: Serving) -> None:
    keys = (
        "ok.npz", "both.npz", "both.npz/inner.npz", "double//slash.npz", "/leading.npz", "dot/./x.npz", "dot/../y",
        "dot/.", "marked", "marked/x", "marker/", "marker/x", "tab\there",
    )
    made = Bucket({key: b"" if key.startswith("mark") else b"data" for key in keys})

    def shown(folder: str) -> tuple[set[str], dict[str, str]]:
        listed = list(store_of(f"s3://bucket/{folder}").list(()))
        left_out = {name: entry.omitted.partition(":")[0] for name, entry in listed if entry.kind is Kind.OTHER}
        assert all(entry.omitted == "" for _, entry in listed if entry.kind is not Kind.OTHER)
        return {name for name, entry in listed if entry.kind is not Kind.OTHER}, left_out

    with serving(made):
        names = {"ok.npz", "both.npz", "double", "dot", "marked", "marker", "tab\there"}
        assert shown("") == (names, dict.fromkeys(("/", "both.npz"), "object name"))
        assert shown("double/") == (set(), {"/": "object name"})
        assert shown("dot/") == (set(), dict.fromkeys(("./", "../", "."), "object name"))
        assert shown("marker/") == ({"x"}, {})
    with serving(Bucket({"ok.npz": b"data", "/leading.npz": b"data"})):
        assert shown("") == ({"ok.npz"}, {"/": "object name"})
