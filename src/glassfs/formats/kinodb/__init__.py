"""KinoDB (``.kdb``): robot episodes, each with metadata, state/action records and camera images.

``file`` opens a container (header and packed index). ``episode`` makes an episode from its 64-byte index entry on
demand, and ``table`` has the table of all episodes. ``scan`` locates the images of an episode when they are listed, and
``images`` makes contents of them. Pixels are read only on demand, or where nothing else shows what is stored.
Containers are immutable except for caches, so any thread may use them.

A file with a wrong header or index is refused. A bad section costs only its own contents: they keep the sizes that the
index gives and raise Damaged when read. An image section that is cut off shows the frames before the cut, with a reason
in an ``Omitted`` member.

Facts: docs/formats/kinodb.md; § in this package cites its sections.
"""

from __future__ import annotations

from glassfs.formats.kinodb.file import MAGIC, open_kinodb
from glassfs.formats.registry import BUILT_IN, JOINED, Format

FORMAT = Format(
    "kinodb", lambda head: head.startswith(MAGIC), open_kinodb, suffixes=BUILT_IN["kinodb"], joined=JOINED["kinodb"],
)
