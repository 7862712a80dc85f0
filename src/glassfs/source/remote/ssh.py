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
from stat import S_ISDIR, S_ISREG
from typing import Any

import paramiko
from paramiko.sftp import CMD_DATA, CMD_READ, CMD_STATUS, int64

from glassfs.errors import DeviceFailed, NotAllowed

SYSTEM_HOSTS = "/etc/ssh/ssh_known_hosts"
REQUEST_BYTES = 32768
"""Bytes that every server sends in one answer."""

# Without a handler paramiko prints what it logs, with tracebacks.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class _RefuseUnknownHosts(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        raise NotAllowed("its host key is not in known_hosts: connect with ssh once, which asks")


class _Files(paramiko.SFTPClient):  # type: ignore[misc]
    """An SFTP client with a deadline for listings, as a server may send empty parts of a listing without end."""

    deadline = math.inf

    def _read_packet(self) -> Any:
        if time.monotonic() > self.deadline:
            raise DeviceFailed("its listing does not end")
        return super()._read_packet()


class SftpSession:
    """A connection, with the methods of an fsspec file system that glassfs needs.

    ``host`` may be a name in ``~/.ssh/config``. ``arguments`` are those of ``paramiko.SSHClient.connect`` and take
    precedence over that file. ``timeout`` is that of each step, in seconds.
    """

    def __init__(self, host: str, timeout: float, **arguments: Any) -> None:
        self._client = paramiko.SSHClient()
        self._timeout = timeout
        try:
            self._log_in(host, timeout, arguments)
        except BaseException:
            self._client.close()
            raise

    def _log_in(self, host: str, timeout: float, arguments: Mapping[str, Any]) -> None:
        settings = _settings(host)
        own_hosts = settings.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2").split()
        for name in (SYSTEM_HOSTS, *map(os.path.expanduser, own_hosts)):
            if os.path.exists(name):
                self._client.load_system_host_keys(name)
        self._client.set_missing_host_key_policy(_RefuseUnknownHosts())
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
            self._client.connect(host, **options)
        except paramiko.BadHostKeyException:
            raise NotAllowed("its host key differs from the one in known_hosts") from None
        except paramiko.SSHException as error:
            if isinstance(error, paramiko.AuthenticationException) or str(error).startswith("No authentication"):
                raise NotAllowed("access denied: the host accepts no key of yours; connect with ssh once") from None
            raise
        self._files = _Files.from_transport(self._client.get_transport())
        self._files.get_channel().settimeout(timeout)

    def close(self) -> None:
        self._client.close()

    def info(self, key: str) -> dict[str, Any]:
        """Return what is at a path; links are followed."""
        return _info(key, self._files.stat(key))

    def ls(self, key: str, detail: bool = True) -> Iterator[dict[str, Any]]:
        """Yield what is in a folder; links are not followed.

        Raises UnicodeDecodeError for a name that is not UTF-8, and DeviceFailed after ``timeout`` seconds.
        """
        self._files.deadline = time.monotonic() + self._timeout
        try:
            for attributes in self._files.listdir_iter(key):
                yield _info(f"{key.rstrip('/')}/{attributes.filename}", attributes)
        finally:
            self._files.deadline = math.inf

    def open(self, key: str, mode: str = "rb", **options: Any) -> SftpFile:
        return SftpFile(self._files, self._files.open(key, mode, bufsize=0))

    def invalidate_cache(self) -> None:
        """There is none."""


class SftpFile:
    """An open file. paramiko's own files wait for each answer before they send the next request; their ``readv`` does
    not, but loses answers that come before it has sent all requests."""

    def __init__(self, files: Any, file: Any) -> None:
        self._files = files
        self._file = file
        self._position = 0
        self._received: dict[int, tuple[int, Any]] = {}
        """Answers to the requests of the current read, by their numbers."""

    def seek(self, offset: int) -> None:
        self._position = offset

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes: all that the server sends before the first gap."""
        offset, end = self._position, self._position + size
        parts = [(start, min(REQUEST_BYTES, end - start)) for start in range(offset, end, REQUEST_BYTES)]
        # All requests are sent before the first answer is read: a connection carries many at once, and a server answers
        # each with little. paramiko hands the answers to ``_async_response``, in whatever order they come.
        self._received = {}
        numbers = [
            self._files._async_request(self, CMD_READ, self._file.handle, int64(start), length)
            for start, length in parts
        ]
        while len(self._received) < len(numbers):
            self._files._read_response()
        pieces: list[bytes] = []
        for number, (_, length) in zip(numbers, parts, strict=True):
            kind, message = self._received[number]
            try:
                if kind == CMD_STATUS:
                    self._files._convert_status(message)
            except EOFError:
                break
            if kind != CMD_DATA:
                raise DeviceFailed("the server violates the SFTP protocol")
            pieces.append(message.get_string())
            if len(pieces[-1]) != length:
                break
        return b"".join(pieces)

    def close(self) -> None:
        self._file.close()

    def _async_response(self, kind: int, message: Any, number: int) -> None:
        """Take an answer. paramiko calls this."""
        self._received[number] = (kind, message)


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
