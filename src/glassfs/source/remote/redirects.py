"""Whether a URL that has a query leads to another host, which would be told of it.

What follows redirects for us says, in the Referer of the request to the other host, where it comes from: with the
query, in which anything may be secret. So whoever has such a URL is told so, before anybody else is. Any thread.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from concurrent.futures import TimeoutError as FutureTimeout
from typing import NamedTuple
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from glassfs.errors import DeviceFailed, Refused
from glassfs.names import raw
from glassfs.source.remote import runner
from glassfs.source.remote.url import Url

TRIES = 3
PAUSE = 0.1
LEEWAY = 1.0
MOST_HOPS = 10
"""After these obstore gives up, too."""
LONGEST_HEAD = 64 << 10
RANGE = "bytes=0-262143"
"""What is asked for first: some servers redirect by it."""
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})[ \r]")
_LEADS = (301, 302, 303, 307, 308)
_PASSING = (408, 425, 429)
_LOCATION = re.compile(rb"\r\nlocation:[ \t]*([^\r\n]*)", re.IGNORECASE)
_WHOLE = re.compile(r"(?:https?:)?//(?:[a-z0-9._~-]+|\[[0-9a-f:.]+\])(?::\d+)?(?:[/?#]|$)", re.IGNORECASE)
_ODD = re.compile(r"//|[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_QUERY = "%!$&()*+,/:;=?@[]^`{|}~\\-._"
"""What may stand in a query as it is."""


class _Unclear(Exception):
    """It was not to be found out. The reason is a sentence."""


class _Place(NamedTuple):
    scheme: str
    host: str
    port: int


def demand_same_host(url: Url, authorization: str, timeout: float) -> None:
    """Asks for what is at the URL, and raises Refused if another host has that, or would be told of the query.

    If the server cannot be reached, whoever asks next is told. Anything else that keeps it from being known is
    DeviceFailed, as the next request might be answered otherwise. Behind a proxy nobody is asked.
    """
    if url.scheme in getproxies() and not proxy_bypass(url.host):
        return
    path = quote("/".join(url.path), errors="surrogateescape") + ("/" if url.path and url.is_folder else "")
    name = f"{url.scheme}://{url.host}/{path}?{quote(url.query, _QUERY, errors='surrogateescape')}"
    future = runner.start(asyncio.wait_for(_tried(name, authorization, timeout / TRIES), timeout))
    try:
        leads_elsewhere = future.result(timeout + LEEWAY)
    except (TimeoutError, FutureTimeout, asyncio.TimeoutError):
        future.cancel()
        raise DeviceFailed("it does not answer", url.shown) from None
    except OSError as error:
        if isinstance(error, ssl.SSLCertVerificationError):
            raise DeviceFailed("its certificate is not trusted", url.shown) from None
        return
    except _Unclear as error:
        raise DeviceFailed(str(error), url.shown) from None
    except Exception:
        raise DeviceFailed("it is not to be found out whether it leads to another host", url.shown) from None
    if leads_elsewhere:
        raise Refused("leads to another host, which would be told what is in its query", url.shown)


async def _tried(name: str, authorization: str, timeout: float) -> bool:
    for left in reversed(range(TRIES)):
        try:
            return await asyncio.wait_for(_leads_elsewhere(name, authorization), timeout)
        except (TimeoutError, asyncio.TimeoutError):
            error = _Unclear("it does not answer")
        except _Unclear as raised:
            error = raised
        if left == 0:
            raise error
        await asyncio.sleep(PAUSE)
    raise AssertionError


async def _leads_elsewhere(name: str, authorization: str) -> bool:
    """Whether some redirect on the way from a URL tells another host of a query."""
    first = _place(name)
    for _ in range(MOST_HOPS):
        here = _place(name)
        location = await _location(name, authorization if here == first else "")
        if not location:
            return False
        if not _is_understood(location):
            return True
        following = urljoin(name, location)
        there = _place(following)
        is_upgrade = there.host == here.host and (here.scheme, there.scheme) == ("http", "https")
        if there != here and not is_upgrade:
            # From https to http no request follows.
            return bool(urlsplit(name).query) and (here.scheme, there.scheme) != ("https", "http")
        name = following
    return False


async def _location(name: str, authorization: str) -> str:
    """What a server names in the place of an object, or nothing. Raises OSError if there is no connection."""
    split = urlsplit(name)
    target = f"{split.path or '/'}{f'?{split.query}' if split.query else ''}"
    lines = [
        f"GET {target} HTTP/1.1", f"Host: {split.netloc}", f"Range: {RANGE}", "User-Agent: glassfs", "Accept: */*",
        "Connection: close", *([f"Authorization: {authorization}"] if authorization else ()),
    ]
    secure = ssl.create_default_context() if split.scheme == "https" else None
    reader, writer = await asyncio.open_connection(split.hostname, _place(name).port, ssl=secure, limit=LONGEST_HEAD)
    try:
        writer.write(raw("".join(f"{line}\r\n" for line in (*lines, ""))))
        await writer.drain()
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            found = _STATUS.match(head)
            if found is None:
                raise _Unclear("it answers with what is not HTTP")
            status = int(found[1])
            if status >= 200:
                break
    except (OSError, EOFError, asyncio.LimitOverrunError):
        raise _Unclear("the connection ended in the middle") from None
    finally:
        writer.transport.abort()
    if status in _PASSING or status >= 500:
        raise _Unclear(f"the server answers {status}")
    location = _LOCATION.search(head) if status in _LEADS else None
    return location[1].decode("latin-1").strip() if location else ""


def _place(name: str) -> _Place:
    split = urlsplit(name)
    port = split.port if split.port is not None else {"http": 80, "https": 443}.get(split.scheme, 0)
    return _Place(split.scheme, split.hostname or "", port)


def _is_understood(location: str) -> bool:
    """Whether all take it for the same host: not all read a URL that is none in the same way."""
    if not location.isascii() or not location.isprintable() or " " in location or "\\" in location:
        return False
    return _WHOLE.match(location) is not None or _ODD.match(location) is None
