"""Test ``glassfs export`` into folders that other users prepared, and what an interrupted export leaves."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glassfs.cli.target import Existing, NotWritten, Target, opened_folder
from glassfs.sizes import PIECE
from tests.cli.conftest import sparse_store
from tests.cli.glassfs_command import fails, glassfs
from tests.cli.test_export import shown, written
from tests.waiting import SECONDS, wait_until

NAMESPACE = ["unshare", "--mount", "--propagation", "private", "bash", "-c"]


def leftovers(folder: Path) -> list[str]:
    return [name for _, _, names in os.walk(folder) for name in names if name.startswith(".glassfs-")]


@pytest.fixture
def in_namespace() -> None:
    """Skip a test if it cannot have a mount namespace of its own."""
    if os.geteuid() or shutil.which("unshare") is None or subprocess.run([*NAMESPACE, "true"], check=False).returncode:
        pytest.skip("a mount namespace takes root and unshare(1)")


# Existing files in the target.


def test_links_in_the_target_are_not_written_through(store: Path, tmp_path: Path) -> None:
    target, outside = tmp_path / "out", tmp_path / "outside"
    target.mkdir()
    outside.mkdir()
    (outside / "precious").write_text("keep me")
    (target / "nodes").symlink_to(outside)
    (target / "zeros.npy").symlink_to(outside / "precious")
    done = glassfs("export", "--overwrite", store, target)
    assert done.status == 1
    way = "something other than a directory is in the way"
    assert done.errors[0] == f"glassfs: {target}/nodes: {way}"
    assert len(done.errors) == 5
    assert [path.name for path in outside.iterdir()] == ["precious"]
    assert (outside / "precious").read_text() == "keep me"
    assert not (target / "zeros.npy").is_symlink()
    assert (target / "zeros.npy").stat().st_size == 128 + 4_000_000
    assert not leftovers(target)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fifo", "socket", "link", "dangling"])
@pytest.mark.parametrize("option", ["--overwrite", "--resume"])
def test_special_files_are_never_opened(
    kind: str, option: str, store: Path, tmp_path: Path,
) -> None:
    place = tmp_path / "zeros.npy"
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "socket":
        os.mknod(place, stat.S_IFSOCK | 0o600)
    else:
        place.symlink_to("/dev/null" if kind == "link" else "nowhere")
    before_mode = place.lstat().st_mode
    done = glassfs("export", option, store, tmp_path)
    if option == "--overwrite":
        assert (done.status, len(done.errors)) == (0, 1)
        assert written(tmp_path) == shown(store)
    else:
        assert done.status == 1
        reason = "something other than a regular file is in the way; use --overwrite to replace it"
        assert done.errors[0] == f"glassfs: {place}: {reason}"
        assert place.lstat().st_mode == before_mode
        assert (tmp_path / "nodes" / "time.npy").exists()


@pytest.mark.parametrize("kind", ["folder", "hard link", "source"])
def test_folders_and_the_source_are_not_replaced(kind: str, store: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    way = target / "zeros.npy"
    source = way if kind == "source" else tmp_path / "source.kas"
    shutil.copy(store, source)
    if kind == "folder":
        way.mkdir()
    elif kind == "hard link":
        way.hardlink_to(source)
    done = glassfs("export", "--overwrite", source, target)
    reason = "a directory is in the way" if kind == "folder" else "is the source itself"
    assert (done.status, done.errors[0]) == (1, f"glassfs: {way}: {reason}")
    assert (target / "nodes" / "flags.npy").exists() and source.read_bytes() == store.read_bytes()
    assert way.is_dir() or way.samefile(source)
    assert not leftovers(target)


def test_a_target_link_needs_a_trailing_slash(store: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    done = glassfs("export", store, tmp_path / "link")
    fails(done, f"{tmp_path}/link: is a symbolic link; append a slash to use the folder that it leads to")
    assert glassfs("export", store, f"{tmp_path}/link/").status == 0
    assert written(tmp_path / "real") == shown(store)


def test_a_target_that_is_not_empty_is_refused(store: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    done = glassfs("export", store, tmp_path)
    options = "use --overwrite to replace files in it or --resume to continue an export"
    fails(done, f"{tmp_path}: is not empty; {options}")
    done = glassfs("export", "--overwrite", "--resume", store, tmp_path)
    assert (done.status, len(done.errors)) == (2, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_overwrite_replaces_files_and_keeps_the_rest(store: Path, tmp_path: Path) -> None:
    glassfs("export", store, tmp_path)
    (tmp_path / "mine").write_text("mine")
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*.npy")}
    with (tmp_path / "zeros.npy").open("rb") as old:
        assert glassfs("export", "--overwrite", store, tmp_path).status == 0
        assert len(old.read()) == 128 + 4_000_000  # open files keep their bytes
    assert all(path.stat().st_ino != number for path, number in before.items())
    assert written(tmp_path) == shown(store) | {"/mine": b"mine"}


def test_resume_keeps_complete_files_and_writes_others(robot: Path, tmp_path: Path) -> None:
    glassfs("export", robot, tmp_path)
    episode = tmp_path / "episodes" / "0"
    gone, short, old = (episode / name for name in ("state.npy", "action.npy", "reward.npy"))
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*.*")}
    (tmp_path / "keeps the inode number in use").hardlink_to(gone)
    gone.unlink()
    short.chmod(0o600)
    os.truncate(short, 5)
    os.utime(short, ns=(robot.stat().st_mtime_ns,) * 2)
    os.utime(old, (1, 1))
    done = glassfs("export", "--resume", robot, tmp_path)
    assert (done.status, len(done.errors)) == (0, 1)
    (tmp_path / "keeps the inode number in use").unlink()
    assert written(tmp_path) == shown(robot)
    assert {path for path, number in before.items() if path.stat().st_ino != number} == {gone, short, old}


@pytest.mark.slow
def test_resume_makes_links_only_where_they_differ(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "a").symlink_to("one")
    assert glassfs("export", source, target).status == 0
    number = (target / "a").lstat().st_ino
    assert glassfs("export", "--resume", source, target).status == 0
    assert (target / "a").lstat().st_ino == number
    (source / "a").unlink()
    (source / "a").symlink_to("two")
    assert glassfs("export", "--resume", source, target).status == 1
    assert os.readlink(target / "a") == "one"
    assert glassfs("export", "--overwrite", source, target).status == 0
    assert os.readlink(target / "a") == "two"


def test_exports_are_writable_but_not_for_those_who_may_not_read_the_source(robot: Path, tmp_path: Path) -> None:
    source = tmp_path / "mode.kdb"
    shutil.copy(robot, source)
    for mode, umask, file_mode, folder_mode in (
        (0o600, "022", 0o600, 0o700), (0o644, "022", 0o644, 0o755), (0o644, "077", 0o600, 0o700),
        (0o600, "000", 0o600, 0o700), (0o640, "002", 0o660, 0o770), (0o444, "000", 0o666, 0o777),
    ):
        source.chmod(mode)
        target = tmp_path / f"{mode:o}-{umask}"
        command = 'umask "$0"; exec "$@"'
        arguments = [sys.executable, "-m", "glassfs", "export", str(source), str(target)]
        subprocess.run(["sh", "-c", command, umask, *arguments], check=True)
        modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in [target, *target.rglob("*")]}
        assert modes == {(False, file_mode), (True, folder_mode)}


@pytest.mark.slow
def test_two_exports_into_one_target_do_not_mix(store: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "glassfs", "export", "--overwrite", str(store), str(tmp_path)]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [one.wait() for one in both] == [0, 0]
    assert written(tmp_path) == shown(store)


def test_paths_inside_one_another_are_written_once(robot: Path, tmp_path: Path) -> None:
    done = glassfs("export", robot, "meta/file.json", "meta", "/meta/", tmp_path / "out")
    assert (done.status, len(done.errors)) == (0, 1)
    assert set(written(tmp_path / "out")) == {"/meta", "/meta/file.json"}


@pytest.mark.slow
def test_tree_and_export_end_at_a_depth_and_say_so(tmp_path: Path) -> None:
    """A server may have folders without end, and more than a thousand nested calls are no error of Python."""
    depth = 1200
    folder = tmp_path / "source" / "/".join(["d"] * depth)
    try:
        subprocess.run(["mkdir", "-p", folder], check=True)
        (tmp_path / "source" / "first").write_text("first")
        done = glassfs("tree", tmp_path / "source")
        assert (done.status, done.errors) == (1, ["glassfs: d: is more than 256 folders deep"])
        assert done.lines[-1] == "└── first  5"
        done = glassfs("export", tmp_path / "source", tmp_path / "target")
        assert done.status == 1 and "is more than 256 folders deep" in done.errors[0]
        assert (tmp_path / "target/first").read_text() == "first"
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "source", tmp_path / "target"], check=True)


# The source in the target, and the target in the source.


@pytest.fixture
def folder(store: Path, tmp_path: Path) -> Path:
    source = tmp_path / "work" / "s"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "notes.txt").write_text("notes")
    shutil.copy(store, source / "store.kas")
    return source


@pytest.mark.slow
@pytest.mark.parametrize("where", ["s", "s/", "s/sub", "s/new", "s/new/newer", "link", "link/new", "s/sub/../x"])
def test_a_target_inside_the_source_is_refused(where: str, folder: Path) -> None:
    (folder.parent / "link").symlink_to("s/sub")
    before = written(folder)
    done = glassfs("export", folder, f"{folder.parent}/{where}")
    reason = "is the source itself or inside it; name another folder"
    if where == "link":
        reason = "is a symbolic link; append a slash to use the folder that it leads to"
    fails(done, f"{folder.parent}/{where}: {reason}")
    assert written(folder) == before


def test_a_target_mounted_inside_the_source_is_refused(in_namespace: None, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    script = 'mount --bind "$1" "$2" && "$0" -m glassfs export "$3" "$2/out"; echo "status $?"'
    words = [sys.executable, str(folder / "sub"), str(tmp_path / "other"), str(folder)]
    done = subprocess.run([*NAMESPACE, script, *words], capture_output=True, check=False, timeout=SECONDS)
    assert done.stdout == b"status 1\n"
    reason = "is inside the source, as /sub/out; name another folder"
    assert done.stderr.decode() == f"glassfs: {tmp_path}/other/out: {reason}\n"


# Interrupted exports.


@pytest.mark.parametrize("number", [
    signal.SIGINT, *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGTERM, signal.SIGHUP)),
])
def test_a_signal_leaves_no_incomplete_file(number: signal.Signals, tmp_path: Path) -> None:
    source = sparse_store(tmp_path / "long.kas", 1 << 36)
    target = tmp_path / "out"
    command = [sys.executable, "-m", "glassfs", "export", str(source), str(target)]
    export = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: leftovers(target) or export.poll() is not None)
        assert export.poll() is None
        assert not (target / "long.npy").exists()
        export.send_signal(number)
        _, errors = export.communicate(timeout=SECONDS)
    finally:
        export.kill()
        export.wait()
    assert export.returncode == 128 + number
    assert "--resume" in errors and errors.count("\n") == 1
    assert list(target.iterdir()) == []


def test_a_full_disk_ends_the_export_with_one_line(in_namespace: None, store: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    script = (
        'mount -t tmpfs -o size=1m tmpfs "$2" && "$0" -m glassfs export "$1" "$2/out"; echo "status $?"; '
        'cd "$2/out" && find . -type f -printf "%p %s\\n"'
    )
    words = [sys.executable, str(store), str(disk)]
    done = subprocess.run([*NAMESPACE, script, *words], capture_output=True, text=True, check=False, timeout=SECONDS)
    reason = "No space left on device; free some space and continue with --resume"
    assert done.stderr == f"glassfs: {disk}/out: {reason}\n"
    status, *files = done.stdout.splitlines()
    assert status == "status 1"
    whole = {f".{path}": len(raw) for path, raw in shown(store).items() if raw is not None}
    assert all(whole[line.split()[0]] == int(line.split()[1]) for line in files)
    assert files
    assert "./nodes/time.npy" not in done.stdout


@pytest.mark.slow
def test_the_progress_bar_shows_rate_and_time_left(tmp_path: Path) -> None:
    source = sparse_store(tmp_path / "long.kas", 1 << 30)
    done = glassfs("export", "--progress", source, tmp_path / "out")
    assert done.status == 0
    shown_last = done.raw_errors.decode().split("\r")
    assert any("%|" in text and "<" in text and "B/s" in text for text in shown_last)
    assert (tmp_path / "out" / "long.npy").stat().st_size == 128 + (1 << 30)


# The target itself: invalid names, folders that disappear, and closed descriptors.


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with opened_folder(str(tmp_path / "out"), 0o755, Existing.REFUSE, __file__) as opened:
        yield opened


def pieces(*texts: bytes) -> Iterator[memoryview]:
    return map(memoryview, texts)


@pytest.mark.parametrize("place", ["/..", "/.", "/../outside", "/a/../../outside", "/", "/nul\0", "/a//b"])
def test_names_that_leave_the_target_are_refused(place: str, target: Target, tmp_path: Path) -> None:
    target.make_folder("/a", 0o755)
    before = sorted(os.listdir(tmp_path))
    for write in (
        lambda: target.write(place, 0o644, 0, pieces(b"x")), lambda: target.link(place, "goal", 0),
        lambda: target.make_folder(place, 0o755),
    ):
        with pytest.raises(NotWritten):
            write()
    assert sorted(os.listdir(tmp_path)) == before
    assert os.listdir(tmp_path / "out") == ["a"]
    assert os.listdir(tmp_path / "out" / "a") == []


def test_a_folder_that_became_a_link_is_not_entered(target: Target, tmp_path: Path) -> None:
    target.make_folder("/a", 0o755)
    (tmp_path / "outside").mkdir()
    (tmp_path / "out" / "a").rmdir()
    (tmp_path / "out" / "a").symlink_to(tmp_path / "outside")
    with pytest.raises(NotWritten, match="no longer exists"):
        target.write("/a/b", 0o644, 0, pieces(b"x"))
    assert os.listdir(tmp_path / "outside") == []


def test_zeros_are_written_at_every_position(target: Target, tmp_path: Path) -> None:
    zero, one = bytes(PIECE), b"\1" * PIECE
    for number, parts in enumerate(([zero], [zero, one], [one, zero, b"\0\0"], [zero, zero, b"\0\1"], [b""], [])):
        target.write(f"/{number}", 0o644, 5, pieces(*parts))
        assert (tmp_path / "out" / str(number)).read_bytes() == b"".join(parts)
        assert (tmp_path / "out" / str(number)).stat().st_mtime_ns == 5


def test_the_number_of_open_folders_is_bounded(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with opened_folder(str(tmp_path / "out"), 0o755, Existing.REFUSE, __file__) as target:
        place = ""
        for number in range(200):
            place += f"/{number}"
            target.make_folder(place, 0o755)
            target.write(f"{place}/file", 0o644, 0, pieces(b"x"))
            assert len(os.listdir("/proc/self/fd")) <= before + 3
        target.write("/0/1/2/late", 0o644, 0, pieces(b"x"))
    assert len(os.listdir("/proc/self/fd")) == before
    assert (tmp_path / "out/0/1/2/late").exists()
    assert len(list((tmp_path / "out").rglob("file"))) == 200


def test_a_refused_target_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    before = len(os.listdir("/proc/self/fd"))
    for place in (f"{tmp_path}/full", __file__, f"{__file__}/x", f"{tmp_path}/full/x/y"):
        with pytest.raises(NotWritten), opened_folder(place, 0o755, Existing.REFUSE, __file__):
            pass
    assert len(os.listdir("/proc/self/fd")) == before
