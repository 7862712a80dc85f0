"""Listings of folders as web servers write them: nginx 1.22, Apache 2.4 and Caddy 2.6."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from html import escape
from urllib.parse import quote

Layout = Callable[[str, Mapping[str, tuple[int, float]]], str]
"""Returns the page for a path with slashes around it; the sizes and times of names. Folders end with a slash."""


def nginx(path: str, names: Mapping[str, tuple[int, float]]) -> str:
    rows = "".join(
        f'<a href="{quote(name, safe="/")}">{_shortened(name)}</a>{" " * max(1, 51 - len(name))}'
        f'{_time(time, "%d-%b-%Y %H:%M")}{"-" if name.endswith("/") else size:>20}\r\n'
        for name, (size, time) in names.items()
    )
    title = f"Index of {escape(path)}"
    return (
        f"<html>\r\n<head><title>{title}</title></head>\r\n<body>\r\n<h1>{title}</h1><hr><pre>"
        f'<a href="../">../</a>\r\n{rows}</pre><hr></body>\r\n</html>\r\n'
    )


def apache_table(path: str, names: Mapping[str, tuple[int, float]]) -> str:
    rows = "".join(
        f'<tr><td valign="top">&nbsp;</td><td><a href="{_apache_href(name)}">{escape(name)}</a></td>'
        f'<td align="right">{_time(time, "%Y-%m-%d %H:%M")}  </td>'
        f'<td align="right">{"  - " if name.endswith("/") else _rounded(size)}</td><td>&nbsp;</td></tr>\n'
        for name, (size, time) in names.items()
    )
    return (
        '<!DOCTYPE HTML PUBLIC "-//W3C//DTD HTML 4.01//EN" "http://www.w3.org/TR/html4/strict.dtd">\n'
        "<html>\n <head>\n"
        f"  <title>Index of {path[:-1]}</title>\n </head>\n <body>\n<h1>Index of {path[:-1]}</h1>\n  <table>\n"
        '   <tr><th valign="top">&nbsp;</th><th><a href="?C=N;O=D">Name</a></th><th><a href="?C=M;O=A">'
        'Last modified</a></th><th><a href="?C=S;O=A">Size</a></th><th><a href="?C=D;O=A">Description</a></th></tr>\n'
        '   <tr><th colspan="5"><hr></th></tr>\n'
        '<tr><td valign="top">&nbsp;</td><td><a href="/">Parent Directory</a></td><td>&nbsp;</td>'
        f'<td align="right">  - </td><td>&nbsp;</td></tr>\n{rows}'
        '   <tr><th colspan="5"><hr></th></tr>\n</table>\n</body></html>\n'
    )


def caddy(path: str, names: Mapping[str, tuple[int, float]]) -> str:
    """Caddy 2.6. The layout of ``rclone serve http`` has the same origin."""
    folder = path.rstrip("/").rpartition("/")[2]
    rows = "".join(
        f'<tr class="file">\n<td></td>\n<td>\n<a href="./{quote(name, safe="/;:")}">\n<svg width="1.5em" height="1em" '
        f'version="1.1" viewBox="0 0 265 323">\n<use xlink:href="#{"folder" if name.endswith("/") else "file"}"></use>'
        f'\n</svg>\n<span class="name">{escape(name)}</span>\n</a>\n</td>\n'
        f'<td data-order="{size}">{"&mdash;" if name.endswith("/") else f"{size} B"}</td>\n<td class="hideable">'
        f'<time datetime=" {_time(time, "%Y-%m-%dT%H:%M:%SZ")}">{_time(time, "%m/%d/%Y %I:%M:%S %p +00:00")}</time>'
        f'</td>\n<td class="hideable"></td>\n</tr>\n'
        for name, (size, time) in names.items()
    )
    return (
        f"<!DOCTYPE html>\n<html>\n<head>\n<title>{folder}</title>\n<style>\na {{ color: #006ed3; }}\n</style>\n"
        f'</head>\n<body onload=\'initFilter()\'>\n<h1>\n<a href="../">/</a><a href="">{folder}</a>/\n</h1>\n'
        '<table>\n<thead>\n<tr>\n<th><a href="?sort=namedirfirst&order=desc" class="icon"></a>\n'
        '<a href="?sort=name&order=asc">Name</a></th>\n'
        '<th><a href="?sort=size&order=asc">Size</a></th>\n</tr>\n</thead>\n<tbody>\n<tr>\n<td></td>\n<td>\n'
        '<a href="..">\n<span class="goup">Go up</span>\n</a>\n</td>\n<td>&mdash;</td>\n<td>&mdash;</td>\n'
        f'</tr>\n{rows}</tbody>\n</table>\n<footer>\nServed with <a rel="noopener noreferrer" '
        'href="https://caddyserver.com">Caddy</a>\n</footer>\n<script>var a = "<a href=\'script\'>";</script></body>\n'
        "</html>\n"
    )


LAYOUTS: tuple[Layout, ...] = (nginx, apache_table, caddy)


def _apache_href(name: str) -> str:
    start = "./" if ":" in name else ""
    return start + quote(name, safe="/:;&'()").replace("&", "&amp;")


def _shortened(name: str) -> str:
    return escape(name) if len(name) <= 50 else f"{escape(name[:47])}..&gt;"


def _rounded(size: int) -> str:
    return f"{size:3d} " if size < 973 else f"{size / 1024:3.1f}K" if size < 9.95 * 1024 else f"{size // 1024:3d}K"


def _time(seconds: float, form: str) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime(form)
