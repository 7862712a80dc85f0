"""Stores on faulty servers return right bytes or raise a one-line error in time. For mounts: ``test_bad_mounts.py``."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from glassfs.errors import Changed, DeviceFailed, NotAllowed, NotFound
from glassfs.settings import settings
from glassfs.source import Source
from tests.remote import servers
from tests.remote.conftest import Serving
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
from tests.remote.requests import Reply, Request
from tests.remote.s3 import Bucket, Object, S3Server, listing
from tests.waiting import wait_until

SIZE = 3_000_000
CONTENT = random.Random(7).randbytes(SIZE)
PATIENT = 60.0
SHORT = 0.6

FAULTS: dict[str, Fault] = {
    "cut": Cut(1000), "cut at once": Cut(0), "reset": Reset(), "reset in the middle": Reset(1000), "garbage": Garbage(),
    "503": Status(503), "429": Status(429), "500": Status(500, body=b"<Code>InternalError</Code>"),
    "whole": Whole(), "longer": Length(10), "shorter": Length(-10), "longer, in chunks": Length(10, "chunks"),
    "shorter, in chunks": Length(-10, "chunks"), "longer than promised": Length(10, "lie"),
    "shorter than promised": Length(-10, "lie"),
    "another range": Headers({"Content-Range": f"bytes 7-262150/{SIZE}"}),
    "no range": Headers({"Content-Range": None}), "odd range": Headers({"Content-Range": "bytes x-y/z"}),
}
SILENT: dict[str, Fault] = {"stall": Stall(), "stall in the middle": Stall(1000), "drip": Drip(0.05)}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the pauses between attempts short."""
    monkeypatch.setattr(settings, "server_first_pause", 0.01)


def is_part(request: Request) -> bool:
    """Return whether it requests bytes of a listed object."""
    return request.range is not None


store_of = partial(servers.store_of, timeout=PATIENT, poll=3600.0)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.slow if number % 6 else ()) for number, name in enumerate(FAULTS)
])
def test_passing_faults_are_retried(name: str, serving: Serving) -> None:
    """Three faults in a row, for the first bytes and for others."""
    with serving(Bucket({"data": CONTENT})) as server:
        source = store_of("s3://bucket/").open(("data",))
        server.faults = first(3, FAULTS[name], is_part)
        assert source.read(0, 1000) == CONTENT[:1000]
        server.faults = first(3, FAULTS[name], is_part)
        assert source.read(SIZE - 600_000, 600_000) == CONTENT[-600_000:]
        # Bytes beyond the announced end are not read; they cost the connection.
        is_noticed = name != "longer than promised"
        assert server.count(where=lambda request: request.fault is not None) >= (6 if is_noticed else 2)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name == "stall" else pytest.mark.slow)
    for name in [*FAULTS, *SILENT] if name != "longer than promised"
])
def test_lasting_faults_are_errors_in_time(name: str, serving: Serving) -> None:
    def opened() -> Source | None:
        with suppress(DeviceFailed):  # a slow machine may not list within the timeout
            return store_of("s3://bucket/", timeout=SHORT).open(("data",))
        return None

    with serving(Bucket({"data": CONTENT})) as server:
        source = wait_until(opened)
        assert source is not None
        server.faults = for_each(({**FAULTS, **SILENT})[name], is_part)
        for offset in (0, 1_000_000):
            with pytest.raises((DeviceFailed, Changed)) as raised:
                source.read(offset, 300_000)
            sentence = str(raised.value)
            assert sentence.startswith("s3://bucket/data: ") and "\n" not in sentence and len(sentence) < 200


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stall", "stall in the middle"])
def test_stalled_request_is_retried(name: str, serving: Serving) -> None:
    """An attempt has only a part of the time of the read."""
    with serving(Bucket({"data": CONTENT})) as server:
        source = store_of("s3://bucket/", timeout=6.0).open(("data",))
        server.faults = first(1, SILENT[name], is_part)
        assert source.read(0, 1000) == CONTENT[:1000]


