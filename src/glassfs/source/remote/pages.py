"""Folders of web servers without WebDAV: find the names in the HTML page that a server sends for a folder.

They are its links to what lies directly below the folder. Pages are untrusted: parsing takes time in proportion to the
page, and memory in proportion to it. Pure functions.
"""

from __future__ import annotations

import re
from html import unescape
from itertools import chain, islice, pairwise
from urllib.parse import unquote, urljoin, urlsplit

import xxhash

from glassfs.errors import Refused, TooLarge
from glassfs.source.contract import Path
from glassfs.source.remote.server import MOST_NAMES, is_name

LONGEST_TAG, LONGEST_ROW = 4096, 16384
MOST_TITLES = 10
# No pattern tries more than once to match a byte of the page: what is repeated ends at the first < or >, or is bounded.
_LINK = re.compile(rb"<a\s[^<>]{0,%d}?\bhref\s*=\s*(?:\"([^\"<>]{0,%d})\"|'([^'<>]{0,%d})'|([^\s\"'<>]{1,%d}))" % (
    (LONGEST_TAG,) * 4
), re.IGNORECASE)
_TITLE = re.compile(rb"<(?:title|h[12])\b[^<>]{0,200}>((?:(?!</(?:title|h[12])).){0,2000})", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(rb"<[^<>]*>")
_CALLED_LISTING = re.compile(r"\s*(index of|directory listing|directory:|listing (of|for)|files (in|within))\b", re.I)
"""The start of the title or heading in which servers name the folder."""
_CLOCK = re.compile(rb"\d:\d\d")


def rows_of(page: bytes, url: str, path: Path, shown: str) -> dict[str, bytes | None]:
    """Return the names in the folder at ``path`` by the page with this URL; errors call it ``shown``.

    The value of a folder is None, that of a file is a digest of its row in the page, which has its time and so changes
    with the file; b"" if there is no time in it. Raises TooLarge, and Refused if the page is no listing: if no title or
    heading starts as those of listings do, nor ends with the folder's name or path. In the second case it must not have
    more links to other servers and to folders beside this one than names.
    """
    rows: dict[str, bytes | None] = {}
    server, depth, foreign = urlsplit(url), len(path), 0
    for link, following in pairwise(chain(_LINK.finditer(page), (None,))):
        assert link is not None
        target = unescape((link[1] or link[2] or link[3] or b"").decode("utf-8", "surrogateescape")).strip()
        try:
            at = urlsplit(urljoin(url, target))
            # Bytes that are not UTF-8 become surrogates.
            names = [unquote(part, errors="surrogateescape") for part in at.path.split("/")[1:]]
        except ValueError:
            continue
        above = tuple(names[:-1] if names and not names[-1] else names)
        if (at.scheme, at.netloc.lower()) != (server.scheme, server.netloc.lower()):
            foreign += 1
        elif above[:depth] != path:
            foreign += path[: len(above)] != above
        elif not (at.query or at.fragment) and names[depth + 1 :] in ([], [""]) and is_name("".join(names[depth:])):
            name = names[depth]
            # The markup up to the next link has the file's time, in a form of each server's own. It need not be
            # understood: other markup says that the file may have changed.
            row = page[link.end() : min(following.start() if following else len(page), link.end() + LONGEST_ROW)]
            if len(names) > depth + 1:
                rows[name] = None
            elif _CLOCK.search(row) and rows.get(name, b"") is not None:
                rows[name] = xxhash.xxh3_64_digest((rows.get(name) or b"") + row)
            else:
                rows.setdefault(name, b"")
        if len(rows) > MOST_NAMES:
            raise TooLarge(f"has a listing of more than {MOST_NAMES} names", shown)
    titles = [
        unescape(_TAG.sub(b"", found[1]).decode("utf-8", "surrogateescape"))
        for found in islice(_TITLE.finditer(page), MOST_TITLES)
    ]
    # A web site with links must not become a folder, as each of them would be requested and shown as a file.
    if not any(map(_CALLED_LISTING.match, titles)):
        ends = [title.strip().rstrip("/").rpartition("/")[2] for title in titles if title.strip()]
        if (path[-1] if path else "") not in ends or foreign > max(1, len(rows)):
            raise Refused("the server sends a page that is no listing; name what is in it by its own URL", shown)
    return rows
