"""``glassfs info``"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

import click

from glassfs.cli.common import printable, report
from glassfs.content import (
    Array,
    Blob,
    Content,
    Document,
    Image,
    Json,
    Null,
    Picture,
    RaggedText,
    Records,
    Scalar,
    Text,
)
from glassfs.errors import GlassfsError, IsADirectory
from glassfs.sizes import human_size
from glassfs.tree import File, Places, Tree, open_tree

KINDS: dict[type[Content], str] = {
    Array: "arrays", Image: "pictures", Picture: "pictures", Json: "documents", Document: "documents",
    Blob: "undescribed", RaggedText: "texts", Records: "texts", Text: "texts", Scalar: "scalars", Null: "scalars",
}


@click.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, type=click.Path(readable=False))
@click.option("--json", "as_json", is_flag=True, help="For programs: a JSON object for each source, on a line.")
@click.option("--quick", is_flag=True, help="Header and index only; nothing inside is counted.")
def command(sources: tuple[str, ...], as_json: bool, quick: bool) -> int:
    """Counts what is in each SOURCE, and compares its size raw with that of the file.

    Sizes that would take decoding are left out.
    """
    failures = 0
    for number, source in enumerate(sources):
        try:
            found = describe(source, quick)
        except (GlassfsError, OSError) as error:
            if len(sources) == 1:
                raise
            report(source, error)
            failures += 1
            continue
        click.echo(json.dumps(found) if as_json else ("\n" if number else "") + _for_people(found))
    return 1 if failures else 0


def describe(source: str, quick: bool = False) -> dict[str, Any]:
    """What a container is: format, version, sizes in bytes, what its header says, and how much of what is in it."""
    if os.path.isdir(source):
        raise IsADirectory(f"{source}: is a folder; name the containers in it")
    places = Places()
    with open_tree([source], places) as tree:
        container = places.open_containers()[0].shown().container
        size = sum(part.size for part in container.sources)
        found: dict[str, Any] = {
            "source": source, "format": container.format, "version": container.version, "bytes": size,
            "files": len(container.sources), "facts": container.facts,
        }
        return found if quick else found | _counted(tree, size)


def _counted(tree: Tree, size: int) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    raw = unsized = 0
    unreadable: list[str] = []
    for _, node in tree.walk(on_error=lambda path, error: unreadable.append(f"{path}: {error}")):
        if not isinstance(node, File) or node.content is None:
            counts["directories"] += 1
            continue
        counts[KINDS.get(type(node.content), "others")] += 1
        if not node.data.is_sized:
            unsized += 1
        elif not _is_repeated(node):
            raw += node.size
    ratio = round(raw / size, 3) if size else None
    return {"contents": counts, "raw_bytes": raw, "ratio": ratio, "not_counted": unsized, "unreadable": unreadable}


def _is_repeated(file: File) -> bool:
    """Whether the bytes are those of another file in another form: frames of a film, rows of a text array."""
    if isinstance(file.content, RaggedText):
        return True
    return isinstance(file.content, Image) and file.data.location() is None


def _for_people(found: dict[str, Any]) -> str:
    files = f" in {found['files']} files" if found["files"] > 1 else ""
    lines = [
        f"{printable(os.path.basename(found['source']))}: {found['format']} {found['version']}, "
        f"{human_size(found['bytes'])}{files}",
    ]
    lines += [f"  {name.replace('_', ' ')}: {_value(value)}" for name, value in found["facts"].items()]
    if "contents" in found:
        lines.append("  contents: " + ", ".join(f"{count:,} {kind}" for kind, count in found["contents"].items()))
        ratio = "" if found["ratio"] is None else f", {found['ratio']:.2f} times the file"
        left_out = f" ({found['not_counted']} not counted)" if found["not_counted"] else ""
        lines.append(f"  raw: {human_size(found['raw_bytes'])}{ratio}{left_out}")
        lines += [f"  unreadable: {printable(sentence)}" for sentence in found["unreadable"]]
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return json.dumps(value, ensure_ascii=False)
