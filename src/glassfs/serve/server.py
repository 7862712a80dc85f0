"""The connections of a server: cheroot, with what untrusted clients demand.

Each request has a thread, of which there are THREADS; connections without a request have none. A request, and each
piece of its answer, has to arrive within PATIENCE seconds, so clients that are slow on purpose hold no thread for long.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import ipaddress
import logging
import re
import socket
import ssl
import sys
import time
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus

from cheroot.server import Gateway, HTTPConnection, HTTPRequest, HTTPServer
from cheroot.ssl.builtin import BuiltinSSLAdapter
from cheroot.workers.threadpool import ThreadPool

from glassfs import __version__, threads
from glassfs.errors import GlassfsError
from glassfs.serve.replies import Reply, Request, message
from glassfs.serve.site import Site, refusal

log = logging.getLogger(__name__)

THREADS = 100
CONNECTIONS = 1000
PATIENCE = 30
MOST_HEADERS, MOST_BODY = 32 << 10, 16 << 10
_COMMON = {
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_LOCAL = ("localhost", "127.0.0.1", "::1")


class Server(HTTPServer):
    """Serves a site. Raises OSError from ``prepare`` if it cannot listen.

    ``password`` is what every client has to send, for any user name; ``tls`` are the paths of a certificate and its
    key, which may raise OSError.
    """

    def __init__(
        self, site: Site, host: str, port: int, password: bytes = b"", tls: tuple[str, str] | None = None,
    ) -> None:
        super().__init__((host, port), _Gateway, server_name=f"glassfs/{__version__}")
        self.requests = ThreadPool(self, min=THREADS, accepted_queue_size=CONNECTIONS, accepted_queue_timeout=0)
        self.site = site
        self.password = hashlib.sha256(password).digest() if password else b""
        self.host = host
        self.ConnectionClass = _Connection
        self.ssl_adapter = _Adapter(*tls) if tls else None
        self.timeout = PATIENCE
        self.keep_alive_conn_limit = self.request_queue_size = CONNECTIONS
        self.max_request_header_size, self.max_request_body_size = MOST_HEADERS, MOST_BODY
        self.shutdown_timeout = 0
        self.busy: set[_Connection] = set()

    def serve(self) -> None:
        threads.start("deadlines", self._end_slow_ones)
        super().serve()

    def process_conn(self, conn: _Connection) -> None:
        # A new connection gets a thread when it has sent something, as one that rests does.
        if conn.is_new:
            conn.is_new = False
            self.put_conn(conn)
        else:
            super().process_conn(conn)

    def _end_slow_ones(self) -> None:
        while self.ready:
            time.sleep(1)
            now = time.monotonic()
            for connection in list(self.busy):
                if connection.deadline < now:
                    with suppress(OSError):
                        # Not as SSLSocket does: it stops encrypting first, while the other thread may still send.
                        socket.socket.shutdown(connection.socket, socket.SHUT_RDWR)

    def error_log(self, msg: str = "", level: int = logging.INFO, traceback: bool = False) -> None:
        is_ours = traceback and not isinstance(sys.exc_info()[1], OSError)  # others are about the client
        log.log(logging.ERROR if is_ours else logging.DEBUG, "%s", msg, exc_info=is_ours)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches the address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Adapter(BuiltinSSLAdapter):
    """Leaves the handshake to the thread of the connection: in that which accepts, a silent client would stop all."""

    def wrap(self, sock: socket.socket) -> tuple[ssl.SSLSocket, dict[str, str]]:
        return self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False), {}


class _Request(HTTPRequest):
    def parse_request(self) -> None:
        try:
            super().parse_request()
        # Of urllib about addresses, and of cheroot about a first header that is indented.
        except (ValueError, UnboundLocalError):
            self.simple_response("400 Bad Request", "the request is malformed\n")


class _Connection(HTTPConnection):
    RequestHandlerClass = _Request
    deadline = 0.0
    is_new = True

    def communicate(self) -> bool:
        self.deadline = time.monotonic() + PATIENCE
        self.server.busy.add(self)
        try:
            if isinstance(self.socket, ssl.SSLSocket) and self.socket.version() is None:
                self.socket.do_handshake()
            communicate: Callable[[], bool] = super().communicate
            return communicate()
        except OSError:  # of the handshake
            return False
        finally:
            self.server.busy.discard(self)


class _Gateway(Gateway):
    """Passes one request to the site, and sends the answer."""

    def respond(self) -> None:
        req, server = self.req, self.req.server
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in req.inheaders.items()}
        size = int(headers.get("content-length", 0))
        if req.chunked_read or size < 0:
            req.close_connection = True
            self._send(message(HTTPStatus.LENGTH_REQUIRED, "requests have a length here"))
            return
        reply = self._refused(headers)
        if reply is None:
            body = req.rfile.read(size) if size else b""
            reply = server.site.reply(Request(
                req.method.decode("latin-1"), req.path, req.qs.decode("latin-1"), headers, body,
            ))
        try:
            self._send(reply)
        except GlassfsError as error:
            refusal(error)  # logs it; the client sees that the answer ends early
            raise BrokenPipeError(errno.EPIPE, "ends early") from None
        finally:
            if reply.stream is not None:
                reply.stream.close()

    def _refused(self, headers: dict[str, str]) -> Reply | None:
        """Return the answer for a client that sent no password, or that may be misled by names of other servers."""
        server = self.req.server
        if server.password:
            kind, _, sent = headers.get("authorization", "").partition(" ")
            given = b""
            with suppress(ValueError):
                given = b64decode(sent).partition(b":")[2]
            if kind.lower() == "basic" and hmac.compare_digest(hashlib.sha256(given).digest(), server.password):
                return None
            challenge = {"WWW-Authenticate": 'Basic realm="glassfs", charset="UTF-8"'}
            return message(HTTPStatus.UNAUTHORIZED, "a password is needed", challenge)
        # A page of another site could let its own name lead to this machine, and read what is served.
        name = re.sub(r":\d*$", "", headers.get("host", "localhost")).strip("[]").lower()
        if is_loopback(server.host) and name not in (*_LOCAL, server.host):
            return message(HTTPStatus.FORBIDDEN, "this server is called localhost")
        return None

    def _send(self, reply: Reply) -> None:
        req = self.req
        lengths = {} if reply.length is None else {"Content-Length": str(reply.length)}
        req.status = f"{reply.status.value} {reply.status.phrase}".encode()
        headers = _COMMON | reply.headers | lengths
        req.outheaders += [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        req.ensure_headers_sent()
        if req.method == b"HEAD":
            return
        for piece in reply.body:
            req.conn.deadline = time.monotonic() + PATIENCE
            if req.chunked_write:
                req.write(piece)
            else:
                req.conn.socket.sendall(piece)
