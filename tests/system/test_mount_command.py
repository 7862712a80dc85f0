"""mount(8) and /etc/fstab: the real programs, in a mount namespace whose /sbin has the helper."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from writers.kastore import KastoreWriter

from tests.mount.mounts import require
from tests.waiting import SECONDS

# The helper is installed beside links to the programs of /sbin. Nothing outside of the namespace changes.
SETUP = """
set -e
mkdir original sbin
mount --bind "$(readlink -f /sbin)" original
for program in original/*; do ln -s "$PWD/$program" sbin/; done
"$PYTHON" -m glassfs install --directory sbin >/dev/null
mount --bind sbin "$(readlink -f /sbin)"
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a container at ``some data.kas`` and a mount point ``mnt``."""
    require()
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a mount namespace needs root and unshare(1)")
    with KastoreWriter(tmp_path / "some data.kas") as store:
        store.add("a/values", [1.5, 2.5])
    (tmp_path / "mnt").mkdir()
    return tmp_path


def run(place: Path, script: str) -> str:
    """Run a script in ``place`` and return what it prints."""
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "bash", "-c", SETUP + script], cwd=place, timeout=SECONDS,
        env=os.environ | {"PYTHON": sys.executable}, capture_output=True, text=True, check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ["glassfs", pytest.param("fuse.glassfs", marks=pytest.mark.slow)])
def test_mount_by_type(place: Path, kind: str) -> None:
    said = run(place, f"""
        mount -t {kind} "some data.kas" mnt -o cache_size=8M,noatime
        ls mnt/a
        findmnt -no SOURCE,FSTYPE,OPTIONS mnt
        "$PYTHON" -c 'import json; print(json.load(open("mnt/.glassfs/status.json"))["cache"]["budget"])'
        umount mnt
        ls -A mnt
    """)
    listed, mounted, budget = said.splitlines()
    assert listed == "values.npy"
    assert "fuse.glassfs" in mounted and "some data.kas" in mounted.encode().decode("unicode_escape")
    assert {"ro", "nosuid", "nodev", "noexec"} <= set(mounted.split()[-1].split(","))
    assert budget == str(8 << 20)


@pytest.mark.slow
def test_mount_from_fstab(place: Path) -> None:
    source = str(place / "some data.kas").replace(" ", "\\040")
    options = "nofail,_netdev,x-systemd.automount,x-systemd.idle-timeout=10min,user,comment=data,umask=027"
    (place / "later").mkdir()
    (place / "fstab").write_text(
        f"{source} {place}/mnt glassfs {options} 0 0\n{source} {place}/later glassfs noauto,ro,defaults 0 0\n"
    )
    said = run(place, """
        mount -a -T fstab
        ls mnt/a later
        stat -c %a mnt/a/values.npy
        mount -a -T fstab
        findmnt -n -l -o TARGET | grep -c "^$PWD/mnt$"
        mount -T fstab later
        ls later/a
        umount mnt later
        ls -A mnt later
    """)
    assert said.splitlines() == [
        "later:", "", "mnt/a:", "values.npy", "440", "1", "values.npy", "later:", "", "mnt:",
    ]
