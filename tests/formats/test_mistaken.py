"""Files that have the name of a container and not its bytes say what they are, and count as missing data."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from pathlib import Path

import pytest

from glassfs.errors import Refused, Unrecognised
from glassfs.library import open_tree
from tests.cli.glassfs_command import fails, glassfs
from tests.helpers import open_bytes

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 4294967\n" % 7
ARCHIVE = io.BytesIO()
with tarfile.open(fileobj=ARCHIVE, mode="w") as made:
    made.addfile(tarfile.TarInfo("x"))

MISTAKEN = {
    "pointer.safetensors": (POINTER, "is a pointer of Git LFS to 4,294,967 bytes, not the file: run git lfs pull"),
    "annexed.h5": (b"/annex/objects/SHA256E-s9--0a.h5\n", "is a pointer of git-annex, not the file: run git annex get"),
    "page.kdb": (b"\n<!DOCTYPE html>\n<html>", "is an HTML page, such as one about an error: download the file again"),
    "denied.npz": (
        b'<?xml version="1.0"?><Error>',
        "is an XML document, such as the answer of a server about an error: download the file again",
    ),
    "answer.idv": (
        b'{"error": "Repository not found"}',
        "is the answer of a server about an error (JSON): download the file again",
    ),
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
    done = glassfs("verify", tmp_path)
    assert (done.status, done.lines) == (1, lines)
    done = glassfs("info", tmp_path)
    assert (done.status, [line.strip() for line in done.lines[1:]]) == (1, [f"unreadable: {line}" for line in lines])
    fails(glassfs("ls", tmp_path / "packed.h5"), f"{tmp_path}/packed.h5: {MISTAKEN['packed.h5'][1]}")
    with open_tree(str(tmp_path)) as tree:
        for name, (data, reason) in MISTAKEN.items():
            assert tree.file(name).read(0, 1000) == data[:1000]
            assert tree.lookup(name).xattrs() == {"user.glassfs.error": reason.encode()}
        assert tree.lookup("notes.txt").xattrs() == {}

