"""Every sample in every view: sizes are those of the bytes, cost no decoding, and two openings show the same.

Of invalid containers what cannot be read raises an error, in that file only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glassfs.content import Table
from glassfs.content.table import is_sized
from glassfs.errors import GlassfsError
from glassfs.library import open_tree
from glassfs.tree import Directory, File, Node, Tree
from tests.conftest import DATA, SAMPLES
from tests.formats.derived import LARGEST

BUDGET = 16 << 20
AT_EACH_END = 40
"""Number of children checked at each end of a directory."""
BY_PASS = ("by-task", "by-success", "lerobot")
"""Directories whose listing takes a pass."""
OTHER_FILES = (".json", ".md")
INVALID = {"malformed", "odd", "ambiguous", "upstream-v1"}
"""Folders of invalid containers, of which short runs read one in ten."""


def containers(folder: Path, is_chosen: Callable[[set[str]], bool]) -> dict[str, Path]:
    """Return the containers below a folder that are chosen by the names in their paths."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix not in OTHER_FILES)
    return {str(path.relative_to(folder)): path for path in paths if is_chosen({*path.parts})}


def parameters(found: dict[str, Path], often: int) -> list[Any]:
    """Return containers to test, of which short runs have one of ``often``, or none if that is 0, and no bomb."""
    return [
        pytest.param(path, id=name, marks=[pytest.mark.slow] * (not often or number % often > 0 or "bomb" in name))
        for number, (name, path) in enumerate(found.items())
    ]


SMALL, LARGE = (containers(folder, lambda names: "malformed" not in names) for folder in (DATA, SAMPLES))
OTHERS = {name: path for name, path in LARGE.items() if name not in SMALL}
PARAMETERS = parameters(SMALL, 3) + parameters(OTHERS, 0)
BROKEN = parameters(containers(SAMPLES, lambda names: bool(INVALID & names)), 10)


@pytest.fixture(params=PARAMETERS)
def container(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    try:
        with open_tree(path):
            return path
    except GlassfsError:
        pytest.skip("is refused")


def nodes_of(tree: Tree) -> Iterator[tuple[str, Node]]:
    """Nodes of a tree under their paths; of directories with very many children the first and the last."""
    waiting: list[tuple[str, Directory]] = [("", tree.root)]
    while waiting:
        place, directory = waiting.pop()
        try:
            nodes = directory.listing()
        except GlassfsError:
            continue
        some = nodes if len(nodes) <= 2 * AT_EACH_END else [*nodes[:AT_EACH_END], *nodes[-AT_EACH_END:]]
        for node in some:
            yield f"{place}/{node.name}", node
            if isinstance(node, Directory) and node.name not in BY_PASS:
                waiting.append((f"{place}/{node.name}", node))


def takes_a_pass(path: str, node: File) -> bool:
    """Whether finding out the size may take a pass: of lines, and of tables with columns that are not sized."""
    if path.endswith(".parquet") and isinstance(node.content, Table):
        try:
            return not all(map(is_sized, node.content.columns()))
        except GlassfsError:
            return True
    # The metadata of a Zarr group is rendered to find its size, from the index alone.
    has_pass = path.endswith((".jsonl", ".csv", "/arrays.zarr/zarr.json"))
    return has_pass or (".zarr" not in path and not path.endswith(".mp4"))


def derived(path: Path) -> Iterator[tuple[str, File]]:
    """The files that views add."""
    with open_tree(path) as plain, open_tree(path, views="all", cache_size=BUDGET) as tree:
        known = {place for place, _ in nodes_of(plain)}
        for place, node in nodes_of(tree):
            if isinstance(node, File) and place not in known:
                yield place, node


@pytest.mark.parametrize("path", [*BROKEN, *parameters(SMALL | OTHERS, 0)])
def test_tree_is_unchanged_by_views(path: Path) -> None:
    try:
        plain = open_tree(path, cache_size=BUDGET)
    except GlassfsError as refused:
        with pytest.raises(type(refused)):
            open_tree(path, views="all")
        return
    with plain, open_tree(path, views="all", cache_size=BUDGET) as tree:
        known = set()
        for place, node in nodes_of(plain):
            known.add(place)
            viewed = tree.lookup(place)
            assert (viewed.ino, viewed.mode, viewed.name) == (node.ino, node.mode, node.name), place
            if isinstance(node, File) and isinstance(viewed, File):
                assert (outcome(viewed), viewed.xattrs()) == (outcome(node), node.xattrs()), place
        for place, node in nodes_of(tree):
            if place not in known and isinstance(node, File):
                outcome(node)


def outcome(file: File) -> object:
    """Return the bytes of a file, of a large one its two ends, or the error."""
    try:
        size = file.size
        parts = [(0, size)] if size <= LARGEST else [(0, 1 << 16), (size - (1 << 16), 1 << 16)]
        found = [file.read(start, count) for start, count in parts]
        assert [len(one) for one in found] == [count for _, count in parts]
        return size, found
    except GlassfsError as error:
        return type(error), str(error)


def test_listing_and_sizes_decode_nothing(container: Path) -> None:
    if container.suffix == ".mcap":
        pytest.skip("names and lengths of fields are in the messages")
    headers = container.suffix == ".safetensors"  # one block has what was parsed of the header
    for place, file in derived(container):
        cache = file.origin.services.cache
        assert cache.misses <= headers, place
        if not takes_a_pass(place, file):
            assert file.size >= 0
            assert cache.misses <= headers, place


def test_sizes_and_ranges_agree_with_the_whole(container: Path) -> None:
    """Ranges of a second opening equal the whole of the first."""
    chance = random.Random(container.name)
    with open_tree(container, views="all", cache_size=BUDGET) as other:
        for place, file in derived(container):
            again = other.file(place)
            try:
                size = file.size
                starts = [0] if size <= LARGEST else [0, chance.randrange(size - LARGEST), size - LARGEST]
                wholes = [(start, file.read(start, LARGEST)) for start in starts]
            except GlassfsError as error:
                with pytest.raises(type(error)):
                    again.read(0, min(again.size, LARGEST))
                continue
            assert again.size == size and file.read(size, 1) == b""
            for start, whole in wholes:
                assert len(whole) == min(LARGEST, size - start), place
                for _ in range(4 if whole else 0):
                    begin = chance.randrange(len(whole))
                    count = min(len(whole) - begin, chance.choice((1, 17, 5000, LARGEST)))
                    assert again.read(start + begin, count) == whole[begin : begin + count], place
