"""Parse the HTML page that a web server sends as the listing of a folder.

The names in it are its links to what lies directly below the folder. Pages are untrusted. Parsing takes time in
proportion to the page and memory in proportion to its links, whatever it contains. One thread at a time.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from urllib.parse import unquote, urljoin, urlsplit

from glassfs.errors import Refused, TooLarge
from glassfs.source.contract import Path
from glassfs.source.remote.answers import facts as believed
from glassfs.source.remote.server import MOST_NAMES, UNKNOWN_SIZE, Facts, Listed, is_name

PIECE = 4096
"""Characters that are parsed at once. The parser may take quadratic time in the length of one tag."""
MOST_CHARACTERS = 64 << 20
LONGEST_HINT = 100
_CALLED_LISTING = re.compile(r"\s*(index of|directory listing|directory:|listing (of|for)|files (in|within))\b", re.I)
"""The start of the title or heading in which servers name the folder."""
_TIME = re.compile(r"\s*(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d{1,9})? ?(Z|[+-]\d\d:?\d\d)\b")
_SIZE = re.compile(r"\d{1,18}")
_CLOCK = re.compile(r"\d:\d\d")


class Page(HTMLParser):
    """The page with this URL; ``path`` is the folder's."""

    def __init__(self, url: str, path: Path) -> None:
        super().__init__()
        self._base = url
        self._server = _origin(url)
        self._path = path
        self._found: dict[str, Facts | None] = {}
        self._foreign = 0
        """Links to other servers, and to what is neither below the folder nor above it."""
        self._characters = 0
        self._titles: list[str] = []
        self._is_in_title = False
        self._in_row: list[str] = []
        """The objects in the current row of a table."""
        self._size = self._time = ""
        """Of the current row, as attributes for programs."""
        self._linked = self._hint_for = ""
        """The object that the current link is the first one to, and the one that the text after a link describes."""

    def take(self, text: str) -> None:
        """Parse more of the page. Raises Refused if it is no listing, and TooLarge."""
        for start in range(0, len(text), PIECE):
            self._characters += min(PIECE, len(text) - start)
            if self._characters > MOST_CHARACTERS or len(self._found) > MOST_NAMES:
                raise TooLarge(f"has a listing of more than {MOST_NAMES} names or {MOST_CHARACTERS >> 20} MiB")
            try:
                self.feed(text[start : start + PIECE])
            except (AssertionError, ValueError):  # the parser's own, about malformed declarations
                raise _no_listing() from None
            # The parser keeps an unfinished tag and begins again at its start with each piece of text. Within a script
            # it keeps everything.
            if self.cdata_elem is not None:
                # Of a script only as many characters are kept as may begin the tag that ends it.
                self.rawdata = self.rawdata[-64:]
            # A tag or comment that is longer ends the page. File names have at most 255 bytes, 765 when they are
            # quoted.
            elif len(self.rawdata) > 2 * PIECE:
                raise _no_listing()

    def listed(self) -> list[Listed]:
        """Return the names, once the page is complete. Raises Refused if it is no listing.

        A page is a listing if its title or a heading starts as those of listings do, or ends with the folder's name or
        path. In the second case it must not have more foreign links than names.
        """
        self._end_row()
        if not any(map(_CALLED_LISTING.match, self._titles)):
            here = self._path[-1] if self._path else ""
            ends = (title.strip().rstrip("/").rpartition("/")[2] for title in self._titles if title.strip())
            if here not in ends or self._foreign > max(1, len(self._found)):
                raise _no_listing()
        # What a row says besides the name tells a change only if there is a time in it.
        return [
            Listed(name, facts if facts is None or _CLOCK.search(facts.etag) else facts._replace(etag=""))
            for name, facts in self._found.items()
        ]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "a":
            self._linked = self._hint_for = ""
            self._link(values.get("href"))
        elif tag == "tr":
            self._end_row()
        elif tag == "td":
            self._size = values.get("data-order") or values.get("data-size") or self._size
        elif tag == "time":
            self._time = values.get("datetime", "")
        elif tag in ("title", "h1", "h2"):
            self._titles.append("")
            self._is_in_title = True
        elif tag == "base":
            self._base = _joined(self._base, values.get("href", ""))
        elif values.get("xlink:href", "").endswith("-shortcut"):  # Caddy's sign for a link: it describes the link
            self._in_row.clear()

    def handle_endtag(self, tag: str) -> None:
        if tag == "a":
            self._hint_for, self._linked = self._linked, ""
        elif tag == "tr":
            self._end_row()
        elif tag in ("title", "h1", "h2"):
            self._is_in_title = False

    def handle_data(self, data: str) -> None:
        if self._is_in_title and len(self._titles[-1]) < 1000:
            self._titles[-1] += data
        if self._hint_for and (facts := self._found.get(self._hint_for)) is not None:
            hint = f"{facts.etag} {' '.join(data[:LONGEST_HINT].split())}".strip()
            self._found[self._hint_for] = facts._replace(etag=hint[:LONGEST_HINT])

    def _link(self, target: str | None) -> None:
        if target is None or target.startswith(("?", "#")):
            return
        try:
            url = urlsplit(_joined(self._base, target))
            path = [_decoded(part) for part in url.path.split("/")[1:]]
        except ValueError:
            return
        depth = len(self._path)
        if _origin_of(url.scheme, url.netloc) != self._server:
            self._foreign += 1
        elif tuple(path[:depth]) != self._path:
            above = tuple(path[:-1] if path and not path[-1] else path)
            self._foreign += self._path[: len(above)] != above
        elif not url.query and not url.fragment and path[depth:] and path[depth + 1 :] in ([], [""]):
            self._add(path[depth], is_folder=len(path) > depth + 1)

    def _add(self, name: str, is_folder: bool) -> None:
        if not is_name(name):
            return
        if is_folder:
            self._found[name] = None
        elif name not in self._found:
            self._found[name] = Facts(UNKNOWN_SIZE, "", 0)
            self._in_row.append(name)
            self._linked = name

    def _end_row(self) -> None:
        """Take size and time from the attributes of a row with one object."""
        found = _TIME.match(self._time)
        if len(self._in_row) == 1 and found is not None and _SIZE.fullmatch(self._size):
            zone = "+00:00" if found[3] == "Z" else f"{found[3][:3]}:{found[3][-2:]}"
            modified = f"{found[1]}T{found[2]}{zone}"
            self._found[self._in_row[0]] = believed({"size": int(self._size), "mtime": modified})
        self._size = self._time = self._hint_for = ""
        self._in_row.clear()


def _no_listing() -> Refused:
    return Refused("the server sends a page that is no listing; name what is in it by its own URL")


def _joined(base: str, target: str) -> str:
    try:
        return urljoin(base, target.strip())
    except ValueError:
        return ""


def _decoded(part: str) -> str:
    """Decode a part of a path: bytes that are not UTF-8 become surrogates. Raises ValueError."""
    return unquote(part, errors="surrogateescape").encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def _origin(url: str) -> tuple[str, str]:
    split = urlsplit(url)
    return _origin_of(split.scheme, split.netloc)


def _origin_of(scheme: str, authority: str) -> tuple[str, str]:
    return scheme, authority.lower()
