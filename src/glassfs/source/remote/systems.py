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
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import urlsplit

from glassfs.errors import NotFound, Refused
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


class Reader(Protocol):
    """An object that is open. ``read`` may give less than it is asked for; ``info`` is what stands there now."""

    def read(self, offset: int, size: int) -> Any: ...

    def info(self) -> Any: ...

    def close(self) -> None: ...


class System:
    """The file systems for one URL. ``name`` is what people may see, ``lines`` how many are connected at most."""

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
        return _FileReader(self, system, key)


def is_name(name: str) -> bool:
    """Whether a file can be called so."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        return False
    try:
        name.encode("utf-8", "surrogateescape")
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


class _FileReader:
    """A file object of fsspec, without its cache."""

    def __init__(self, system: System, connected: Any, key: str) -> None:
        from fsspec.caching import BaseCache
        from fsspec.spec import AbstractBufferedFile

        self._system = system
        self._connected = connected
        self._key = key
        system.fresh(connected)
        try:
            self._file = connected.open(key, "rb", cache_type="none")
        except TypeError:  # one that knows no caches
            self._file = connected.open(key, "rb")
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


class _SSH(System):
    """Known hosts only; the name of the user is all that a URL may say."""

    def _options_for(self, url: Url, connection: Connection, base: str) -> dict[str, Any]:
        try:
            port = urlsplit(base).port
        except ValueError:
            raise Refused("is not a URL", url.shown) from None
        host = (url.host if port is None else url.host.rpartition(":")[0]).strip("[]")
        if not host or host.startswith("-"):
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


class _Hub(System):
    """Hugging Face: a listing has what tells versions apart, what is said of one file has it only if asked."""

    def fresh(self, system: Any) -> None:
        # Not what it knows of repositories, which costs a request each time.
        system.dircache.clear()

    def info(self, system: Any, key: str) -> Any:
        self.fresh(system)
        return system.info(key, refresh=True, expand_info=True)


_KINDS: dict[str, type[System]] = {"ftp": _FTP, "hf": _Hub, "memory": _Memory, "sftp": _SSH, "ssh": _SSH}


def system_for(url: Url, connection: Connection) -> System:
    """The file system that a URL is about. Raises Refused."""
    return _KINDS.get(url.scheme, System)(url, connection)


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
