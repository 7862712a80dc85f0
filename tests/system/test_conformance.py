"""A mount and a read-only directory of the same files give programs the same."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.mount.mounts import require


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a directory to compare with")
def test_mount_agrees_with_a_read_only_directory() -> None:
    require()
    done = subprocess.run(
        [sys.executable, "-m", "conformances", "--quick"], capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT / "scripts")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 differs" in done.stdout
