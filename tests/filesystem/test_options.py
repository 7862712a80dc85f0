"""How fsspec says where a container is, and how to reach it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.core import url_to_fs

from glassfs.errors import Refused
from glassfs.filesystem.system import source_of
from glassfs.source.remote.options import NAMES, SECRETS
from glassfs.source.remote.url import KNOWN, Connection

URL = "http://host:9000"


@pytest.mark.parametrize(("given", "source"), [
    (("run.kdb",), "{}/run.kdb"),
    (("../a/run.kdb",), "{}/../a/run.kdb"),
    (("/a/run.kdb", "file"), "/a/run.kdb"),
    (("file:///a/run.kdb",), "/a/run.kdb"),
    (("local:///a/run.kdb", "local"), "/a/run.kdb"),
    (("file://localhost/a/run.kdb", "file"), "/a/run.kdb"),
    ((Path("/a/run.kdb"),), "/a/run.kdb"),
    (("/a/x::y/run.kdb", "file", {"auto_mkdir": False}), "/a/x::y/run.kdb"),
    (("b/run.kdb", "s3"), "s3://b/run.kdb"),
    (("b/run.kdb", "s3a"), "s3a://b/run.kdb"),
    (("s3://b/run.kdb", "s3a"), "s3://b/run.kdb"),
    (("b/run.kdb", "gcs"), "gcs://b/run.kdb"),
    (("c/run.kdb", "abfs"), "abfs://c/run.kdb"),
    (("https://h/run.kdb?a=b", "https"), "https://h/run.kdb?a=b"),
    (("datasets/o/r/run.kdb", "hf"), "hf://datasets/o/r/run.kdb"),
    (("/run.kdb", "memory"), "memory:///run.kdb"),
])
def test_a_name_is_put_together_again(given: tuple[Any, ...], source: str) -> None:
    found, connection = source_of(*given)
    assert found == os.path.normpath(source.format(os.getcwd())) if source[0] in "{/" else found == source
    assert connection == Connection()


@pytest.mark.parametrize(("given", "expected"), [
    (("b/r", "s3", {"key": "k", "secret": "s", "token": "t"}), {"key": "k", "secret": "s", "token": "t"}),
    (("b/r", "s3", {"username": "k", "password": "s"}), {"key": "k", "secret": "s"}),
    (("b/r", "s3", {"anon": True, "endpoint_url": URL}), {"anonymous": True, "endpoint": URL}),
    (("b/r", "s3", {"anon": False, "profile": "p", "use_listings_cache": True}), {"profile": "p"}),
    (
        ("b/r", "s3", {"client_kwargs": {"endpoint_url": URL, "region_name": "r"}, "key": None}),
        {"endpoint": URL, "region": "r"},
    ),
    (("b/r", "s3", {"default_block_size": 5, "default_fill_cache": False}), {}),
    (
        ("s3://b/r", None, {"timeout": 2, "poll": 0.5, "disk_cache": Path("/c"), "disk_cache_size": 10, "region": "r"}),
        {"timeout": 2, "poll": 0.5, "disk_cache": "/c", "disk_cache_size": 10, "region": "r"},
    ),
    (("b/r", "gs", {"token": "anon", "project": "p"}), {"anonymous": True}),
    (("b/r", "gcs", {"token": "google_default"}), {}),
    (("b/r", "gs", {"token": "ya29.x", "endpoint_url": URL}), {"token": "ya29.x", "endpoint": URL}),
    (("c/r", "az", {"account_name": "a", "account_key": "k"}), {"key": "a", "secret": "k"}),
    (("https://h/r", "https", {"token": "t", "block_size": 0}), {"token": "t"}),
    (("b/r", "s3", {"endpoint_url": URL, "client_kwargs": {"endpoint_url": URL}}), {"endpoint": URL}),
    (
        ("/r", "memory", {"timeout": 3, "poll": 1, "odd": object}),
        {"timeout": 3, "poll": 1, "extra": {"timeout": 3, "odd": object}},
    ),
    (("o/r", "hf", {"token": "t"}), {"extra": {"token": "t"}}),
])
def test_options_are_understood(given: tuple[Any, ...], expected: dict[str, Any]) -> None:
    before = dict(given[2])
    assert source_of(*given)[1] == Connection(**expected)
    assert given[2] == before


@pytest.mark.parametrize(("given", "sentence"), [
    (("b/r", "s3", {"requester_pays": True}), "s3://b/r: glassfs does not know the option requester_pays for s3"),
    (("b/r", "s3", {"client_kwargs": {"verify": False}}), "s3://b/r: glassfs does not know the option verify for s3"),
    (("b/r", "s3", {"client_kwargs": 3}), "s3://b/r: the option client_kwargs has to be a mapping"),
    (("b/r", "s3", {"key": "a", "username": "b"}), "s3://b/r: the option key is there twice, as username, too"),
    (("b/r", "s3", {"key": 3}), "s3://b/r: the option key has to be a text, not int"),
    (("b", "s3", {"timeout": 0}), "s3://b: option timeout: '0' is not a number of seconds, over 0 and up to 3600"),
    (("b", "s3", {"disk_cache_size": 0.5}), "s3://b: option disk_cache_size: '0.5' is not a size, such as 64M or 2G"),
    (("b/r", "s3", {"endpoint_url": "h:9"}), "s3://b/r: option endpoint: 'h:9' is not a URL such as https://host:9000"),
    (("c/r", "az", {"sas_token": "sig=x"}), "az://c/r: glassfs does not know the option sas_token for az"),
    (
        ("https://h/r?sig=x", "https", {"headers": {"a": "sig"}}),
        "https://h/r: glassfs does not know the option headers for https",
    ),
    (("/a/r", "file", {"mode": "w"}), "/a/r: glassfs does not know the option mode for local files"),
    (("s3://b/r", "file"), "s3://b/r: is not a name of the protocol file"),
    (("file:///a/r", "s3"), "file:///a/r: is not a name of the protocol s3"),
    (("https://u:p@h/r?sig=x", "simplecache"), "https://h/r: is not a name of the protocol simplecache"),
])
def test_what_is_not_understood_is_refused(given: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(Refused) as caught:
        source_of(*given)
    assert str(caught.value) == sentence


def test_the_options_are_those_of_the_connection() -> None:
    names = {*SECRETS, *(name for names in NAMES.values() for name in names.values())}
    assert names <= Connection.__dataclass_fields__.keys() and NAMES.keys() <= {*KNOWN}


@pytest.mark.parametrize(("url", "options", "source", "expected"), [
    ("sftp://u@h:2222/a/run.kdb", {}, "sftp://u@h:2222/a/run.kdb", {}),
    ("ftp://h/a/run.kdb", {"ftp": {"password": "p", "timeout": 9}}, "ftp://h/a/run.kdb",
     {"extra": {"password": "p", "timeout": 9}, "timeout": 9}),
    ("memory://a/run.kdb", {}, "memory:///a/run.kdb", {}),
])
def test_chains_of_fsspec_come_back(url: str, options: dict[str, Any], source: str, expected: dict[str, Any]) -> None:
    """What fsspec makes of the URL of a server, as the URL again."""
    fs, path = url_to_fs(f"glassfs://a/b.npy::{url}", **options)
    asked = fs._opened.session.asked
    assert (path, asked.sources, asked.connection) == ("a/b.npy", (source,), Connection(**expected))


def test_nothing_secret_is_shown() -> None:
    options = {"key": "hush", "secret": "hush"}
    fs = fsspec.filesystem("glassfs", fo="https://u:hush@h/r?sig=hush", target_options=options)
    told = f"{fs!r}{fs}{fs.fsid}{fs._fs_token}{fs._opened.session.asked.connection!r}"
    with pytest.raises(Refused) as caught:
        fs.ls("")
    assert "hush" not in told + str(caught.value)
