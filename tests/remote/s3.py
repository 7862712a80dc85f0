"""A small S3 server for tests that need 100,000 objects, sparse files or hostile names.

It supports ListObjectsV2, ranges, If-Match and If-None-Match, ignores signatures, and is read-only for clients. Any
thread may change buckets while it serves.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from itertools import count
from pathlib import Path
from urllib.parse import quote

from tests.remote.faults import Fault, Faults
from tests.remote.http_server import HttpServer
from tests.remote.requests import Reply, Request

PAGE = 1000
"""Names in one page of a listing, as on S3."""
PIECE = 1 << 20
# Characters that XML cannot hold as they are. Like S3, also write references to forbidden ones.
_SPECIAL = re.compile(r'[\x00-\x1f&<>"\x7f-\x9f\ufffe\uffff]')


@dataclass(frozen=True)
class Object:
    content: bytes | Path
    """A file may be a large sparse one."""
    etag: str
    modified: float

    @property
    def size(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    def read(self, start: int, end: int) -> bytes | Iterator[bytes]:
        return self.content[start:end] if isinstance(self.content, bytes) else _pieces(self.content, start, end)


class Bucket:
    """Objects by their keys. A key is text; bytes that are no UTF-8 are surrogates in it."""

    _versions = count()

    def __init__(self, contents: Mapping[str, bytes | Path] | None = None) -> None:
        self._objects: dict[str, Object] = {}
        self._keys: list[bytes] | None = None
        for key, content in (contents or {}).items():
            self.put(key, content)

    def put(self, key: str, content: bytes | Path, modified: float | None = None) -> Object:
        """Adds or replaces an object. The ETag of bytes is their MD5; a file has another one whenever it is put."""
        named = content if isinstance(content, bytes) else f"{content} {next(self._versions)}".encode()
        etag = f'"{hashlib.md5(named).hexdigest()}"'
        self._objects[key] = made = Object(content, etag, time.time() if modified is None else modified)
        self._keys = None
        return made

    def put_folder(self, folder: Path, prefix: str = "") -> None:
        """Add every file below a folder under its relative path."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(prefix + path.relative_to(folder).as_posix(), path, path.stat().st_mtime)

    def delete(self, key: str) -> None:
        del self._objects[key]
        self._keys = None

    def get(self, key: str) -> Object | None:
        return self._objects.get(key)

    @property
    def keys(self) -> list[bytes]:
        """All keys, ordered by their bytes as on S3."""
        keys = self._keys
        if keys is None:
            keys = self._keys = sorted(map(as_bytes, tuple(self._objects)))
        return keys

    def page(self, prefix: bytes, delimiter: bytes, after: bytes) -> tuple[list[bytes], bytes | None]:
        """Return a page of keys and common prefixes after ``after``, and the last one if there are more."""
        keys, found = self.keys, []
        at = bisect_left(keys, max(prefix, after))
        while at < len(keys) and keys[at].startswith(prefix):
            key = keys[at]
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            name = key if cut < 0 else key[:cut + len(delimiter)]
            # A common prefix stands for everything below it, also where the last page ended with it.
            at = at + 1 if cut < 0 else bisect_left(keys, name[:-1] + bytes([name[-1] + 1]), at)
            if name <= after and after:
                continue
            if len(found) == PAGE:
                return found, found[-1]
            found.append(name)
        return found, None