def test_listings_are_retried(serving: Serving) -> None:
    for fault in (Status(503), Status(429), Cut(10), Reset(), Garbage()):
        with serving(Bucket({"data": b"x"}), faults=first(3, fault)) as server:
            assert [name for name, _ in store_of("s3://bucket/").list(())] == ["data"]
            assert server.count() >= 4


@pytest.mark.parametrize("fault", [
    Stall(), *(
        pytest.param(fault, marks=pytest.mark.slow) for fault in (Stall(10), Drip(0.02), Status(503), Cut(9))
    ),
])
def test_listings_time_out(fault: Fault, serving: Serving) -> None:
    bucket = Bucket({f"data {number}": b"x" for number in range(900)})
    with serving(bucket, faults=for_each(fault)), pytest.raises(DeviceFailed, match="s3://bucket: "):
        store_of("s3://bucket/", timeout=SHORT)


def test_denied_request_is_not_retried(serving: Serving) -> None:
    body = b"<Error><Code>AccessDenied</Code><Message>secret</Message></Error>"
    with serving(Bucket({"data": CONTENT})) as server:
        source = store_of("s3://bucket/").open(("data",))
        server.faults = for_each(Status(403, body=body))
        with pytest.raises(NotAllowed, match=r"s3://bucket/data: access denied \(HTTP 403, AccessDenied\)"):
            source.read(0, 10)
        assert server.count(where=is_part) == 1


def test_replaced_object_is_changed_until_reopened(serving: Serving) -> None:
    bucket = Bucket({"data": CONTENT})
    with serving(bucket):
        store = store_of("s3://bucket/")
        source = store.open(("data",))
        assert source.read(0, 10) == CONTENT[:10]
        bucket.put("data", CONTENT[::-1])
        with pytest.raises(Changed, match="s3://bucket/data: "):
            source.read(1_000_000, 10)
        assert store.open(("data",)).read(1_000_000, 10) == CONTENT[::-1][1_000_000:1_000_010]
        source = store.open(("data",))
        bucket.delete("data")
        with pytest.raises(Changed):
            source.read(2_000_000, 10)
        with pytest.raises(NotFound):
            store.open(("data",))


def test_ignored_if_match_is_noticed(serving: Serving) -> None:
    """rclone ignores If-Match: the answer has another ETag."""
    bucket = Bucket({"data": CONTENT})
    with serving(bucket) as server:
        source = store_of("s3://bucket/").open(("data",))
        server.faults = for_each(Headers({"ETag": '"another"'}), is_part)
        with pytest.raises(Changed, match="has been replaced"):
            source.read(0, 10)


# Untrusted listings


ODD_NAMES = [
    "new\nline", "tab\tstop", "\x01", "escape\x1b[31m", "..", "../up", "a//b", "/slash", "folder\n/inside", "bad\udcff",
    "under/../over",
]


def test_odd_names_spare_other_names(serving: Serving) -> None:
    """Odd names that files can have are listed but cannot be read; others are omitted."""
    with serving(Bucket({"good": b"good", "sub/deep": b"deep", **dict.fromkeys(ODD_NAMES, b"odd")})) as server:
        store = store_of("s3://bucket/")
        names = [name for name, entry in store.list(()) if not entry.omitted]
        assert names == sorted([
            "good", "sub", "new\nline", "tab\tstop", "\x01", "escape\x1b[31m", "a", "folder\n", "bad\udcff", "under",
        ], key=lambda name: name.encode(errors="surrogateescape"))
        assert store.open(("good",)).read(0, 4) == b"good"
        assert store.open(("sub", "deep")).read(0, 4) == b"deep"
        for name in ("new\nline", "tab\tstop", "\x01", "escape\x1b[31m", "bad\udcff"):
            with pytest.raises(DeviceFailed, match="has a name that cannot be sent to the server"):
                store.open((name,)).read(0, 1)
        odd = [entry for name in ("a", "under") for _, entry in store.list((name,))]
        assert odd and all(entry.omitted.startswith("object name: ") for entry in odd)
        assert [name for name, _ in store.list(("folder\n",))] == ["inside"]
        assert server.count("HEAD") == 0


