"""The public conformance class: built-in formats pass it, and each of its tests fails for a format that breaks it."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_samples import write_wshard
from writers.ikv import ikv2
from writers.safetensors import write_sharded

from glassfs.content import (
    Array,
    Blob,
    Container,
    Content,
    Data,
    Extent,
    Fault,
    Fields,
    Group,
    Member,
    Memory,
    Null,
    Outline,
    Series,
)
from glassfs.formats.idv import FORMAT as IDV
from glassfs.formats.ikv import FORMAT as IKV
from glassfs.formats.kastore import FORMAT as KASTORE
from glassfs.formats.kinodb import FORMAT as KINODB
from glassfs.formats.npz import FORMAT as NPZ
from glassfs.formats.registry import Format, Opening
from glassfs.formats.safetensors import FORMAT as SAFETENSORS
from glassfs.formats.wshard import FORMAT as WSHARD
from glassfs.source import Source
from glassfs.testing import FormatTests
from tests.conftest import DATA, Scale
from tests.formats.npz_files import saved
from tests.formats.sound import sound
from tests.remote.containers import write_each_format

MOST_SECONDS = 600.0
"""For a damaged container, however loaded the machine is."""


@pytest.fixture(scope="class", autouse=True)
def settings(request: pytest.FixtureRequest, scale: Scale) -> None:
    if request.cls is not None:
        request.cls.damaged_copies = scale(5, 30, 1000)
        request.cls.every = scale(4, 1, 1)
        request.cls.most_seconds = MOST_SECONDS


@cache
def large() -> dict[str, bytes]:
    """Return a container of each format, more than LARGE of most of them."""
    with tempfile.TemporaryDirectory() as folder:
        return {name: path.read_bytes() for name, path in write_each_format(Path(folder)).items()}


@cache
def film() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_wshard(path := Path(folder, "film"))
        return path.read_bytes()


class BuiltInTests(FormatTests):
    """The tests of a built-in format: the containers of ``sound`` with some names, and a large one.

    One of ``every`` so many malformed samples is read.
    """

    names: tuple[str, ...] = ()
    every = 1

    def containers(self) -> Iterable[Path | bytes]:
        return [*map(sound, self.names), large()[self.format.name]]

    def damaged(self) -> Iterable[Path | bytes]:
        folder = DATA / self.format.name / "malformed"
        return sorted(path for path in folder.glob("*") if path.suffix != ".json")[:: self.every]


class TestKastore(BuiltInTests):
    """Arrays, some of them empty, an appended store, a tree sequence."""

    format = KASTORE
    names = "kastore", "appended", "trees"


class TestKinodb(BuiltInTests):
    format = KINODB
    names = ("kinodb",)


class TestIkv(BuiltInTests):
    """Documents with every kind of value. The first form is checked whole on opening, so the large one is indexed."""

    format = IKV
    names = "ikv1", "ikv2"

    def containers(self) -> Iterable[Path | bytes]:
        return [*map(sound, self.names), ikv2({"small": 1, "real": -0.5, "yes": True, "text": "long " * (1 << 18)})]


class TestSafetensors(BuiltInTests):
    """Tensors of every kind, those of the library included."""

    format = SAFETENSORS
    names = ("safetensors",)

    def containers(self) -> Iterable[Path | bytes]:
        names = ("numpy_types", "narrow_types", "labels", "empty", "crafted_unaligned", "crafted_wide_shapes")
        return [*super().containers(), *(DATA / "safetensors" / f"{name}.safetensors" for name in names)]


class TestShards(FormatTests):
    """A model in several files."""

    format = SAFETENSORS
    index: Path

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def model(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        shards = [{"weight": np.arange(1 << 18, dtype="f8"), "bias": np.zeros(3, "f4")}, {"head": np.arange(5)}]
        cls.index = write_sharded(tmp_path_factory.mktemp("model"), shards)

    def containers(self) -> Iterable[Path | bytes]:
        return [self.index]


class TestWshard(BuiltInTests):
    """Every codec, a streamed recording, a compressed video with joints."""

    format = WSHARD
    names = "wshard none", "wshard zstd", "wshard lz4", "streamed"

    def containers(self) -> Iterable[Path | bytes]:
        return [*super().containers(), film()]


class TestIdv(BuiltInTests):
    """Every type of column, and a large column of vectors."""

    format = IDV
    names = ("idv",)


class TestNpz(BuiltInTests):
    """Every type, in every order; a compressed episode; a large stored and a large compressed array."""

    format = NPZ
    names = "npz", "npz episode", "npz with descriptors"

    def containers(self) -> Iterable[Path | bytes]:
        values = {"x": np.random.default_rng(0).integers(0, 99, 1 << 18), "y": np.arange(9)}
        return [*super().containers(), *(saved(values, is_compressed) for is_compressed in (False, True))]


# A format made for these tests: a magic, a number of parts, then each part's length and bytes.

MAGIC = b"TINYPARTS"


def tiny(*parts: bytes) -> bytes:
    return MAGIC + bytes([len(parts)]) + b"".join(struct.pack("<I", len(part)) + part for part in parts)


def tiny_members(source: Source) -> Iterator[Member]:
    position = len(MAGIC) + 1
    for number in range(source.read(len(MAGIC), 1)[0]):
        (size,) = struct.unpack("<I", source.read(position, 4))
        yield Member((b"part%d" % number,), Blob(b"part%d" % number, Extent(source, position + 4, size)))
        position += 4 + size


def tiny_open(opening: Opening) -> Container:
    source = opening.source
    return Container("tiny", "1", Group(b"", lambda: tiny_members(source)), [source])


SOUND = Format("tiny", lambda head: head.startswith(MAGIC), tiny_open)


class TestTiny(FormatTests):
    """A sound format of another package."""

    format = SOUND
    most_memory = 16 << 20

    def containers(self) -> Iterable[Path | bytes]:
        yield tiny(b"abc", b"", bytes(range(200)))
        yield tiny(bytes(3 << 20))

    def damaged(self) -> Iterable[Path | bytes]:
        yield tiny(b"abc")[:-2]


def opened_by(change: Callable[[Opening], Container]) -> Format:
    return Format("tiny", SOUND.recognises, change)


def showing(content: Callable[[Source], Content]) -> Format:
    """The sound format with a further member."""

    def members(source: Source) -> Iterator[Member]:
        yield from tiny_members(source)
        yield Member((b"more",), content(source))

    def opened(opening: Opening) -> Container:
        return Container("tiny", "1", Group(b"", lambda: members(opening.source)), [opening.source])

    return opened_by(opened)


def eager(opening: Opening) -> Container:
    source = opening.source
    source.read(0, source.size)
    return tiny_open(opening)


def trusting(opening: Opening) -> Container:
    source = opening.source
    struct.unpack("<Q", source.read(0, source.size)[-8:])
    if source.read(len(MAGIC), 1)[0] > 2:
        raise KeyError("unexpected")
    return tiny_open(opening)


def greedy(opening: Opening) -> Container:
    bytearray(20 << 20)
    return tiny_open(opening)


LEFT_OPEN: list[Any] = []


def leaking(opening: Opening) -> Container:
    LEFT_OPEN.append(open(opening.source.name, "rb"))  # noqa: SIM115
    return tiny_open(opening)


class Restless(Memory):
    """Gives other bytes at each reading."""

    numbers = count()

    def read_into(self, buffer: memoryview, offset: int) -> None:
        buffer[:] = bytes([next(self.numbers) % 251]) * len(buffer)


def unstable(opening: Opening, numbers: Iterator[int] = count()) -> Container:  # noqa: B008
    name = b"part%d" % next(numbers)
    return Container("tiny", "1", Group(b"", lambda: [Member((name,), Blob(name, Memory(b"x")))]), [opening.source])


class Reading(Data):
    """Says that its size is known, but reads for it."""

    def __init__(self, source: Source, offset: int, size: int) -> None:
        self._source = source

    @property
    def size(self) -> int:
        return len(self._source.read(0, 8))

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._source.read_into(buffer, offset)


def fields(content: Content, outline: Outline) -> Fields:
    return Fields(b"f", outline, lambda name: content)


def video(source: Source) -> Series:
    pixels = Array(b"a", Memory(bytes(3)), "|u1", (1, 1, 1, 3))
    return Series(b"s", range(1), lambda number: fields(pixels, Outline(others=[b"a"])), has_groups=True)


def blobs(**told: Any) -> Series:
    """Of one byte and of three."""
    return Series(b"s", range(2), lambda number: Blob(b"b", Memory(bytes((1, 3)[number]))), **told)


def group(found: bytes, *names: tuple[bytes, ...]) -> Group:
    """Of groups with these names, that finds one with a key."""
    return Group(b"g", lambda: [Member(name, Group(name[0], tuple)) for name in names],
                 find=lambda name: Group(found, tuple))


BROKEN: list[tuple[str, Format]] = [
    ("test_recognises_only_its_own_files", Format("tiny", lambda head: False, tiny_open)),
    ("test_recognises_only_its_own_files", Format("tiny", lambda head: True, tiny_open)),
    ("test_recognises_only_its_own_files", Format("tiny", lambda head: head[8] == MAGIC[8], tiny_open)),
    ("test_opening_is_lazy", opened_by(eager)),
    ("test_bytes_are_the_same_when_opened_again", showing(lambda source: Blob(b"more", Reading(source, 0, 8)))),
    ("test_contents_are_what_they_say", showing(lambda source: Blob("more", Memory(b"")))),  # type: ignore[arg-type]
    ("test_bytes_are_the_same_when_opened_again", opened_by(unstable)),
    ("test_contents_are_what_they_say",
     showing(lambda source: Array(b"more", Memory(bytes(7)), "<f4", (2,)))),
    ("test_contents_are_what_they_say", showing(lambda source: fields(Null(b"a"), Outline([b"a"])))),
    ("test_contents_are_what_they_say", showing(video)),
    ("test_contents_are_what_they_say", showing(lambda source: group(b"a", (b"a",)))),  # finds what is not there
    ("test_contents_are_what_they_say", showing(lambda source: group(b"b", (b"a",), (b"b",)))),
    ("test_contents_are_what_they_say", showing(lambda source: group(b"a", (b"a",), (b"a", b"b")))),
    ("test_contents_are_what_they_say", showing(lambda source: blobs(sizes=lambda a, b: [1, 2][a:b]))),
    ("test_contents_are_what_they_say", showing(lambda source: blobs(sizes=lambda a, b: [1, 3]))),
    ("test_contents_are_what_they_say", showing(lambda source: blobs(is_uniform=True))),
    ("test_bytes_are_the_same_when_opened_again", showing(lambda source: Blob(b"more", Restless(bytes(100))))),
    ("test_contents_are_what_they_say", opened_by(
        lambda given: Container("tiny", "1", Group(b"", list), [given.source], {}, lambda: iter([Fault("a", "b")])))),
    ("test_nothing_stays_open", opened_by(leaking)),
    ("test_nothing_stays_open", opened_by(
        lambda given: Container("tiny", "1", Group(b"", lambda: tiny_members(given.source)), []))),
    ("test_damage_raises_only_errors_of_glassfs", opened_by(trusting)),
    ("test_damage_raises_only_errors_of_glassfs", opened_by(greedy)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("claim", "broken"), BROKEN)
def test_a_broken_format_fails(claim: str, broken: Format) -> None:
    class Tests(TestTiny):
        format = broken
        damaged_copies = 30

    try:
        with pytest.raises((AssertionError, IndexError)):
            getattr(Tests(), claim)()
    finally:
        while LEFT_OPEN:
            LEFT_OPEN.pop().close()


def test_a_format_that_takes_the_magic_of_another_fails() -> None:
    class Imitator(TestTiny):
        format = Format("imitator", KASTORE.recognises, KASTORE.open)

        def containers(self) -> Iterable[Path | bytes]:
            yield b"\x89KAS\r\n\x1a\n" + bytes(56)

    with pytest.raises(AssertionError, match=r"is recognised as .*kastore"):
        Imitator().test_recognises_only_its_own_files()
