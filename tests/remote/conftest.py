"""Servers that all tests of this folder share. Who needs one with other options starts it: ``tests.remote.servers``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote import servers


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.S3]:
    """One S3 for all tests: each makes buckets with names of its own."""
    with servers.moto(tmp_path_factory.mktemp("moto")) as running:
        yield running


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return servers.make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Ssh]:
    with servers.sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def bucket(moto: servers.S3, request: pytest.FixtureRequest) -> str:
    """The name of a bucket of this test's own, which is there."""
    name = f"glass-{abs(hash(request.node.nodeid)):x}"
    moto.make_bucket(name)
    return name
