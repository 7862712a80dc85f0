"""The page of a directory: what is in it, a part at a time, pictures as pictures. Any thread.

Names are untrusted: they are escaped, and the policy lets the page run no script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from itertools import islice
from urllib.parse import quote

from glassfs.errors import GlassfsError
from glassfs.names import raw
from glassfs.serve.replies import modified
from glassfs.sizes import human_size
from glassfs.tree import Directory, File, Node
from glassfs.view.html.page import LONGEST_TITLE, PARTS, brief, digest, html

AT_ONCE = 1000
MOST_OMISSIONS = 20
PICTURES = (".png", ".jpg", ".jpeg", ".webp")
_STYLE = PARTS["page.css"] + PARTS["folder.css"]
POLICY = (
    f"default-src 'none'; style-src {digest(_STYLE)}; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
POLICY_OF_VIEWS = "frame-ancestors 'self'"
"""Beside the policy that pages of the html view have in themselves."""
FOOTER = b'<p class="ways"><a href="?list">All files of this directory</a></p>\n'


def listing(
    names: Sequence[str], directory: Directory, start: int, most: int, follow: Callable[[Node], Node | None],
) -> Iterator[bytes]:
    """Yield the page of a directory with up to ``most`` entries from number ``start`` on; ``names`` lead to it.

    ``follow`` returns what an entry is or leads to; None if that is not served. Raises what listing it raises, with the
    first piece.
    """
    nodes = directory.listing()
    stop = min(start + most, len(nodes))
    above = "".join(
        f'<a href="{"../" * (len(names) - number - 1)}?list" dir="auto">{_text(name)}</a> / '
        for number, name in enumerate(names[:-1])
    )
    pager = " ".join(
        f'<a href="?from={number}">{word}</a>' for number, word, is_there in
        ((max(0, start - most), "← Previous", start > 0), (stop, "Next →", stop < len(nodes))) if is_there
    )
    omitted = "".join(
        f"<li>{_text(one.name)}: {html(brief(one.reason, 4 * LONGEST_TITLE))}" for one in
        islice(directory.omitted(), MOST_OMISSIONS)
    )
    notes = f'<section class="card notes"><p>Not shown:<ul>{omitted}</ul></section>' if omitted else ""
    count = f"{start + 1:,} to {stop:,} of {len(nodes):,}" if pager else f"{len(nodes):,}"
    title = _text(names[-1])
    shown = range(start, stop)
    are_pictures = 0 < len(shown) <= AT_ONCE and all(nodes[at].name.lower().endswith(PICTURES) for at in shown)
    row = _picture if are_pictures else _row
    begin, end = ('<div class="pictures">', "</div>") if are_pictures else ('<table class="files">', "</table>")
    yield f"""<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{_STYLE}</style>
<body>
<header><nav class="ways">{above}</nav><h1 dir="auto">{title}</h1><p class="line">{count} entries</p></header>
<main>{notes}<div class="card wide">{begin}
""".encode()
    for first in range(start, stop, AT_ONCE):
        part = [nodes[number] for number in range(first, min(first + AT_ONCE, stop))]
        yield "".join(row(node.name, found) for node in part if (found := follow(node)) is not None).encode()
    yield f'{end}</div><nav class="pager">{pager}</nav></main>\n</body>\n</html>\n'.encode()


def _text(name: str) -> str:
    return html(brief(name, LONGEST_TITLE))


def _address(name: str, node: Node) -> str:
    return f"./{quote(raw(name), safe='')}{'/' * isinstance(node, Directory)}"


def _picture(name: str, node: Node) -> str:
    address = _address(name, node)
    image = f'<img src="{address}" alt="" loading="lazy" decoding="async">'
    return f'<a href="{address}">{image}<span>{_text(name)}</span></a>\n'


def _row(name: str, node: Node) -> str:
    size, mark = "", "/" * isinstance(node, Directory)
    # A size that only a pass over the data could tell is not worth it here.
    if isinstance(node, File) and (node.data.is_sized or node.data.is_cheap):
        try:
            size = human_size(node.size)
        except GlassfsError as error:
            size = html(brief(str(error), LONGEST_TITLE))
    changed = datetime.fromtimestamp(modified(node), timezone.utc)
    return (
        f'<tr><td dir="auto"><a href="{_address(name, node)}">{_text(name)}{mark}</a><td class="number">{size}'
        f"<td>{changed:%Y-%m-%d %H:%M}\n"
    )
