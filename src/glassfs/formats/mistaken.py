"""Files that have the name of a container and not its bytes: what arrived in its place.

Called for files that no format recognizes. Any thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# The specification of pointers by git-lfs, and "pointer file" in the internals of git-annex.
_LFS = re.compile(rb"version https://[a-z.-]+/spec/v1\n(?:[^\n]*\n)*?size (\d{1,20})\n")
_ANNEX = re.compile(rb"/annex/objects/[^\n/]+\n?")
_PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<(?:!doctype html|html|head|body)[\s>]|<\?xml )", re.IGNORECASE)
_ANSWER = re.compile(rb'\s*\{\s*"(?:error|errors|message|detail)"\s*:')
_COMPRESSED = (
    (b"\x1f\x8b\x08", "gzip"), (b"\x28\xb5\x2f\xfd", "Zstandard"), (b"\xfd7zXZ\0", "xz"), (b"BZh", "bzip2"),
    (b"\x04\x22\x4d\x18", "LZ4"), (b"7z\xbc\xaf\x27\x1c", "7-Zip"), (b"PK\3\4", "ZIP"),
)


def mistaken(head: bytes) -> str | None:
    """Return what a file with these first bytes is instead of a container, and what to do; None if unknown."""
    if pointer := _LFS.match(head):
        return f"is a pointer of Git LFS to {int(pointer[1]):,} bytes, not the file: run git lfs pull"
    if _ANNEX.fullmatch(head):
        return "is a pointer of git-annex, not the file: run git annex get"
    if _PAGE.match(head) or _ANSWER.match(head):
        return "is an HTML page, or another answer of a server, such as one about an error: download the file again"
    for magic, name in _COMPRESSED:
        if head.startswith(magic):
            return f"is compressed with {name}: decompress it first"
    if head[257:262] == b"ustar":
        return "is a tar archive: unpack it first"
    return None


def some(names: Sequence[str]) -> str:
    """Return the first of these names."""
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
