"""Contents whose stored bytes are the file."""

from __future__ import annotations

from collections.abc import Hashable

from glassfs.cache import BlockCache
from glassfs.content import Blob, Data, EncodedImage, Json, Memory, Null, Part, Text

EXTENSIONS = {"jpeg": ".jpg", "png": ".png"}


def blob(content: Blob, cache: BlockCache, key: Hashable) -> tuple[str, Data]:
    return ".bin", content.data


def json(content: Json, cache: BlockCache, key: Hashable) -> tuple[str, Data]:
    return ".json", content.data


def null(content: Null, cache: BlockCache, key: Hashable) -> tuple[str, Data]:
    return ".null", Memory(b"")


def part(content: Part, cache: BlockCache, key: Hashable) -> tuple[str, Data]:
    return "", content.data


def image(content: EncodedImage, cache: BlockCache, key: Hashable) -> tuple[str, Data]:
    return EXTENSIONS[content.media], content.data


def text(content: Text, cache: BlockCache, key: Hashable) -> tuple[str, Data]:
    return ".txt", content.data
