"""Names of any bytes in a mount are those of the library, and lead to the same files."""

from __future__ import annotations

from pathlib import Path

import glassfs
from tests.formats.any_names import WRITERS, files_of
from tests.mount.conftest import Mounted


def test_each_listed_name_opens_in_a_mount(mounted: Mounted, tmp_path: Path) -> None:
    for name, write in WRITERS.items():
        write(tmp_path / name)
    with mounted(tmp_path) as mount:
        for name in WRITERS:
            root = mount.path / name
            found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
            with glassfs.open(tmp_path / name) as container:
                assert found == dict(files_of(container)), name
