"""Adapt fsspec file systems: make one for a URL, and list, stat and read without fsspec's caches.

fsspec's caches of instances, listings and bytes are bypassed. An ``Adapter`` itself touches no network and may be used
by any thread; each file system that it connects is used by one thread at a time, as many have one connection and no
locks. Refused is raised for protocols without a server and for missing packages; what file systems raise is passed on.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from glassfs.errors import NotFound, Refused
from glassfs.names import raw
from glassfs.source.contract import Path
from glassfs.source.remote.answers import Unbelievable, facts
from glassfs.source.remote.connection import Connection
from glassfs.source.remote.obstore_module import not_installed
from glassfs.source.remote.server import NO_NAME, Listed, is_name
from glassfs.source.remote.url import ALIASES, KNOWN, Url

# Protocols of fsspec without a server: files of this machine, and wrappers around other file systems.
NO_SERVERS = frozenset((
    "abstract", "arrow_hdfs", "async_wrapper", "asynclocal", "asyncwrapper", "blockcache", "cached", "dask", "data",
    "dir", "dvc", "file", "filecache", "generic", "git", "glassfs", "libarchive", "local", "pyscript", "reference",
    "simplecache", "tar", "zip",
))
LOGINS = ("ftp", "sftp", "smb", "ssh")
"""Protocols where each connection is a login; servers limit their number."""
IDENTIFYING = ("endpoint", "endpoint_url", "host", "org", "port", "repo", "sha", "user", "username")
_HOST = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]*")
"""A host that cannot be an option or several words in a command of ``~/.ssh/config``."""


class Adapter:
    """The file systems for one URL.

    ``name`` is the URL of the root without secrets. ``identity`` distinguishes servers, with the user and other options
    that change what they show. ``connections`` is how many file systems are connected at most.
    """

    has_lasting_versions = False

    def __init__(self, url: Url, connection: Connection) -> None:
        self.name = f"{url.scheme}://{url.host}"
        self.connections = 4 if url.scheme in LOGINS else 8
        if url.scheme == "github":  # owner and repository, not user and password; versions are hashes of the bytes
            self.name = f"{url.scheme}://{url.userinfo}@{url.host}"
            self.has_lasting_versions = True
        elif ":" in url.userinfo:
            raise Refused(
                "contains a password, which other users could see; put it into the usual files", url.shown,
            )
        self._class = _class_of(url)
        authority = f"{url.userinfo}@{url.host}" if url.userinfo else url.host
        self._options = self._options_for(url, connection, f"{url.scheme}://{authority}")
        self.identity = " ".join((
            self.name, *(f"{name}={self._options[name]}" for name in IDENTIFYING if self._options.get(name)),
        ))
        probe = str(self._class._strip_protocol(f"{url.scheme}://{authority}/x"))
        self._root = probe[:-1] if probe.endswith("x") else f"{authority}/"

    def _options_for(self, url: Url, connection: Connection, base: str) -> dict[str, Any]:
        options = {
            "key": connection.key, "secret": connection.secret, "token": connection.token,
            "endpoint": connection.endpoint, "endpoint_url": connection.endpoint, "region": connection.region,
            "profile": connection.profile, "anon": connection.anonymous, "timeout": connection.timeout,
        }
        accepted = inspect.signature(self._class.__init__).parameters
        options = {name: value for name, value in options.items() if value and name in accepted}
        return dict(self._class._get_kwargs_from_urls(base)) | options | dict(connection.extra)

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

    def entries(self, system: Any, path: Path) -> Iterator[Listed | None]:
        """Yield the entries of a folder, None for what is not in it. Raises NotFound for a file.

        Links, devices, and entries without a valid name or size are omitted, with the reason.
        """
        key = self.key(path)
        folder = key.strip("/")
        is_file = False
        for count, info in enumerate(self.ls(system, key)):
            full_name = info.get("name") if isinstance(info, Mapping) else None
            found, omitted = None, ""
            try:
                found = facts(info)
            except Unbelievable as error:
                omitted = f"unreadable object: {error}"
            if not isinstance(full_name, str):
                is_file = False
                yield None
                continue
            # File systems answer a listing of a file in two ways: with an error, or with the file as its only entry.
            # The only entry may be the file that was listed; in buckets a folder may have an object of its name.
            is_file = count == 0 and found is not None and full_name.lstrip("/") == folder
            name = _name_in(folder, full_name, found is None)
            if not is_name(name) or not _can_be_encoded(name):
                name, omitted = name.encode(errors="replace").decode(), NO_NAME
            yield Listed(name, found, omitted) if name else None
        if is_file and path:
            raise NotFound("is a file")

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


class SshAdapter(Adapter):
    """SFTP to known hosts only; a URL may contain a user but no password."""

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
        # Options of fsspec's own file system; here unknown hosts are always refused.
        extra = {name: value for name, value in connection.extra.items() if name not in ("host_key_policy", "temppath")}
        return options | extra

    def connect(self) -> Any:
        from glassfs.source.remote.ssh import SftpSession

        return SftpSession(**self._options)

    def disconnect(self, system: Any) -> None:
        system.close()


class FtpAdapter(Adapter):
    """FTP without ABOR. fsspec aborts each transfer, and then some servers (rclone's) never answer again."""

    def disconnect(self, system: Any) -> None:
        system.ftp.close()

    def read(self, system: Any, key: str, offset: int, size: int) -> Any:
        import ftplib

        system.ftp.voidcmd("TYPE I")
        data = bytearray()
        with system.ftp.transfercmd(f"RETR {key}", offset) as connection:
            while len(data) < size and (piece := connection.recv(min(size - len(data), 1 << 18))):
                data += piece
        with suppress(ftplib.Error):  # the server may complain that the transfer was incomplete
            system.ftp.voidresp()
        return data


class MemoryAdapter(Adapter):
    """Files in the memory of this process. All readers of one share a position, so it is never opened."""

    def read(self, system: Any, key: str, offset: int, size: int) -> Any:
        return system.cat_file(key, offset, offset + size)


def _class_of(url: Url) -> Any:
    """Import the file system's class."""
    try:
        import fsspec
    except ImportError:
        raise Refused(not_installed(), url.shown) from None
    if url.scheme in NO_SERVERS or url.scheme in KNOWN:
        raise Refused(f"{url.scheme}:// is not read through fsspec; supported are {_supported()}", url.shown)
    try:
        return fsspec.get_filesystem_class(url.scheme)
    except ImportError as error:
        if url.scheme in ("sftp", "ssh"):
            raise Refused(not_installed("ssh"), url.shown) from None
        raise Refused(f"{url.scheme}:// needs another package: {error}", url.shown) from None
    except ValueError:
        raise Refused(f"unknown protocol {url.scheme}://; supported are {_supported()}", url.shown) from None


def _supported() -> str:
    from fsspec import available_protocols

    return ", ".join(sorted({*available_protocols(), *KNOWN} - NO_SERVERS - ALIASES.keys()))


def _can_be_encoded(name: str) -> bool:
    try:
        raw(name)
    except UnicodeEncodeError:
        return False
    return True


def _name_in(folder: str, full_name: str, is_folder: bool) -> str:
    """Return the last part of a full name; "" unless it lies directly in the folder."""
    above, slash, name = (full_name.rstrip("/") if is_folder else full_name).rpartition("/")
    # A file system may call the folder by another name than it was asked for, but of the same depth.
    above = above.strip("/")
    if slash and (above.count("/"), bool(above)) != (folder.count("/"), bool(folder)):
        return ""
    return name
