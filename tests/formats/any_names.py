"""Names of any bytes, in all formats whose names are those of their users: each listed name leads to its value."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from writers.idv import IdvWriter
from writers.ikv import write_ikv1, write_ikv2
from writers.kastore import KastoreWriter
from writers.kinodb import KinoWriter
from writers.safetensors import described, packed
from writers.wshard import WShardWriter

import glassfs
from tests.formats.npz_files import npy

NAMES = [
    b"", b".", b"..", b"/", b"//", b"a", b"a/b", b"a//b", b"/a", b"a/", b"a/.", b"a/..", b"../a", b"a.npy", b"a~2",
    b"a~2.npy", b"\x7f", b"%", b"%41", b"A", b"%2E", b"%2E%2E", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"a\xffb/\xfe",
    b"n\0l", b"l\nf", b"\\", b" ", b"--all", b"*", b"[a]", b"?", b".glassfs", b"meta", b"0",
    b"x" * 300, b"x" * 299 + b"y",
    "\u00e9".encode(), "e\u0301".encode(), "\u202ea".encode(), "\U0001f600".encode() * 80,
]
"""Bytes that are no UTF-8, control characters, names of folders, and others that collide after escaping."""
TEXTS = [name for name in NAMES if name.decode("utf-8", "replace").encode() == name]


class _Raw(zipfile.ZipInfo):
    """A member of an archive whose name is bytes."""

    name = b""

    def _encodeFilenameFlags(self) -> tuple[bytes, int]:  # noqa: N802  # its name in zipfile
        return self.name, self.flag_bits


def number(value: int) -> np.ndarray:
    return np.array([value], "<i4")


def write_idv(path: Path) -> None:
    with IdvWriter(path) as view:
        for value, name in enumerate(NAMES):
            view.add(name, number(value))


def write_kastore(path: Path) -> None:
    with KastoreWriter(path) as store:
        for value, name in enumerate(NAMES):
            if name:  # the format has no empty keys
                store.add(name, number(value))


def write_kinodb(path: Path) -> None:
    pictures = [(name, np.full((2, 2, 3), value, np.uint8)) for value, name in enumerate(NAMES)]
    with KinoWriter(path) as writer:
        writer.add_episode(np.zeros((1, 2), "<f4"), np.zeros((1, 2), "<f4"), images=[pictures])


def write_npz(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for value, name in enumerate(NAMES):
            member = _Raw(f"{value}.npy")
            member.name = name + b".npy"
            archive.writestr(member, npy(number(value)))


def write_safetensors(path: Path) -> None:
    header = {name.decode(): described("I32", [1], 4 * at, 4 * at + 4) for at, name in enumerate(TEXTS)}
    path.write_bytes(packed(json.dumps(header).encode(), struct.pack(f"<{len(TEXTS)}i", *map(NAMES.index, TEXTS))))


def write_wshard(path: Path) -> None:
    with WShardWriter(path) as writer:
        for value, name in enumerate(NAMES):
            writer.add(name, number(value))


WRITERS: dict[str, Callable[[Path], None]] = {
    "a.idv": write_idv, "a.kas": write_kastore, "a.kdb": write_kinodb, "a.npz": write_npz,
    "a.safetensors": write_safetensors, "a.wshard": write_wshard,
    "one.ikv": lambda path: write_ikv1(path, {name: value for value, name in enumerate(NAMES)}),
    "two.ikv": lambda path: write_ikv2(path, {name: value for value, name in enumerate(NAMES)}),
}


def files_of(folder: glassfs.Entry, above: str = "") -> Iterator[tuple[str, bytes]]:
    for name in folder:
        if folder[name].is_dir():
            yield from files_of(folder[name], f"{above}{name}/")
        else:
            yield above + name, folder[name].bytes()


def value_of(path: str, stored: bytes) -> int | None:
    """Return the value that a file shows, None if it is another file."""
    if path.endswith(".npy"):
        return int(np.frombuffer(stored[-4:], "<i4")[0])
    if path.endswith(".bin"):
        return int(np.frombuffer(stored, "<i4")[0])
    return json.loads(stored) if stored.strip().isdigit() else None
