"""Temporary errors of a device are raised, not remembered, and never reported as damage of a container."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from glassfs.cache import BlockCache
from glassfs.content import Container, Document, Records
from glassfs.content.model import Stored
from glassfs.errors import Damaged, DeviceFailed, GlassfsError, Unavailable
from glassfs.formats.idv.blocks import Blocks
from glassfs.formats.registry import Opening, open_container
from tests.conftest import DATA, Scale
from tests.helpers import contents_of
from tests.memory_store import MemoryStore

SUFFIXES = (".kdb", ".wshard", ".kas", ".trees", ".ikv", ".idv")
LARGEST, LONGEST = 20_000, 1 << 20
FAILURES = [DeviceFailed("cannot be read: Input/output error"), Unavailable("too many open files")]


class Failing(MemoryStore):
    """A store whose read number ``fails_at``, counted from 1, raises ``error``."""

    def __init__(self, files: dict[str, bytes], error: GlassfsError) -> None:
        super().__init__(files)
        self.error = error
        self.fails_at = 0
        self.reads_before = 0

    def wait(self, path: tuple[str, ...], entry: Any, size: int) -> None:
        super().wait(path, entry, size)
        if self.reads - self.reads_before == self.fails_at:
            raise self.error.at(self.shown(path))

    def fail(self, number: int) -> None:
        self.reads_before, self.fails_at = self.reads, number


def open_in(store: Failing, name: str) -> Container:
    return open_container(Opening(store.open((name,)), BlockCache(), store, (name,)))


def seen(container: Container) -> list[object]:
    """Everything that a container shows, and everything that is wrong with it."""
    found: list[object] = []
    for name, contents in contents_of(container.root).items():
        for content in contents:
            shown: object = None
            try:
                if isinstance(content, Document):
                    shown = repr(content.value())
                elif isinstance(content, Records):
                    shown = [content.block(number) for number in range(content.blocks)]
                elif isinstance(content, Stored) and content.data.size < LONGEST:
                    shown = bytes(content.data.whole())
            except Damaged as error:
                shown = str(error)
            found.append((name, type(content), shown))
    return [*found, *container.check()]


def samples() -> list[Path]:
    found = []
    for folder in ("kinodb", "wshard", "kastore", "ikv", "idv"):
        files = [path for path in sorted((DATA / folder).iterdir()) if path.suffix in SUFFIXES]
        files += [path for path in sorted((DATA / folder / "malformed").glob("*")) if path.suffix in SUFFIXES]
        found += [path for path in files if path.stat().st_size < LARGEST]
    return found


@pytest.fixture(autouse=True)
def nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails ahead of a reader is tried again by the reader."""
    monkeypatch.setattr(BlockCache, "prefetch", lambda cache, recipe: None)
    monkeypatch.setattr(Blocks, "ahead", lambda blocks, number: None)


@pytest.mark.slow
@pytest.mark.parametrize("path", samples(), ids=lambda path: path.name)
def test_failing_reads_are_never_reported_as_damage(path: Path, scale: Scale) -> None:
    """Any failing read, on opening or later, raises its error; afterwards everything works as before."""
    error = FAILURES[len(path.name) % 2]
    files = {other.name: other.read_bytes() for other in path.parent.iterdir() if other.suffix == path.suffix}
    store = Failing(files, error)
    try:
        container = open_in(store, path.name)
    except GlassfsError as refused:
        reads, sentence = store.reads, str(refused)
        for number in some_of(reads, scale):
            store.fail(number)
            with pytest.raises(type(error)):
                open_in(store, path.name)
            store.fail(0)
            with pytest.raises(type(refused)) as again:
                open_in(store, path.name)
            assert str(again.value) == sentence
        return
    opening = store.reads
    expected = seen(container)
    listing = store.reads - opening
    for number in some_of(opening, scale):
        store.fail(number)
        with pytest.raises(type(error)):
            open_in(store, path.name)
    for number in some_of(listing, scale):
        store.fail(0)
        container = open_in(store, path.name)
        store.fail(number)
        with pytest.raises(type(error)):
            seen(container)
        store.fail(0)
        assert seen(container) == expected


def some_of(count: int, scale: Scale) -> list[int]:
    """Numbers from 1 to ``count``, all if there are few."""
    most = scale(12, 40, 1000)
    return sorted({1 + step * count // most for step in range(most)}) if count > most else list(range(1, count + 1))
