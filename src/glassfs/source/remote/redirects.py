"""Refuse URLs with a query that redirect: the next host would learn the query, in which anything may be secret.

obstore follows redirects by itself, and puts the URL with its query into the Referer header. Any thread.
"""

from __future__ import annotations

import http.client
import ssl
import time
from concurrent.futures import TimeoutError as FutureTimeout
from urllib.parse import quote
from urllib.request import getproxies, proxy_bypass

from glassfs.errors import DeviceFailed, Refused
from glassfs.source.remote.url import Url
from glassfs.threads import DaemonPool

ATTEMPTS = 3
PAUSE_SECONDS = 0.1
RANGE = "bytes=0-262143"
"""The range of the first real request, as a server may redirect by it."""
_RETRYABLE = (408, 425, 429)
_PLAIN_IN_QUERY = "%!$&()*+,/:;=?@[]^`{|}~\\-._"

_pool = DaemonPool("redirects")


class _Unclear(Exception):
    """There is no usable answer; the message says why."""


def demand_no_redirect(url: Url, authorization: str, timeout: float) -> None:
    """Request the URL once and raise Refused if it redirects.

    Does nothing if there is no connection, as the next request reports that, or if requests go through a proxy. Raises
    DeviceFailed if there is no usable answer.
    """
    if url.scheme in getproxies() and not proxy_bypass(url.host):
        return
    future = _pool.submit(lambda: _redirects_retried(url, authorization, timeout / ATTEMPTS))
    try:
        redirects = future.result(timeout)
    except ssl.SSLCertVerificationError:
        raise DeviceFailed("its certificate is not trusted", url.shown) from None
    except (TimeoutError, FutureTimeout):
        _pool.abandon(future)
        raise DeviceFailed(f"no answer within {timeout:g} seconds", url.shown) from None
    except OSError:
        return
    except _Unclear as error:
        raise DeviceFailed(str(error), url.shown) from None
    if redirects:
        raise Refused(
            "redirects, and the next host would learn its query; name it without the query, or name the final URL",
            url.shown,
        )


def _redirects_retried(url: Url, authorization: str, timeout: float) -> bool:
    for left in reversed(range(ATTEMPTS)):
        try:
            return _redirects(url, authorization, timeout)
        except _Unclear:
            if not left:
                raise
        time.sleep(PAUSE_SECONDS)
    raise AssertionError("the last attempt returns or raises")


def _redirects(url: Url, authorization: str, timeout: float) -> bool:
    """Return whether the server answers with a redirect. Raises OSError if there is no connection."""
    path = quote("/".join(url.path), errors="surrogateescape") + ("/" if url.path and url.is_folder else "")
    target = f"/{path}?{quote(url.query, _PLAIN_IN_QUERY, errors='surrogateescape')}"
    connect = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = connect(url.host, timeout=timeout)
    connection.connect()
    headers = {"Range": RANGE, "User-Agent": "glassfs", "Accept": "*/*", "Connection": "close"}
    if authorization:
        headers["Authorization"] = authorization
    try:
        connection.request("GET", target, headers=headers)
        status = connection.getresponse().status
    except TimeoutError:
        raise _Unclear("it does not answer") from None
    except (OSError, http.client.HTTPException):
        raise _Unclear("its answer is incomplete or is not HTTP") from None
    finally:
        connection.close()
    if status in _RETRYABLE or status >= 500:
        raise _Unclear(f"the server answers {status}")
    return 300 <= status < 400
