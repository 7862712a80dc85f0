"""WShard: episodes of robot learning, one block per channel (docs/formats/wshard.md).

``index`` reads the container, ``metadata`` the descriptions of blocks; ``episode`` makes contents of blocks,
``interleaved`` repairs a fault of the streaming writers, ``residual`` unpacks bits, ``table`` makes the tables of the
episode and its steps, ``manifest`` joins episodes in several files, and ``verification`` finds errors that reading does
not reveal. Opening raises Damaged or Refused; any thread may use opened episodes.
"""

from __future__ import annotations

from glassfs.content import Container, Group
from glassfs.errors import Refused
from glassfs.formats.registry import Format, Opening
from glassfs.formats.wshard.episode import WShardEpisode
from glassfs.formats.wshard.index import MAGIC, Index, Role
from glassfs.formats.wshard.manifest import open_manifest
from glassfs.formats.wshard.table import record_of
from glassfs.formats.wshard.verification import facts, faults


def open_wshard(opening: Opening) -> Container:
    """Open an episode (role 5) or the manifest of one in several files (role 4).

    Raises Damaged or Refused for a bad header or index, for other roles, and if the parts listed by a manifest are not
    the whole episode.
    """
    source = opening.source
    index = Index(source, opening.allowance)
    header = index.header
    if header.role not in (Role.WShard, Role.manifest):
        raise Refused(f"is a Shard container of {header.role_name}, not of WShard", source.name)
    if header.total_size != source.size:
        opening.warn(f"has {source.size} bytes, but its header says {header.total_size}")
    if header.role == Role.manifest:
        return open_manifest(opening, index)
    episode = WShardEpisode(index, opening.cache, opening.allowance)
    for name, reason in episode.damaged_metadata.items():
        opening.warn(reason, name.decode())
    root = Group(b"", record_of(episode).members)
    return Container(
        "wshard", str(header.version), root, [source], facts(episode), lambda: faults(episode),
        lambda: record_of(episode).table(),
    )


FORMAT = Format("wshard", lambda head: head.startswith(MAGIC), open_wshard)
