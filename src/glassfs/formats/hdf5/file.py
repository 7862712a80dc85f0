"""An HDF5 file: recognition, opening, and its facts (§1). Any thread."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec

from glassfs import installing
from glassfs.content import Container
from glassfs.errors import Damaged, Refused
from glassfs.formats.hdf5 import description
from glassfs.formats.hdf5.group import Listing
from glassfs.formats.registry import Opening

MAGIC = b"\x89HDF\r\n\x1a\n"
OFFSETS = (0, 512, 1024, 2048)
"""Where the superblock may begin, behind a user block."""


def recognises(head: bytes) -> bool:
    return _start(head) is not None


def open_hdf5(opening: Opening) -> Container:
    """Ask the worker for the root group. Raises Refused if h5py is not installed, and Damaged."""
    source = opening.source
    if not is_installed():
        raise Refused(f"is an HDF5 file, which needs h5py: {installing.command('hdf5')}", source.name)
    head = source.read(0, min(OFFSETS[-1] + len(MAGIC) + 1, source.size))
    start = _start(head)
    if start is None or len(head) <= start + len(MAGIC):
        raise Damaged("is cut short", source.name)
    sandbox = opening.sandbox("hdf5")
    answer, _ = sandbox.ask({"do": "open"})
    root = description.described(answer)
    listing = Listing(opening, sandbox, isinstance(answer, dict) and bool(answer.get("may_have_episodes")))
    facts = {"superblock": head[start + len(MAGIC)], "user_block": start, "attributes": root.attributes}
    version = str(facts["superblock"])
    return Container("hdf5", version, listing.root(root), [source], facts, episodes=listing.episodes.table)


def _start(head: bytes) -> int | None:
    return next((offset for offset in OFFSETS if head.startswith(MAGIC, offset)), None)


@lru_cache(1)
def is_installed() -> bool:
    """Return whether h5py is there."""
    return find_spec("h5py") is not None
