"""Which layouts there are: those of glassfs, of the user, of other packages, and those that were asked for.

Any thread. Files are read when a layout is first needed. What a user wrote wrongly is logged, or raised if it was asked
for.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from glassfs.errors import NotFound
from glassfs.layouts.form import LARGEST, Layout, LayoutError, read

BUILT_IN = (
    "robomimic", "aloha", "robotwin", "minari", "maniskill", "d4rl", "droid", "dreamer", "episode-ends",
)
"""In the order in which containers are compared with them."""
VARIABLE = "GLASSFS_LAYOUT"
"""The environment variable that asks for layouts: processes that a command starts have it as well."""
GROUP = "glassfs.layouts"
SUFFIX = ".toml"

log = logging.getLogger(__name__)


class KnownLayout(NamedTuple):
    """A layout, where it comes from, and its text."""

    layout: Layout
    origin: str
    text: str


def chosen(asked: str = "") -> tuple[KnownLayout, ...]:
    """Return the layouts to compare containers with, in order.

    ``asked`` is the name of one, which is then the only one; or a file, or a folder of files, which come before all
    others. If it is empty, VARIABLE says the same. Raises LayoutError for wrong files, and NotFound.
    """
    return _chosen(asked or os.environ.get(VARIABLE, ""), user_folder())


@lru_cache(4)
def _chosen(asked: str, user: str) -> tuple[KnownLayout, ...]:
    found: dict[str, KnownLayout] = {}
    folder = os.path.join(os.path.dirname(__file__), "builtin")
    own = ((os.path.join(folder, f"{name}{SUFFIX}"), "glassfs") for name in BUILT_IN)
    for file, origin in (*((file, file) for file in _files(user)), *_of_packages(), *own):
        try:
            known = _read(file, origin)
            found.setdefault(known.layout.name, known)
        except LayoutError as error:
            log.warning("%s", error)
    everywhere = tuple(found.values())
    if not asked:
        return everywhere
    if os.path.isdir(asked):
        files = _files(asked)
        if not files:
            raise NotFound(f"has no layouts: no {SUFFIX} file is in it", asked)
        return (*(_read(file, file) for file in files), *everywhere)
    if os.path.exists(asked):
        return _read(asked, asked), *everywhere
    if asked not in found:
        raise NotFound(f"is neither a file nor a known layout; known are {', '.join(found)}", asked)
    return (found[asked],)


def absolute(asked: str) -> str:
    """Return what asks for the same layouts in a process with another working directory."""
    return os.path.abspath(asked) if asked and os.path.exists(asked) else asked


def user_folder() -> str:
    """Return the folder of the user's own layouts."""
    return os.path.join(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "glassfs", "layouts")


def _files(folder: str) -> list[str]:
    try:
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(SUFFIX)]
    except OSError:
        return []


def _of_packages() -> Iterator[tuple[str, str]]:
    """Yield the files of layouts of other packages, and the entry points that name them."""
    from importlib.metadata import entry_points
    from importlib.resources import as_file, files

    for entry in entry_points(group=GROUP):
        try:
            # The value is a package with files, and the name of one of these.
            with as_file(files(entry.module).joinpath(f"{entry.attr or entry.name}{SUFFIX}")) as file:
                yield os.fspath(file), entry.value
        except Exception as error:  # of any type, as it is code of others
            log.warning("layout %s cannot be loaded: %s: %s", entry.name, type(error).__name__, error)


def _read(file: str, origin: str) -> KnownLayout:
    try:
        with open(file, "rb") as opened:
            raw = opened.read(LARGEST + 1)
    except OSError as error:
        raise LayoutError(f"cannot be read: {error.strerror}", origin) from error
    return KnownLayout(read(raw, origin), origin, raw.decode())
