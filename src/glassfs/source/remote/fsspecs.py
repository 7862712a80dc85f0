"""Read through fsspec the protocols that glassfs does not speak itself: SFTP, Hugging Face and others.

fsspec file systems may block, hang, raise anything and return anything. Each connected one is therefore used by one
call at a time, on a daemon thread that is abandoned after the timeout (``server.BlockingCalls``), and replaced after
an error. fsspec's caches of instances, listings and bytes are bypassed; types and lengths of answers are checked. A
read does not report its version, so the object's facts are compared after it. Messages name exceptions and their codes
and never quote their texts, in which a server may repeat what it was sent. Any thread, in the process that made the
server.
"""

from __future__ import annotations

import errno
import inspect
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from socket import gaierror
from typing import Any, TypeVar

from glassfs.errors import Changed, DeviceFailed, GlassfsError, NotAllowed, NotFound, Refused, Unavailable
from glassfs.lru import LRU
from glassfs.names import raw
from glassfs.settings import settings
from glassfs.source.contract import Path
from glassfs.source.remote.objects import not_installed
from glassfs.source.remote.server import MOST_NAMES, NO_HOST, NO_NAME, BlockingCalls, Facts, Listed, Retryable, Server
from glassfs.source.remote.url import KNOWN, Connection, Url

Result = TypeVar("Result")

