"""Requests through the standard library that find out what obstore does not say of a web server. Any thread.

obstore follows redirects by itself, and puts the URL with its query into the Referer header: the next host would learn
the query, in which anything may be secret. And the answers of many servers do not say that they speak TLS where the URL
says http, or none where it says https.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from glassfs.errors import DeviceFailed, Refused
from glassfs.forks import PerProcess
from glassfs.settings import settings
from glassfs.source.remote.objects import LASTING, NO_TLS, TLS, UNTRUSTED
from glassfs.source.remote.retrying import SILENCE_PARTS, BlockingCalls, Call, Result, Retryable, result_of, retried
from glassfs.source.remote.url import Url

RANGE = "bytes=0-262143"
"""The range of the first real request, as a server may redirect by it."""
_PLAIN_IN_QUERY = "%!$&()*+,/:;=?@[]^`{|}~\\-._"
_PORTS = {"http": 80, "https": 443}

_calls = PerProcess(lambda: BlockingCalls("probes", 4))


def demand_no_redirect(url: Url, authorization: str, timeout: float) -> None:
    """Request the URL once and raise Refused if it redirects.

    Does nothing if there is no connection, as the next request reports that, or if requests go through a proxy. Raises
    DeviceFailed if there is no usable answer.
    """
    if _target(url, authorization, timeout) is not None:
        raise Refused(
            "redirects, and the next host would learn its query; name it without the query, or name the final URL",
            url.shown,
        )


def is_redirected_to_folder(url: Url, authorization: str, timeout: float) -> bool:
    """Return whether the server redirects a URL to the same one with a slash, as it does for folders.

    False if there is no connection, or if requests go through a proxy. Raises DeviceFailed without a usable answer.
    """
    target = _target(url, authorization, timeout)
    if target is None:
        return False
    path = f"/{'/'.join(url.path)}"
    try:
        return unquote(urlsplit(urljoin(path, target)).path, errors="surrogateescape") == f"{path}/"
    except ValueError:
        return False


def is_transient(status: int) -> bool:
    """Return whether a request that was answered with this HTTP status may succeed later."""
    return status in (408, 425, 429) or status >= 500


def explained(url: Url, error: DeviceFailed) -> DeviceFailed:
    """Return another error instead if the server of an http URL speaks TLS, or that of an https URL plain HTTP.

    Takes up to two seconds. Nothing of the URL is sent besides the name of the host.
    """
    if error.reason in LASTING:
        return error
    try:
        is_meant = _result_of(lambda call: _is_meant(url), settings.server_probe, url.shown)
    except DeviceFailed:
        is_meant = False
    return DeviceFailed(TLS if url.scheme == "http" else NO_TLS, error.source) if is_meant else error


def _is_meant(url: Url) -> bool:
    """Return whether the server answers to the other scheme."""
    try:
        address = urlsplit(f"//{url.host}")
        host, port = address.hostname or "", address.port or _PORTS[url.scheme]
        if url.scheme == "http":
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            http.client.HTTPSConnection(host, port, timeout=settings.server_probe, context=context).connect()
        else:
            connection = http.client.HTTPConnection(host, port, timeout=settings.server_probe)
            connection.request("HEAD", "/")
            connection.getresponse()
    except (OSError, ValueError, http.client.HTTPException):
        return False
    return True


def _target(url: Url, authorization: str, timeout: float) -> str | None:
    """Return where a URL redirects to, or None."""
    if url.scheme in getproxies() and not proxy_bypass(url.host):
        return None

    def ask(call: Call) -> str | None:
        return _asked_target(url, authorization, timeout / SILENCE_PARTS)

    return _result_of(ask, timeout, url.shown)


def _result_of(ask: Callable[[Call], Result], timeout: float, shown: str) -> Result:
    return result_of(retried(lambda: _calls.get().run(ask), timeout, shown), timeout, shown)


def _asked_target(url: Url, authorization: str, timeout: float) -> str | None:
    path = quote("/".join(url.path), errors="surrogateescape") + ("/" if url.path and url.is_folder else "")
    query = quote(url.query, _PLAIN_IN_QUERY, errors="surrogateescape")
    target = f"/{path}?{query}" if query else f"/{path}"
    connect = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = connect(url.host, timeout=timeout)
    try:
        connection.connect()
    except ssl.SSLCertVerificationError:
        raise DeviceFailed(UNTRUSTED, url.shown) from None
    except TimeoutError:
        raise Retryable(DeviceFailed("it does not answer")) from None
    except OSError:
        return None
    headers = {"Range": RANGE, "User-Agent": "glassfs", "Accept": "*/*", "Connection": "close"}
    if authorization:
        headers["Authorization"] = authorization
    try:
        connection.request("GET", target, headers=headers)
        answer = connection.getresponse()
    except TimeoutError:
        raise Retryable(DeviceFailed("it does not answer")) from None
    except (OSError, http.client.HTTPException):
        raise Retryable(DeviceFailed("its answer is incomplete or is not HTTP")) from None
    finally:
        connection.close()
    if is_transient(answer.status):
        raise Retryable(DeviceFailed(f"the server answers {answer.status}"))
    return answer.headers.get("Location", "") if 300 <= answer.status < 400 else None
