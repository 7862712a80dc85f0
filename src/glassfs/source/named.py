"""From what a person types to a store and a path in it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from glassfs.errors import GlassfsError
from glassfs.source.contract import Path, Store
from glassfs.source.local import LocalStore, told


class Named(NamedTuple):
    """What a person named: ``path`` in ``store``, and the last component of what was typed."""

    store: Store
    path: Path
    name: str


def locate(names: Sequence[str]) -> list[Named]:
    """The stores of files and folders of this system. Links in the names are followed now, and not again.

    A folder is a store of its own; files of one folder share one. Raises NotFound, NotAllowed and their like.
    """
    stores: dict[tuple[str, str], Store] = {}

    def store(folder: str, shown: str) -> Store:
        if (folder, shown) not in stores:
            stores[folder, shown] = LocalStore(folder, shown)
        return stores[folder, shown]

    found = []
    for name in names:
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
