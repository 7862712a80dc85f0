"""MCAP: recordings of messages, as ROS 2 and Foxglove write them (docs/formats/mcap.md, cited as §).

``recording`` finds what a file has, ``messages`` those of one topic, ``contents`` shows them. ``definitions``, ``cdr``
and ``protobuf`` decode messages, ``fields`` and ``pictures`` show what is decoded.
"""

from __future__ import annotations

from glassfs.content import Container, Group
from glassfs.errors import Refused
from glassfs.formats.mcap.contents import RecordingContents
from glassfs.formats.mcap.records import MAGIC
from glassfs.formats.registry import Format, Head, Opening

VERSION_AT = 5


def open_mcap(opening: Opening) -> Container:
    """Open a recording. Raises Damaged if it has no header, and Refused for another version of the format."""
    version = opening.source.read(VERSION_AT, 1)
    if version != MAGIC[VERSION_AT : VERSION_AT + 1]:
        raise Refused(f"has version {version!r} of MCAP, and glassfs reads version 0")
    contents = RecordingContents(opening)
    root = Group(b"", contents.members)
    facts = {"profile": contents.recording.profile, "library": contents.recording.library}
    return Container(
        "mcap", "0", root, [opening.source], facts, check=contents.check, summaries={"recordings": contents.summary},
        is_generic=True,
    )


def recognises(head: Head) -> bool:
    return head[:VERSION_AT] == MAGIC[:VERSION_AT] and head[VERSION_AT + 1 : len(MAGIC)] == MAGIC[VERSION_AT + 1 :]


FORMAT = Format("mcap", recognises, open_mcap)
