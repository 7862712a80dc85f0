"""Find out whether a web server that cannot be used speaks TLS where its URL says http, or none where it says https.

The answers of many servers do not say so. Any thread.
"""

from __future__ import annotations

import socket
import ssl
from urllib.parse import urlsplit

from glassfs.errors import DeviceFailed
from glassfs.forks import PerProcess
from glassfs.source.remote.objects import LASTING, NO_TLS, TLS
from glassfs.source.remote.retrying import BlockingCalls, Call, result_of
from glassfs.source.remote.url import Url

SECONDS = 2.0
MOST_AT_ONCE = 4
_PORTS = {"http": 80, "https": 443}

_calls = PerProcess(lambda: BlockingCalls("schemes", MOST_AT_ONCE))


def explained(url: Url, error: DeviceFailed) -> DeviceFailed:
    """Return another error instead if the server of an http URL speaks TLS, or that of an https URL plain HTTP.

    Takes up to SECONDS. Nothing of the URL is sent besides the name of the host.
    """
    if error.reason in LASTING:
        return error

    async def ask() -> bool:
        return await _calls.get().run(lambda call: _is_meant(url, call))

    try:
        is_meant = result_of(ask, SECONDS, url.shown)
    except DeviceFailed:
        is_meant = False
    return DeviceFailed(TLS if url.scheme == "http" else NO_TLS, error.source) if is_meant else error


def _is_meant(url: Url, call: Call) -> bool:
    try:
        address = urlsplit(f"{url.scheme}://{url.host}")
        host, port = address.hostname or "", address.port or _PORTS[url.scheme]
        with socket.create_connection((host, port), SECONDS) as connection:
            if url.scheme == "http":
                context = ssl.create_default_context()
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
                with context.wrap_socket(connection, server_hostname=host):
                    return True
            connection.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
            return connection.recv(5) == b"HTTP/"
    except (OSError, ValueError):
        return False
