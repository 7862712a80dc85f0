"""Queries that ask for the same object, and those that do not."""

from __future__ import annotations

import pytest

from glassfs.source.remote.signed import meant

AMAZON = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a%2Fb&X-Amz-Date={0}&X-Amz-Expires=60&X-Amz-Signature={0}"
GOOGLE = "X-Goog-Algorithm=GOOG4&X-Goog-Credential=a&X-Goog-Date={0}&X-Goog-SignedHeaders=host&X-Goog-Signature={0}"
AZURE = "sp=r&st={0}&se={0}&spr=https&sv=2024-11-04&sr=b&skoid=1&sig={0}"
SIMPLE = ["AWSAccessKeyId=a&Signature={0}&Expires={0}", "Expires={0}&GoogleAccessId=a&Signature={0}",
          "Policy={0}&Signature={0}&Key-Pair-Id=K"]


@pytest.mark.parametrize("signed", [AMAZON, AMAZON.lower(), GOOGLE, AZURE, *SIMPLE])
def test_who_signed_when_makes_no_other_object(signed: str) -> None:
    one, other = signed.format("hunter2"), signed.format("hunter3")
    assert meant(one) == meant("") == ""
    assert meant(f"versionId=1&{one}") == meant(f"versionId=1&{other}") == meant("versionId=1")
    assert meant(f"versionId=1&{one}") != meant(f"versionId=2&{one}")


@pytest.mark.parametrize(("one", "other"), [
    ("id=1", "id=2"), ("id=1", ""), ("id=1", "id=1&id=2"), ("id=a%26b=c", "id=a&b=c"), ("1", "2"), ("id=%FF", "id=%FE"),
    ("sv=1", "sv=2"), ("Expires=1", "Expires=2"), ("sig=1", "sig=2"), ("x-amz-thing=1", "x-amz-thing=2"),
])
def test_anything_else_does(one: str, other: str) -> None:
    assert meant(one) != meant(other)


def test_nothing_of_a_query_is_told() -> None:
    assert "hunter2" not in meant("token=hunter2") != ""
