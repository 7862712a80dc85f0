"""``glassfs diff``: what two containers, folders or paths in them do not have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from json import dumps, loads
from typing import Any, TypeAlias

import click

from glassfs.cli.common import complain, has_frames, located, lookup, name_of, opened, reason_of
from glassfs.cli.completion import complete_file, json_option, misuse
from glassfs.cli.layouts import source_options
from glassfs.content import Array, Image, Undecoded
from glassfs.content import differences as content
from glassfs.content.differences import Difference
from glassfs.errors import GlassfsError, NotFound
from glassfs.library.shown import type_name
from glassfs.sizes import human_size
from glassfs.source.remote.url import Connection
from glassfs.terminal import printable
from glassfs.tree import Directory, File, Node, Symlink
from glassfs.tree.nodes import entered
from glassfs.tree.sources.folder import ContainerDirectory, PlainFile
from glassfs.tree.tree import demand_shallow
from glassfs.view import json

LARGEST_DOCUMENT = 8 << 20
"""Bytes; larger documents are compared by bytes, as their values take many times the memory."""
MOST_CHARACTERS = 255
"""Of a value, or of the keys that lead to it, that are printed without --json."""
_Found: TypeAlias = tuple[str, Difference]
"""A path, and how what is there differs."""


@click.command()
@click.argument("sources", metavar="A B", nargs=-1, type=click.Path(readable=False), shell_complete=complete_file)
@json_option("difference")
@source_options
def command(sources: tuple[str, ...], as_json: bool, connection: Connection) -> int:
    """A and B are containers, folders, or paths in them, as in 'glassfs diff old.h5/data/demo_0 new.h5/data/demo_0'.

    Prints a line for each container, array, image, document or other file that only one of them has, or that differs,
    and by how much. In two folders, what has the same path is compared. How a container stores its contents does not
    count. Exit status: 0 if there is no difference, 1 if there are some, 2 if something could not be compared.
    """
    if len(sources) != 2:
        raise misuse(f"needs two things to compare, as in 'glassfs diff OLD NEW', and got {len(sources)}")
    names = [name_of(source).rstrip("/") for source in sources]
    comparison = _Comparison(names)
    differing = 0
    try:
        with ExitStack() as stack:
            nodes = []
            for at in map(located, sources):
                tree = stack.enter_context(opened(at.source, connection=connection))
                nodes.append(lookup(tree, at.path, at.shown, is_link_kept=False)[1])
            for path, found in comparison.differences(nodes[0], nodes[1]):
                differing = 1
                # In ASCII, as texts of containers may hold what a terminal interprets.
                click.echo(
                    dumps(loads(json.line({"path": path, **found}))) if as_json
                    else printable(f"{path or names[0]}{_sentence(found, names)}")
                )
    except BrokenPipeError:
        raise
    except (GlassfsError, OSError) as error:
        comparison.report("", error)
    if comparison.counts and not as_json:
        complain(", ".join(f"{count:,} {what}" for what, count in comparison.counts.items()))
    return 2 if comparison.troubles else differing


class _Comparison:
    """A comparison of two trees with these names. ``counts`` has what it found, ``troubles`` what it could not compare.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
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
            is_one_format = a.origin.format == b.origin.format
            if isinstance(x, Image) and isinstance(y, Image):
                x, y = content.pixels(x), content.pixels(y)
            if isinstance(x, Array) and isinstance(y, Array):
                yield from content.of_arrays(x, y, is_one_format)
                return
            found = list(content.of_bytes(a.data, b.data))
            if found and max(sizes) <= LARGEST_DOCUMENT and all(file.name.endswith(".json") for file in (a, b)):
                with suppress(ValueError, RecursionError):  # is no document
                    found = list(content.of_documents(a.read(0, sizes[0]), b.read(0, sizes[1])))
            yield from found

    def _children(self, path: str, a: Directory, b: Directory) -> Iterator[tuple[str, Node | None, Node | None]]:
        """Yield the children of two directories by name, None for what one of them lacks; nothing if they are equal."""
        try:
            # One directory, or containers of one version of a file.
            if a.origin.identity == b.origin.identity and (a.ino == b.ino or type(a) is type(b) is ContainerDirectory):
                self.counts["same"] += 1
                return
            demand_shallow(a, path.count("/"))
            for source, directory in zip(self._names, (a, b), strict=True):
                for one in directory.omitted():
                    self.report(f"{source}: {path}/{one.name}", one.error)
            for directory in (a, b):
                for name in directory.names():
                    try:
                        p = _child(a, name)
                        if directory is b and p is not None:
                            continue
                        q = _child(b, name)
                        # Frames of a video are the bytes of the array beside them.
                        if not all(one is None or has_frames(one, name, at.child) for at, one in ((a, p), (b, q))):
                            yield name, p, q
                    except GlassfsError as error:
                        self.report(f"{path}/{name}".lstrip("/"), error)
        except GlassfsError as error:
            self.report(path, error)


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
    """Yield how nodes differ, without reading them."""
    if isinstance(a, Symlink) and isinstance(b, Symlink):
        if a.target != b.target:
            yield {"difference": "link", "a": a.target, "b": b.target}
    elif a is None or b is None:
        for side, node in (("only_a", a), ("only_b", b)):
            if node is not None:
                yield {"difference": side, **_described(node)}
    elif type(a) is not type(b) and not (isinstance(a, Directory) and isinstance(b, Directory)):
        yield {"difference": "kind", "a": _described(a)["kind"], "b": _described(b)["kind"]}


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
    name = ".".join(map(str, found["key"])) if kind == "key" else kind
    name = f"{_cut(name)}: " if name else ""  # a document may be a single value
    if "a" in found and "b" in found:
        return f": {name}{_text(found['a'])} → {_text(found['b'])}"
    return f": {name}{_text(found.get('a', found.get('b')))}, only in {names['b' in found]}"


def _of_array(found: Difference) -> Iterator[str]:
    if "differing" not in found:
        yield " → ".join(f"{type_name(found[side]['dtype'])} {found[side]['shape']}" for side in "ab")
        return
    most = found.get("max_abs")
    most = f"{most:.4g}" if isinstance(most, float) else most
    gap = "" if most is None else f" by up to {most}"
    yield f"{found['differing']:,} of {found['items']:,} items differ{gap}"
    yield from (f"{found[f'nan_{side}']:,} NaN only in {side.upper()}" for side in "ab" if f"nan_{side}" in found)
    yield f"first at {found['first']}: {_text(found['first_a'])} → {_text(found['first_b'])}"


def _text(value: Any) -> str:
    """Return the beginning of a value as JSON."""
    return _cut(json.line(value).decode())


def _cut(text: str) -> str:
    return f"{text[:MOST_CHARACTERS]}{'…' if len(text) > MOST_CHARACTERS else ''}"
