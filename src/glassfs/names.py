"""From the names in a container to path components: a total, injective rule (docs/manual/contents.md, "Names").

Pure functions; a component is a str that encodes to at most 255 bytes of UTF-8.
"""

from __future__ import annotations

import re

import xxhash

LONGEST = 255
RESERVED = ".glassfs"
_UNSAFE = re.compile("[\x00-\x1f\x7f%/\udc80-\udcff]")
_TOKEN = re.compile("%[0-9A-F]{2}|.", re.DOTALL)
_PLAIN = re.compile(rb"[ !-$&-.0-~]+")  # ASCII without control characters, percent sign and slash


def raw(name: str) -> bytes:
    """A name as bytes; those that are not UTF-8 are surrogates in it. Raises UnicodeEncodeError for others."""
    return name.encode("utf-8", "surrogateescape")


def text(name: bytes) -> str:
    """The other way round."""
    return name.decode("utf-8", "surrogateescape")


def escape(name: bytes) -> str:
    """A name as a component of any length."""
    if name in (b".", b".."):
        return "%2E" * len(name)
    if _PLAIN.fullmatch(name):
        return name.decode("ascii")
    return _UNSAFE.sub(_escaped, text(name)) or "%"


def component(name: bytes, tail: str = "") -> str:
    """``name`` escaped, and ``tail`` (a number, an extension) after it; what is too long is cut and gets a hash."""
    escaped = escape(name)
    if len(escaped) * 4 + len(tail) <= LONGEST or len((escaped + tail).encode()) <= LONGEST:
        return escaped + tail
    mark = f"~{xxhash.xxh64_hexdigest(name)}{tail}"
    room = LONGEST - len(mark.encode())
    kept = []
    for token in _TOKEN.findall(escaped):
        room -= len(token.encode())
        if room < 0:
            break
        kept.append(token)
    return "".join(kept) + mark


def shown_at_root(name: str) -> str:
    """A component as it is shown at the root of a mount, where one name is taken."""
    return f"%2E{name[1:]}" if name == RESERVED else name


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"%{code - 0xDC00 if code > 0xFF else code:02X}"
