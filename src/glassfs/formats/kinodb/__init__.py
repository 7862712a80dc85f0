"""KinoDB (``.kdb``): robot episodes, each with metadata, state/action records and camera images.

``file`` opens a container: header and packed index. ``episode`` makes an episode from its 64-byte index entry when
somebody asks for it. ``images`` scans an episode's image section when somebody looks into it. Pixels are never read
before they are wanted. Nothing here changes after opening, so any thread may use it.

A file whose header or index is wrong is refused. A bad section costs the contents that lie in it: they keep the sizes
that the index gives them and raise Damaged when they are read. An image section that breaks off shows the frames before
the break and says so in ``Group.error``.

Facts: formats/kinodb.md, whose sections are meant by § in this package.
"""

from __future__ import annotations

from glassfs.formats.kinodb.file import HEADER_SIZE, MAGIC, open_kinodb
from glassfs.formats.registry import Format


def _hint(head: bytes) -> str | None:
    if len(head) > HEADER_SIZE and not any(head[: HEADER_SIZE]):
        return "starts with 64 zero bytes: a KinoDB file whose writer did not finish, or no container"
    return None


FORMAT = Format("kinodb", lambda head: head.startswith(MAGIC), open_kinodb, _hint)