class S3Server(HttpServer):
    """Buckets by their names, in the path of a URL: ``{url}/bucket/key``. Google's XML API asks in the same way."""

    def __init__(
        self, buckets: Mapping[str, Bucket], *, delay: float = 0, bandwidth: float | None = None,
        faults: Faults | Iterable[Fault | None] = (), certificate: Path | None = None,
    ) -> None:
        super().__init__(
            self._answer_request, delay=delay, bandwidth=bandwidth, faults=faults, certificate=certificate,
        )
        self.buckets = buckets

    def _answer_request(self, request: Request) -> Reply:
        name, _, key = request.path.removeprefix("/").partition("/")
        bucket = self.buckets.get(name)
        if request.method not in ("GET", "HEAD"):
            return failure(405, "MethodNotAllowed")
        if bucket is None:
            return failure(404, "NoSuchBucket")
        if not key:
            return self._list(bucket, name, request)
        made = bucket.get(key)
        return failure(404, "NoSuchKey") if made is None else answer_object(made, request)

    @staticmethod
    def _list(bucket: Bucket, name: str, request: Request) -> Reply:
        query = request.query
        if query.get("list-type") != "2":
            return failure(501, "NotImplemented")
        is_quoted = query.get("encoding-type") == "url"
        encode = quoted if is_quoted else escaped
        prefix, delimiter = as_bytes(query.get("prefix", "")), as_bytes(query.get("delimiter", ""))
        found, last = bucket.page(prefix, delimiter, bytes.fromhex(query.get("continuation-token", "")))
        return listing(name, [
            (encode(key), None if delimiter and key.endswith(delimiter) and key != prefix else bucket.get(as_text(key)))
            for key in found
        ], encode(prefix), None if last is None else last.hex(), is_quoted)


def answer_object(made: Object, request: Request) -> Reply:
    """Answer a request for an object with 200, 206, 304, 412 or 416."""
    headers = [
        ("ETag", made.etag), ("Last-Modified", formatdate(made.modified, usegmt=True)), ("Accept-Ranges", "bytes"),
        ("Content-Type", "application/octet-stream"),
    ]
    if request.headers.get("if-match") not in (None, "*", made.etag):
        return failure(412, "PreconditionFailed")
    if request.headers.get("if-none-match") in ("*", made.etag):
        return Reply(304, headers)
    size = made.size
    start, end, status = 0, size, 200
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", request.range or "")
    if match is not None and match.group() != "bytes=-":
        first, last = match.groups()
        start = int(first) if first else max(0, size - int(last))
        end = min(size, int(last) + 1) if first and last else size
        if start >= end:
            return failure(416, "InvalidRange", ("Content-Range", f"bytes */{size}"))
        headers.append(("Content-Range", f"bytes {start}-{end - 1}/{size}"))
        status = 206
    return Reply(status, headers, made.read(start, end), end - start)


def listing(
    bucket: str, found: Iterable[tuple[str, Object | None]], prefix: str = "", following: str | None = None,
    is_quoted: bool = False,
) -> Reply:
    """Return a page of names, encoded for XML: objects, or None for a common prefix; and the next page's token."""
    contents, folders = [], []
    for name, made in found:
        if made is None:
            folders.append(f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>")
        else:
            when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(made.modified))
            contents.append(
                f"<Contents><Key>{name}</Key><LastModified>{when}</LastModified><ETag>{escaped(made.etag.encode())}"
                f"</ETag><Size>{made.size}</Size><StorageClass>STANDARD</StorageClass></Contents>",
            )
    encoding = "<EncodingType>url</EncodingType>" if is_quoted else ""
    token = "" if following is None else f"<NextContinuationToken>{following}</NextContinuationToken>"
    text = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{bucket}</Name><Prefix>{prefix}</Prefix><KeyCount>{len(contents) + len(folders)}</KeyCount>"
        f"<MaxKeys>{PAGE}</MaxKeys><IsTruncated>{'false' if following is None else 'true'}</IsTruncated>"
        f"{encoding}{token}{''.join(contents)}{''.join(folders)}</ListBucketResult>"
    )
    return Reply(200, [("Content-Type", "application/xml")], text.encode(errors="surrogateescape"))


def failure(status: int, code: str, *headers: tuple[str, str]) -> Reply:
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{code}</Message></Error>'
    return Reply(status, [("Content-Type", "application/xml"), *headers], text.encode())


def escaped(key: bytes) -> str:
    """Encode a key for XML."""
    return _SPECIAL.sub(lambda match: f"&#{ord(match.group())};", as_text(key))


def quoted(key: bytes) -> str:
    """Encode a key for ``encoding-type=url``."""
    return quote(key, safe="/~")


def as_bytes(key: str) -> bytes:
    return key.encode(errors="surrogateescape")


def as_text(key: bytes) -> str:
    return key.decode(errors="surrogateescape")


def _pieces(path: Path, start: int, end: int) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        for at in range(start, end, PIECE):
            yield os.pread(file.fileno(), min(PIECE, end - at), at)
