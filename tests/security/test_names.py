"""D8: names in errors."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from writers.wshard import WShardWriter

from tests.security.conftest import Shared
from tests.security.places import make_folder, write_file


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