def test_special_characters_in_names_are_kept(serving: Serving) -> None:
    """Also if botocore lists the pages, as here for one odd name."""
    names = ["ä b", "+%20", "%2F", "a&b<c>'\"", "?x#y", "[*]", "~", "\\", "\U0001f600", " ", "\u202e", "x" * 900]
    with serving(Bucket({name: name.encode() for name in names} | {"\n": b"odd"})) as server:
        store = store_of("s3://bucket/")
        assert {name for name, _ in store.list(())} == {*names, "\n"}
        for name in names:
            assert store.open((name,)).read(0, len(name.encode())) == name.encode()
        assert server.count("HEAD") == 0


def test_odd_name_on_google_storage_is_an_error() -> None:
    with (
        S3Server({"glass": Bucket({"data/good": b"x", "data/\n": b"x"})}) as server,
        pytest.raises(DeviceFailed, match=r"^gs://glass/data: cannot be listed: an object in it has a name with"),
    ):
        store_of("gs://glass/data/", endpoint=server.url, token="token")


@pytest.mark.parametrize("fault", ["same place", "no place"])
def test_listing_with_a_bad_token_is_an_error(fault: str, monkeypatch: pytest.MonkeyPatch, serving: Serving) -> None:
    monkeypatch.setattr(settings, "long_listing", 0.01)

    def answer(request: Request) -> Reply:
        if request.query.get("encoding-type") != "url":
            return Reply(200, [], b"<ListBucketResult><Contents><Key>\n</Key></Contents></ListBucketResult>")
        reply = listing("bucket", [("x", Object(b"", '"0"', 0.0))], following="there")
        if fault == "no place":
            reply.body = reply.body.replace(b"<NextContinuationToken>there</NextContinuationToken>", b"")  # type: ignore[union-attr]
            reply.size = len(reply.body)
        return reply

    with serving(Bucket()), HttpServer(answer) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        with pytest.raises(DeviceFailed, match="but not where"):
            store_of("s3://bucket/", timeout=PATIENT)


def test_untrusted_certificate_is_an_error(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, serving: Serving,
) -> None:
    with serving(Bucket()), S3Server({"bucket": Bucket({"data": b"x"})}, certificate=certificate) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        with pytest.raises(DeviceFailed, match=r"^s3://bucket: its certificate is not trusted$"):
            store_of("s3://bucket/", timeout=3.0)
        with pytest.raises(DeviceFailed, match=r"/data: its certificate is not trusted$"):
            store_of(f"{server.url}/bucket/data", timeout=3.0)


# Redirects


@pytest.fixture
def other_host() -> Callable[[], HttpServer]:
    return lambda: HttpServer(lambda request: Reply(206, [
        ("Content-Range", "bytes 0-0/1"), ("ETag", '"x"'), ("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT"),
    ], b"x"))


def all_requests(server: HttpServer) -> str:
    return " ".join(f"{request.target} {request.lines}" for request in server.requests)


def test_redirected_request_carries_no_signature(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, other_host: Callable[[], HttpServer],
) -> None:
    with other_host() as other, serving(Bucket({"data": CONTENT})) as server:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
        source = store_of("s3://bucket/", timeout=3.0).open(("data",))
        server.faults = for_each(Redirect(f"http://localhost:{other.port}/there"), is_part)
        with pytest.raises((Changed, DeviceFailed)):
            source.read(0, 10)
        assert other.count() > 0
        assert not any("authorization" in request.headers for request in other.requests)
        assert "hunter2" not in all_requests(other)


def test_redirected_request_carries_no_password(other_host: Callable[[], HttpServer]) -> None:
    with other_host() as other, HttpServer() as server:
        server.faults = for_each(Redirect(f"http://localhost:{other.port}/there"))
        store_of(f"{server.url}/data", key="me", secret="hunter2", timeout=3.0)
        assert all("authorization" in request.headers for request in server.requests)
        assert other.count() > 0
        assert not any("authorization" in request.headers for request in other.requests)


@pytest.mark.slow
def test_endless_redirects_are_an_error(other_host: Callable[[], HttpServer]) -> None:
    with HttpServer() as server:
        server.faults = for_each(Redirect("/data"))
        with pytest.raises(DeviceFailed, match="it redirects without end"):
            store_of(f"{server.url}/data", timeout=3.0)
