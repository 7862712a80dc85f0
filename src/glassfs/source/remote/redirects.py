"""Refuse URLs with a query that redirect: the next host would learn the query, in which anything may be secret.

obstore follows redirects by itself, and puts the URL with its query into the Referer header. Any thread.
"""

from __future__ import annotations

import http.client
import ssl
from urllib.parse import quote
from urllib.request import getproxies, proxy_bypass

from glassfs.errors import DeviceFailed, Refused
from glassfs.forks import PerProcess
from glassfs.source.remote.retrying import SILENCE_PARTS, BlockingCalls, Call, Retryable, result_of
from glassfs.source.remote.url import Url

MOST_AT_ONCE = 4
RANGE = "bytes=0-262143"
"""The range of the first real request, as a server may redirect by it."""
_RETRYABLE = (408, 425, 429)
_PLAIN_IN_QUERY = "%!$&()*+,/:;=?@[]^`{|}~\\-._"

_calls = PerProcess(lambda: BlockingCalls("redirects", MOST_AT_ONCE))


def demand_no_redirect(url: Url, authorization: str, timeout: float) -> None:
    """Request the URL once and raise Refused if it redirects.

    Does nothing if there is no connection, as the next request reports that, or if requests go through a proxy. Raises
    DeviceFailed if there is no usable answer.
    """
    if url.scheme in getproxies() and not proxy_bypass(url.host):
        return

    def ask(call: Call) -> bool:
        return _redirects(url, authorization, timeout / SILENCE_PARTS)

    if result_of(lambda: _calls.get().run(ask), timeout, url.shown):
        raise Refused(
            "redirects, and the next host would learn its query; name it without the query, or name the final URL",
            url.shown,
        )


def _redirects(url: Url, authorization: str, timeout: float) -> bool:
    """Return whether the server answers with a redirect; False if there is no connection."""
    path = quote("/".join(url.path), errors="surrogateescape") + ("/" if url.path and url.is_folder else "")
    target = f"/{path}?{quote(url.query, _PLAIN_IN_QUERY, errors='surrogateescape')}"
    connect = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = connect(url.host, timeout=timeout)
    try:
        connection.connect()
    except ssl.SSLCertVerificationError:
        raise DeviceFailed("its certificate is not trusted", url.shown) from None
    except TimeoutError:
        raise Retryable(DeviceFailed("it does not answer")) from None
    except OSError:
        return False
    headers = {"Range": RANGE, "User-Agent": "glassfs", "Accept": "*/*", "Connection": "close"}
    if authorization:
        headers["Authorization"] = authorization
    try:
        connection.request("GET", target, headers=headers)
        status = connection.getresponse().status
    except TimeoutError:
        raise Retryable(DeviceFailed("it does not answer")) from None
    except (OSError, http.client.HTTPException):
        raise Retryable(DeviceFailed("its answer is incomplete or is not HTTP")) from None
    finally:
        connection.close()
    if status in _RETRYABLE or status >= 500:
        raise Retryable(DeviceFailed(f"the server answers {status}"))
    return 300 <= status < 400
