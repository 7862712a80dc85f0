"""From what a person types to a store and a path in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from glassfs.errors import GlassfsError
from glassfs.source.contract import Named, Store
from glassfs.source.local import LocalStore, told
from glassfs.source.remote.connection import Connection
from glassfs.source.remote.url import is_url, local_name


def locate(
    names: Sequence[str], connection: Connection = Connection(),  # noqa: B008
    is_file: Callable[[str], bool] = lambda name: True,
) -> list[Named]:
    """The stores of files and folders, of this system or named by URLs. Links in names are followed now, and not again.

    A folder is a store of its own; files of one folder share one. ``is_file`` tells what an object is rather than a
    folder, by its name. Raises NotFound, NotAllowed and their like.
    """
    urls = [name for name in names if is_url(name)]
    local = iter(_local([name for name in names if not is_url(name)]))
    if not urls:
        return list(local)
    from glassfs.source.remote.named import located

    remote = iter(located(urls, connection, is_file))
    return [next(remote if is_url(name) else local) for name in names]


def _local(names: Sequence[str]) -> list[Named]:
    stores: dict[tuple[str, str], Store] = {}

    def store(folder: str, shown: str) -> Store:
        if (folder, shown) not in stores:
            stores[folder, shown] = LocalStore(folder, shown)
        return stores[folder, shown]

    found = []
    for name in map(local_name, names):
        last = os.path.basename(os.path.abspath(name))
        try:
            real = os.path.realpath(name, strict=True)
            if os.path.isdir(real):
                found.append(Named(store(real, name), (), last))
            else:
                folder, file = os.path.split(real)
                # A name that is a link is shown as what it leads to.
                shown = os.path.dirname(name) if file == os.path.basename(name) else folder
                found.append(Named(store(folder, shown), (file,), last))
        except GlassfsError as error:
            raise error.at(name) from None
        except OSError as error:
            raise told(error, name) from None
    return found
