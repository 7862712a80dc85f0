"""Files that have the name of a container and not its bytes: what arrived in its place, and which shards are missing.

Called for files that no format recognizes. Any thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from glassfs.source import Path, Source, Store

MOST_SHARDS = 10_000  # each is looked up
# The specification of pointers by git-lfs, and "pointer file" in the internals of git-annex.
_LFS = re.compile(rb"version https://[a-z.-]+/spec/v1\n(?:[^\n]*\n)*?size (\d{1,20})\n")
_ANNEX = re.compile(rb"/annex/objects/[^\n/]+\n?")
_PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype html|html|head|body)[\s>]", re.IGNORECASE)
_XML = re.compile(rb"(?:\xef\xbb\xbf)?\s*<\?xml ")
_ANSWER = re.compile(rb'\s*\{\s*"(?:error|errors|message|detail)"\s*:')
_COMPRESSED = (
    (b"\x1f\x8b\x08", "gzip"), (b"\x28\xb5\x2f\xfd", "Zstandard"), (b"\xfd7zXZ\0", "xz"), (b"BZh", "bzip2"),
    (b"\x04\x22\x4d\x18", "LZ4"), (b"7z\xbc\xaf\x27\x1c", "7-Zip"), (b"PK\3\4", "ZIP"),
)
_SHARD = re.compile(rb':\s{0,9}"([^"\\/\x00-\x1f]{1,255})"\s{0,99}[,}]')


def mistaken(head: bytes) -> str | None:
    """Return what a file with these first bytes is instead of a container, and what to do; None if unknown."""
    if pointer := _LFS.match(head):
        return f"is a pointer of Git LFS to {int(pointer[1]):,} bytes, not the file: run git lfs pull"
    if _ANNEX.fullmatch(head):
        return "is a pointer of git-annex, not the file: run git annex get"
    if _PAGE.match(head):
        return "is an HTML page, such as one about an error: download the file again"
    if _XML.match(head):
        return "is an XML document, such as the answer of a server about an error: download the file again"
    if _ANSWER.match(head):
        return "is the answer of a server about an error (JSON): download the file again"
    for magic, name in _COMPRESSED:
        if head.startswith(magic):
            return f"is compressed with {name}: decompress it first"
    if head[257:262] == b"ustar":
        return "is a tar archive: unpack it first"
    return None


def missing_shards(source: Source, store: Store, folder: Path, suffix: str) -> tuple[str, list[Path]]:
    """Return why an index of shards in a folder is incomplete, "" if it is not, and the paths of what is missing.

    Shards are values of its ``weight_map`` with the suffix; the first MOST_SHARDS are looked up. It is read as a whole.
    """
    found = (match[1].decode("utf-8", "surrogateescape") for match in _SHARD.finditer(source.read(0, source.size)))
    names = list(dict.fromkeys(name for name in found if name.endswith(suffix)))
    present = store.entries(folder, names[:MOST_SHARDS])
    missing = [name for name, one in zip(names, present, strict=False) if one is None]
    verb = "is" if len(missing) == 1 else "are"
    reason = f"{len(missing):,} of its {len(names):,} shards {verb} missing: {some(missing)}" if missing else ""
    return reason, [(*folder, name) for name in missing]


def some(names: Sequence[str]) -> str:
    """Return the first of these names."""
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
