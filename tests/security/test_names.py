"""D3, D8: names that collide, and names in errors."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import xxhash
from writers.wshard import WShardWriter

from tests.security.conftest import Shared
from tests.security.places import make_folder, read_or_refusal, write_file, write_store
from tests.security.users import as_user

LONGEST = 255


def cut(original: str) -> str:
    """Return what a name that is too long with its escapes becomes: as much as fits, and the XXH64 of the whole."""
    mark = f"~{xxhash.xxh64_hexdigest(original.encode())}"
    return original[: LONGEST - len(mark)] + mark


def test_names_that_collide_after_cutting_are_both_shown(shared: Shared, place: Path) -> None:
    """A file may have exactly the name under which another one is shown; neither may hide the other."""
    source = make_folder(place / "source")
    long = "a" * 240 + "\x01" * 10
    for kind in ("file", "container", "folder"):
        make_folder(source / kind)
        for name, word in ((long, b"the long one"), (cut(long), b"the short one")):
            path = source / kind / name
            if kind == "file":
                write_file(path, word)
            elif kind == "container":
                write_store(path, word)
            else:
                write_file(make_folder(path) / "word.npy", word)
    shown = shared(source).path
    for kind in ("file", "container", "folder"):
        names = os.listdir(shown / kind)
        assert cut(long) in names and len(set(names)) == 2, names
        assert all(len(name.encode()) <= LONGEST for name in names)
        assert [name for name in names if "~2" in name] == [name for name in names if name != cut(long)]
        paths = [shown / kind / name / ("" if kind == "file" else "word.npy") for name in names]
        found = as_user(lambda paths=paths: [read_or_refusal(path) for path in paths])
        assert {word for data in found for word in (b"the long one", b"the short one") if word in data} == {
            b"the long one", b"the short one",
        }


def test_errors_name_the_folder_of_a_file(shared: Shared, place: Path) -> None:
    source = make_folder(place / "source")
    for folder in ("left", "right"):
        make_folder(source / folder)
        write_file(source / folder / "header.kas", b"\x89KAS\r\n\x1a\n" + b"\xff" * 60)
        path = source / folder / "block.wshard"
        with WShardWriter(path, codec="none") as writer:
            writer.add("signal/what", b"a word of some length that a checksum covers")
        path.write_bytes(path.read_bytes().replace(b"of some length", b"of SOME length"))
    daemon = shared(source)
    for folder in ("left", "right"):
        assert (daemon.path / folder / "header.kas").is_file()
        assert os.getxattr(daemon.path / folder / "header.kas", "user.glassfs.error")
        with pytest.raises(OSError, match="Input/output"):
            (daemon.path / folder / "block.wshard/signal/what.bin").read_bytes()
    lines = daemon.log_text().splitlines()
    for folder in ("left", "right"):
        for name in ("header.kas", "block.wshard"):
            assert [line for line in lines if re.search(rf"\b{folder}/{name}\b", line)], (folder, name, lines)
