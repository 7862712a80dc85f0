"""NPZ: arrays in a ZIP archive, as NumPy and SciPy write them (docs/formats/npz.md).

``archive`` reads the ZIP archive, ``header`` the header of an NPY file, and ``contents`` makes contents of members and,
for replay buffers of DreamerV3, an episode. Opening raises Damaged; any thread may use opened archives.
"""

from __future__ import annotations

from glassfs.content import Container, Group
from glassfs.formats.npz.archive import LOCAL, LOCAL_HEADER
from glassfs.formats.npz.contents import SUFFIX, ArchiveContents
from glassfs.formats.registry import BUILT_IN, Format, Head, Opening

NAMED = BUILT_IN["npz"]
END, LONGEST_END = b"PK\5\6", 22 + 0xFFFF


def open_npz(opening: Opening) -> Container:
    """Open an archive. Raises Damaged if its end or its central directory contradicts itself or the file."""
    contents = ArchiveContents(opening)
    archive = contents.archive
    facts = {"members": len(archive.entries)}
    if archive.in_front:
        facts["bytes_in_front"] = archive.in_front
    if archive.hidden:
        opening.warn(f"{archive.hidden} members share their name with a later one, which keeps it")
    return Container("npz", "ZIP", Group(b"", contents.members), [opening.source], facts, episodes=contents.episodes)


def recognises(head: Head) -> bool:
    """Return whether the first member is an NPY file, or whether a ZIP archive is called NPZ (§1)."""
    if head.startswith(LOCAL) and len(head) >= LOCAL_HEADER.size:
        length = LOCAL_HEADER.unpack_from(head)[9]
        if head[LOCAL_HEADER.size : LOCAL_HEADER.size + length].endswith(SUFFIX):
            return True
    return head.name.lower().endswith(NAMED) and END in head.tail(LONGEST_END)


FORMAT = Format("npz", recognises, open_npz, suffixes=NAMED)
