"""``glassfs diff``: what two containers, folders or paths in them do not have in common."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from json import dumps, loads
from typing import Any, TypeAlias

import click

from glassfs.cli.common import complain, has_frames, located, lookup, name_of, opened, reason_of, type_name
from glassfs.cli.completion import complete_source, connection_option, json_option, misuse
from glassfs.cli.layouts import layout_option
from glassfs.content import Array, Extent, Image, Undecoded
from glassfs.content import differences as content
from glassfs.content.differences import Difference, Tolerance
from glassfs.errors import GlassfsError, NotFound
from glassfs.library.stream import stream_of
from glassfs.sizes import PIECE, human_size
from glassfs.source.remote.connection import Connection
from glassfs.terminal import printable
from glassfs.tree import Directory, File, Node, Symlink
from glassfs.tree.containers.lease import ContainerLease
from glassfs.tree.nodes import entered
from glassfs.tree.sources.folder import ContainerDirectory, PlainFile
from glassfs.tree.tree import demand_shallow
from glassfs.view import json

LARGEST_DOCUMENT = 8 << 20
"""Bytes; larger documents are compared by lines, as their values take many times the memory."""
MOST_PRINTED = 10
"""Keys of one document, and frames of one directory, that are printed without --json."""
MOST_CHARACTERS, LONGEST_KEY = 60, 255
"""Of a value, and of the keys that lead to it, that are printed without --json."""
READ_TWICE = 64 << 20
"""Bytes of a container that is read as a whole before what is in it."""
_TEXTS = (".json", ".jsonl", ".txt", ".csv", ".md", ".yaml", ".toml")
_FRAME = re.compile(r"(.*/)?[0-9]+\.(png|jpg)")
_Found: TypeAlias = tuple[str, Difference]
"""A path, and how what is there differs."""


@click.command()
@click.argument("sources", metavar="A B", nargs=-1, type=click.Path(readable=False), shell_complete=complete_source)
@json_option("difference")
@click.option("-q", "--brief", is_flag=True, help="Stop at the first difference, and say only that there is one.")
@click.option("--rtol", type=click.FloatRange(0), default=0.0, metavar="NUMBER",
              help="Numbers are equal if |a - b| <= atol + rtol * |b|, as for numpy.allclose. Default: 0.")
@click.option("--atol", type=click.FloatRange(0), default=0.0, metavar="NUMBER", help="See --rtol. Default: 0.")
@connection_option
@layout_option
def command(
    sources: tuple[str, ...], as_json: bool, brief: bool, rtol: float, atol: float, connection: Connection,
) -> int:
    """A and B are containers, folders, or paths in them, as in 'glassfs diff old.h5/data/demo_0 new.h5/data/demo_0'.

    Prints a line for each container, array, image, document or other file that only one of them has, or that differs,
    and by how much. In two folders, what has the same path is compared. How a container stores its contents does not
    count. Exit status: 0 if there is no difference, 1 if there are some, 2 if something could not be compared.
    """
    if len(sources) != 2:
        raise misuse(f"needs two things to compare, as in 'glassfs diff OLD NEW', and got {len(sources)}")
    names = [name_of(source).rstrip("/") for source in sources]
    comparison = _Comparison(names, (rtol, atol), brief)
    differing = 0
    try:
        with ExitStack() as stack:
            nodes = []
            for at in map(located, sources):
                tree = stack.enter_context(opened(at.source, connection=connection))
                nodes.append(lookup(tree, at.path, at.shown, is_link_kept=False)[1])
            found = comparison.differences(nodes[0], nodes[1])
            for line in _json_lines(found) if as_json else _lines(found, names):
                differing = 1
                click.echo(line if as_json or not brief else printable(f"{' and '.join(names)} differ"))
                if brief:
                    break
    except BrokenPipeError:
        raise
    except (GlassfsError, OSError) as error:
        comparison.report("", error)
    if comparison.counts and not (as_json or brief):
        complain(", ".join(f"{count:,} {what}" for what, count in comparison.counts.items()))
    return 2 if comparison.troubles else differing


class _Comparison:
    """A comparison of two trees with these names. ``counts`` has what it found, ``troubles`` what it could not compare.
    """

    def __init__(self, names: Sequence[str], tolerance: Tolerance, is_brief: bool) -> None:
        self._names, self._tolerance, self._is_brief = names, tolerance, is_brief
        self.counts: Counter[str] = Counter()
        self.troubles = 0

    def report(self, path: str, error: GlassfsError | OSError) -> None:
        """Print a line about what cannot be compared."""
        self.troubles += 1
        source = error.source if isinstance(error, GlassfsError) else str(error.filename or "")
        complain(": ".join(filter(None, (source, path, reason_of(error, source, path)))))

    def differences(self, a: Node, b: Node) -> Iterator[_Found]:
        """Yield all differences: in each directory those of its files, then those of the directories in it."""
        if not (isinstance(a, Directory) and isinstance(b, Directory)):
            yield from self._of_nodes("", a, b)
            return
        waiting = [("", a, b)]
        while waiting:
            path, x, y = waiting.pop()
            inner = []
            for name, p, q in self._children(path, x, y):
                below = f"{path}/{name}" if path else name
                if isinstance(p, Directory) and isinstance(q, Directory):
                    inner.append((below, p, q))
                else:
                    yield from self._of_nodes(below, p, q)
            waiting += reversed(inner)

    def _of_nodes(self, path: str, a: Node | None, b: Node | None) -> Iterator[_Found]:
        """Yield how two nodes differ, unless both are directories."""
        what = "same"
        try:
            for found in self._of_files(a, b) if isinstance(a, File) and isinstance(b, File) else _of_kinds(a, b):
                what = "only in one" if a is None or b is None else "different"
                yield path, found
            self.counts[what] += 1
            for node in (a, b):
                if what == "different" and isinstance(node, PlainFile) and node.reason:
                    # It looks like a container.
                    self.report(path, GlassfsError(node.reason, node.origin.lease.sources[0].name))
        except (GlassfsError, OSError) as error:
            self.report(path, error)

    def _of_files(self, a: File, b: File) -> Iterator[Difference]:
        x, y = a.content, b.content
        if a.origin.identity == b.origin.identity and a.ino == b.ino:
            return
        with a.origin.lease, b.origin.lease:
            if isinstance(x, Undecoded) and isinstance(y, Undecoded):
                yield from content.of_types(x, y)
            sizes = a.size, b.size  # finding them has a limit of work, unlike reading
            if isinstance(x, Array) and isinstance(y, Array):
                is_one_format = a.origin.format == b.origin.format
                yield from content.of_arrays(x, y, self._tolerance, is_one_format, self._is_brief)
            elif isinstance(x, Image) and isinstance(y, Image):
                yield from content.of_arrays(content.pixels(x), content.pixels(y), self._tolerance)
            elif content.are_equal(a.data, b.data):
                return
            elif not all(file.name.endswith(_TEXTS) for file in (a, b)):
                yield from content.of_bytes(a.data, b.data)
            else:
                try:
                    if max(sizes) > LARGEST_DOCUMENT or not all(file.name.endswith(".json") for file in (a, b)):
                        raise ValueError("is no document")
                    yield from content.of_documents(a.read(0, sizes[0]), b.read(0, sizes[1]))
                except (ValueError, RecursionError):
                    streams = stream_of(a, a.name), stream_of(b, b.name)
                    # Of a line of more than PIECE bytes, the pieces count as lines.
                    yield from content.of_lines(*(iter(partial(one.readline, PIECE), b"") for one in streams))

    def _children(self, path: str, a: Directory, b: Directory) -> Iterator[tuple[str, Node | None, Node | None]]:
        """Yield the children of two directories by name, None for what one of them lacks; nothing if they are equal."""
        try:
            if _are_same(a, b):
                self.counts["same"] += 1
                return
            demand_shallow(a, path.count("/"))
            for source, directory in zip(self._names, (a, b), strict=True):
                for one in directory.omitted():
                    self.report(f"{source}: {path}/{one.name}", one.error)
            for directory in (a, b):
                for name in directory.names():
                    try:
                        p, q = _child(a, name), _child(b, name)
                        # Frames of a video are the bytes of the array beside them.
                        is_video = all(one is None or has_frames(one, name, at.child) for at, one in ((a, p), (b, q)))
                        if (directory is a or p is None) and not is_video:
                            yield name, p, q
                    except GlassfsError as error:
                        self.report(f"{path}/{name}".lstrip("/"), error)
        except GlassfsError as error:
            self.report(path, error)


def _are_same(a: Directory, b: Directory) -> bool:
    """Return whether two directories are one, or containers of the same bytes, as far as that is cheap to find out."""
    are_roots = isinstance(a, ContainerDirectory) and isinstance(b, ContainerDirectory)
    if a.origin.identity == b.origin.identity:
        return are_roots or a.ino == b.ino
    with a.origin.lease as p, b.origin.lease as q:
        is_cheap = p.size <= READ_TWICE and not any(source.is_remote for source in (*p.sources, *q.sources))
        # What is in a file that both lack cannot be compared.
        is_whole = not any(isinstance(lease, ContainerLease) and lease.absent for lease in (p, q))
        return are_roots and is_cheap and is_whole and len(p.sources) == len(q.sources) and all(
            content.are_equal(Extent(x, 0, x.size), Extent(y, 0, y.size))
            for x, y in zip(p.sources, q.sources, strict=True)
        )


def _child(directory: Directory, name: str) -> Node | None:
    try:
        return entered(partial(directory.child, name))
    except NotFound:
        return None


def _described(node: Node) -> Difference:
    """Return the kind of a node, and what is known of its size without reading it."""
    if isinstance(node, ContainerDirectory):
        return {"kind": "container", "bytes": node.origin.lease.size}
    if isinstance(node, Directory):
        return {"kind": "directory", "entries": sum(1 for _ in node.names())}
    if isinstance(node, File):
        return {"kind": "file", **({"bytes": node.size} if node.data.is_sized else {})}
    return {"kind": "link"}


def _of_kinds(a: Node | None, b: Node | None) -> Iterator[Difference]:
    """Yield how nodes differ without a look into them."""
    if isinstance(a, Symlink) and isinstance(b, Symlink):
        if a.target != b.target:
            yield {"difference": "link", "a": a.target, "b": b.target}
    elif a is None or b is None:
        for side, node in (("only_a", a), ("only_b", b)):
            if node is not None:
                yield {"difference": side, **_described(node)}
    elif type(a) is not type(b) and not (isinstance(a, Directory) and isinstance(b, Directory)):
        yield {"difference": "kind", "a": _described(a)["kind"], "b": _described(b)["kind"]}


def _json_lines(all_found: Iterator[_Found]) -> Iterator[str]:
    """Yield objects in ASCII, as texts of containers may hold what a terminal interprets."""
    return (dumps(loads(json.line({"path": path, **found}))) for path, found in all_found)


def _group(found: _Found) -> str:
    """Return what differences are printed together; "" for those that are all printed."""
    path, difference = found
    frame = _FRAME.fullmatch(path)
    return path if difference["difference"] == "key" else frame[1] or "" if frame else ""


def _lines(all_found: Iterator[_Found], names: Sequence[str]) -> Iterator[str]:
    """Yield the lines for people."""
    for group, some in groupby(all_found, _group):
        number = 0
        for number, (path, found) in enumerate(some, 1):
            if not group or number <= MOST_PRINTED:
                yield printable(f"{path or names[0]}{_sentence(found, names)}")
        if group and number > MOST_PRINTED:
            yield printable(f"{group}: {number - MOST_PRINTED:,} more differences; --json has all")


def _sentence(found: Difference, names: Sequence[str]) -> str:
    """Return what follows the path on the line of a difference."""
    kind = found["difference"]
    if kind.startswith("only"):
        inside = f"/ ({found['entries']:,} in it)" if "entries" in found else ""
        size = f" ({human_size(found['bytes'])})" if "bytes" in found else ""
        return f"{inside}: only in {names[kind == 'only_b']}{size}"
    if kind == "array":
        return f": {', '.join(_of_array(found))}"
    if kind == "bytes":
        return f": {found['bytes_a']:,} → {found['bytes_b']:,} bytes, different from byte {found['first']:,} on"
    if kind == "lines":
        lines = f"{found['differing']:,} of {max(found['lines_a'], found['lines_b']):,} lines differ"
        return f": {lines}, first line {found['first']:,}: {_change(found['first_a'], found['first_b'])}"
    name = ".".join(map(str, found["key"])) if kind == "key" else kind
    name = f"{_cut(name, most=LONGEST_KEY)}: " if name else ""  # a document may be a single value
    if "a" in found and "b" in found:
        return f": {name}{_change(found['a'], found['b'])}"
    return f": {name}{_cut(_text(found.get('a', found.get('b'))))}, only in {names['b' in found]}"


def _of_array(found: Difference) -> Iterator[str]:
    a, b = found["a"], found["b"]
    rows = " of the rows in both" if a["shape"] != b["shape"] else ""
    if a["dtype"] != b["dtype"]:
        yield f"{type_name(a['dtype'])} → {type_name(b['dtype'])}"
    if rows:
        yield f"{a['shape']} → {b['shape']}"
    if found.get("differing"):
        most = f" by up to {_rounded(found['max_abs'])}" if "max_abs" in found else ""
        relative = f" (relative {_rounded(found['max_rel'])})" if "max_rel" in found else ""
        yield f"{found['differing']:,} of {found['items']:,} items{rows} differ{most}{relative}"
        yield from (f"{found[f'nan_{side}']:,} NaN only in {side.upper()}" for side in "ab" if f"nan_{side}" in found)
        yield f"first at {found['first']}: {_change(found['first_a'], found['first_b'])}"
    elif "differing" in found:
        yield f"the values{rows} are equal"


def _rounded(number: float) -> str:
    return f"{number:.4g}" if isinstance(number, float) else str(number)


def _change(a: Any, b: Any) -> str:
    """Return two values, long ones from where they begin to differ."""
    whole = _text(a), _text(b)
    texts = [text.rstrip("\n") for text in whole]
    if texts[0] == texts[1]:  # a last line without an end
        texts = list(whole)
    differing = (number for number, (p, q) in enumerate(zip(*texts, strict=False)) if p != q)
    start = max(0, next(differing, 0) - 20) if max(map(len, texts)) > MOST_CHARACTERS else 0
    return " → ".join(_cut(text, start) for text in texts)


def _text(value: Any) -> str:
    """Return a line of a text, or a value as JSON."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else json.line(value).decode()


def _cut(text: str, start: int = 0, most: int = MOST_CHARACTERS) -> str:
    end = start + most
    return f"{'…' if start else ''}{text[start:end]}{'…' if len(text) > end else ''}"
