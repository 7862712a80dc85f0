"""Files over SSH, as strict as ssh itself: a server whose host key is not known is not spoken to.

Who the user is, under which name and port the host is reached, with which keys, and through which command follows from
``~/.ssh/config``, an agent and the usual key files. What goes over the connection is asked for in paramiko's own
messages: its files wait for each answer before they ask again, and its listings fail at a name that is not UTF-8.

Needs paramiko, so it is imported when it is needed. A ``Session`` is used by one thread at a time, as paramiko's client
takes answers for others for its own. Errors are those of paramiko, OSError and EOFError.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from stat import S_ISDIR, S_ISREG
from typing import Any

import paramiko
from paramiko.sftp import (
    CMD_ATTRS,
    CMD_CLOSE,
    CMD_DATA,
    CMD_FSTAT,
    CMD_HANDLE,
    CMD_NAME,
    CMD_OPENDIR,
    CMD_READ,
    CMD_READDIR,
    CMD_STATUS,
    int64,
)

from glassfs.errors import DeviceFailed, NotAllowed
from glassfs.names import raw, text

SYSTEM_HOSTS = "/etc/ssh/ssh_known_hosts"
REQUEST = 32768
"""What every server gives in one answer."""
AHEAD = 16
"""Parts of a listing that are asked for at once."""
_SMALLEST_NAME = 12
"""Bytes that a name in a listing takes at least: two lengths and flags."""

# It would print what it logs, with tracebacks, for whoever has set up no logging.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class _Stranger(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        raise NotAllowed("may not be read: its host key is not in known_hosts; connect with ssh once, which asks")


class Session:
    """A connection. ``host`` may be one that ``~/.ssh/config`` has a name for; ``arguments`` go before what is there.

    They are those of ``paramiko.SSHClient.connect``. ``timeout`` is that of each step, in seconds.
    """

    def __init__(self, host: str, timeout: float, **arguments: Any) -> None:
        self._client = paramiko.SSHClient()
        try:
            self._log_in(host, timeout, arguments)
        except BaseException:
            self._client.close()
            raise

    def _log_in(self, host: str, timeout: float, arguments: Mapping[str, Any]) -> None:
        settings = _settings(host)
        for name in (SYSTEM_HOSTS, *_known_hosts(settings)):
            if os.path.exists(name):
                self._client.load_system_host_keys(name)
        self._client.set_missing_host_key_policy(_Stranger())
        host = settings.get("hostname", host)
        wanted: dict[str, Any] = {
            "port": int(settings.get("port", paramiko.config.SSH_PORT)),
            "username": settings.get("user"),
            "key_filename": settings.get("identityfile"),
            **dict.fromkeys(("timeout", "banner_timeout", "auth_timeout", "channel_timeout"), timeout),
        }
        if settings.get("identitiesonly") == "yes":
            wanted |= {"look_for_keys": False, "allow_agent": False}
        wanted |= arguments
        if command := _command(settings, host, wanted["port"]):
            wanted["sock"] = paramiko.ProxyCommand(command)
        try:
            self._client.connect(host, **wanted)
        except paramiko.BadHostKeyException:
            raise NotAllowed("may not be read: its host key is another one than that in known_hosts") from None
        self._files = self._client.open_sftp()
        self._files.get_channel().settimeout(timeout)

    def close(self) -> None:
        self._client.close()

    def info(self, key: str) -> dict[str, Any]:
        """What is at a path; of a link, what is at its end."""
        return _told(key, self._files.stat(raw(key)))

    def listed(self, key: str) -> Iterator[dict[str, Any]]:
        """What is in a folder, links as links."""
        kind, message = self._files._request(CMD_OPENDIR, raw(key))
        self.check(kind, message, CMD_HANDLE)
        handle = message.get_string()
        try:
            while True:
                for kind, message in self.ask((CMD_READDIR, handle) for _ in range(AHEAD)):
                    self.check(kind, message, CMD_NAME)
                    yield from _names(key, message)
        except EOFError:
            self._files._request(CMD_CLOSE, handle)

    def open(self, key: str) -> Opened:
        return Opened(self, self._files.open(raw(key), "rb", bufsize=0))

    def check(self, kind: int, message: Any, meant: int) -> None:
        """Raises what an answer of another kind says: EOFError where something ends."""
        if kind == CMD_STATUS:
            self._files._convert_status(message)
        if kind != meant:
            raise DeviceFailed("does not answer as it should")

    def ask(self, questions: Iterable[tuple[Any, ...]]) -> list[tuple[int, Any]]:
        """The answers to questions that are all sent at once, as each takes its time to get there."""
        answers = _Answers()
        numbers = [self._files._async_request(answers, *question) for question in questions]
        while len(answers.got) < len(numbers):
            self._files._read_response()
        return [answers.got[number] for number in numbers]


class _Answers:
    """Where paramiko leaves answers."""

    def __init__(self) -> None:
        self.got: dict[int, tuple[int, Any]] = {}

    def _async_response(self, kind: int, message: Any, number: int) -> None:
        self.got[number] = (kind, message)


class Opened:
    """An open file. It goes on giving its bytes when another file takes its name."""

    def __init__(self, session: Session, file: Any) -> None:
        self._session = session
        self._file = file
        self._told: dict[str, Any] | None = None

    def read(self, offset: int, size: int) -> bytes:
        """Up to so many bytes: as many as there are without a gap."""
        handle = self._file.handle
        parts = [(start, min(REQUEST, offset + size - start)) for start in range(offset, offset + size, REQUEST)]
        # What is asked about one file is answered in the order in which it is asked, so the last answer is about a
        # time after that of the bytes, and costs no more waiting.
        questions = [(CMD_READ, handle, int64(start), length) for start, length in parts]
        *answers, last = self._session.ask([*questions, (CMD_FSTAT, handle)])
        self._session.check(*last, CMD_ATTRS)
        self._told = _told("", paramiko.SFTPAttributes._from_msg(last[1]))
        pieces: list[bytes] = []
        for (_, length), answer in zip(parts, answers, strict=True):
            try:
                self._session.check(*answer, CMD_DATA)
            except EOFError:
                break
            piece = answer[1].get_string()
            pieces.append(piece)
            if len(piece) != length:
                break
        return b"".join(pieces)

    def info(self) -> dict[str, Any]:
        """What the file is now, or was after the last read."""
        told, self._told = self._told, None
        return _told("", self._file.stat()) if told is None else told

    def close(self) -> None:
        self._file.close()


def _names(key: str, message: Any) -> Iterator[dict[str, Any]]:
    """What one answer to a question for names says."""
    count = min(message.get_int(), len(message.get_remainder()) // _SMALLEST_NAME)
    for _ in range(count):
        name = text(message.get_string())
        message.get_string()  # the same as a line for people
        yield _told(f"{key.rstrip('/')}/{name}", paramiko.SFTPAttributes._from_msg(message))


def _told(name: str, attributes: Any) -> dict[str, Any]:
    mode = attributes.st_mode
    kind = "file" if mode is None or S_ISREG(mode) else "directory" if S_ISDIR(mode) else "other"
    return {"name": name, "type": kind, "size": attributes.st_size, "mtime": attributes.st_mtime}


def _settings(host: str) -> Mapping[str, Any]:
    """What the user's configuration says of a host."""
    name = os.path.expanduser("~/.ssh/config")
    if not os.path.exists(name):
        return {}
    found: Mapping[str, Any] = paramiko.SSHConfig.from_path(name).lookup(host)
    return found


def _known_hosts(settings: Mapping[str, Any]) -> list[str]:
    named: str = settings.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")
    return [os.path.expanduser(name) for name in named.split()]


def _command(settings: Mapping[str, Any], host: str, port: int) -> str:
    """What has to be run to reach the host, if it is not reached directly."""
    jump = settings.get("proxyjump", "none")
    if jump != "none":
        return f"ssh -W [{host}]:{port} {jump}"
    command: str = settings.get("proxycommand", "none")
    return "" if command == "none" else command
