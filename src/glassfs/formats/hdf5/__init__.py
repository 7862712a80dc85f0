"""HDF5 (``.h5``, ``.hdf5``): groups and datasets.

h5py reads the metadata in a sandbox (``glassfs.sandbox``), which needs the extra ``hdf5``. ``elements`` has requests to
it, ``description`` checks its answers, ``group`` makes contents of objects, ``dataset`` those of datasets; ``chunks``
and ``filters`` read chunks in this process.

Metadata that libhdf5 cannot read, or that make it crash, raise Damaged where they are needed. Any thread.

Facts: docs/formats/hdf5.md; § in this package cites its sections.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec

from glassfs.content import Container
from glassfs.errors import Damaged, Refused
from glassfs.formats.hdf5 import description
from glassfs.formats.hdf5.elements import WorkerAnswers
from glassfs.formats.hdf5.group import ArrayListing, GroupListing
from glassfs.formats.hdf5.outside import OtherFiles
from glassfs.formats.registry import BUILT_IN, HEAD, Format, Head, Opening

MAGIC = b"\x89HDF\r\n\x1a\n"
NEAR, FAR = (0, 512, 1024, 2048), tuple(1 << bits for bits in range(12, 21))
"""Where the superblock may begin, behind a user block; in FAR only that of a file whose name says that it is HDF5."""


def recognises(head: Head) -> bool:
    return _start(head) is not None


def open_hdf5(opening: Opening) -> Container:
    """Ask the worker for the root group. Raises Refused if h5py is not installed, and Damaged."""
    source = opening.source
    if lacks := missing():
        raise Refused(f"is an HDF5 file, which {lacks}", source.name)
    head = Head.of(source, source.read(0, min(HEAD, source.size)))
    start = _start(head) or 0
    version = head.part(start + len(MAGIC), 1)
    if not version:
        raise Damaged("is cut short", source.name)
    if _is_written(head, start):
        reason = "is open for writing, or its writer was killed: close it there, or repair it with h5clear"
        raise Refused(reason, source.name)
    answers = WorkerAnswers(opening)
    answer = answers.described({"do": "open"})
    root = description.described(answer)
    others = OtherFiles(opening, description.files(answer))
    listing = GroupListing(opening, answers, others)
    facts = {"superblock": version[0], "user_block": start, "attributes": root.attributes}
    return Container(
        "hdf5", str(version[0]), listing.root(root), [source, *others.sources], facts, is_generic=True,
        prepare=listing.prepare, arrays=lambda: ArrayListing(opening, answers, others).root(root),
        held=lambda: listing.held,
    )


def is_slow(head: Head) -> bool:
    """Return whether opening a file takes a worker: others are refused at once, and never listed as directories."""
    start = _start(head)
    return is_installed() and start is not None and not _is_written(head, start)


def _is_written(head: Head, start: int) -> bool:
    """Return whether a writer has the file open, or had when it was killed: flags 1 and 4 of a superblock (§1)."""
    version, flags = head.part(start + len(MAGIC), 1), head.part(start + 11, 1)
    return bool(flags) and version[0] == 3 and bool(flags[0] & 5)


def _start(head: Head) -> int | None:
    near = next((offset for offset in NEAR if head.startswith(MAGIC, offset)), None)
    if near is not None or not head.name.lower().endswith(BUILT_IN["hdf5"]):
        return near
    return next((offset for offset in FAR if head.part(offset, len(MAGIC)) == MAGIC), None)


@lru_cache(1)
def is_installed() -> bool:
    """Return whether h5py is there."""
    return find_spec("h5py") is not None


def missing() -> str:
    return "" if is_installed() else "needs h5py: install glassfs[hdf5]"


FORMAT = Format("hdf5", recognises, open_hdf5, is_slow=is_slow, missing=missing)
