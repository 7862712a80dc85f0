"""Whether a URL that has something secret in its query leads to another host, which would be told of it.

What follows redirects for us says, in the Referer of the request to the other host, where it comes from: with the
query. So whoever has a signed URL that leads elsewhere is told so, before anybody else is. Any thread.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from urllib.parse import parse_qsl, quote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from glassfs.errors import Refused
from glassfs.source.remote import runner
from glassfs.source.remote.url import Url

_SECRET = re.compile(r"sig|signature|token|secret|key|password|passwd|auth|credential|jwt|session", re.IGNORECASE)
_STATUS = re.compile(rb"HTTP/1\.[01] 30[12378][ \r]")
_LOCATION = re.compile(rb"\r\nlocation:[ \t]*([^\r\n]*)", re.IGNORECASE)
LONGEST_HEAD = 64 << 10


def has_secret(query: str) -> bool:
    """Whether a query has a parameter that is called as secrets are."""
    return any(_SECRET.search(name) for name, _ in parse_qsl(query, keep_blank_values=True))


def demand_same_host(url: Url, timeout: float) -> None:
    """Asks for a byte of what is at the URL, and raises Refused if that is at another host.

    Whatever else is wrong, whoever asks next is told. Behind a proxy nobody is asked.
    """
    if url.scheme in getproxies() and not proxy_bypass(url.host):
        return
    path = quote("/".join(url.path), errors="surrogateescape")
    name = f"{url.scheme}://{url.host}/{path}?{url.query}"
    future = runner.start(asyncio.wait_for(_leads_to(name), timeout))
    try:
        elsewhere = future.result(timeout + 1)
    except Exception:
        future.cancel()
        return
    if elsewhere and _host(elsewhere) != _host(name):
        raise Refused("leads to another host, which would be told what is secret in the URL", url.shown)


async def _leads_to(name: str) -> str:
    """The URL that a server answers in the place of an object, or nothing."""
    split = urlsplit(name)
    target = f"{split.path or '/'}?{split.query}"
    if not target.isascii() or not target.isprintable() or " " in target:
        return ""
    secure = ssl.create_default_context() if split.scheme == "https" else None
    port = split.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(split.hostname, port, ssl=secure, limit=LONGEST_HEAD)
    try:
        writer.write(
            f"GET {target} HTTP/1.1\r\nHost: {split.netloc}\r\nRange: bytes=0-0\r\nUser-Agent: glassfs\r\n"
            "Accept: */*\r\nConnection: close\r\n\r\n".encode("ascii"),
        )
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.transport.abort()
    found = _LOCATION.search(head) if _STATUS.match(head) else None
    return urljoin(name, found[1].decode("latin-1").strip()) if found else ""


def _host(name: str) -> tuple[str, int | None]:
    split = urlsplit(name)
    return split.hostname or "", split.port or {"http": 80, "https": 443}.get(split.scheme)
