"""KinoDB (``.kdb``): robot episodes, each with metadata, state/action records and camera images.

``file`` opens a container: header and packed index. ``episode`` makes an episode from its 64-byte index entry when
somebody asks for it. ``images`` scans an episode's image section when somebody looks into it, and ``pictures`` finds
out whether stored pictures decode. Pixels are not read before they are wanted, but where only they tell what is stored.
Nothing that can be seen changes after opening, so any thread may use it.

A file whose header or index is wrong is refused. A bad section costs the contents that lie in it: they keep the sizes
that the index gives them and raise Damaged when they are read. An image section that breaks off shows the frames before
the break and says so in ``Group.error``.

Facts: docs/formats/kinodb.md, whose sections are meant by § in this package.
"""

from __future__ import annotations

from glassfs.formats.kinodb.file import MAGIC, open_kinodb
from glassfs.formats.registry import BUILT_IN, Format

FORMAT = Format("kinodb", lambda head: head.startswith(MAGIC), open_kinodb, suffixes=BUILT_IN["kinodb"])
