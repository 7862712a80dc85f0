"""The view of a content is that of its kind, or of the nearest base."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from glassfs.cache import BlockCache
from glassfs.content import (
    Array,
    Blob,
    Content,
    Document,
    EncodedImage,
    Image,
    Json,
    Memory,
    Null,
    RaggedText,
    Records,
    Scalar,
    Text,
)
from glassfs.view import data_of, file_of, folder_of
from tests.view.views import KEY, PLACE, file_bytes

ONE_OF_EACH: list[Content] = [
    Array(KEY, Memory(bytes(24)), "|u1", (2, 2, 2, 3), modality="rgb"),
    Blob(KEY, Memory(b"bytes")),
    Document(KEY, lambda: {"a": 1}),
    Image(KEY, Memory(bytes(12)), 2, 2, 3),
    Json(KEY, Memory(b"{}")),
    Null(KEY),
    EncodedImage(KEY, Memory(b"\xff\xd8\xff"), "jpeg"),
    RaggedText(KEY, Memory(b"ab"), Memory(bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0])), "<u4", 2),
    Records(KEY, 1, lambda number: ["a", None]),
    Scalar(KEY, 1.5),
    Text(KEY, Memory(b"text")),
]


def derived(content: Content, depth: int) -> Content:
    """Return the same content, of a kind derived from its kind ``depth`` times."""
    kind = type(content)
    for _ in range(depth):
        kind = dataclass(slots=True)(type(f"My{kind.__name__}", (kind,), {"__annotations__": {}}))
    return kind(**{name: getattr(content, name) for name in content.__dataclass_fields__})


@pytest.mark.parametrize("content", ONE_OF_EACH, ids=lambda content: type(content).__name__)
def test_derived_content_is_shown_like_its_base(content: Content) -> None:
    suffix = file_of(content, BlockCache(), PLACE).suffix
    expected = file_bytes(content, suffix)
    for depth in (1, 3):
        other = derived(content, depth)
        assert type(other) is not type(content)
        assert file_bytes(other, suffix) == expected
        series, other_series = folder_of(content), folder_of(other)
        assert (series is None) == (other_series is None)
        if series is not None and other_series is not None:
            assert series.count == other_series.count == 2


def test_unknown_content_is_named_in_the_error() -> None:
    class Strange(Content):
        pass

    with pytest.raises(TypeError, match="Strange"):
        data_of(Strange(KEY), BlockCache(), PLACE)
