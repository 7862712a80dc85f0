"""Protocols of fsspec that need more than its contract: SFTP, files in memory and Hugging Face."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from glassfs.errors import Refused
from glassfs.lru import LRU
from glassfs.settings import settings
from glassfs.source.remote.fsspecs import FsspecServer
from glassfs.source.remote.url import Connection, Url

_HOST = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]*")
"""A host that cannot be an option or several words in a command of ``~/.ssh/config``."""
_COMMIT = re.compile(r"[0-9a-f]{40}")


class SshServer(FsspecServer):
    """SFTP to known hosts only; a URL may contain a user but no password."""

    def _options_for(self, url: Url, connection: Connection, base: str) -> dict[str, Any]:
        try:
            port = urlsplit(base).port
        except ValueError:
            raise Refused("is not a URL") from None
        host = (url.host if port is None else url.host.rpartition(":")[0]).strip("[]")
        if not _HOST.fullmatch(host):
            raise Refused("names no host")
        options: dict[str, Any] = {"host": host, "timeout": connection.timeout}
        if port is not None:
            options["port"] = port
        if url.userinfo:
            options["username"] = url.userinfo
        # Options of fsspec's own file system; here unknown hosts are always refused.
        extra = {name: value for name, value in connection.extra.items() if name not in ("host_key_policy", "temppath")}
        return options | extra

    def connect(self) -> Any:
        from glassfs.source.remote.ssh import connected

        return connected(**self._options)

    def disconnect(self, system: Any) -> None:
        system.client.close()

    def drop_caches(self, system: Any) -> None:
        """There are none."""

    def read(self, system: Any, key: str, offset: int, size: int) -> Any:
        return system.read_range(key, offset, size)


class MemoryServer(FsspecServer):
    """Files in the memory of this process. All readers of one share a position, so it is never opened."""

    def read(self, system: Any, key: str, offset: int, size: int) -> Any:
        return system.cat_file(key, offset, offset + size)


class HubServer(FsspecServer):
    """Hugging Face, with the facts of each commit remembered, which never change.

    Paths are pinned to the commit that their branch points to, which is looked up again after ``poll`` seconds, or
    after settings.hub_pin if that is less.
    """

    has_lasting_versions = True

    def __init__(self, url: Url, connection: Connection) -> None:
        super().__init__(url, connection)
        if connection.anonymous:
            self._options["token"] = False
        self._pin_seconds = min(connection.poll, settings.hub_pin)
        self._commits: dict[tuple[str, str, str], tuple[str, float]] = {}
        self._infos: LRU[str, dict[str, Any]] = LRU(10_000)

    def drop_caches(self, system: Any) -> None:
        # Facts about repositories stay cached, as each costs a request.
        system.dircache.clear()

    def ls(self, system: Any, key: str) -> Iterable[Any]:
        return super().ls(system, self.pinned(system, key))

    def info(self, system: Any, key: str) -> Any:
        resolved = system.resolve_path(key)
        if not resolved.path_in_repo:
            return super().info(system, key)
        info = self._infos.get(key)
        if info is None:
            found = _api(system).get_paths_info(
                resolved.repo_id, [resolved.path_in_repo], revision=resolved.revision, repo_type=resolved.repo_type,
            )
            if not found:
                raise FileNotFoundError(key)
            size = getattr(found[0], "size", None)
            info = {
                "type": "directory" if size is None else "file", "size": size,
                "blob_id": getattr(found[0], "blob_id", None),
            }
            self._infos.put(key, info)
        return info

    def open(self, system: Any, key: str, size: int) -> Any:
        resolved = system.resolve_path(key)
        file = super().open(system, key, size)
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(
            resolved.repo_id, resolved.path_in_repo, repo_type=resolved.repo_type, revision=resolved.revision,
            endpoint=system.endpoint,
        )
        file.url = lambda: url  # its own method lists the folder each time
        return file

    def pinned(self, system: Any, key: str) -> str:
        """Return the same path at the commit that its branch points to."""
        resolved = system.resolve_path(key)
        # A branch may move between two reads of one file. All paths are therefore those of a commit.
        branch = (resolved.repo_type, resolved.repo_id, resolved.revision)
        commit, since = self._commits.get(branch, ("", 0.0))
        if not commit or time.monotonic() - since > self._pin_seconds:
            commit = resolved.revision
            if not _COMMIT.fullmatch(commit):
                info = _api(system).repo_info(resolved.repo_id, repo_type=resolved.repo_type, revision=commit)
                commit = str(info.sha)
            self._commits[branch] = commit, time.monotonic()
        kind = {"dataset": "datasets/", "space": "spaces/"}.get(resolved.repo_type, "")
        return f"{kind}{resolved.repo_id}@{commit}/{resolved.path_in_repo}".rstrip("/")


def _api(system: Any) -> Any:
    from huggingface_hub import HfApi

    return HfApi(endpoint=system.endpoint, token=system.token)


SERVERS: dict[str, type[FsspecServer]] = {
    "hf": HubServer, "memory": MemoryServer, "sftp": SshServer, "ssh": SshServer,
}
