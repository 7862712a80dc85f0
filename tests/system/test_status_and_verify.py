"""``glassfs status`` and ``glassfs verify`` as a person or a program uses them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from writers.kastore import KastoreWriter
from writers.kinodb import KinoWriter
from writers.wshard import WShardWriter

from glassfs.source.mountinfo import glassfs_devices
from glassfs.terminal import printable
from tests.mount.mounts import glassfs, is_mounted, is_running, missing
from tests.waiting import wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three sound containers and a file that is none."""
    place = tmp_path / "data"
    (place / "below").mkdir(parents=True)
    frames = np.arange(4 * 6 * 5 * 3, dtype=np.uint8).reshape(4, 6, 5, 3)
    with KinoWriter(place / "run.kdb") as writer:
        writer.add_episode(
            np.zeros((4, 2), np.float32), np.zeros((4, 1), np.float32),
            is_terminal=[False, False, False, True], images=({"cam": frame} for frame in frames),
            embodiment="arm", task="wave",
        )
    with WShardWriter(place / "below/episode.wshard", codec="zstd", episode={"length_T": 400}) as shard:
        shard.add_channel("position", np.zeros((400, 3), np.float32))
        shard.add("reward", np.zeros(400, np.float32))
    with KastoreWriter(place / "values.kas") as store:
        store.add("a", [1, 2, 3])
    (place / "notes.txt").write_text("no container")
    return place


def damage(path: Path, where: bytes, offset: int = 0) -> None:
    """Changes a byte behind the last occurrence of ``where``."""
    data = bytearray(path.read_bytes())
    data[data.rindex(where) + offset] ^= 0xFF
    path.write_bytes(data)


def test_sound_containers_have_no_faults(folder: Path) -> None:
    done = glassfs("verify", folder)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "3 containers, 0 faults\n"


def test_each_fault_is_a_line_that_names_container_and_place(folder: Path) -> None:
    damage(folder / "below/episode.wshard", b"\x28\xb5\x2f\xfd", 12)  # inside the last zstd frame
    (folder / "cut.kas").write_bytes((folder / "values.kas").read_bytes()[:-8])
    done = glassfs("verify", folder)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"{folder / 'cut.kas'}: is cut short")
    assert lines[1].startswith(f"{folder / 'below/episode.wshard'}: /")
    assert done.stderr == "4 containers, 2 faults\n"


def test_no_name_stands_twice_in_a_sentence(tmp_path: Path) -> None:
    """Two blocks with the same fault are two lines all the same."""
    path = tmp_path / "episode.wshard"
    with WShardWriter(path, codec="zstd") as writer:
        for name in ("first", "second", "third"):
            writer.add_channel(name, np.arange(2000, dtype="<f4").reshape(500, 4))
    data = bytearray(path.read_bytes())
    position = -1
    while (position := data.find(b"\x28\xb5\x2f\xfd", position + 1)) >= 0:
        data[position] ^= 1
    path.write_bytes(data)
    done = glassfs("verify", path)
    told = [line.removeprefix(f"{path}: /").split(": ", 1) for line in done.stdout.splitlines() if f"{path}: /" in line]
    places = {f"signal/{name}.bin" for name in ("first", "second", "third")} | {"meta/channels.json"}
    assert len(told) == 4
    assert {place for place, _ in told} == places
    assert all(reason.startswith("zstd data cannot be decoded") for _, reason in told)


def test_json_for_programs(folder: Path) -> None:
    damage(folder / "below/episode.wshard", b"\x28\xb5\x2f\xfd", 12)
    done = glassfs("verify", "--json", folder / "below/episode.wshard")
    assert done.returncode == 1
    faults = [json.loads(line) for line in done.stdout.splitlines()]
    assert [set(fault) for fault in faults] == [{"source", "place", "reason"}]


