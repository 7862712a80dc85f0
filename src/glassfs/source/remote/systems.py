"""File systems of fsspec: which of them are servers, how one is made for a URL, and how each is asked.

A ``System`` is made of a URL and touches no network; ``connect`` does. What it connects is used by one thread at a
time, as many file systems have one connection and no locks. Nothing that fsspec keeps is believed: its caches of
instances, of listings and of bytes are gone round.

Refused is raised for what cannot be a server, and where a package is missing. What the file systems themselves raise
goes through as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from glassfs.errors import NotFound, Refused
from glassfs.names import raw
from glassfs.source.contract import Path
from glassfs.source.remote.answers import Secrets, Unbelievable, facts, sentence
from glassfs.source.remote.connection import Connection
from glassfs.source.remote.server import Facts, Listed
from glassfs.source.remote.url import ALIASES, Url

OWN = ("az", "gs", "http", "https", "s3")
SSH = ("sftp", "ssh")
# What fsspec has besides servers: files of this machine, and wrappers around other file systems.
NO_SERVERS = frozenset((
    "abstract", "arrow_hdfs", "async_wrapper", "asynclocal", "asyncwrapper", "blockcache", "cached", "dask", "data",
    "dir", "dvc", "file", "filecache", "generic", "git", "glassfs", "libarchive", "local", "pyscript", "reference",
    "simplecache", "tar", "zip",
))
PACKAGES = {
    "ftp": "fsspec", "github": "requests", "hf": "huggingface_hub", "sftp": "paramiko", "smb": "smbprotocol",
    "ssh": "paramiko", "webhdfs": "requests",
}
# Few connections where each is a login, of which servers count how many come at once.
LOGINS = (*SSH, "ftp", "smb")
FEW, MANY = 4, 8
IDENTIFYING = ("endpoint", "endpoint_url", "host", "org", "port", "repo", "sha", "user", "username")


class Reader(Protocol):
    """An object that is open. ``read`` may give less than it is asked for; ``info`` is what stands there now."""

    def read(self, offset: int, size: int) -> Any: ...

    def info(self) -> Any: ...

    def close(self) -> None: ...


class System:
    """The file systems for one URL. ``name`` is what people may see, ``lines`` how many are connected at most.

    ``identity`` tells what they show from what others show: under one name, users may see different things.
    """

    has_lasting_versions = False

    def __init__(self, url: Url, connection: Connection) -> None:
        self.name = f"{url.scheme}://{url.host}"
        self.lines = FEW if url.scheme in LOGINS else MANY
        user, _, password = url.userinfo.partition(":")
        self.secrets = Secrets((
            url.userinfo, user, password, url.query, connection.key, connection.secret, connection.token,
            connection.extra,
        ))
        if url.scheme == "github":
            # These two are no user and password, but a repository and who has it.
            self.name = f"{url.scheme}://{url.userinfo}@{url.host}"
            self.secrets = Secrets((connection.token, connection.extra))
        elif password:
            raise Refused("has a password in it, which others could see: it belongs into the usual files", url.shown)
        self._class = _class_of(url)
        authority = f"{url.userinfo}@{url.host}" if url.userinfo else url.host
        self._options = self._options_for(url, connection, f"{url.scheme}://{authority}")
        named = (f"{name}={self._options[name]}" for name in IDENTIFYING if self._options.get(name))
        self.identity = " ".join((self.name, *named))
        probe = str(self._class._strip_protocol(f"{url.scheme}://{authority}/x"))
        self._root = probe[:-1] if probe.endswith("x") else f"{authority}/"

    def _options_for(self, url: Url, connection: Connection, base: str) -> dict[str, Any]:
        named = {
            "key": connection.key, "secret": connection.secret, "token": connection.token,
            "endpoint": connection.endpoint, "endpoint_url": connection.endpoint, "region": connection.region,
            "profile": connection.profile, "anon": connection.anonymous,
        }
        takes = inspect.signature(self._class.__init__).parameters
        options = {name: value for name, value in named.items() if value and name in takes}
        if "timeout" in takes:
            options["timeout"] = connection.timeout
        return dict(self._class._get_kwargs_from_urls(base)) | options | dict(connection.extra)

    def key(self, path: Path) -> str:
        """What the file system calls a path."""
        return self._root + "/".join(path) if path else self._root.rstrip("/") or self._root

    def connect(self) -> Any:
        """A file system of its own."""
        return self._class(**self._options, skip_instance_cache=True)

    def disconnect(self, system: Any) -> None:
        """Gives back what a file system holds, as far as it says how."""

    def fresh(self, system: Any) -> None:
        """Has a file system forget what it was told before."""
        if hasattr(system, "dircache"):
            system.dircache.clear()
        system.invalidate_cache()

    def info(self, system: Any, key: str) -> Any:
        self.fresh(system)
        return system.info(key)

    def facts(self, system: Any, key: str) -> Facts | None:
        """What an object is now; None for a folder. Raises Unbelievable."""
        return facts(self.info(system, key))

    def listed(self, system: Any, key: str) -> Iterable[Any]:
        self.fresh(system)
        told: Iterable[Any] = system.ls(key, detail=True)
        return told

    def entries(self, system: Any, path: Path) -> Iterator[Listed | None]:
        """What is in a folder. None for what has no name that a file can have or no size, for links and the like."""
        key = self.key(path)
        own = key.strip("/")
        is_file = False
        for count, told in enumerate(self.listed(system, key)):
            called = told.get("name") if isinstance(told, Mapping) else None
            try:
                found = facts(told)
            except Unbelievable:
                called = None
            if not isinstance(called, str):
                is_file = False
                yield None
                continue
            # The only answer may be the file that was asked for; in buckets, a folder may have an object of its name.
            is_file = count == 0 and found is not None and called.lstrip("/") == own
            name = _name_in(own, called, found is None)
            yield Listed(name, found) if is_name(name) else None
        if is_file and path:
            raise NotFound("is a file")

    def reader(self, system: Any, key: str) -> Reader:
        return FileReader(self, system, key)


def is_name(name: str) -> bool:
    """Whether a file can be called so."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        return False
    try:
        raw(name)
    except UnicodeEncodeError:
        return False
    return True


