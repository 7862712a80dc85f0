"""List folders of web servers without WebDAV: fetch the page that the server sends for a folder, and parse it.

Runs on threads of its own, through the standard library, as obstore does not report where it was redirected to. Any
thread.
"""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request
from codecs import getincrementaldecoder
from collections.abc import Sequence
from functools import partial
from typing import IO, Any
from urllib.parse import quote, urlsplit

from glassfs.errors import DeviceFailed, GlassfsError, NotAllowed, NotFound, Refused, TooLarge
from glassfs.source.contract import Path
from glassfs.source.remote.links import Page
from glassfs.source.remote.probes import is_transient
from glassfs.source.remote.retrying import SILENCE_PARTS, BlockingCalls, Call, Retryable
from glassfs.source.remote.server import Listed

_PAGES = ("text/html", "application/xhtml+xml")
_MISSING = (404, 410)


class PageLister:
    """The folders of one server; ``base`` is its URL without a slash at the end."""

    def __init__(self, base: str, authorization: str, timeout: float) -> None:
        self._base = base
        self._authorization = authorization
        self._silence = timeout / SILENCE_PARTS
        self._calls = BlockingCalls("pages", 4)

    async def entries(self, path: Path, shown: str) -> Sequence[Listed]:
        """Return what is in a folder; errors call it ``shown``. Cancelling it ends it after the current piece.

        Raises Refused if the server sends no listing; NotFound, NotAllowed, DeviceFailed; Retryable.
        """
        return await self._calls.run(partial(self._list, path, shown))

    def _list(self, path: Path, shown: str, call: Call) -> Sequence[Listed]:
        try:
            names = "".join(f"{quote(name, safe='', errors='surrogateescape')}/" for name in path)
        except UnicodeEncodeError:
            raise NotFound("there is no such object", shown) from None
        headers = {"Accept": "text/html", "User-Agent": "glassfs"}
        if self._authorization:
            headers["Authorization"] = self._authorization
        request = urllib.request.Request(f"{self._base}/{names}", headers=headers)
        try:
            with urllib.request.build_opener(_SameFolder).open(request, timeout=self._silence) as answer:
                return _parsed(answer, path, shown, call)
        except GlassfsError:
            raise
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error.code, shown) from None
        except ssl.SSLCertVerificationError:
            raise DeviceFailed("its certificate is not trusted", shown) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise DeviceFailed("its certificate is not trusted", shown) from None
            raise Retryable(DeviceFailed("it cannot be reached", shown)) from None
        except TimeoutError:
            raise Retryable(DeviceFailed("it does not answer", shown)) from None
        except (OSError, http.client.HTTPException):
            raise Retryable(DeviceFailed("its answer is incomplete or is not HTTP", shown)) from None


class _SameFolder(urllib.request.HTTPRedirectHandler):
    """Follow redirects to the same folder of the same host, as from http to https. Others lead to something else."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str,
    ) -> urllib.request.Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        is_same = (new.hostname, new.path, new.query) == (old.hostname, old.path, "")
        if not is_same or new.scheme not in (old.scheme, "https"):
            return None
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and new.netloc != old.netloc:
            request.remove_header("Authorization")
        return request


def _parsed(answer: Any, path: Path, shown: str, call: Call) -> Sequence[Listed]:
    if answer.headers.get_content_type() not in _PAGES:
        raise Refused("the server sends a file and no listing for it", shown)
    page = Page(answer.geturl(), path)
    decode = getincrementaldecoder("utf-8")("surrogateescape").decode
    try:
        while not call.is_abandoned and (piece := answer.read1(64 << 10)):
            page.take(decode(piece))
        if answer.length:
            raise http.client.IncompleteRead(b"", answer.length)
        return page.listed()
    except (Refused, TooLarge) as error:
        raise error.at(shown) from None


def _refusal(status: int, shown: str) -> Exception:
    if status in _MISSING:
        return NotFound("there is no such object", shown)
    if status == 401:
        return NotAllowed("access denied (HTTP 401): put the credentials into ~/.netrc", shown)
    if is_transient(status):
        return Retryable(DeviceFailed(f"the server answers {status}", shown))
    return Refused(f"the server lists no folders (HTTP {status}); name what is in it by its own URL", shown)
