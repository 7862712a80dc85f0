"""Servers that all tests of this folder share; others are started from ``tests.remote.servers``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import pytest

# Each test that mounts does so as those in tests/mount.
from tests.mount.conftest import fuse, mounted, public_folder  # noqa: F401
from tests.remote import servers
from tests.remote.faults import Fault, Faults
from tests.remote.s3 import Bucket, S3Server


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return servers.make_certificate(tmp_path_factory.mktemp("certificate"))


class Serving(Protocol):
    """``with serving(bucket) as server``: a bucket called ``bucket``, for every command of the test."""

    def __call__(
        self, bucket: Bucket, *, faults: Faults | Iterable[Fault | None] = (),
    ) -> AbstractContextManager[S3Server]: ...


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Serving:
    @contextmanager
    def serve(bucket: Bucket, *, faults: Faults | Iterable[Fault | None] = ()) -> Iterator[S3Server]:
        with S3Server({"bucket": bucket}, faults=faults) as server:
            for name, value in {**servers.CREDENTIALS, "AWS_ENDPOINT_URL": server.url}.items():
                monkeypatch.setenv(name, value)
            yield server

    return serve
