"""The one thing that pyproject.toml cannot say: the manual page of a wheel is made from the commands themselves."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithManual(build_py):
    """Puts glassfs.1 into glassfs/data, beside the systemd units."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        sys.path.insert(0, str(ROOT / "src"))
        from glassfs.cli.man import page

        place = Path(self.build_lib, "glassfs", "data", "glassfs.1")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(page(), encoding="utf-8")


setup(cmdclass={"build_py": BuildWithManual})
