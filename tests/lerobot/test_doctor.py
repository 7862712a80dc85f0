"""``lerobot-doctor check`` finds nothing wrong with a dataset."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.lerobot import client
from tests.lerobot.conftest import Mounting
from tests.lerobot.recipes import episode, write

client.require()


def test_doctor_finds_no_fault(tmp_path: Path, mounted: Mounting) -> None:
    write(tmp_path / "a.kdb", [episode(seed, 120) for seed in range(3)])
    write(tmp_path / "b.kdb", [episode(seed, 150, "put it down") for seed in range(3, 5)])
    root = mounted(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "lerobot_doctor.cli", "check", str(root)], capture_output=True, text=True, check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[PASS]" in done.stdout, done.stdout + done.stderr
    assert "[FAIL]" not in done.stdout, done.stdout
