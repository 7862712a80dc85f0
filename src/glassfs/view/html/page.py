"""What all pages have in common: the frame around a body, with its style, its script and what they may load.

A page may run only its own script and the ``data.js`` beside it, show files beside it, and speak to nobody: its policy
says so to the browser. Any thread.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from functools import cache
from importlib.resources import files

from glassfs.view.html import escape

NAME, SUFFIX = b"index", ".html"
DATA_NAME, DATA_SUFFIX = b"data", ".js"
LONGEST_TITLE = 200
STYLE = "page.css"


def document(title: str, body: str, script: str, facts: object = None) -> bytes:
    """A page. ``body`` is HTML, ``script`` the name of a script, ``facts`` what the script finds as JSON."""
    style, code = part(STYLE), part(script)
    policy = "; ".join((
        "default-src 'none'",
        f"script-src {_digest(code)} 'self' file:",
        f"style-src {_digest(style)}",
        "img-src 'self' file:",
        "media-src 'self' file:",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ))
    shown = escape.brief(title, LONGEST_TITLE)
    head = (
        "<!DOCTYPE html>\n"
        '<html lang="en">\n'
        '<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape.html(shown)}</title>\n"
        f"<style>{style}</style>\n<body>\n"
    )
    data = DATA_NAME.decode() + DATA_SUFFIX
    told = b'<script type="application/json" id="facts">' + escape.script(facts) + b"</script>\n"
    tail = f'<script>{code}</script>\n<script src="{data}" defer></script>\n</body>\n</html>\n'
    return head.encode() + body.encode() + told + tail.encode()


@cache
def part(name: str) -> str:
    """A file of this package that stands in pages."""
    return files(__package__ or "").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
