"""Names in containers as path components: a total, injective mapping (docs/manual/contents.md, "Names").

Pure functions. A component is a str of at most 255 bytes in UTF-8.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count

import xxhash

LONGEST = 255
RESERVED = ".glassfs"
_UNSAFE = re.compile("[\x00-\x1f\x7f%/\udc80-\udcff]")
_TOKEN = re.compile("%[0-9A-F]{2}|.", re.DOTALL)
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")
_PLAIN = re.compile(rb"[ !-$&-.0-~]+")  # ASCII without control characters, percent sign and slash


def raw(name: str) -> bytes:
    """Encode a name as UTF-8; surrogates stand for bytes that are not UTF-8.

    Raises UnicodeEncodeError for surrogates that stand for no byte.
    """
    return name.encode("utf-8", "surrogateescape")


def text(name: bytes) -> str:
    """Decode a name that ``raw`` encoded; bytes that are not UTF-8 become surrogates."""
    return name.decode("utf-8", "surrogateescape")


def escape(name: bytes) -> str:
    """Escape a name to a component of any length."""
    if name in (b".", b".."):
        return "%2E" * len(name)
    if _PLAIN.fullmatch(name):
        return name.decode("ascii")
    return _UNSAFE.sub(_escaped, text(name)) or "%"


def component(name: bytes, tail: str = "") -> str:
    """Escape a name and append ``tail`` (a number, an extension); a long name is cut and gets a hash."""
    # No character takes fewer bytes escaped than stored, and more than LONGEST of them are never kept.
    escaped = escape(name[: LONGEST + 1])
    if len(escaped) * 4 + len(tail) <= LONGEST or len((escaped + tail).encode()) <= LONGEST:
        return escaped + tail
    mark = f"~{xxhash.xxh64_hexdigest(name)}{tail}"
    remaining = LONGEST - len(mark.encode())
    kept = []
    for token in _TOKEN.findall(escaped):
        remaining -= len(token.encode())
        if remaining < 0:
            break
        kept.append(token)
    return "".join(kept) + mark


def shortened(name: bytes) -> bytes:
    """Return a name of at most ``LONGEST`` bytes that has the same component."""
    if len(name) <= LONGEST:
        return name
    return _ESCAPED.sub(lambda match: bytes((int(match[1], 16),)), component(name).encode())


def shown_at_root(name: str) -> str:
    """Return the component to show at the root of a mount, where ``RESERVED`` is taken."""
    return f"%2E{name[1:]}" if name == RESERVED else name


def shown_name(original: str, is_mount_root: bool = False) -> str:
    """Return the component to show for a name in a store, "" if no file can have that name."""
    try:
        name = component(raw(original))
    except UnicodeEncodeError:
        return ""
    return shown_at_root(name) if is_mount_root else name


def free_name(
    name: str, is_taken: Callable[[str], bool], numbered: Callable[[str], str], numbers: Iterator[int] | None = None,
) -> str:
    """Return ``name``, or if that is taken the first free one of ``numbered("~2")``, ``numbered("~3")`` and so on.

    Callers that number many equal names pass the same ``numbers`` for each, so that no number is tried twice.
    """
    numbers = count(2) if numbers is None else numbers
    while is_taken(name):
        name = numbered(f"~{next(numbers)}")
    return name


def distinct(originals: Iterable[bytes]) -> list[str]:
    """Return a path component for each of several sources side by side: all are different, none is RESERVED."""
    found: dict[str, None] = {RESERVED: None}
    numbers: defaultdict[bytes, Iterator[int]] = defaultdict(lambda: count(2))
    for original in originals:
        name = component(original)
        found[free_name(name, found.__contains__, partial(component, original), numbers[original])] = None
    return list(found)[1:]


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"%{code - 0xDC00 if code > 0xFF else code:02X}"
