"""D3, D8, D11: names that meet, names in errors, and inode numbers that every program can carry."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import xxhash
from writers.wshard import WShardWriter

from tests.mount.gallery import make_gallery
from tests.security.conftest import Shared
from tests.security.places import make_folder, read_or_refusal, write_file, write_store
from tests.security.users import STRANGER, as_user

LONGEST = 255


def cut(original: str) -> str:
    """What a name that is too long with its escapes is shown as: as much as fits, and the XXH64 of the whole."""
    mark = f"~{xxhash.xxh64_hexdigest(original.encode())}"
    return original[: LONGEST - len(mark)] + mark


@pytest.mark.parametrize("kind", ["file", "container", "folder"])
def test_names_that_are_equal_after_cutting_are_both_there(shared: Shared, place: Path, kind: str) -> None:
    """Somebody gives a file the very name under which another one is shown: neither may hide the other."""
    source = make_folder(place / "source")
    long = "a" * 240 + "\x01" * 10
    for name, word in ((long, b"the long one"), (cut(long), b"the short one")):
        path = source / name
        if kind == "file":
            write_file(path, word)
        elif kind == "container":
            write_store(path, word)
        else:
            write_file(make_folder(path) / "word.npy", word)
    shown = shared(source).path
    names = [name for name in os.listdir(shown) if name != ".glassfs"]
    assert cut(long) in names
    assert len(set(names)) == 2, names
    assert all(len(name.encode()) <= LONGEST for name in names)
    assert [name for name in names if "~2" in name] == [name for name in names if name != cut(long)]
    found = as_user(lambda: [read_or_refusal(shown / name if kind == "file" else shown / name / "word.npy")
                             for name in names], user=STRANGER)
    words = {word for data in found for word in (b"the long one", b"the short one") if word in data}
    assert words == {b"the long one", b"the short one"}


def test_errors_tell_files_of_one_name_apart(shared: Shared, place: Path) -> None:
    """In the log and in the attribute: a header that is damaged, and a block that is."""
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


def test_inode_numbers_have_63_bits(shared: Shared, place: Path) -> None:
    """Programs that take them for signed numbers would show the others as negative ones. They stay distinct."""
    gallery = make_gallery(make_folder(place / "source"))
    shown = shared(gallery.folder).path
    numbers = {}
    for folder, folders, files in os.walk(shown):
        with os.scandir(folder) as entries:
            listed = {entry.name: entry.inode() for entry in entries}
        for name in [*folders, *files]:
            numbers[f"{folder}/{name}"] = os.lstat(f"{folder}/{name}").st_ino
            assert listed[name] == numbers[f"{folder}/{name}"]
    assert len(numbers) > 60
    assert min(numbers.values()) > 0 and max(numbers.values()) < 1 << 63
    assert len(set(numbers.values())) == len(numbers)