def test_a_missing_source_is_an_error(tmp_path: Path) -> None:
    done = glassfs("verify", tmp_path / "none.kdb")
    assert done.returncode == 1
    assert "No such file" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def mountpoint(folder: Path, tmp_path: Path) -> Iterator[Path]:
    """The folder, mounted."""
    reason = missing("3") and missing("2")
    if reason:
        pytest.skip(reason)
    place = tmp_path / "mnt\n\x1b[31m"
    place.mkdir()
    assert glassfs("mount", folder, place).returncode == 0
    yield place
    glassfs("umount", "--lazy", place)
    assert not is_mounted(place)


def line_of(mountpoint: Path) -> str:
    """What ``glassfs status`` says of one mount. Those of others may be there as well."""
    done = glassfs("status")
    assert (done.returncode, done.stderr) == (0, "")
    return next(line for line in done.stdout.splitlines() if f" on {printable(str(mountpoint))}: " in line)


def test_status_tells_what_is_mounted(folder: Path, mountpoint: Path) -> None:
    (mountpoint / "values.kas/a.npy").read_bytes()
    found = [json.loads(line) for line in glassfs("status", "--json").stdout.splitlines()]
    mine = next(status for status in found if status["mountpoint"] == str(mountpoint))
    assert mine["sources"] == [str(folder)]
    assert mine["open_containers"] == [str(folder / "values.kas")]
    assert mine["errors"] == 0
    line = line_of(mountpoint)
    assert line.startswith(f"{folder} on ") and f": pid {mine['pid']}, up " in line


def test_a_mount_is_known_by_its_device(mountpoint: Path, folder: Path) -> None:
    """As whoever comes across it in a source has to know it, without asking its daemon."""
    assert (mountpoint / "values.kas").stat().st_dev in glassfs_devices()
    assert folder.stat().st_dev not in glassfs_devices()


@pytest.mark.slow
def test_a_mount_that_hangs_does_not_make_others_wait(folder: Path, mountpoint: Path, tmp_path: Path) -> None:
    """The daemon is stopped: whoever asks it waits in the kernel, but not the command."""
    pid = json.loads((mountpoint / ".glassfs/status.json").read_text())["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert line_of(mountpoint).endswith(": does not answer")
        found = [json.loads(line) for line in glassfs("status", "--json").stdout.splitlines()]
        mine = next(status for status in found if status["mountpoint"] == str(mountpoint))
        assert mine["unreadable"] == "does not answer"
        done = glassfs("mount", folder, mountpoint)
        assert done.returncode == 1
        assert "does not answer" in done.stderr and "glassfs umount --lazy" in done.stderr
        assert glassfs("umount", "--lazy", mountpoint).returncode == 0
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not is_running(pid))


def test_a_mount_whose_daemon_is_gone(mountpoint: Path) -> None:
    pid = json.loads((mountpoint / ".glassfs/status.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid))
    assert line_of(mountpoint).endswith(": its daemon is gone; 'glassfs umount' removes it")


@pytest.mark.parametrize("said", [
    "", "[]", "{}", '{"cache": 1}', '{"unreadable": "a\\nb\\u001b"}', '{"pid": 1, "cache": {}}',
])
def test_a_status_that_is_made_up(tmp_path: Path, said: str) -> None:
    """Everybody may mount something that calls itself glassfs; the table of mounts is made up here."""
    (tmp_path / ".glassfs").mkdir()
    (tmp_path / ".glassfs/status.json").write_text(said)
    (tmp_path / "table").write_text(f"60 26 0:50 / {tmp_path} ro - fuse.glassfs some\\012thing ro,user_id=0\n")
    script = (
        "import sys; from glassfs.source import mountinfo; mountinfo.MOUNTS = sys.argv[1]\n"
        "from glassfs.cli import run; sys.exit(run(['status']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "table")], capture_output=True, text=True, check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert line.isprintable()
    assert line.startswith(rf"some\nthing on {tmp_path}: ")
