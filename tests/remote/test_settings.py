"""What is said of how to reach S3: options, then the environment, then the usual files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from glassfs.errors import DeviceFailed, NotAllowed
from glassfs.settings import settings
from glassfs.source import Connection, locate
from glassfs.source.remote.objects import ObjectServer
from glassfs.source.remote.open import server_of
from glassfs.source.remote.server import Retryable
from glassfs.source.remote.url import parsed
from tests.remote.s3 import Bucket, S3Server
from tests.remote.servers import CREDENTIALS

VARIABLES = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE",
)
KEYS = {name: CREDENTIALS[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of settings, and nothing in the environment but its name."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path / "config"


def regions(server: S3Server) -> set[str]:
    """Those that requests were signed for."""
    signed = [request.headers.get("authorization", "-/-/-") for request in server.requests]
    return {line.split("/")[2] for line in signed}


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("environment", "options", "region"), [
    (KEYS, {}, "eu-central-1"),
    (KEYS | {"AWS_REGION": "eu-west-2"}, {}, "eu-west-2"),
    (KEYS, {"region": "eu-west-3"}, "eu-west-3"),
    ({}, {"key": "key", "secret": "secret"}, "eu-central-1"),
    ({}, {"anonymous": True}, "-"),
])
def test_configuration_file_is_read_with_any_credentials(
    environment: Mapping[str, str], options: Mapping[str, str], region: str, config: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with S3Server({"bucket": Bucket({"data": b"x"})}) as server:
        config.write_text(f"[default]\nregion = eu-central-1\nendpoint_url = {server.url}\n")
        (found,) = locate(["s3://bucket/"], Connection(timeout=10.0, **options))  # type: ignore[arg-type]
        assert [name for name, _ in found.store.list(())] == ["data"]
        assert regions(server) == {region}


def test_endpoint_of_s3_precedes_that_of_all_services(config: Path, keys: None) -> None:
    with S3Server({"bucket": Bucket({"data": b"x"})}) as server:
        config.write_text(
            "[default]\nservices = mine\nendpoint_url = http://127.0.0.1:1\n\n"
            f"[services mine]\ns3 =\n  endpoint_url = {server.url}\n",
        )
        (found,) = locate(["s3://bucket/"], Connection(timeout=10.0))
        assert [name for name, _ in found.store.list(())] == ["data"]


def test_options_and_environment_precede_the_file(
    config: Path, keys: None, monkeypatch: pytest.MonkeyPatch,
) -> None:
    config.write_text("[default]\nendpoint_url = http://127.0.0.1:1\n")
    with S3Server({"bucket": Bucket({"data": b"x"})}) as server:
        locate(["s3://bucket/"], Connection(timeout=10.0, endpoint=server.url))
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        locate(["s3://bucket/"], Connection(timeout=10.0))
        assert server.count() == 2


def test_malformed_file_is_an_error(config: Path, keys: None) -> None:
    config.write_text("region = eu-central-1\n")
    with pytest.raises(NotAllowed, match="s3://bucket: cannot parse the AWS configuration files"):
        locate(["s3://bucket/"], Connection(timeout=10.0))


def test_botocore_is_not_imported_without_a_file(config: Path, keys: None) -> None:
    script = (
        "import sys; from glassfs.source import Connection, locate; locate(['s3://bucket/'], "
        "Connection(endpoint=sys.argv[1], timeout=20.0)); sys.exit('botocore' in sys.modules)"
    )
    with S3Server({"bucket": Bucket({"data": b"x"})}) as server:
        assert subprocess.run([sys.executable, "-c", script, server.url], timeout=60).returncode == 0


@pytest.mark.parametrize(("url", "options", "host"), [
    ("s3://bucket/a.kdb", {"region": "eu-west-3"}, "s3.eu-west-3.amazonaws.com"),
    ("s3://bucket/a.kdb", {"endpoint": "http://minio.example:9000"}, "minio.example"),
    ("gs://bucket/a.kdb", {}, "storage.googleapis.com"),
    ("az://bucket/a.kdb", {"key": "lab"}, "lab.blob.core.windows.net"),
])
def test_missing_host_of_a_bucket_is_named(url: str, options: dict[str, str], host: str, config: Path) -> None:
    from obstore.exceptions import GenericError

    server = server_of(parsed(url), Connection(**({"key": "key", "secret": "c2VjcmV0"} | options)))  # type: ignore[arg-type]
    assert isinstance(server, ObjectServer)
    error = server.failure(GenericError("dns error: http://another.example has no address"))
    assert error.reason == f"there is no host {host}; -o endpoint=URL names another server"
    assert isinstance(error, Retryable)


@pytest.mark.parametrize(("url", "endpoint"), [
    ("s3://bucket/a.kdb", "http://nosuch.invalid:9000"), ("http://nosuch.invalid/a.kdb", ""),
    ("ftp://nosuch.invalid/a.kdb", ""),
])
def test_mistyped_host_is_named(url: str, endpoint: str, keys: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "server_first_pause", 0.001)
    with pytest.raises(DeviceFailed, match=r"there is no host (nosuch\.invalid|of this name)") as raised:
        locate([url], Connection(endpoint=endpoint))
    assert str(raised.value).startswith(f"{url}: ") and str(raised.value).count("nosuch.invalid") == 1
