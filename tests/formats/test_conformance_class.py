"""The public conformance class: built-in formats pass it, and each of its tests fails for a format that breaks it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_samples import write_idv, write_wshard
from writers.idv import IdvWriter, vector
from writers.ikv import ikv2
from writers.kastore import KastoreWriter
from writers.kinodb import KinoWriter
from writers.wshard import WShardWriter

from glassfs.content import (
    Array,
    Blob,
    Container,
    Content,
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
from glassfs.errors import Refused
from glassfs.formats.idv import FORMAT as IDV
from glassfs.formats.ikv import FORMAT as IKV
from glassfs.formats.kastore import FORMAT as KASTORE
from glassfs.formats.kinodb import FORMAT as KINODB
from glassfs.formats.registry import Format, Opening
from glassfs.formats.wshard import FORMAT as WSHARD
from glassfs.source import Source
from glassfs.testing import FormatTests
from tests.conftest import Scale

MOST_SECONDS = 600.0
"""For a damaged container, however loaded the machine is."""


@pytest.fixture(scope="class", autouse=True)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, scale: Scale) -> None:
    """Where the classes below write their containers, once each; and how often these are damaged."""
    if request.cls is not None:
        request.cls.folder = tmp_path_factory.mktemp("containers")
        request.cls.damaged_copies = scale(3, 30, 1000)
        request.cls.most_seconds = MOST_SECONDS


class TestKastore(FormatTests):
    """Arrays of all types, a ragged column, an appended store; one file is large."""

    format = KASTORE
    folder: Path

    def containers(self) -> Iterable[Path | bytes]:
        small, large = self.folder / "small.kas", self.folder / "large.kas"
        if not large.exists():
            with KastoreWriter(small) as store:
                for name in ("int8", "uint16", "int32", "uint64", "float32", "float64"):
                    store.add(f"types/{name}", np.arange(10).astype(name))
                store.add("empty", np.zeros(0))
                store.add_rows("sites/ancestral_state", [b"A", b"", b"GT"])
            with KastoreWriter(small, append=True) as store:
                store.add("more", np.arange(3))
            with KastoreWriter(large) as store:
                store.add("values", np.arange(1 << 18, dtype="f8"))
        return [small, large]


class TestKinodb(FormatTests):
    """Episodes with raw and compressed pictures, and a large one."""

    format = KINODB
    folder: Path

    def containers(self) -> Iterable[Path | bytes]:
        small, large = self.folder / "small.kdb", self.folder / "large.kdb"
        if not large.exists():
            chance = np.random.default_rng(0)
            pixels = chance.integers(0, 256, (3, 8, 9, 3), dtype=np.uint8)
            with KinoWriter(small, quality=80) as writer:
                writer.add_episode(np.zeros((3, 2)), np.ones((3, 1)), images=[{"front": frame} for frame in pixels])
                writer.add_episode(np.zeros((2, 0)), np.ones((2, 1)), task="no pictures", success=True)
            with KinoWriter(large) as writer:
                writer.add_episode(chance.normal(size=(5000, 64)), np.zeros((5000, 8)), images=[{"a": pixels[0]}])
        return [small.read_bytes(), large]


class TestIkv(FormatTests):
    """A document with every kind of value."""

    format = IKV

    def containers(self) -> Iterable[Path | bytes]:
        values = {"text": "é", "number": 12, "double": -0.5, "yes": True, "none": None, "inner": {"deep": {"x": 1}}}
        yield ikv2(values | {"mixed": [1, "a", None, {"b": []}], "doubles": np.arange(5) / 2})
        yield ikv2({"small": 1, "text": "long " * (1 << 18)})


class TestWshard(FormatTests):
    """A compressed video with joints, and a large uncompressed episode."""

    format = WSHARD
    folder: Path

    def containers(self) -> Iterable[Path | bytes]:
        small, large = self.folder / "small.wshard", self.folder / "large.wshard"
        if not large.exists():
            write_wshard(small)
            with WShardWriter(large, episode={"episode_id": "large", "length_T": 300_000}) as writer:
                writer.add_channel("force", np.zeros((300_000, 2), np.float32))
        return [small, large]


class TestIdv(FormatTests):
    """Numbers, vectors and text, and a large column of vectors."""

    format = IDV
    folder: Path

    def containers(self) -> Iterable[Path | bytes]:
        small, large = self.folder / "small.idv", self.folder / "large.idv"
        if not large.exists():
            write_idv(small)
            values = np.random.default_rng(0).normal(size=(20_000, 50)).astype(np.float32)
            with IdvWriter(large) as writer:
                writer.add("Features", values, vector("Single", 50))
        return [small, large]


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
CLAIMS = [name for name in dir(FormatTests) if name.startswith("test_")]


def conformance(fmt: Format) -> FormatTests:
    class Tiny(FormatTests):
        format = fmt
        damaged_copies = 30
        most_memory = 16 << 20

        def containers(self) -> Iterable[Path | bytes]:
            yield tiny(b"abc", b"", bytes(range(200)))
            yield tiny(bytes(3 << 20))

        def damaged(self) -> Iterable[Path | bytes]:
            yield tiny(b"abc")[:-2]

    return Tiny()


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS)
def test_a_sound_third_party_format_passes(claim: str) -> None:
    getattr(conformance(SOUND), claim)()


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


def refusing(opening: Opening) -> Container:
    raise Refused("never", opening.source.name)


LEFT_OPEN: list[Any] = []


def leaking(opening: Opening) -> Container:
    LEFT_OPEN.append(open(opening.source.name, "rb"))  # noqa: SIM115
    return tiny_open(opening)


class Restless(Memory):
    """Gives other bytes at each reading."""

    count = 0

    def read_into(self, buffer: memoryview, offset: int) -> None:
        Restless.count += 1
        buffer[:] = (Restless.count % 251).to_bytes(1, "big") * len(buffer)


class Renamed:
    count = 0

    @classmethod
    def name(cls) -> bytes:
        cls.count += 1
        return b"part%d" % cls.count


def unstable(opening: Opening) -> Container:
    name = Renamed.name()
    return Container("tiny", "1", Group(b"", lambda: [Member((name,), Blob(name, Memory(b"x")))]), [opening.source])


class Reading(Extent):
    """Says that its size is known, but reads for it."""

    @property
    def size(self) -> int:
        return len(self.source.read(0, 8))


def fields(content: Content, outline: Outline) -> Fields:
    return Fields(b"f", outline, lambda name: content)


def video(source: Source) -> Series:
    pixels = Array(b"a", Memory(bytes(3)), "|u1", (1, 1, 1, 3))
    return Series(b"s", 1, lambda number: fields(pixels, Outline(others=[b"a"])), has_groups=True)


def blobs(**told: Any) -> Series:
    """Of one byte and of three."""
    return Series(b"s", 2, lambda number: Blob(b"b", Memory(bytes((1, 3)[number]))), **told)


BROKEN: list[tuple[str, Format]] = [
    ("test_is_recognised_by_its_first_bytes", Format("tiny", lambda head: False, tiny_open)),
    ("test_does_not_recognise_other_files", Format("tiny", lambda head: True, tiny_open)),
    ("test_recognising_cut_heads_raises_nothing", Format("tiny", lambda head: head[8] == MAGIC[8], tiny_open)),
    ("test_opening_is_lazy", opened_by(eager)),
    ("test_known_sizes_cost_no_reading", showing(lambda source: Blob(b"more", Reading(source, 0, 8)))),
    ("test_names_and_keys_are_bytes", showing(lambda source: Blob("more", Memory(b"")))),  # type: ignore[arg-type]
    ("test_is_the_same_when_opened_again", opened_by(unstable)),
    ("test_arrays_and_images_have_the_size_of_their_shape",
     showing(lambda source: Array(b"more", Memory(bytes(7)), "<f4", (2,)))),
    ("test_fields_are_what_their_outline_says", showing(lambda source: fields(Null(b"a"), Outline([b"a"])))),
    ("test_fields_are_what_their_outline_says", showing(video)),
    ("test_series_have_the_sizes_that_they_tell", showing(lambda source: blobs(sizes=lambda a, b: [1, 2][a:b]))),
    ("test_series_have_the_sizes_that_they_tell", showing(lambda source: blobs(sizes=lambda a, b: [1, 3]))),
    ("test_series_have_the_sizes_that_they_tell", showing(lambda source: blobs(is_uniform=True))),
    ("test_every_range_is_that_of_the_whole", showing(lambda source: Blob(b"more", Restless(bytes(100))))),
    ("test_threads_read_the_same", showing(lambda source: Blob(b"more", Restless(bytes(100))))),
    ("test_sound_containers_have_no_fault", opened_by(
        lambda given: Container("tiny", "1", Group(b"", list), [given.source], {}, lambda: iter([Fault("a", "b")])))),
    ("test_nothing_stays_open", opened_by(leaking)),
    ("test_nothing_stays_open", opened_by(
        lambda given: Container("tiny", "1", Group(b"", lambda: tiny_members(given.source)), []))),
    ("test_cut_containers_raise_only_errors_of_glassfs", opened_by(trusting)),
    ("test_changed_containers_raise_only_errors_of_glassfs", opened_by(trusting)),
    ("test_damaged_containers_raise_only_errors_of_glassfs", opened_by(greedy)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("claim", "broken"), BROKEN)
def test_a_broken_format_fails(claim: str, broken: Format) -> None:
    try:
        with pytest.raises((AssertionError, IndexError)):
            getattr(conformance(broken), claim)()
    finally:
        while LEFT_OPEN:
            LEFT_OPEN.pop().close()


def test_a_format_that_takes_the_magic_of_another_fails() -> None:
    class Imitator(TestKastore):
        format = Format("imitator", KASTORE.recognises, KASTORE.open)

        def containers(self) -> Iterable[Path | bytes]:
            yield b"\x89KAS\r\n\x1a\n" + bytes(56)

    with pytest.raises(AssertionError, match="also recognised by kastore"):
        Imitator().test_is_recognised_by_its_first_bytes()


def test_a_format_that_opens_nothing_fails() -> None:
    with pytest.raises(Refused):
        conformance(opened_by(refusing)).test_every_range_is_that_of_the_whole()
