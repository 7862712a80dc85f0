"""What holds for all formats: how they are recognized, other files, names, malformed samples, and reads that fail."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import glassfs
from glassfs.cache import BlockCache
from glassfs.content import Container, Document, Group, Records, members_of
from glassfs.content.model import Stored
from glassfs.errors import Damaged, DeviceFailed, GlassfsError, Refused, Unavailable, Unrecognised
from glassfs.formats import registry
from glassfs.formats.idv.blocks import Blocks
from glassfs.formats.registry import (
    BUILT_IN,
    HEAD,
    LONGEST_TAIL,
    Format,
    Head,
    Opening,
    may_be_container,
    open_container,
)
from glassfs.library import open_tree
from tests.cli.glassfs_command import fails
from tests.cli.glassfs_command import glassfs as run
from tests.conftest import DATA, ROOT, Scale
from tests.formats.any_names import NAMES, TEXTS, WRITERS, files_of, value_of
from tests.formats.exercise import exercise
from tests.helpers import CountingSource, contents_of, open_bytes, open_path, opening
from tests.memory_store import MemoryStore
from tests.tree.made import FORMAT


@pytest.mark.parametrize(("name", "may_be"), [
    ("run.kdb", True), ("RUN.KDB", True), ("a.b.trees", True), ("e_manifest.wshard", True), ("e.wshard.partial", True),
    ("\udcff.kas", True), ("a.ikv", True), ("a.idv", True), ("a.shard", True), ("a.wshard", True),
    ("kdb", False), ("run.kdb.gz", False), ("notes.txt", False), ("a.partial", False), ("", False),
])
def test_suffixes_decide(name: str, may_be: bool) -> None:
    assert may_be_container(name) is may_be


def test_the_manual_lists_all_suffixes() -> None:
    manual = (ROOT / "docs/manual/mounting.md").read_text(encoding="utf-8")
    assert all(f"`{suffix}`" in manual for suffixes in BUILT_IN.values() for suffix in suffixes)


def test_installed_formats_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    unnamed = replace(FORMAT, suffixes=())
    monkeypatch.setattr(registry, "installed", lambda: (unnamed, replace(FORMAT, suffixes=(".made", ".mk"))))
    assert may_be_container("a.Made")
    assert may_be_container("a.mk")
    assert may_be_container("a.kdb")
    assert not may_be_container("made")


def test_no_format_is_imported_for_a_name() -> None:
    program = """
