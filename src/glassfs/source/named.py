"""Find the store, and the path in it, of what the user named."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence

from glassfs.errors import GlassfsError
from glassfs.source.contract import ByteCache, Kind, Named
from glassfs.source.local import LocalStore
from glassfs.source.local_source import translated
from glassfs.source.remote.url import Connection, is_url, local_name


def locate(
    names: Sequence[str], connection: Connection = Connection(),  # noqa: B008
    is_file: Callable[[str], bool] = lambda name: True, follows: bool = True,
    cache: ByteCache = ByteCache(),  # noqa: B008
) -> list[Named]:
    """Return the stores of files and folders, local or named by URLs. Links in names are resolved now, once.

    Local stores follow links out of them for the user of this process if ``follows`` (see ``LocalStore``).

    A folder gets a store of its own; files of one folder share one. ``is_file`` decides by the name of a remote object
    whether it is a file or a folder. ``cache`` keeps bytes of remote objects. Raises NotFound, NotAllowed and similar.
    """
    urls = [name for name in names if is_url(name)]
    local = iter(_local([name for name in names if not is_url(name)], follows))
    if not urls:
        return list(local)
    from glassfs.source.remote.open import located

    remote = iter(located(urls, connection, is_file, cache))
    return [next(remote if is_url(name) else local) for name in names]


def _local(names: Sequence[str], follows: bool) -> list[Named]:
    store = functools.cache(functools.partial(LocalStore, follows=follows))
    found = []
    for name in map(local_name, names):
        last = os.path.basename(os.path.abspath(name))
        try:
            real = os.path.realpath(name, strict=True)
            if os.path.isdir(real):
                found.append(Named(store(real, name), (), last))
            else:
                folder, file = os.path.split(real)
                beside, shown = os.path.realpath(os.path.dirname(os.path.abspath(name))), os.path.dirname(name)
                if beside != folder and store(beside, shown).follows_links:
                    # What a file names may be beside the link: a model whose files are links into a store of hashes.
                    followed = store(beside, shown)
                    if followed.entry((last,)).kind is Kind.FILE:
                        found.append(Named(followed, (last,), last))
                        continue
                # Show a name that is a link as its target.
                shown = shown if file == os.path.basename(name) else folder
                found.append(Named(store(folder, shown), (file,), last))
        except GlassfsError as error:
            raise error.at(name) from None
        except OSError as error:
            raise translated(error, name) from None
    return found
