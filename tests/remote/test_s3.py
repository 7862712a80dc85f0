"""moto serves what is put there; our own small S3 answers as moto does, and takes what moto does not."""

from __future__ import annotations

import http.client
import itertools
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.remote import servers
from tests.remote.s3 import Bucket, S3Server

KEYS = [
    "a", "a b+c%25", "a/b", "a/c/d", "a/c/e", "a-", "a0", "b&<>\"'", "b//c", "b/../c", "folder/", "folder/x",
    "folder/y/", "ü/ä", "z" * 1000,
]
HOSTILE = ["new\nline", "new\r\nline", "..", "../x", "/lead", "a//b", "x" * 5000, "&amp;"]
CONTENT = bytes(range(256)) * 20
RANGES: list[str | None] = [
    None, "bytes=0-0", "bytes=10-19", "bytes=5000-", "bytes=-7", "bytes=-6000", "bytes=5100-9000", "bytes=5120-",
    "bytes=6000-7000",
]


@pytest.fixture(scope="module")
def both(moto: servers.S3) -> Iterator[list[Any]]:
    """Clients of both, with the same bucket `same`."""
    contents = {key: key.encode() for key in KEYS} | {"content": CONTENT}
    moto.make_bucket("same", contents)
    with S3Server({"same": Bucket(contents)}) as own:
        yield [moto.client(), servers.S3(own.port).client()]


def shown(page: Mapping[str, Any]) -> object:
    """What a page of a listing says that does not depend on the server."""
    objects = [(each["Key"], each["Size"], each["ETag"]) for each in page.get("Contents", [])]
    folders = [each["Prefix"] for each in page.get("CommonPrefixes", [])]
    return objects, folders, page["IsTruncated"], page["KeyCount"]


@pytest.mark.slow
@pytest.mark.parametrize(("prefix", "delimiter", "size"), [
    *itertools.product(["", "a", "a/", "folder/", "none"], ["", "/"], [2, 1000]), ("b", "//", 1000),
])
def test_listings_are_those_of_moto(both: list[Any], prefix: str, delimiter: str, size: int) -> None:
    listings = []
    for client in both:
        pages = client.get_paginator("list_objects_v2").paginate(
            Bucket="same", Prefix=prefix, Delimiter=delimiter, PaginationConfig={"PageSize": size},
        )
        listings.append(list(map(shown, pages)))
    assert listings[0] == listings[1]


@pytest.mark.slow
@pytest.mark.parametrize("asked", RANGES)
def test_ranges_are_those_of_moto(both: list[Any], asked: str | None) -> None:
    answers = []
    for client in both:
        try:
            found = client.get_object(Bucket="same", Key="content", **({} if asked is None else {"Range": asked}))
            status = found["ResponseMetadata"]["HTTPStatusCode"]
            answers.append((status, found["Body"].read(), found.get("ContentRange"), found["ETag"]))
        except client.exceptions.ClientError as error:
            answers.append((error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]))
    assert answers[0] == answers[1]


@pytest.mark.slow
@pytest.mark.parametrize("condition", [
    {"IfMatch": "{etag}"}, {"IfMatch": '"other"'}, {"IfNoneMatch": "{etag}"}, {"IfNoneMatch": '"other"'},
])
def test_conditions_are_those_of_moto(both: list[Any], condition: dict[str, str]) -> None:
    answers = []
    for client in both:
        etag = client.head_object(Bucket="same", Key="content")["ETag"]
        try:
            words = {name: value.format(etag=etag) for name, value in condition.items()}
            answers.append(client.get_object(Bucket="same", Key="content", **words)["Body"].read())
        except client.exceptions.ClientError as error:
            answers.append(error.response["ResponseMetadata"]["HTTPStatusCode"])
    assert answers[0] == answers[1]


@pytest.mark.slow
@pytest.mark.parametrize(("bucket", "key"), [("same", "none"), ("no-such-bucket", "none")])
def test_what_is_not_there(both: list[Any], bucket: str, key: str) -> None:
    for client in both:
        with pytest.raises(client.exceptions.ClientError, match="NoSuch"):
            client.get_object(Bucket=bucket, Key=key)


def test_hostile_names_are_listed_and_read() -> None:
    with S3Server({"b": Bucket({key: key.encode() for key in HOSTILE})}) as server:
        client = servers.S3(server.port).client()
        assert sorted(each["Key"] for each in client.list_objects_v2(Bucket="b")["Contents"]) == sorted(HOSTILE)
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
            connection.request("GET", "/b?list-type=2")
            tree = ElementTree.fromstring(connection.getresponse().read())
            assert sorted(each.text or "" for each in tree.findall("{*}Contents/{*}Key")) == sorted(HOSTILE)
            connection.request("GET", "/b/new%0D%0Aline")
            assert connection.getresponse().read() == b"new\r\nline"
            connection.request("GET", "/b/a//b")
            assert connection.getresponse().read() == b"a//b"


def test_names_that_xml_cannot_hold() -> None:
    with (
        S3Server({"b": Bucket({"\x01": b"one", "\udcff": b"two"})}) as server,
        closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection,
    ):
        connection.request("GET", "/b?list-type=2")
        text = connection.getresponse().read()
        assert b"<Key>&#1;</Key>" in text
        assert b"<Key>\xff</Key>" in text
        connection.request("GET", "/b/%FF")
        assert connection.getresponse().read() == b"two"
