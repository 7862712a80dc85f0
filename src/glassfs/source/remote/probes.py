"""Requests through the standard library: what obstore does not say of a web server, and pages for folders. Any thread.

obstore follows redirects by itself, and puts the URL with its query into the Referer header: the next host would learn
the query, in which anything may be secret. It does not report where it was redirected to, and fetches nothing of an
unknown length. And the answers of many servers do not say that they speak TLS where the URL says http, or none where it
says https.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener, getproxies, proxy_bypass

from glassfs.errors import DeviceFailed, GlassfsError, NotAllowed, NotFound, Refused, TooLarge
from glassfs.settings import settings
from glassfs.source.remote.objects import LASTING, UNTRUSTED
from glassfs.source.remote.retrying import SILENCE_PARTS, Call, Result, Retryable, calls, result_of, retried
from glassfs.source.remote.url import Url

NO_TLS = "the server does not speak TLS on this port: write http:// instead of https://, if that is safe here"
TLS = "the server speaks TLS on this port: write https:// instead of http://"
RANGE = "bytes=0-262143"
"""The range of the first real request, as a server may redirect by it."""
MOST_BYTES = 64 << 20
_PLAIN_IN_QUERY = "%!$&()*+,/:;=?@[]^`{|}~\\-._"
_PAGES = ("text/html", "application/xhtml+xml")


class _Unreachable(Retryable):
    """There is no connection."""


class _SamePath(HTTPRedirectHandler):
    """Follow redirects to the same path of the same host, as from http to https, but none of a URL with a query.

    Others lead to something else. They are raised as HTTPError.
    """

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str,
    ) -> Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        is_same = (new.hostname, new.path) == (old.hostname, old.path)
        if not is_same or old.query or new.query or new.scheme not in (old.scheme, "https"):
            return None
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and new.netloc != old.netloc:
            request.remove_header("Authorization")
        return request


def target_of(url: Url, authorization: str, timeout: float) -> str | None:
    """Return where the server redirects a URL to, or None.

    None as well if there is no connection, as the next request reports that, or if requests go through a proxy. Raises
    DeviceFailed if there is no usable answer.
    """
    if url.scheme in getproxies() and not proxy_bypass(url.host):
        return None

    def ask(call: Call) -> str | None:
        # The request is the one that obstore would send first, so that a server that redirects by range, header or
        # method shows it now.
        headers = {"Range": RANGE, "Accept": "*/*"}
        try:
            _requested(url, headers, authorization, timeout / SILENCE_PARTS, lambda answer: None)
        except _Unreachable:
            pass
        except HTTPError as error:
            if 300 <= error.code < 400:
                return str(error.headers.get("Location", ""))
        return None

    return result_of(retried(lambda: calls.get().run(ask), timeout, url.shown), timeout, url.shown)


def page_of(url: Url, authorization: str, timeout: float, call: Call) -> tuple[bytes, str]:
    """Return the HTML page that the server sends for a folder, and its URL, after redirects to the same folder.

    Blocks; an abandoned ``call`` ends after the current piece. Raises Refused if there is none, TooLarge, NotFound,
    NotAllowed, DeviceFailed, Retryable.
    """
    def whole(answer: http.client.HTTPResponse) -> tuple[bytes, str]:
        if answer.headers.get_content_type() not in _PAGES:
            raise Refused("the server sends a file and no listing for it", url.shown)
        page = bytearray()
        while not call.is_abandoned and (piece := answer.read1(64 << 10)):
            page += piece
            if len(page) > MOST_BYTES:
                raise TooLarge(f"has a listing of more than {MOST_BYTES >> 20} MiB", url.shown)
        if answer.length:
            raise http.client.IncompleteRead(b"", answer.length)
        return bytes(page), answer.geturl()

    try:
        return _requested(url, {"Accept": "text/html"}, authorization, timeout, whole)
    except HTTPError as error:
        status = error.code
    if status in (404, 410):
        raise NotFound("there is no such object", url.shown)
    if status == 401:
        raise NotAllowed("access denied (HTTP 401): put the credentials into ~/.netrc", url.shown)
    raise Refused(f"the server lists no folders (HTTP {status}); name what is in it by its own URL", url.shown)


def explained(url: Url, error: GlassfsError) -> GlassfsError:
    """Return another error instead if the server of an http URL speaks TLS, or that of an https URL plain HTTP.

    Takes up to two seconds. Nothing of the URL is sent besides the name of the host.
    """
    if error.reason in LASTING:
        return error
    is_http = url.scheme == "http"
    host = url.host if urlsplit(f"//{url.host}").port else f"{url.host}:{80 if is_http else 443}"
    other = Url("https" if is_http else "http", host, (), "", "", url.shown, True)

    def is_answered(call: Call) -> bool:
        try:
            _requested(other, {}, "", settings.server_probe, lambda answer: None)
        except Retryable:
            return False
        except (HTTPError, DeviceFailed):  # also a certificate that is not trusted
            pass
        return True

    try:
        is_meant = result_of(calls.get().run(is_answered), settings.server_probe, url.shown)
    except DeviceFailed:
        is_meant = False
    return DeviceFailed(TLS if is_http else NO_TLS, error.source) if is_meant else error


def _requested(
    url: Url, headers: dict[str, str], authorization: str, timeout: float,
    read: Callable[[http.client.HTTPResponse], Result],
) -> Result:
    """Return what ``read`` makes of the answer. Raises HTTPError, DeviceFailed, and Retryable if it may pass."""
    try:
        path = quote("/".join(url.path), errors="surrogateescape") + ("/" if url.path and url.is_folder else "")
    except UnicodeEncodeError:
        raise NotFound("there is no such object", url.shown) from None
    query = quote(url.query, _PLAIN_IN_QUERY, errors="surrogateescape")
    headers |= {"User-Agent": "glassfs"} | ({"Authorization": authorization} if authorization else {})
    request = Request(f"{url.scheme}://{url.host}/{path}{f'?{query}' if query else ''}", headers=headers)
    try:
        with build_opener(_SamePath).open(request, timeout=timeout) as answer:
            return read(answer)
    except GlassfsError:
        raise
    except HTTPError as error:
        with error:
            if error.code in (408, 425, 429) or error.code >= 500:
                raise Retryable(DeviceFailed(f"the server answers {error.code}")) from None
            raise
    except (OSError, http.client.HTTPException) as error:
        cause = error.reason if isinstance(error, URLError) else error
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise DeviceFailed(UNTRUSTED, url.shown) from None
        if isinstance(cause, TimeoutError):
            raise Retryable(DeviceFailed("it does not answer")) from None
        # Only these say that the request did not reach a server: after any other error it may redirect the next one.
        if isinstance(cause, (ConnectionRefusedError, socket.gaierror, ssl.SSLError)):
            raise _Unreachable(DeviceFailed("it cannot be reached")) from None
        raise Retryable(DeviceFailed("its answer is incomplete or is not HTTP")) from None