# Protocols of fsspec without a server: files of this machine, and wrappers around other file systems.
NO_SERVERS = frozenset((
    "abstract", "async_wrapper", "asynclocal", "asyncwrapper", "blockcache", "cached", "dask", "data", "dir", "file",
    "filecache", "generic", "git", "glassfs", "libarchive", "local", "reference", "simplecache", "tar", "zip",
))
IDENTIFYING = ("endpoint", "endpoint_url", "host", "org", "port", "repo", "sha", "user", "username")
# Keys of ``info`` that distinguish versions, best first.
_VERSIONS = (
    "ETag", "etag", "e_tag", "generation", "version_id", "VersionId", "blob_id", "xet_hash", "sha", "oid", "md5Hash",
    "checksum",
)
_NO_VERSIONS = ("", "null", "None", "none")
_TIMES = (
    "mtime", "LastModified", "last_modified", "Last-Modified", "modified", "updated", "modificationTime",
    "created",
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MISSING = (404, 410)
_DENIED = (401, 403, 407)


class Unbelievable(DeviceFailed):
    """A file system reports something impossible; asking again does not help."""


_LASTING = (Unbelievable, TypeError, ValueError, LookupError, AttributeError, NotImplementedError, SystemExit)
"""Errors that another attempt would have as well."""


class FsspecServer(Server):
    """The objects of a URL's file system. Subclasses are for file systems that need more than fsspec's contract.

    Making one touches no network. Raises Refused for protocols without a server and for missing packages.
    """

    def __init__(self, url: Url, connection: Connection) -> None:
        self.name = f"{url.scheme}://{url.host}"
        self._class = _class_of(url)
        authority = f"{url.userinfo}@{url.host}" if url.userinfo else url.host
        self._options = self._options_for(url, connection, f"{url.scheme}://{authority}")
        self.identity = " ".join((
            self.name, *(f"{name}={self._options[name]}" for name in IDENTIFYING if self._options.get(name)),
        ))
        probe = str(self._class._strip_protocol(f"{url.scheme}://{authority}/x"))
        self._root = probe[:-1] if probe.endswith("x") else f"{authority}/"
        self.timeout = connection.timeout
        self._calls = BlockingCalls("fsspec", 8)
        self._lock = threading.Lock()
        self._idle: list[tuple[float, Any]] = []
        """Connected file systems that no call uses, and when they were used last; the last one at the end."""

    def _options_for(self, url: Url, connection: Connection, base: str) -> dict[str, Any]:
        options = {
            "key": connection.key, "secret": connection.secret, "token": connection.token,
            "endpoint": connection.endpoint, "endpoint_url": connection.endpoint, "region": connection.region,
            "profile": connection.profile, "anon": connection.anonymous, "timeout": connection.timeout,
        }
        accepted = inspect.signature(self._class.__init__).parameters
        options = {name: value for name, value in options.items() if value and name in accepted}
        return dict(self._class._get_kwargs_from_urls(base)) | options | dict(connection.extra)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for _, system in idle:
            self._disconnect(system)

    async def _list(self, path: Path) -> Sequence[Listed]:
        """Links, devices, and entries without a valid name or size are omitted, with the reason."""
        key = self.key(path)
        folder = key.strip("/")

        def work(system: Any, abandoned: threading.Event) -> Sequence[Listed]:
            listed: dict[str, Listed] = {}
            is_file = False
            for count, info in enumerate(self.ls(system, key)):
                if count >= MOST_NAMES or abandoned.is_set():
                    raise Unbelievable("its listing does not end")
                full_name = info.get("name") if isinstance(info, Mapping) else ""
                full_name = full_name if isinstance(full_name, str) else ""
                facts, omitted = None, ""
                try:
                    facts = facts_of(info)
                except Unbelievable as error:
                    omitted = f"unreadable object: {error}"
                # File systems answer a listing of a file in two ways: with an error, or with the file as its only
                # entry, which may be an object of the folder's name in a bucket, too.
                is_file = count == 0 and facts is not None and full_name.lstrip("/") == folder
                name = _name_in(folder, full_name, facts is None)
                try:
                    raw(name)
                except UnicodeEncodeError:
                    name, omitted = name.encode(errors="replace").decode(), NO_NAME
                if name:
                    listed.setdefault(name, Listed(name, facts, omitted))
            if is_file and path:
                raise NotFound("is a file")
            return list(listed.values())

        return await self._run(work)

    async def _begin(self, path: Path, size: int, known: Facts | None) -> tuple[Facts, bytes] | None:
        def work(system: Any, abandoned: threading.Event) -> tuple[Facts, bytes] | None:
            key = self.pinned(system, self.key(path))
            facts = facts_of(self.info(system, key))
            if facts is None:
                raise NotFound("is a folder")
            if known is not None and known.fits(facts):
                return None
            try:
                return facts, self._part(system, key, 0, min(size, facts.size), facts)
            except Changed as error:  # just now
                raise Retryable(error.reason) from None

        return await self._run(work)

    async def _read(self, path: Path, offset: int, size: int, facts: Facts) -> bytes:
        return await self._run(lambda system, abandoned: self._part(
            system, self.pinned(system, self.key(path)), offset, size, facts,
        ))

    def _part(self, system: Any, key: str, offset: int, size: int, facts: Facts) -> bytes:
        """Return a range of an object. Raises Changed if it is in another version."""
        # The object is opened for each range: one that stays open may be an old one, whose name has a new one.
        data = self.read(system, key, offset, size)
        now = facts_of(self.info(system, key))
        if now is None or not facts.fits(now):
            raise Changed("has been replaced by another object")
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise DeviceFailed(f"its file system returns {type(data).__name__} instead of bytes")
        if len(data) != size:
            raise DeviceFailed(f"the server sends {len(data)} bytes instead of {size}")
        return bytes(data)

    async def _run(self, work: Callable[[Any, threading.Event], Result]) -> Result:
        """Return what ``work`` does on a thread with a connected file system. Raises GlassfsError or Retryable."""
        def run(abandoned: threading.Event) -> Result:
            system, is_sound = None, False
            try:
                system = self._taken()
                found = work(system, abandoned)
                is_sound = not abandoned.is_set()
                return found
            except BaseException as error:
                failed = translated(error)
                # After any error but an answer of the server the state of the connection is unknown.
                is_sound = isinstance(failed, (NotFound, Changed)) and not abandoned.is_set()
                if isinstance(failed, DeviceFailed) and not isinstance(error, _LASTING):
                    failed = Retryable(failed.reason)
                raise failed from None
            finally:
                if system is not None and is_sound:
                    with self._lock:
                        self._idle.append((time.monotonic(), system))
                elif system is not None:
                    self._disconnect(system)

        return await self._calls.run(run)

    def _taken(self) -> Any:
        """Return the file system that was used last, or a new one."""
        with self._lock:
            used_at, system = self._idle.pop() if self._idle else (0.0, None)
        if system is not None and used_at < time.monotonic() - settings.connection_idle:
            self._disconnect(system)
            system = None
        return self.connect() if system is None else system

    def _disconnect(self, system: Any) -> None:
        with suppress(BaseException):
            self.disconnect(system)

    # The file system: what these methods raise is checked and translated above.

    def key(self, path: Path) -> str:
        """Return the file system's name for a path."""
        return self._root + "/".join(path) if path else self._root.rstrip("/") or self._root

    def connect(self) -> Any:
        """Return a new file system."""
        return self._class(**self._options, skip_instance_cache=True)

    def disconnect(self, system: Any) -> None:
        """Close a file system's connections, if it has a way to."""

    def drop_caches(self, system: Any) -> None:
        if hasattr(system, "dircache"):
            system.dircache.clear()
        system.invalidate_cache()

    def info(self, system: Any, key: str) -> Any:
        self.drop_caches(system)
        return system.info(key)

    def ls(self, system: Any, key: str) -> Iterable[Any]:
        self.drop_caches(system)
        listing: Iterable[Any] = system.ls(key, detail=True)
        return listing

    def pinned(self, system: Any, key: str) -> str:
        """Return the name of an object in its present version, if the file system has one."""
        return key

    def read(self, system: Any, key: str, offset: int, size: int) -> Any:
        """Return the bytes ``[offset, offset + size)`` of an object, which is opened for it."""
        from fsspec.spec import AbstractBufferedFile

        self.drop_caches(system)
        file = self.open(system, key, offset + size)
        try:
            if isinstance(file, AbstractBufferedFile):
                return file._fetch_range(offset, offset + size)  # past its cache
            file.seek(offset)
            return file.read(size)
        finally:
            with suppress(Exception):
                file.close()

    def open(self, system: Any, key: str, size: int) -> Any:
        """Open an object that has ``size`` bytes or more."""
        try:
            return system.open(key, "rb", size=size)  # else it would be asked for
        except TypeError:  # not of fsspec's own kind
            return system.open(key, "rb")


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

    def connect(self) -> Any:
        system = super().connect()
        system.isdir = lambda key: False  # it is asked about each file that is read, and would list the file's folder
        return system

    def drop_caches(self, system: Any) -> None:
        # Facts about repositories stay cached, as each costs a request.
        system.dircache.clear()

    def ls(self, system: Any, key: str) -> Iterable[Any]:
        return super().ls(system, self.pinned(system, key))

    def info(self, system: Any, key: str) -> Any:
        info = self._infos.get(key)
        if info is None:
            info = system.info(key, expand_info=True)  # else it lists the folder
            self._infos.put(key, info)
        return info

    def pinned(self, system: Any, key: str) -> str:
        """Return the same path at the commit that its branch points to."""
        resolved = system.resolve_path(key)
        # A branch may move between two reads of one file. All paths are therefore those of a commit.
        branch = (resolved.repo_type, resolved.repo_id, resolved.revision)
        commit, since = self._commits.get(branch, ("", 0.0))
        if not commit or time.monotonic() - since > self._pin_seconds:
            commit = resolved.revision
            if not _COMMIT.fullmatch(commit):
                info = system._api.repo_info(resolved.repo_id, repo_type=resolved.repo_type, revision=commit)
                commit = str(info.sha)
            self._commits[branch] = commit, time.monotonic()
        kind = {"dataset": "datasets/", "space": "spaces/"}.get(resolved.repo_type, "")
        return f"{kind}{resolved.repo_id}@{commit}/{resolved.path_in_repo}".rstrip("/")


SERVERS: dict[str, type[FsspecServer]] = {"hf": HubServer, "memory": MemoryServer}
"""Those of protocols that need more than fsspec's contract; for SFTP see ``ssh``."""


def _class_of(url: Url) -> Any:
    """Import the file system's class."""
    try:
        import fsspec
    except ImportError:
        raise Refused(not_installed()) from None
    if url.scheme in NO_SERVERS or url.scheme in KNOWN:
        raise Refused(f"{url.scheme}:// is not read through fsspec")
    try:
        return fsspec.get_filesystem_class(url.scheme)
    except ImportError as error:
        raise Refused(f"{url.scheme}:// needs another package: {error}") from None
    except ValueError:
        raise Refused(f"unknown protocol {url.scheme}://") from None


def _name_in(folder: str, full_name: str, is_folder: bool) -> str:
    """Return the last part of a full name; "" unless it lies directly in the folder."""
    above, slash, name = (full_name.rstrip("/") if is_folder else full_name).rpartition("/")
    # A file system may call the folder by another name than it was asked for, but of the same depth.
    above = above.strip("/")
    if slash and (above.count("/"), bool(above)) != (folder.count("/"), bool(folder)):
        return ""
    return name


def facts_of(info: Any) -> Facts | None:
    """Return the facts in an ``info`` dictionary; None for a folder. Raises Unbelievable."""
    if not isinstance(info, Mapping):
        raise Unbelievable("its file system does not report what it is")
    kind = info.get("type")
    if kind == "directory":
        return None
    if kind not in ("file", None):
        raise Unbelievable("is neither a file nor a folder")
    size = info.get("size")
    found = Facts(size, _etag(info), _mtime_ns(info)) if type(size) is int else None
    if found is None or not found.is_possible:
        raise Unbelievable("its file system reports no valid size")
    return found


def _etag(info: Mapping[Any, Any]) -> str:
    for name in _VERSIONS:
        value = info.get(name)
        if type(value) in (str, int) and (text := str(value).strip()) not in _NO_VERSIONS and len(text) <= 1024:
            return text
    return ""


def _mtime_ns(info: Mapping[Any, Any]) -> int:
    """Return the time in nanoseconds since 1970; 0 if there is none after that."""
    for name in _TIMES:
        value: Any = info.get(name)
        if isinstance(value, str):
            with suppress(ValueError):
                value = datetime.fromisoformat(value.strip()[:64].replace("Z", "+00:00"))
        if isinstance(value, datetime):
            with suppress(OverflowError, ValueError):
                value = (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
        if type(value) in (int, float) and 0 < value < 1e14:
            # Large numbers are milliseconds. A float has no more than microseconds of today's time.
            seconds: float = value / 1000 if value >= 1e11 else value
            return round(seconds * 10**6) * 1000
    return 0


def translated(error: BaseException) -> GlassfsError:
    """Return the GlassfsError for an exception of a file system."""
    if isinstance(error, GlassfsError):
        return error
    status = _http_status(error)
    number = getattr(error, "errno", None)
    detail = f"HTTP {status}" if status else ""
    if isinstance(number, int) and number in errno.errorcode:
        detail = os.strerror(number)
    text = f"{type(error).__name__}: {detail}" if detail else type(error).__name__
    if isinstance(error, FileNotFoundError) or status in _MISSING:
        return NotFound("does not exist")
    if isinstance(error, (IsADirectoryError, NotADirectoryError)):
        return NotFound("is a folder where a file is expected, or a file where a folder is")
    if isinstance(error, PermissionError) or status in _DENIED:
        return NotAllowed(f"access denied: {text}")
    if status == 412:
        return Changed("has been replaced by another object")
    if isinstance(error, gaierror):
        return DeviceFailed(NO_HOST)
    if isinstance(error, MemoryError) or number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return Unavailable(f"no descriptors or no memory left: {text}")
    return DeviceFailed(text)


def _http_status(error: BaseException) -> int | None:
    """Return the HTTP status that an exception reports, under any of the names that libraries use."""
    for holder in (error, getattr(error, "response", None)):
        for name in ("status", "status_code", "code"):
            status = getattr(holder, name, None)
            if type(status) is int:
                return status
    return None
