"""Files over SFTP, as strict as ssh itself: a host whose key is not in known_hosts is refused.

User, host name, port, keys and proxy command follow from ``~/.ssh/config``, an agent and the usual key files. Importing
this module needs paramiko. One thread at a time. Errors are those of paramiko, OSError and EOFError.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from stat import S_ISDIR, S_ISREG
from typing import Any

import paramiko
from paramiko.sftp import CMD_DATA, CMD_READ, int64

from glassfs.errors import DeviceFailed, NotAllowed

SYSTEM_HOSTS = "/etc/ssh/ssh_known_hosts"
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
    """Log in to a host, whose name may be one in ``~/.ssh/config``.

    ``arguments`` are those of ``paramiko.SSHClient.connect`` and take precedence over that file. ``timeout`` is that of
    each step, in seconds.
    """
    settings = _settings(host)
    client = paramiko.SSHClient()
    own_hosts = settings.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2").split()
    for name in (SYSTEM_HOSTS, *map(os.path.expanduser, own_hosts)):
        if os.path.exists(name):
            client.load_system_host_keys(name)
    client.set_missing_host_key_policy(_RefuseUnknownHosts())
    host = settings.get("hostname", host)
    options: dict[str, Any] = {
        "port": int(settings.get("port", paramiko.config.SSH_PORT)),
        "username": settings.get("user"),
        "key_filename": settings.get("identityfile"),
        **dict.fromkeys(("timeout", "banner_timeout", "auth_timeout", "channel_timeout"), timeout),
    }
    if settings.get("identitiesonly") == "yes":
        options |= {"look_for_keys": False, "allow_agent": False}
    options |= arguments
    if command := _proxy_command(settings, host, options["port"]):
        options["sock"] = paramiko.ProxyCommand(command)
    try:
        client.connect(host, **options)
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


def _info(name: str, attributes: Any) -> dict[str, Any]:
    mode = attributes.st_mode
    kind = "file" if mode is None or S_ISREG(mode) else "directory" if S_ISDIR(mode) else "other"
    return {"name": name, "type": kind, "size": attributes.st_size, "mtime": attributes.st_mtime}


def _settings(host: str) -> Mapping[str, Any]:
    """Return what the user's configuration says of a host."""
    name = os.path.expanduser("~/.ssh/config")
    if not os.path.exists(name):
        return {}
    found: Mapping[str, Any] = paramiko.SSHConfig.from_path(name).lookup(host)
    return found


def _proxy_command(settings: Mapping[str, Any], host: str, port: int) -> str:
    """Return the command through which the host is reached, or ""."""
    jump = settings.get("proxyjump", "none")
    if jump != "none":
        return f"ssh -W [{host}]:{port} {jump}"
    command: str = settings.get("proxycommand", "none")
    return "" if command == "none" else command
