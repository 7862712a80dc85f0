"""Folders of S3 listed page by page, through botocore: those that obstore cannot list, or not with bounded memory.

obstore gives a listing as a whole or not at all. One object whose name it does not take, such as one with a line feed
in it, costs it the folder; and it gathers names as long as the server has any. Here what each page says is counted, and
a name that no file can have costs nothing but itself.

Any thread. A listing runs on a thread of its own, which ends by the deadline; whoever waits for it gives up then
whatever the server does. Redirects are not followed.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import datetime
from typing import Any
from urllib.parse import unquote_plus

from glassfs.errors import DeviceFailed, GlassfsError, NotAllowed, NotFound, Refused, TooLarge
from glassfs.source.contract import Path
from glassfs.source.remote.library import EXTRA
from glassfs.source.remote.lines import Crew, Task
from glassfs.source.remote.server import Facts, Listed

LARGEST_PAGE = 16 << 20
"""Bytes of an answer. A page has a thousand names of up to 1,024 bytes, each of which may be written as three."""
MOST_NAMES = 1_000_000
MOST_BYTES = 64 << 20
"""Names of one folder, and characters of them and their ETags."""
LARGEST_SIZE = 1 << 62
LONGEST_ETAG = 1024
LATEST_NS = 1 << 63
MOST_AT_ONCE = 4
PIECE = 64 << 10
_GONE = ("404", "NoSuchBucket", "NoSuchKey")
_REFUSED = ("401", "403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken")
_NO_NAMES = ("", ".", "..")


def believed(size: int, etag: str, modified: datetime) -> Facts | None:
    """What a server says of an object, as far as it can be so: None for a size that nothing has."""
    if not 0 <= size <= LARGEST_SIZE:
        return None
    if len(etag) > LONGEST_ETAG:
        etag = ""
    if etag and not etag.startswith(('"', "W/")):  # some listings leave the quotes out
        etag = f'"{etag}"'
    mtime_ns = int(modified.timestamp()) * 10**9 + modified.microsecond * 1000
    return Facts(size, etag, mtime_ns if abs(mtime_ns) < LATEST_NS else 0)


class S3Pages:
    """A bucket. ``make`` makes a client of botocore, which is asked for pages only."""

    def __init__(self, bucket: str, make: Callable[[], Any], timeout: float) -> None:
        self._bucket = bucket
        self._crew = Crew(lambda: _Line(make), MOST_AT_ONCE, timeout)

    def begin(self, path: Path, shown: str) -> Future[list[Listed]]:
        """Begins to list a folder."""
        return self._crew.submit(lambda line, task: self._list(line, task, path), shown)

    def close(self) -> None:
        self._crew.close()

    def _list(self, line: _Line, task: Task[_Line], path: Path) -> list[Listed]:
        prefix = "".join(f"{name}/" for name in path)
        found: dict[str, Listed] = {}
        size = 0
        for listed in self._told(line, task, prefix):
            if listed.name in _NO_NAMES or "\0" in listed.name:
                continue
            size += len(listed.name) + (len(listed.facts.etag) if listed.facts is not None else 0)
            if len(found) == MOST_NAMES or size > MOST_BYTES:
                raise TooLarge(f"has more than {MOST_NAMES} objects, or very long names", task.shown)
            if listed.facts is None or listed.name not in found:
                found[listed.name] = listed
        return list(found.values())

    def _told(self, line: _Line, task: Task[_Line], prefix: str) -> Iterator[Listed]:
        """What the pages say is directly below a prefix, empty names and strange ones included."""
        words = {"Bucket": self._bucket, "Prefix": prefix, "Delimiter": "/", "EncodingType": "url"}
        token: dict[str, str] = {}
        while task.left > 0:
            page = line.page(task, words | token)
            for one in page.get("CommonPrefixes", ()):
                yield Listed(_name(one["Prefix"], prefix).removesuffix("/"), None)
            for one in page.get("Contents", ()):
                name = _name(one["Key"], prefix)
                facts = believed(one["Size"], one.get("ETag", ""), one["LastModified"])
                if "/" not in name and facts is not None:
                    yield Listed(name, facts)
            if not page.get("IsTruncated"):
                return
            following = page.get("NextContinuationToken")
            if not following or following == token.get("ContinuationToken"):
                raise DeviceFailed("the server says that there is more, but not where", task.shown)
            token = {"ContinuationToken": following}
        raise DeviceFailed("the listing does not end in time", task.shown)


class _Line:
    """A client, for one thread."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._client: Any = None
        self._session: Any = None
        self._until = 0.0

    def serves(self, near: str) -> bool:
        return self._client is not None

    def close(self) -> None:
        self._client = self._session = None

    def page(self, task: Task[_Line], words: dict[str, Any]) -> Any:
        """A page as botocore has it. What goes wrong is raised as errors of this room."""
        from botocore.exceptions import BotoCoreError, ClientError

        self._until = task.deadline
        try:
            if self._client is None:
                self._open(task.left)
            return self._client.list_objects_v2(**words)
        except GlassfsError as error:
            raise error.at(task.shown) from None
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))[:60]
            reason = f"the server does not list it ({code})" if code.isalnum() else "the server does not list it"
            kind = NotFound if code in _GONE else NotAllowed if code in _REFUSED else DeviceFailed
            raise kind("there is no such bucket" if kind is NotFound else reason, task.shown) from None
        except ImportError:
            raise Refused(EXTRA, task.shown) from None
        except (BotoCoreError, OSError) as error:
            raise DeviceFailed(f"the listing failed ({type(error).__name__})", task.shown) from None

    def _open(self, timeout: float) -> None:
        from botocore.httpsession import URLLib3Session
        from botocore.utils import get_environ_proxies

        self._client = self._make()
        bundles = (os.environ.get(name) for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"))
        self._session = URLLib3Session(
            verify=next(filter(None, bundles), True), proxies=get_environ_proxies(self._client.meta.endpoint_url),
            timeout=timeout,
        )
        self._client.meta.events.register("before-send.s3.ListObjectsV2", self._send)

    def _send(self, request: Any, **_: Any) -> Any:
        """In the place of botocore, which would read however much comes, however slowly."""
        from botocore.awsrequest import AWSResponse

        request.stream_output = True
        answer = self._session.send(request)
        read = getattr(answer.raw, "read1", answer.raw.read)
        pieces, size = [], 0
        while piece := read(PIECE):
            pieces.append(piece)
            size += len(piece)
            if size > LARGEST_PAGE or time.monotonic() >= self._until:
                answer.raw.close()
                raise DeviceFailed("the listing does not end in time" if size <= LARGEST_PAGE else (
                    "the server gives a page of names that is too large"
                ))
        return AWSResponse(answer.url, answer.status_code, answer.headers, _Body(b"".join(pieces)))


class _Body(io.BytesIO):
    def stream(self) -> Iterator[bytes]:
        yield self.getvalue()


def _name(quoted: str, prefix: str) -> str:
    """What stands below the prefix, which is empty for the prefix itself and for what is not below it."""
    key = unquote_plus(quoted, errors="surrogateescape")
    return key[len(prefix) :] if key.startswith(prefix) else ""
