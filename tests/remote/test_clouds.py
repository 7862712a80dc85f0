"""Our own servers also speak to clients of Google's and Azure's storage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.remote.azure import ACCOUNT, AzureServer
from tests.remote.s3 import Bucket, S3Server

if TYPE_CHECKING:
    from obstore.store import ObjectStore

KEYS = ["deeper/file", "ä b%20&", *(f"page/{number:05}" for number in range(5_010))]


@contextmanager
def google(bucket: Bucket) -> Iterator[ObjectStore]:
    from obstore.store import GCSStore

    with S3Server({"glass": bucket}) as server:
        yield GCSStore("glass", service_account_key=server.google_key, client_options={"allow_http": True})


@contextmanager
def azure(bucket: Bucket) -> Iterator[ObjectStore]:
    from obstore.store import AzureStore

    with AzureServer({"glass": bucket}) as server:
        yield AzureStore(
            "glass", account_name=ACCOUNT, endpoint=server.endpoint, skip_signature=True,
            client_options={"allow_http": True},
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", [google, azure])
def test_objects_are_listed_and_read(kind: Any) -> None:
    import obstore
    from obstore.exceptions import PreconditionError

    with kind(Bucket({key: key.encode() for key in KEYS})) as store:
        assert [each["path"] for page in obstore.list(store) for each in page] == sorted(KEYS, key=str.encode)
        listed = obstore.list_with_delimiter(store)
        assert (list(listed["common_prefixes"]), [each["path"] for each in listed["objects"]]) == (
            ["deeper", "page"], ["ä b%20&"],
        )
        found = obstore.get(store, "ä b%20&", options={"range": (1, 4)})
        assert (bytes(found.bytes()), found.meta["size"]) == ("ä b%20&".encode()[1:4], len("ä b%20&".encode()))
        with pytest.raises(PreconditionError):
            obstore.get(store, "deeper/file", options={"if_match": '"other"'})
        with pytest.raises(FileNotFoundError):
            obstore.get(store, "none")
