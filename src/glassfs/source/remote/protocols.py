"""Protocols that are not asked as fsspec's file systems mostly are, for what these do with connections and caches.

A session is used by one thread at a time; the systems themselves, which know the URL, by all of them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from glassfs.errors import Refused
from glassfs.source.remote.connection import Connection
from glassfs.source.remote.systems import FileReader, Reader, System
from glassfs.source.remote.url import Url

MOST_LATE = 5.0
MOST_TOLD = 10_000
# Nothing that could be more than one word of a command, in which ``~/.ssh/config`` may put it.
_HOST = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class _SSH(System):
    """Known hosts only; the name of the user is all that a URL may say."""

    def _options_for(self, url: Url, connection: Connection, base: str) -> dict[str, Any]:
        try:
            port = urlsplit(base).port
        except ValueError:
            raise Refused("is not a URL", url.shown) from None
        host = (url.host if port is None else url.host.rpartition(":")[0]).strip("[]")
        if not _HOST.fullmatch(host):
            raise Refused("names no host", url.shown)
        options: dict[str, Any] = {"host": host, "timeout": connection.timeout}
        if port is not None:
            options["port"] = port
        if url.userinfo:
            options["username"] = url.userinfo
        # What fsspec's own has besides: here it is always the strictest.
        extra = {name: value for name, value in connection.extra.items() if name not in ("host_key_policy", "temppath")}
        return options | extra

    def connect(self) -> Any:
        from glassfs.source.remote.ssh import Session

        return Session(**self._options)

    def disconnect(self, system: Any) -> None:
        system.close()

    def fresh(self, system: Any) -> None:
        pass

    def listed(self, system: Any, key: str) -> Iterable[Any]:
        told: Iterable[Any] = system.listed(key)
        return told

    def reader(self, system: Any, key: str) -> Reader:
        reader: Reader = system.open(key)
        return reader


class _Memory(System):
    """Files in the memory of this process: all who open one share an object with one position, so nobody opens any."""

    def reader(self, system: Any, key: str) -> Reader:
        return _MemoryReader(self, system, key)


class _MemoryReader:
    def __init__(self, system: System, connected: Any, key: str) -> None:
        self._system = system
        self._connected = connected
        self._key = key

    def read(self, offset: int, size: int) -> Any:
        return self._connected.cat_file(self._key, offset, offset + size)

    def info(self) -> Any:
        return self._system.info(self._connected, self._key)

    def close(self) -> None:
        pass


class _FTP(System):
    """FTP in the words of the protocol: fsspec aborts each transfer, after which not all servers say the same."""

    def info(self, system: Any, key: str) -> Any:
        import ftplib

        try:
            answer = system.ftp.sendcmd(f"MLST {key or '/'}").splitlines()
        except ftplib.error_perm as error:
            if str(error)[:3] == "550":
                raise
            return super().info(system, key)
        told = dict(fact.lower().partition("=")[::2] for fact in answer[1].strip().split(" ")[0].split(";") if fact)
        kind = told.get("type", "")
        return {
            "type": "directory" if kind in ("dir", "cdir", "pdir") else kind, "modify": told.get("modify"),
            "size": int(told["size"]) if told.get("size", "").isdecimal() else None,
        }

    def disconnect(self, system: Any) -> None:
        system.ftp.close()

    def reader(self, system: Any, key: str) -> Reader:
        return _FTPReader(self, system, key)


class _FTPReader:
    def __init__(self, system: System, connected: Any, key: str) -> None:
        self._system = system
        self._connected = connected
        self._key = key

    def read(self, offset: int, size: int) -> Any:
        import ftplib

        ftp = self._connected.ftp
        ftp.voidcmd("TYPE I")
        data = bytearray()
        with ftp.transfercmd(f"RETR {self._key}", offset) as connection:
            while len(data) < size and (piece := connection.recv(min(size - len(data), 1 << 18))):
                data += piece
        with suppress(ftplib.Error):  # it may say that it was not all
            ftp.voidresp()
        return data

    def info(self) -> Any:
        return self._system.info(self._connected, self._key)

    def close(self) -> None:
        pass


class _GitHub(System):
    """Its versions are hashes of the bytes."""

    has_lasting_versions = True


class _Hub(System):
    """Hugging Face. What is in a repository at a commit stays as it is: all is asked of commits, and so asked once.

    To which commit a branch points is believed for ``poll`` seconds, but not for more than MOST_LATE.
    """

    has_lasting_versions = True

    def __init__(self, url: Url, connection: Connection) -> None:
        super().__init__(url, connection)
        if connection.anonymous:
            self._options["token"] = False
        self._late = min(connection.poll, MOST_LATE)
        self._commits: dict[tuple[str, str, str], tuple[str, float]] = {}
        self._told: dict[str, Any] = {}

    def fresh(self, system: Any) -> None:
        # Not what it knows of repositories, which costs a request each time.
        system.dircache.clear()

    def listed(self, system: Any, key: str) -> Iterable[Any]:
        return super().listed(system, self.pinned(system, key))

    def info(self, system: Any, key: str) -> Any:
        """What is at a path now; what is at a commit is remembered."""
        key = self.pinned(system, key)
        place = system.resolve_path(key)
        if _is_bucket(place) or not place.path_in_repo:
            return super().info(system, key)
        if key not in self._told:
            found = self._hub(system).get_paths_info(
                place.repo_id, [place.path_in_repo], revision=place.revision, repo_type=place.repo_type,
            )
            if not found:
                raise FileNotFoundError(key)
            if len(self._told) >= MOST_TOLD:
                self._told = {}
            size = getattr(found[0], "size", None)
            self._told[key] = {
                "type": "directory" if size is None else "file", "size": size,
                "blob_id": getattr(found[0], "blob_id", None),
            }
        return self._told[key]

    def reader(self, system: Any, key: str) -> Reader:
        key = self.pinned(system, key)
        if _is_bucket(system.resolve_path(key)):
            return super().reader(system, key)
        return _HubReader(self, system, key)

    def pinned(self, system: Any, key: str) -> str:
        """The same path at the commit that its branch points to; in a bucket, which has no commits, as it is."""
        place = system.resolve_path(key)
        if _is_bucket(place):
            return key
        branch = (place.repo_type, place.repo_id, place.revision)
        commit, since = self._commits.get(branch, ("", 0.0))
        if not commit or time.monotonic() - since > self._late:
            if _COMMIT.fullmatch(place.revision):
                commit = place.revision
            else:
                told = self._hub(system).repo_info(place.repo_id, repo_type=place.repo_type, revision=place.revision)
                commit = str(told.sha)
            self._commits[branch] = commit, time.monotonic()
        kind = {"dataset": "datasets/", "space": "spaces/"}.get(place.repo_type, "")
        return f"{kind}{place.repo_id}@{commit}/{place.path_in_repo}".rstrip("/")

    def _hub(self, system: Any) -> Any:
        from huggingface_hub import HfApi

        return HfApi(endpoint=system.endpoint, token=system.token)


class _HubReader(FileReader):
    """A file at a commit, and what it is there: nothing of that can change."""

    def __init__(self, system: _Hub, connected: Any, key: str) -> None:
        from huggingface_hub import hf_hub_url

        place = connected.resolve_path(key)
        self._info = system.info(connected, key)
        super().__init__(system, connected, key, size=self._info["size"])
        url = hf_hub_url(
            place.repo_id, place.path_in_repo, repo_type=place.repo_type, revision=place.revision,
            endpoint=connected.endpoint,
        )
        # Its own way to the URL is to list the folder, each time.
        self._file.url = lambda: url

    def info(self) -> Any:
        return self._info


def _is_bucket(place: Any) -> bool:
    return not hasattr(place, "path_in_repo")


KINDS: dict[str, type[System]] = {
    "ftp": _FTP, "github": _GitHub, "hf": _Hub, "memory": _Memory, "sftp": _SSH, "ssh": _SSH,
}


def system_for(url: Url, connection: Connection) -> System:
    """The file system that a URL is about. Raises Refused."""
    return KINDS.get(url.scheme, System)(url, connection)
