"""Files over SFTP, as strict as ssh itself: a host whose key is not in known_hosts is refused.

Keys are those of an agent and of the usual files. Importing this module needs paramiko. One thread at a time. Errors
are those of paramiko, OSError and EOFError.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from stat import S_ISDIR, S_ISREG
from typing import Any
from urllib.parse import urlsplit

import paramiko
from paramiko.sftp import CMD_DATA, CMD_READ, int64

from glassfs.errors import DeviceFailed, NotAllowed, Refused
from glassfs.source.remote.fsspecs import FsspecServer
from glassfs.source.remote.url import Connection, Url

KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts", "~/.ssh/known_hosts", "~/.ssh/known_hosts2"
REQUEST_BYTES = 32768
"""Bytes that every server sends in one answer."""

# Without a handler paramiko prints what it logs, with tracebacks.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class _RefuseUnknownHosts(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        raise NotAllowed("its host key is not in known_hosts: connect with ssh once, which asks")


class SftpSession(paramiko.SFTPClient):  # type: ignore[misc]
    """A connection, with the methods of an fsspec file system that glassfs needs; ``connected`` makes one.

    A listing has a deadline, as a server may send empty parts of it without end.
    """

    deadline = math.inf
    timeout: float
    client: paramiko.SSHClient

    def _read_packet(self) -> Any:
        if time.monotonic() > self.deadline:
            raise DeviceFailed("its listing does not end")
        return super()._read_packet()

    def info(self, key: str) -> dict[str, Any]:
        """Return what is at a path; links are followed."""
        return _info(key, self.stat(key))

    def ls(self, key: str, detail: bool = True) -> Iterator[dict[str, Any]]:
        """Yield what is in a folder; links are not followed.

        Raises UnicodeDecodeError for a name that is not UTF-8, and DeviceFailed after ``timeout`` seconds.
        """
        self.deadline = time.monotonic() + self.timeout
        try:
            for attributes in self.listdir_iter(key):
                yield _info(f"{key.rstrip('/')}/{attributes.filename}", attributes)
        finally:
            self.deadline = math.inf

    def read_range(self, key: str, offset: int, size: int) -> bytes:
        """Return the bytes ``[offset, offset + size)`` of a file, or none if it does not have all of them."""
        # All requests are sent before the first answer is read: a connection carries many at once, and a server answers
        # each with little. paramiko's own files wait for each answer before they send the next request, and its
        # ``readv`` loses answers that come before it has sent all requests.
        lengths = [min(REQUEST_BYTES, size - start) for start in range(0, size, REQUEST_BYTES)]
        self._answers: dict[int, tuple[int, Any]] = {}
        with self.open(key, bufsize=0) as file:
            numbers = [
                self._async_request(self, CMD_READ, file.handle, int64(offset + index * REQUEST_BYTES), length)
                for index, length in enumerate(lengths)
            ]
            while len(self._answers) < len(numbers):
                self._read_response()
        pieces = []
        for number in numbers:
            kind, message = self._answers[number]
            if kind == CMD_DATA:
                pieces.append(message.get_string())
            else:
                with suppress(EOFError):
                    self._convert_status(message)
        # A piece that is too short leaves a gap, which one that is too long must not fill.
        return b"".join(pieces) if list(map(len, pieces)) == lengths else b""

    def _async_response(self, kind: int, message: Any, number: int) -> None:
        """Take an answer to a request of ``read_range``. paramiko calls this."""
        self._answers[number] = (kind, message)


def connected(host: str, timeout: float, **arguments: Any) -> SftpSession:
    """Log in to a host. ``arguments`` are those of ``paramiko.SSHClient.connect``; ``timeout`` is that of each step."""
    client = paramiko.SSHClient()
    for name in KNOWN_HOSTS:
        if os.path.exists(path := os.path.expanduser(name)):
            client.load_system_host_keys(path)
    client.set_missing_host_key_policy(_RefuseUnknownHosts())
    timeouts = dict.fromkeys(("timeout", "banner_timeout", "auth_timeout", "channel_timeout"), timeout)
    try:
        client.connect(host, **timeouts, **arguments)
        session: SftpSession = SftpSession.from_transport(client.get_transport())
    except BaseException as error:
        client.close()
        if isinstance(error, paramiko.BadHostKeyException):
            raise NotAllowed("its host key differs from the one in known_hosts") from None
        if isinstance(error, paramiko.AuthenticationException) or str(error).startswith("No authentication"):
            raise NotAllowed("access denied: the host accepts no key of yours; connect with ssh once") from None
        raise
    session.get_channel().settimeout(timeout)
    session.client, session.timeout = client, timeout  # a client that nothing refers to closes its connection
    return session


class SshServer(FsspecServer):
    """SFTP to known hosts only; a URL may contain a user but no password."""

    def _options_for(self, url: Url, connection: Connection, base: str) -> dict[str, Any]:
        try:
            parts = urlsplit(base)
            options = {"host": parts.hostname, "port": parts.port or 22, "username": url.userinfo or None}
        except ValueError:
            raise Refused("is not a URL") from None
        if not parts.hostname:
            raise Refused("names no host")
        # Options of fsspec's own file system; here unknown hosts are always refused.
        extra = {name: value for name, value in connection.extra.items() if name not in ("host_key_policy", "temppath")}
        return {"timeout": connection.timeout, **options, **extra}

    def connect(self) -> Any:
        return connected(**self._options)

    def disconnect(self, system: Any) -> None:
        system.client.close()

    def drop_caches(self, system: Any) -> None:
        """There are none."""

    def read(self, system: Any, key: str, offset: int, size: int) -> Any:
        return system.read_range(key, offset, size)


def _info(name: str, attributes: Any) -> dict[str, Any]:
    mode = attributes.st_mode
    kind = "file" if mode is None or S_ISREG(mode) else "directory" if S_ISDIR(mode) else "other"
    return {"name": name, "type": kind, "size": attributes.st_size, "mtime": attributes.st_mtime}