import sys
from glassfs.formats.registry import may_be_container
assert may_be_container("a.kdb") and not may_be_container("a.txt")
print([name for name in sys.modules if name.startswith("glassfs.formats.") and not name.endswith("registry")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def opened(path: Path, known: Format, monkeypatch: pytest.MonkeyPatch) -> CountingSource:
    monkeypatch.setattr(registry, "built_in", lambda: iter([known]))
    source = CountingSource(path)
    assert open_container(opening(source)).format == known.name
    return source


def container(given: Opening) -> Container:
    return Container("ends", "1", Group(b"", list), [given.source])


def test_tail_is_read_only_when_a_format_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data.ends"
    path.write_bytes(bytes(1 << 20) + b"END!")
    by_head = Format("ends", lambda head: head.startswith(b"\0"), container)
    by_tail = Format("ends", lambda head: head.name.endswith(".ends") and head.tail(4) == b"END!", container)
    first, second = opened(path, by_head, monkeypatch).bytes_read, opened(path, by_tail, monkeypatch).bytes_read
    assert second - first == 4


def test_name_and_size_are_those_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data.ends"
    path.write_bytes(b"x" * (HEAD + 5))
    opened(path, Format("ends", lambda head: (head.name, head.size) == ("data.ends", HEAD + 5), container), monkeypatch)
    with pytest.raises(Unrecognised):
        opened(path, Format("ends", lambda head: head.name == "other", container), monkeypatch)


@pytest.mark.parametrize("size", [0, 1, 10, HEAD - 1, HEAD, HEAD + 1, 3 * HEAD])
def test_tail_is_that_of_files_of_all_sizes(size: int) -> None:
    data = bytes(number % 251 for number in range(size))
    head = Head(data[:HEAD], "x", size, lambda offset, count: data[offset : offset + count])
    for wanted in (1, 10, 3, HEAD, 2 * HEAD, 2):
        assert head.tail(wanted) == data[-wanted:]


def test_tail_is_limited() -> None:
    size = 1 << 40
    head = Head(bytes(HEAD), "x", size, lambda offset, count: bytes(count))
    assert len(head.tail(size)) == LONGEST_TAIL


def test_head_alone_is_the_whole_file() -> None:
    head = Head(b"some bytes")
    assert (head.name, head.size, head.tail(5), head.tail(50)) == ("", 10, b"bytes", b"some bytes")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 4294967\n" % 7
ARCHIVE = io.BytesIO()
with tarfile.open(fileobj=ARCHIVE, mode="w") as made:
    made.addfile(tarfile.TarInfo("x"))

PAGE = "is an HTML page, or another answer of a server, such as one about an error: download the file again"
MISTAKEN = {
    "pointer.safetensors": (POINTER, "is a pointer of Git LFS to 4,294,967 bytes, not the file: run git lfs pull"),
    "annexed.h5": (b"/annex/objects/SHA256E-s9--0a.h5\n", "is a pointer of git-annex, not the file: run git annex get"),
    "page.kdb": (b"\n<!DOCTYPE html>\n<html>", PAGE),
    "denied.npz": (b'<?xml version="1.0"?><Error>', PAGE), "answer.idv": (b'{"error": "Repository not found"}', PAGE),
    "packed.h5": (gzip.compress(b"data"), "is compressed with gzip: decompress it first"),
    "packed.kas": (lzma.compress(b"data"), "is compressed with xz: decompress it first"),
    "packed.kdb": (bz2.compress(b"data"), "is compressed with bzip2: decompress it first"),
    "packed.trees": (b"\x28\xb5\x2f\xfddata", "is compressed with Zstandard: decompress it first"),
    "packed.hdf5": (b"PK\3\4data", "is compressed with ZIP: decompress it first"),
    "packed.ikv": (ARCHIVE.getvalue(), "is a tar archive: unpack it first"),
    "empty.wshard": (b"", "is empty"),
}


@pytest.mark.parametrize("name", MISTAKEN)
def test_other_bytes_under_a_container_s_name_are_named(name: str) -> None:
    data, reason = MISTAKEN[name]
    with pytest.raises(Refused) as caught:
        open_bytes(data, name)
    assert (caught.value.reason, isinstance(caught.value, Unrecognised)) == (reason, False)
    with pytest.raises(Unrecognised) as caught:
        open_bytes(data, "of-another-name.bin")
    assert caught.value.reason == reason


def test_a_folder_of_such_files_has_faults(tmp_path: Path) -> None:
    for name, (data, _) in MISTAKEN.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "notes.txt").write_bytes(POINTER)
    lines = [f"{tmp_path}/{name}: {reason}" for name, (_, reason) in sorted(MISTAKEN.items())]
    done = run("verify", tmp_path)
    assert (done.status, done.lines) == (1, lines)
    done = run("info", tmp_path)
    assert (done.status, [line.strip() for line in done.lines[1:]]) == (1, [f"unreadable: {line}" for line in lines])
    fails(run("ls", tmp_path / "packed.h5"), f"{tmp_path}/packed.h5: {MISTAKEN['packed.h5'][1]}")
    with open_tree(str(tmp_path)) as tree:
        for name, (data, reason) in MISTAKEN.items():
            assert tree.file(name).read(0, 1000) == data[:1000]
            assert tree.lookup(name).xattrs() == {"user.glassfs.error": reason.encode()}
        assert tree.lookup("notes.txt").xattrs() == {}


@pytest.mark.parametrize("name", WRITERS)
def test_each_listed_name_opens(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name)
    with glassfs.open(tmp_path / name) as container:
        found = dict(files_of(container))
        assert all(container[path].bytes() == stored for path, stored in found.items())
    values = [value for value in (value_of(*one) for one in found.items()) if value is not None]
    expected = TEXTS if name == "a.safetensors" else NAMES[1:] if name == "a.kas" else NAMES
    if name == "a.kdb":
        assert sum(path.endswith(".png") for path in found) == len(NAMES)
    else:
        assert set(map(NAMES.index, expected)) <= set(values)
    for path, stored in list(found.items())[:: len(found) // 2]:
        assert run("cat", f"{tmp_path / name}/{path}").output == stored


@pytest.mark.parametrize(("name", "place"), [
    ("a.idv", b"columns"), ("a.safetensors", b"tensors"), ("one.ikv", b"root"), ("two.ikv", b"root"),
    ("a.kas", b""), ("a.wshard", b""),
])
def test_keys_are_names_as_stored_and_slashes_separate_at_the_root(name: str, place: bytes, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name)
    root = open_path(tmp_path / name).root
    folder = next(content for path, content in members_of(root) if path == (place,)) if place else root
    shown = {content.key: path for path, content in members_of(folder) if content.key in NAMES}
    assert shown.keys() | {b""} >= {*(TEXTS if name == "a.safetensors" else NAMES)}
    for key, path in shown.items():
        assert path == ((key,) if place else tuple(key.split(b"/")))


# Samples of the formats' own software

VERDICTS: dict[str, dict[str, str]] = json.loads((DATA / "malformed.json").read_bytes())


@pytest.mark.parametrize("name", VERDICTS)
def test_malformed_samples_are_refused_or_lose_a_part(name: str) -> None:
    for file, verdict in VERDICTS[name].items():
        path = DATA / name / "malformed" / file
        if verdict == "refuse":
            with pytest.raises((Refused, Unrecognised), match=rf"^[^\n]*{re.escape(file)}: [^\n]+$"):
                open_path(path)
        else:
            exercise(path)


def test_samples_that_their_software_rejects_are_refused() -> None:
    shown = json.loads((DATA / "shown.json").read_bytes())
    rejected = [DATA / name for name, files in shown.items() if files is None]
    assert len(rejected) > 5
    for path in rejected:
        with pytest.raises(Refused, match=re.escape(path.name)):
            open_path(path)


# Reads that fail

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


@pytest.fixture
def nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails ahead of a reader is tried again by the reader."""
    monkeypatch.setattr(BlockCache, "prefetch", lambda cache, recipe: None)
    monkeypatch.setattr(Blocks, "ahead", lambda blocks, number: None)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_ahead")
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
