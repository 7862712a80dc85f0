"""``glassfs info``"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from typing import Any

import click

from glassfs import content
from glassfs.cli.common import Located, complain, located, lookup, name_of, opened_sources, reason_of
from glassfs.cli.completion import json_option, sources_argument
from glassfs.cli.layouts import source_options
from glassfs.content.rows import of_records
from glassfs.content.summary import INTEGER, value_of
from glassfs.content.table import number_of
from glassfs.datasets.batch.found import Opener, Search, Unlisted
from glassfs.errors import GlassfsError, LeftOut, Unrecognised
from glassfs.library.shown import described
from glassfs.names import component
from glassfs.sizes import counted, human_size
from glassfs.source.remote.url import Connection
from glassfs.terminal import printable
from glassfs.tree import File, NestedDirectory, Tree
from glassfs.tree.nodes import XATTR_PREFIX
from glassfs.tree.omissions import Omission
from glassfs.tree.omissions import named as named_omissions

KINDS: dict[type[content.Content], str] = {
    content.Array: "arrays", content.Image: "images", content.EncodedImage: "images", content.Json: "documents",
    content.Document: "documents", content.Blob: "undescribed", content.RaggedText: "texts", content.Records: "texts",
    content.Text: "texts", content.Scalar: "scalars", content.Null: "scalars",
}

SUMMED = {
    "num_episodes": "episodes", "num_frames": "frames", "rows": "rows", "keys": "keys", "members": "members",
    "tensors": "tensors",
}
"""What can be summed over containers, and what it counts: facts, and of episodes what the table of these has."""


@click.command()
@sources_argument
@json_option("source")
@click.option("--quick", is_flag=True, help="Read header and index only; count nothing inside.")
@source_options
def command(sources: tuple[str, ...], as_json: bool, quick: bool, connection: Connection) -> int:
    """Count the contents of each SOURCE, and compare its raw size with the size of the file.

    Sizes that require decoding are left out. Of recorded episodes, cameras and successes are counted. If SOURCE is a
    folder or the URL of one, show the number of containers of each format in and below it, their sizes, episodes and
    frames, and the sums of facts in their headers.

    SOURCE may include a path into a container, as in 'glassfs info run.trees/nodes/time.npy': size and attributes of a
    file, also of a view, or the contents of a directory.
    """
    failures = 0
    for number, source in enumerate(sources):
        name = name_of(source)
        try:
            found = _described(source, name, quick, connection)
        except (GlassfsError, OSError) as error:
            complain(f"{name}: {reason_of(error, name)}")
            failures += 1
            continue
        if "formats" in found:
            failures += len(found["unreadable"])
        text = json.dumps(found) if as_json else "\n".join(map(printable, _lines(found)))
        click.echo(text if as_json or not number else f"\n{text}")
    return 1 if failures else 0


def _described(source: str, name: str, quick: bool, connection: Connection) -> dict[str, Any]:
    """Return what is said of a source, or of a path in one."""
    at = located(source)
    with opened_sources([at.source], connection) as opened:
        if at.path != "/":
            return {"source": at.shown} | _described_inside(opened.reachable, at)
        if opened.has_folder:
            return {"source": name} | _described_folder(at.source, connection, quick)
        container = opened.containers.all_open()[0].container
        found = {"source": name} | _header(container)
        if quick:
            return found
        return found | _counted(opened.tree, found["bytes"]) | _counted_episodes(container)


def _described_inside(tree: Tree, at: Located) -> dict[str, Any]:
    """Return the size and the attributes of a file, or counts of what is in and below a directory."""
    path, node = lookup(tree, at.path, at.shown, is_link_kept=False)
    if isinstance(node, NestedDirectory):
        header = _header(node.opened().container)
        return {"path": path[1:], "kind": "container"} | header | _counted(tree, node.content.data.size, path)
    if not isinstance(node, File):
        return {"path": path[1:], "kind": "directory"} | _counted(tree, 0, path)
    attributes = {
        name.removeprefix(XATTR_PREFIX): value.decode("utf-8", "replace") for name, value in node.xattrs().items()
    }
    return {"path": path[1:], "kind": "file", "bytes": node.size, "type": described(node), "attributes": attributes}


def _header(container: content.Container) -> dict[str, Any]:
    return {
        "format": container.format, "version": container.version, "bytes": sum(part.size for part in container.sources),
        "files": len(container.sources), "facts": container.facts,
    }


def _described_folder(source: str, connection: Connection, quick: bool) -> dict[str, Any]:
    """Return the containers in a folder by format: number, size, and sums of what they have."""
    formats: dict[str, Counter[str]] = defaultdict(Counter)
    unreadable: list[str] = []
    omitted: list[str] = []
    with closing(Opener(connection)) as opener:
        for hit in Search([source], connection).all():
            try:
                if isinstance(hit, Unlisted):
                    raise hit.error
                found = opener.known(opener.named(hit), f"info {quick}", partial(_summed, quick))
                formats[found.pop("format")].update(containers=1, **found)
            except Unrecognised:
                continue
            except (GlassfsError, OSError) as error:
                lines = omitted if isinstance(error, LeftOut) else unreadable
                lines.append(f"{hit.name}: {reason_of(error, hit.name).removeprefix('omitted: ')}")
    return {"formats": dict(sorted(formats.items())), "unreadable": unreadable, "omitted": named_omissions(omitted)}


def _summed(quick: bool, container: content.Container) -> dict[str, Any]:
    """Return format, size and sums of a container, without those that are zero."""
    header = _header(container)
    sums = {name: header["facts"].get(name) for name in SUMMED}
    table = None if quick else container.episodes()
    if table is not None and table.records is not None:
        sums["num_episodes"] = table.rows
        # The header of some formats has the sum, which saves a pass over the rows.
        frames = (value_of(record, "num_frames", INTEGER) or 0 for record in of_records(table.records))
        sums["num_frames"] = sums["num_frames"] or sum(frames)
    sums = {name: value for name, value in sums.items() if value and isinstance(value, int)}
    return {"format": header["format"], "bytes": header["bytes"], **sums}


def _counted(tree: Tree, size: int, start: str = "/") -> dict[str, Any]:
    counts: Counter[str] = Counter()
    raw = unsized = 0
    unreadable: list[str] = []
    omitted: list[str] = []

    def on_omitted(path: str, one: Omission) -> None:
        (unreadable if one.is_damage else omitted).append(f"{path[1:]}: {one.reason}")

    for _, node in tree.walk(start, lambda path, error: unreadable.append(f"{path}: {error}"), on_omitted):
        if not isinstance(node, File) or node.content is None:
            counts["directories"] += 1
        else:
            # It counts as the nearest kind from which its own derives.
            counts[next((KINDS[base] for base in type(node.content).__mro__ if base in KINDS), "others")] += 1
            if not node.data.is_sized:
                unsized += 1
            # Frames of a video, and rows of a text array, repeat the bytes of another file.
            elif not isinstance(node.content, content.RaggedText) and not (
                isinstance(node.content, content.Image) and node.data.location() is None
            ):
                raw += node.size
    ratio = round(raw / size, 3) if size else None
    if omitted:
        counts["omitted"] = len(omitted)
    return {
        "contents": counts, "raw_bytes": raw, "ratio": ratio, "not_counted": unsized, "unreadable": unreadable,
        "omitted": named_omissions(omitted),
    }


def _counted_episodes(container: content.Container) -> dict[str, Any]:
    """Return how many episodes and frames there are, of each camera, and of success; nothing if there are none."""
    table = container.episodes()
    if table is None or table.records is None:
        return {}
    cameras: Counter[str] = Counter()
    success: Counter[str] = Counter()
    frames = 0
    try:
        for row, record in enumerate(of_records(table.records)):
            frames += value_of(record, "num_frames", INTEGER) or 0
            success[{True: "yes", False: "no"}.get(record.get("success"), "unknown")] += 1
            if table.recording is not None:
                with suppress(GlassfsError):  # the tree names what is unreadable
                    cameras.update(component(one.name[-1]) for one in table.recording(number_of(record, row)).cameras())
    except GlassfsError:
        success["unreadable"] = table.rows - success.total()
    return {"episodes": table.rows, "frames": frames, "cameras": cameras, "success": success}


def _lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the lines for people."""
    name = f"{found['source']}/{found['path']}" if "path" in found else found["source"]
    if "formats" in found:
        whole = sum(found["formats"].values(), Counter[str]())
        yield f"{name}: {counted(whole['containers'], 'container')}{_sizes(whole) if whole else ''}"
    elif "format" in found:
        files = f" in {found['files']} files" if found["files"] > 1 else ""
        yield f"{name}: {found['format']} {found['version']}".rstrip() + f", {human_size(found['bytes'])}{files}"
    elif found["kind"] == "directory":
        yield f"{name}: directory"
    else:
        yield ", ".join(filter(None, (f"{name}: file", human_size(found["bytes"]), found["type"])))
    for kind, sums in found.get("formats", {}).items():
        yield f"  {kind}: {sums['containers']:,}{_sizes(sums)}"
    # Facts of zero and empty ones say nothing.
    facts = {name: value for name, value in found.get("facts", {}).items() if value or value is False}
    yield from (f"  {name.replace('_', ' ')}: {_value(value)}" for name, value in facts.items())
    yield from (f"  {name}: {value}" for name, value in found.get("attributes", {}).items())
    if "contents" in found:
        yield f"  contents: {_list(found['contents'])}"
        ratio = "" if found["ratio"] is None else f", {found['ratio']:.2f} times the file"
        unknown = found["not_counted"]
        left_out = f" (without {counted(unknown, 'file')} of unknown size)" if unknown else ""
        if found["raw_bytes"] or unknown:
            yield f"  raw: {human_size(found['raw_bytes'])}{ratio}{left_out}"
    if found.get("episodes") and "num_episodes" not in facts:
        yield f"  episodes: {found['episodes']:,}, {counted(found['frames'], 'frame')}"
    if found.get("cameras"):
        yield "  cameras: " + ", ".join(f"{name} (in {n:,})" for name, n in found["cameras"].items())
    if found.get("success"):
        yield f"  success: {_list(found['success'])}"
    for kind in ("unreadable", "omitted"):
        yield from (f"  {kind}: {line}" for line in found.get(kind, ()))


def _sizes(sums: Mapping[str, int]) -> str:
    """Return the size of containers, and the sums that are not zero, each after a comma."""
    return f", {human_size(sums['bytes'])}" + "".join(
        f", {counted(sums[fact], plural.removesuffix('s'))}" for fact, plural in SUMMED.items() if sums.get(fact)
    )


def _list(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items())


def _value(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if type(value) is int else json.dumps(value, ensure_ascii=False)