def _name_in(own: str, called: str, is_folder: bool) -> str:
    """The name in a folder of what is called so in full; empty if it is not just below the folder."""
    full = called.rstrip("/") if is_folder else called
    above, slash, name = full.rpartition("/")
    # A file system may call the folder itself otherwise than it was asked for, but not deeper.
    above = above.strip("/")
    if slash and (above.count("/"), bool(above)) != (own.count("/"), bool(own)):
        return ""
    return name


class FileReader:
    """A file object of fsspec, without its cache."""

    def __init__(self, system: System, connected: Any, key: str, **options: Any) -> None:
        from fsspec.caching import BaseCache
        from fsspec.spec import AbstractBufferedFile

        self._system = system
        self._connected = connected
        self._key = key
        system.fresh(connected)
        try:
            self._file = connected.open(key, "rb", cache_type="none", **options)
        except TypeError:  # one that knows no caches
            self._file = connected.open(key, "rb", **options)
        if isinstance(self._file, AbstractBufferedFile):
            # Some are not told by their file systems which cache is meant.
            self._file.cache = BaseCache(self._file.blocksize, self._file._fetch_range, self._file.size)

    def read(self, offset: int, size: int) -> Any:
        self._file.seek(offset)
        return self._file.read(size)

    def info(self) -> Any:
        return self._system.info(self._connected, self._key)

    def close(self) -> None:
        self._file.close()


def _class_of(url: Url) -> Any:
    """The class for a protocol, its packages imported."""
    try:
        import fsspec
    except ImportError:
        raise Refused(f"{url.scheme}:// needs the packages of glassfs[remote]", url.shown) from None
    if url.scheme in NO_SERVERS or url.scheme in OWN:
        raise Refused(f"{url.scheme}:// is not read through fsspec: {_known()}", url.shown)
    try:
        return fsspec.get_filesystem_class(url.scheme)
    except ImportError as error:
        package = PACKAGES.get(url.scheme)
        what = f"the package {package}" if package else f"another package: {sentence(error, Secrets(()))}"
        raise Refused(f"{url.scheme}:// needs {what}", url.shown) from None
    except ValueError:
        raise Refused(f"{url.scheme}:// is not known: {_known()}", url.shown) from None


def _known() -> str:
    from fsspec import available_protocols

    known = sorted({*available_protocols(), *OWN} - NO_SERVERS - ALIASES.keys())
    return f"there are {', '.join(known)}"
