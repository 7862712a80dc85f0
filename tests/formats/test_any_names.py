"""Each listed name of a container leads to its value."""

from __future__ import annotations

from pathlib import Path

import pytest

import glassfs
from tests.cli.glassfs_command import glassfs as glassfs_command
from tests.formats.any_names import NAMES, TEXTS, WRITERS, files_of, value_of


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
        assert glassfs_command("cat", f"{tmp_path / name}/{path}").output == stored
