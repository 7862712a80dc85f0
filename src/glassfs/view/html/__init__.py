"""Pages that show episodes in a browser, without a server: frames, plots, metadata, and lists of episodes.

``episode`` has the page of one episode; ``page`` is what all share, and keeps untrusted text text. This module has the
page of a table whose rows describe things: the episodes of a container or of a folder, or the containers there. Rows,
up to MOST_ROWS and MOST_BYTES, link to the pages of episodes, or to the directories of other things. They are made when
the size is first needed, one block of records at a time. All containers have the same page, with the rows in
``data.js``. That of a folder has them in itself, as its ``data.js`` could be any file.

Scripts and styles are files of this package, embedded in pages; ``data.js`` beside a page is loaded by it. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache as cached
from functools import partial

from glassfs.cache import BlockCache
from glassfs.content import EPISODES, Memory, Recording, Records, Stream, Table
from glassfs.content.join import Joined
from glassfs.view.contract import Key, Shown, View
from glassfs.view.html import episode, page

BODY, SCRIPT = "list.html", "list.js"
PLACE = "place"
MOST_ROWS = 100_000
MOST_BYTES = 32 << 20


def show(content: Recording | Table, cache: BlockCache, key: Key) -> Iterator[Shown]:
    """Yield the files of an episode or of a table of episodes."""
    if isinstance(content, Recording):
        yield from episode.shown(content, cache, key)
    else:
        yield from _of_table(content, cache, key)


def _of_table(table: Table, cache: BlockCache, key: Key) -> Iterator[Shown]:
    """Yield the page, or nothing for a table whose rows have no directories."""
    if table.records is None:
        return
    if isinstance(table, Joined):
        before, after = _around(table.name, has_data=False)
        rows = partial(_pieces, table, table.records, cache, before + b'{"rows": [\n', after)
        yield Shown(Stream(cache, key, rows), page.SUFFIX, page.NAME if table.is_first else table.name.encode())
    elif table.directory:
        rows = partial(_pieces, table, table.records, cache, b'"use strict";\nglassfs.rows({"rows": [\n', b");\n")
        yield Shown(Memory(_page()), page.SUFFIX, page.NAME)
        yield Shown(Stream(cache, key, rows), page.DATA_SUFFIX, page.DATA_NAME)


@cached
def _page() -> bytes:
    return b"null".join(_around(EPISODES, has_data=True))


def _around(table: str, has_data: bool) -> tuple[bytes, bytes]:
    """Return what is before and after the facts of the page of a table."""
    is_of_episodes = table == EPISODES
    thing = "episode" if is_of_episodes else "row"
    words = {
        "Things": f"{thing}s".capitalize() if is_of_episodes else page.brief(table, page.LONGEST_TITLE),
        "things": f"{thing}s", "a thing": f"{'an' if is_of_episodes else 'a'} {thing}", "table": table,
    }
    body = page.PARTS[BODY].format(**{placeholder: page.html(word) for placeholder, word in words.items()})
    return page.frame(words["Things"], body, SCRIPT, has_data)


def _pieces(table: Table, records: Records, cache: BlockCache, before: bytes, after: bytes) -> Iterator[bytes]:
    """Yield the rows, one on a line, and the facts about them, between ``before`` and ``after``."""
    names: list[str] = []
    rows, left, is_cut = 0, MOST_BYTES, False
    yield before
    for number in range(records.blocks):
        lines: list[bytes] = []
        with cache.measuring(records.cost(number)):
            for record in records.block(number):
                short = {name: page.brief(value, page.LONGEST_TEXT) for name, value in record.items()}
                if isinstance(table, Joined):
                    short[PLACE] = page.brief(table.path_of(record), 2 * page.LONGEST_TEXT)
                # Most rows have the names of the first one. They are lists of values, which take fewer bytes.
                names = names or list(short)
                lines.append(page.script(list(short.values()) if list(short) == names else short) + b",\n")
                left -= len(lines[-1])
                is_cut = left < 0 or rows + len(lines) > MOST_ROWS
                if is_cut:
                    lines.pop()
                    break
        rows += len(lines)
        yield b"".join(lines)
        if is_cut:
            break
    yield _facts(table, names, rows) + after


def _facts(table: Table, names: list[str], rows: int) -> bytes:
    """Return what follows the rows, starting with a null that ends their list."""
    known = table.attributes()
    facts = {
        "names": names, "total": max(rows, table.rows), "omitted": known.get("omitted"),
        "error": page.brief(known.get("error"), page.LONGEST_TEXT),
        "directory": page.address((table.directory,)) if table.directory else None,
        "selection": table.selection and page.brief(table.selection.text, page.LONGEST_TEXT),
    }
    if isinstance(table, Joined):
        facts |= {
            "table": page.brief(table.name, page.LONGEST_TITLE), "title": page.brief(table.title, page.LONGEST_TITLE),
            "tables": [page.brief(name, page.LONGEST_TITLE) for name in table.tables()],
        }
    return b'null], "facts": %b}' % page.script(facts)


VIEW = View("html", "episodes in a browser: a page for each, and lists of them", (Recording, Table), show)
