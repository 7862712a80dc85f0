"""Build step that pyproject.toml cannot express: the manual page is generated from the commands."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithManual(build_py):
    """Write glassfs.1 to glassfs/data, beside the systemd units."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        sys.path.insert(0, str(ROOT / "src"))
        from glassfs.cli.man import page

        path = Path(self.build_lib, "glassfs", "data", "glassfs.1")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(), encoding="utf-8")


setup(cmdclass={"build_py": BuildWithManual})
