"""Open the stores of URLs: folders, or single objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

from glassfs.errors import DeviceFailed, NotFound, Refused
from glassfs.source.contract import ByteCache, Named
from glassfs.source.remote.blocks import RemoteBlocks
from glassfs.source.remote.connection import Connection
from glassfs.source.remote.disk import DiskCache
from glassfs.source.remote.open import server_of
from glassfs.source.remote.server import Server
from glassfs.source.remote.store import RemoteStore
from glassfs.source.remote.url import WEB, Url, parsed


def located(
    urls: Sequence[str], connection: Connection, is_file: Callable[[str], bool], cached: ByteCache,
) -> list[Named]:
    """Return what these URLs name. Their stores share servers and ``cached``.

    ``is_file`` returns for a name whether an object is more likely than a folder. Raises NotFound and others.
    """
    disk = DiskCache(connection.disk_cache, connection.disk_cache_size) if connection.disk_cache else None
    blocks = RemoteBlocks(cached, disk)
    servers: dict[tuple[str, str, str], Server] = {}

    store = cache(partial(RemoteStore, connection=connection, blocks=blocks, disk=disk))

    def named(url: Url) -> Named:
        key = url.scheme, f"{url.userinfo}@{url.host}", url.query
        server = servers.get(key)
        if server is None:
            server = servers[key] = server_of(url, connection)

        def folder() -> Named:
            found = store(server, url.path, has_folders=True)
            if not found.has_names() and url.path:
                raise NotFound("there is no such object or folder", url.shown)
            return Named(found, (), url.path[-1] if url.path else url.host)

        def single() -> Named:
            found = Named(store(server, url.path[:-1], has_folders=False), url.path[-1:], url.path[-1])
            found.store.entry(found.path)
            return found

        try:
            if url.is_folder or (not is_file(url.path[-1]) and server.is_folder(url.path)):
                return folder()
            # A name may be an object or a folder, and each guess costs a request. The more likely one comes first.
            first, second = (single, folder) if url.scheme in WEB or is_file(url.path[-1]) else (folder, single)
            try:
                return first()
            except NotFound as error:
                try:
                    return second()
                except (NotFound, Refused):
                    raise NotFound(error.reason, url.shown) from None
        except (DeviceFailed, Refused) as error:
            raise server.explained(error) from None

    return [named(parsed(url)) for url in urls]
