"""Requests and answers of HTTP (RFC 9110): media types, entity tags, ranges. Pure functions.

Bytes of containers are untrusted: only what the html view made has a type that browsers execute.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple

import xxhash

from glassfs import __version__
from glassfs.content import Recording, Table
from glassfs.library.stream import Raw
from glassfs.names import raw
from glassfs.terminal import printable
from glassfs.tree import File, Node

_TYPES = {
    ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp", ".mp4": "video/mp4",
    ".json": "application/json", ".parquet": "application/vnd.apache.parquet",
    **dict.fromkeys((".jsonl", ".csv", ".txt", ".md", ".toml", ".yaml"), "text/plain; charset=utf-8"),
}
PAGES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class Request(NamedTuple):
    """A request: the decoded path, which begins with a slash, and the headers by their names in lower case."""

    method: str
    path: bytes
    query: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass
class Reply:
    """An answer. ``length`` is the number of bytes of the body, None if it is unknown before they are made.

    ``stream`` is open until the body was sent, if there is one.
    """

    status: HTTPStatus
    headers: dict[str, str] = field(default_factory=dict)
    body: Iterable[bytes | memoryview] = ()
    length: int | None = 0
    stream: Raw | None = None


def etag(node: Node, place: str) -> str:
    """Return the entity tag of a file: other bytes of it have another one."""
    return f'"{xxhash.xxh3_128_hexdigest(raw(f"{__version__}/{node.origin.identity}/{place}"))}"'


def modified(node: Node) -> int:
    """Return when it was modified, in seconds since 1970, as far as dates of HTTP reach: the years 1970 to 9999."""
    return min(max(0, node.origin.mtime_ns // 10**9), 253_402_300_799)


def media_type(file: File) -> str:
    """Return the media type of a file."""
    suffix = f".{file.name.rpartition('.')[2].lower()}"
    if isinstance(file.content, (Recording, Table)) and suffix in PAGES:  # only the html view has such files
        return PAGES[suffix]
    return _TYPES.get(suffix, "application/octet-stream")


def span(text: str, size: int) -> tuple[int, int] | None:
    """Return the first byte and the end of the range that a header asks for, the same if it is beyond the file.

    Return None for what a server may ignore: several ranges, other units, and what is none.
    """
    found = _RANGE.fullmatch(text.strip())
    if found is None or found[0] == "bytes=-":
        return None
    first, last = found[1], found[2]
    if not first:
        return max(0, size - int(last)), size
    stop = min(size, int(last) + 1) if last else size
    if last and int(last) < int(first):
        return None
    return (int(first), stop) if int(first) < size else (size, size)


def message(status: HTTPStatus, sentence: str, headers: Mapping[str, str] | None = None) -> Reply:
    """Return an answer that is one line of text."""
    line = f"{printable(sentence)}\n".encode(errors="replace")
    headers = {"Content-Type": "text/plain; charset=utf-8", "Content-Security-Policy": "sandbox", **(headers or {})}
    return Reply(status, headers, [line], len(line))


def matches(asked: str, tag: str) -> bool:
    return asked.strip() == "*" or tag in (one.strip().removeprefix("W/") for one in asked.split(","))
