"""NPZ: arrays in a ZIP archive, as NumPy and SciPy write them (docs/formats/npz.md).

``archive`` reads the ZIP archive, ``header`` the header of an NPY file, and ``contents`` makes contents of members and,
for replay buffers of DreamerV3, an episode. Opening raises Damaged; any thread may use opened archives.
"""

from __future__ import annotations

from glassfs.content import Container, Group
from glassfs.formats.npz.archive import END, LOCAL, LOCAL_HEADER, LONGEST_END
from glassfs.formats.npz.contents import SUFFIX, Contents
from glassfs.formats.registry import BUILT_IN, Format, Head, Opening

NAMED = BUILT_IN["npz"]
SURVEYED = 1 << 20
"""Bytes; a smaller central directory is checked when the archive is opened, a larger one when it is listed."""


def open_npz(opening: Opening) -> Container:
    """Open an archive. Raises Damaged if its end or a small central directory contradicts itself or the file."""
    contents = Contents(opening)
    archive = contents.archive
    is_surveyed = archive.directory_size <= SURVEYED
    count = archive.survey.total if is_surveyed else archive.count
    facts = {"members": count, "directory_bytes": archive.directory_size}
    if archive.in_front:
        facts["bytes_in_front"] = archive.in_front
    if is_surveyed and archive.survey.hidden is not None:
        opening.warn(f"{sum(archive.survey.hidden)} members share their name with a later one, which keeps it")
    version = "ZIP64" if archive.is_zip64 else "ZIP"
    return Container("npz", version, Group(b"", contents.members), [opening.source], facts, episodes=contents.episodes)


def recognises(head: Head) -> bool:
    """Return whether the first member is an NPY file, or whether a ZIP archive is called NPZ (§1)."""
    if head.startswith(LOCAL) and len(head) >= LOCAL_HEADER.size:
        length = LOCAL_HEADER.unpack_from(head)[9]
        if head[LOCAL_HEADER.size : LOCAL_HEADER.size + length].endswith(SUFFIX):
            return True
    return head.name.lower().endswith(NAMED) and END in head.tail(LONGEST_END)


FORMAT = Format("npz", recognises, open_npz, suffixes=NAMED)
