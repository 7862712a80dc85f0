"""Collect what listed directories do not show, for ``.glassfs/omitted.jsonl``. Any thread."""

from __future__ import annotations

import json
from collections.abc import Sequence

from glassfs.lru import LRU
from glassfs.tree.omissions import MOST_NAMED, Omission

MOST_BYTES = 1 << 20
ENTRY_COST = 200


class MetOmissions:
    """Omissions by the path of their directory: of those listed last, as many as take ``MOST_BYTES`` of memory."""

    def __init__(self) -> None:
        self._lines: LRU[str, bytes] = LRU(MOST_BYTES)

    def __bool__(self) -> bool:
        return self._lines.weight > 0

    def note(self, path: str, omitted: Sequence[Omission]) -> None:
        """Replace what is known of a directory."""
        lines = b"".join(
            json.dumps({"path": path, "name": one.name, "reason": one.reason, "is_damage": one.is_damage}).encode()
            + b"\n" for one in omitted[:MOST_NAMED]
        )
        if len(lines) > MOST_BYTES:
            lines = lines[: lines.rfind(b"\n", 0, MOST_BYTES) + 1]
        if lines:
            self._lines.put(path, lines, len(lines) + ENTRY_COST)
        else:
            self._lines.pop(path)

    def text(self) -> bytes:
        """Return a line of JSON for each."""
        return b"".join(lines for _, lines in self._lines.items())
