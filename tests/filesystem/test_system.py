"""Names, sizes and bytes through fsspec; writing is refused; messages for common mistakes."""

from __future__ import annotations

import errno
import gc
import io
import os
import pickle
import random
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec import AbstractFileSystem
from writers.kastore import KastoreWriter

import glassfs
from glassfs.filesystem import GlassfsFileSystem
from glassfs.settings import settings
from glassfs.source.local import LocalStore
from tests.filesystem.conftest import write_values

STATE = "episodes/0/state.npy"


@pytest.mark.parametrize("name", ["{}", "file://{}", "local://{}"])
def test_fsspec_finds_it_by_its_name(place: Path, name: str) -> None:
    source = name.format(place / "robot.kdb")
    fs = fsspec.filesystem("glassfs", fo=source)
    assert isinstance(fs, GlassfsFileSystem) and fs.ls("", detail=False) == ["meta", "episodes"]
    with fsspec.open(f"glassfs://{STATE}::{source}") as file:
        assert file.read(6) == b"\x93NUMPY"


def test_all_files_equal_those_of_the_library(place: Path, folder: GlassfsFileSystem) -> None:
    with glassfs.open(place) as data:
        expected = {entry.path: entry.bytes() for entry in data.glob("**") if entry.is_file()}
        directories = {entry.path for entry in data.glob("**") if entry.is_dir()}
    assert len(expected) > 400
    assert folder.find("") == sorted(expected)
    assert folder.cat(list(expected)) == expected
    found = folder.find("", withdirs=True, detail=True)
    assert {name for name, info in found.items() if info["type"] == "directory"} == directories
    sizes = {name: info["size"] for name, info in found.items() if name in expected}
    unknown = [name for name, size in sizes.items() if size is None]  # these need a pass
    assert unknown and sizes == {name: len(data) for name, data in expected.items()} | dict.fromkeys(unknown)
    assert all(folder.open(name).size == len(expected[name]) for name in unknown)
    assert {name: folder.size(name) for name in expected} == {name: len(data) for name, data in expected.items()}
    assert folder.du("") == sum(map(len, expected.values()))


def test_ls_and_info_agree(folder: GlassfsFileSystem) -> None:
    for directory in ("", "robot.kdb/episodes/0", "episode.wshard/signal", "inner"):
        for listed in folder.ls(directory):
            info = folder.info(listed["name"])
            assert listed | {"size": info["size"]} == info
            assert listed["size"] in (None, info["size"])
            assert folder.isdir(info["name"]) == (info["type"] == "directory") != folder.isfile(info["name"])
    assert folder.ls("notes.txt") == [folder.info("notes.txt")]
    assert folder.ls("notes.txt", detail=False) == ["notes.txt"]
    assert folder.info("") | {"mtime": 0, "created": 0, "mode": 0} == {
        "name": "", "type": "directory", "size": 0, "mtime": 0, "created": 0, "mode": 0,
    }


def test_a_walk_lists_each_directory_once(folder: GlassfsFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[str] = []
    asked: list[str] = []
    ls, info = folder.ls, folder.info
    monkeypatch.setattr(folder, "ls", lambda path, **options: listed.append(path) or ls(path, **options))
    monkeypatch.setattr(folder, "info", lambda path, **options: asked.append(path) or info(path, **options))
    found = folder.glob("robot.kdb/**/*.npy")
    directories = folder.find("robot.kdb", withdirs=True, detail=True)
    assert len(found) == 12 and len(set(listed)) > 10 and set(asked) == {"robot.kdb"}
    assert sorted(listed) == sorted(2 * [name for name, info in directories.items() if info["type"] == "directory"])


@pytest.mark.parametrize("topdown", [True, False])
def test_walks_are_those_of_fsspec(folder: GlassfsFileSystem, topdown: bool) -> None:
    for depth in (None, 1, 2, 3):
        theirs = AbstractFileSystem.walk(folder, "inner", maxdepth=depth, topdown=topdown)
        walked = list(folder.walk("inner", maxdepth=depth, topdown=topdown))
        assert walked == list(theirs) and walked[0 if topdown else -1] == ("inner", ["other.kdb"], [])
    assert list(folder.walk("notes.txt")) == [("notes.txt", [], [""])] and list(folder.walk("nowhere")) == []
    pruned = []
    for path, dirs, _ in folder.walk("inner"):
        pruned.append(path)
        dirs[:] = [name for name in dirs if name != "images"]
    assert len(pruned) == 10 and not any("images" in path for path in pruned)
    with pytest.raises(ValueError, match="at least 1"):
        next(folder.walk("", maxdepth=0))


NAMES = [
    "a*b", "x[1]", "x1", "glassfs:", "glassfs::y", "q::z", "s3://w/v", " lead", "trail ", "new\nline", "d/a?", "d/..",
    "d/b#c", "%41", "glassfs://k", "ünï", "a/**", "memory://x", "{}", "c\\d",
]


def test_any_listed_name_can_be_looked_up(tmp_path: Path) -> None:
    with KastoreWriter(tmp_path / "names.kas") as store:
        for number, name in enumerate(NAMES):
            store.add(name, [number, number])
    fs = GlassfsFileSystem(tmp_path / "names.kas")
    found = fs.find("")
    assert len(found) == len(NAMES)
    for form in ("{}", "/{}", "glassfs://{}", "glassfs:///{}"):
        paths = [form.format(name) for name in found]
        assert [fs.info(path)["name"] for path in paths] == found
        values = [int.from_bytes(fs.cat_file(path)[-8:], "little") for path in paths]
        assert sorted(values) == list(range(len(NAMES)))
        assert [fs.open(path).path for path in paths] == found
        assert fs.cat_ranges(paths, -8, None) == [fs.cat_file(path, -8) for path in paths]
    assert [fs.open(name).read() for name in found] == [fs.cat_file(name) for name in found]
    assert fs._strip_protocol(["glassfs://a/", "/b", "glassfs::c"]) == ["a", "b", "glassfs::c"]


def test_only_exact_names_are_there(robot: GlassfsFileSystem) -> None:
    """Unlike in ``glassfs.open``: programs probe for several names of the same thing."""
    assert robot.exists(STATE) and not robot.exists("episodes/0/state") and not robot.exists("episodes/9")
    assert robot.exists("episodes.parquet") and "episodes.parquet" not in robot.ls("", detail=False)
    assert robot.isdir("episodes/0/state.zarr") and robot.isfile("episodes/0/state.zarr/zarr.json")
    assert not robot.exists(f"{STATE}/below") and not robot.isfile("episodes") and not robot.isdir(STATE)


def test_ranges_work_like_slices(robot: GlassfsFileSystem, place: Path) -> None:
    whole = robot.cat_file(STATE)
    numbers = [None, 0, 1, 100, len(whole) - 1, len(whole), len(whole) + 5, -1, -100, -len(whole), -len(whole) - 5]
    for start in numbers:
        for end in numbers:
            assert robot.cat_file(STATE, start, end) == whole[start:end], (start, end)
    pairs = [(start, end) for start in numbers for end in numbers]
    starts, ends = zip(*pairs, strict=True)
    assert robot.cat_ranges([STATE] * len(pairs), list(starts), ends, max_gap=100) == [whole[a:b] for a, b in pairs]
    assert (robot.head(STATE, 10), robot.tail(STATE, 10)) == (whole[:10], whole[-10:])
    assert robot.read_block(STATE, 5, 20) == whole[5:25]


def test_several_files_are_read_together(robot: GlassfsFileSystem) -> None:
    states = {name: robot.cat_file(name) for name in robot.glob("episodes/*/state.npy")}
    assert robot.cat("episodes/*/state.npy") == robot.cat(list(states)) == states
    assert robot.cat(STATE) == states[STATE] and robot.cat([STATE]) == {STATE: states[STATE]}
    assert robot.cat(STATE, recursive=True, start=-8) == states[STATE][-8:]
    assert robot.cat([STATE, "nowhere"], on_error="omit") == {STATE: states[STATE]}
    assert isinstance(robot.cat([STATE, "nowhere"], on_error="return")["nowhere"], FileNotFoundError)
    for path in ([STATE, "nowhere"], "nowhere", "no*"):
        with pytest.raises(FileNotFoundError):
            robot.cat(path)
    with pytest.raises(IsADirectoryError):
        robot.cat("episodes")


def test_an_unreadable_range_costs_no_other(robot: GlassfsFileSystem) -> None:
    paths = [STATE, "nowhere", "episodes", STATE]
    first, missing, directory, last = robot.cat_ranges(paths, [0, 0, 0, 6], 6)
    assert (first, last) == (b"\x93NUMPY", b"")
    assert isinstance(missing, FileNotFoundError) and isinstance(directory, IsADirectoryError)
    with pytest.raises(FileNotFoundError, match=r"robot\.kdb: nowhere: there is no such entry"):
        robot.cat_ranges(paths, 0, 6, on_error="raise")
    with pytest.raises(ValueError, match="zip"):
        robot.cat_ranges(paths, [0], [1])
    with pytest.raises(TypeError):
        robot.cat_ranges(STATE, [0], [1])


def test_a_file_is_read_like_any_other(robot: GlassfsFileSystem) -> None:
    whole, generator = robot.cat_file(STATE), random.Random(3)
    with robot.open(STATE) as file, io.BytesIO(whole) as expected:
        assert (file.size, file.path, file.fs, file.mode, file.name) == (len(whole), STATE, robot, "rb", STATE)
        assert file.readable() and file.seekable() and not file.writable()
        for _ in range(500):
            position, count = generator.randrange(len(whole) + 10), generator.randrange(-1, 300)
            assert file.seek(position) == expected.seek(position)
            assert file.read(count) == expected.read(count) and file.tell() == expected.tell()
        file.seek(-20, os.SEEK_END)
        assert file.read() == whole[-20:]
    assert file.closed
    with robot.open("meta/file.json", "r", encoding="utf-8") as text:
        assert text.readline() == "{\n" and text.read().endswith("}\n")
    assert robot.read_text("meta/file.json").startswith("{")


def test_a_file_holds_its_container_until_it_is_closed(tmp_path: Path) -> None:
    write_values(tmp_path / "a.kas", 1.0)
    fs = GlassfsFileSystem(tmp_path / "a.kas")
    file = fs.open("values.npy")
    del fs
    (tmp_path / "a.kas").unlink()
    assert len(file.read()) == file.size == 8128
    lease = file.raw._lease
    before = lease._users  # what is parsed of it is cached as well
    file.close()
    assert lease._users == before - 1


def test_paths_are_read_in_the_current_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version may be written while the previous one still counts as valid."""
    monkeypatch.setattr(settings, "container_valid", 1000.0)
    path = tmp_path / "a.kas"
    write_values(path, 1.0)
    fs = GlassfsFileSystem(path)
    assert fs.cat_file("values.npy", -8) == b"\0\0\0\0\0\0\xf0\x3f"
    key = fs.ukey("values.npy")
    for count in (1001, 1002):
        write_values(path, 2.0, count)
        assert fs.cat_file("values.npy", -8) == b"\0\0\0\0\0\0\0\x40"
        assert (fs.size("values.npy"), fs.ukey("values.npy") == key) == (128 + 8 * count, False)
        write_values(path, 3.0)
        assert fs.cat_ranges(["values.npy"] * 2, [-8, -16], [None, -8]) == [b"\0\0\0\0\0\0\x08\x40"] * 2


def test_times_are_those_of_the_container(tmp_path: Path) -> None:
    write_values(tmp_path / "a.kas", 1.0)
    os.utime(tmp_path / "a.kas", ns=(0, 1_700_000_000_123_456_789))
    fs = GlassfsFileSystem(tmp_path / "a.kas")
    written = datetime.fromtimestamp(1_700_000_000, timezone.utc).replace(microsecond=123456)
    assert fs.modified("values.npy") == fs.created("values.npy") == written
    assert fs.info("values.npy")["mtime"] == pytest.approx(written.timestamp())
    assert fs.checksum("values.npy") != fs.checksum("")


def test_links_are_followed_within_the_source(tmp_path: Path) -> None:
    write_values(tmp_path / "a.kas", 1.0)
    (tmp_path / "inner").mkdir()
    (tmp_path / "notes.txt").write_text("plain\n")
    for name, target in (
        ("latest", "a.kas"), ("text", "notes.txt"), ("inner/round", ".."), ("lost", "nothing"), ("out", "/etc"),
    ):
        (tmp_path / name).symlink_to(target)
    fs = GlassfsFileSystem(tmp_path)
    kinds = {info["name"]: info["type"] for info in fs.ls("")}
    assert kinds == {
        "a.kas": "directory", "inner": "directory", "latest": "directory", "lost": "link", "notes.txt": "file",
        "out": "link", "text": "file",
    }
    assert fs.cat_file("text") == b"plain\n" and fs.size("text") == 6
    assert fs.cat_file("inner/round/latest/values.npy") == fs.cat_file("a.kas/values.npy")
    assert fs.find("") == ["a.kas/values.npy", "notes.txt", "text"]
    assert not fs.exists("lost") and not fs.exists("out") and not fs.isfile("out")
    fs.get("", str(tmp_path / "copied"), recursive=True)
    assert (tmp_path / "copied/text").read_text() == "plain\n" and not (tmp_path / "copied/latest").exists()


def test_listings_go_by_names_where_looking_into_files_costs_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A path is what stands there."""
    monkeypatch.setattr(LocalStore, "is_remote", True)
    write_values(tmp_path / "good.kas", 1.0)
    write_values(tmp_path / "data", 2.0)
    (tmp_path / "wrong.kas").write_text("text")
    there = GlassfsFileSystem(tmp_path)
    assert {info["name"]: info["type"] for info in there.ls("")} == {
        "data": "file", "good.kas": "directory", "wrong.kas": "directory",
    }
    assert (there.isfile("wrong.kas"), there.isdir("good.kas"), there.isfile("data")) == (True, True, True)
    assert there.cat_file("wrong.kas") == b"text"
    assert there.info("wrong.kas")["size"] == 4


def test_a_dropped_file_system_leaves_nothing_open(place: Path) -> None:
    def use() -> None:
        fs = GlassfsFileSystem(place)
        for name in fs.glob("*.kdb/episodes/*/state.npy"):
            fs.cat_file(name)
            with fs.open(name) as file:
                file.read(10)
            fs.open(name).read(10)
        copy = pickle.loads(pickle.dumps(fs))
        assert copy._opened is fs._opened
        del fs
        assert copy.exists("robot.kdb")

    use()
    gc.collect()
    before = os.listdir("/proc/self/fd")
    gc.disable()
    try:
        for _ in range(5):
            use()
        assert len(os.listdir("/proc/self/fd")) == len(before)
    finally:
        gc.enable()


WRITERS: dict[str, Callable[[Any, Path], object]] = {
    "open wb": lambda fs, path: fs.open(STATE, "wb"),
    "open ab": lambda fs, path: fs.open(STATE, "ab"),
    "open xb": lambda fs, path: fs.open("new", "xb"),
    "open r+b": lambda fs, path: fs.open(STATE, "r+b"),
    "fsspec's open": lambda fs, path: fsspec.open(f"glassfs://new::{fs._shown}", "wb").open(),
    "write_text": lambda fs, path: fs.write_text("new", "text"),
    "write_bytes": lambda fs, path: fs.write_bytes("new", b"bytes"),
    "pipe_file": lambda fs, path: fs.pipe_file("new", b"bytes"),
    "pipe": lambda fs, path: fs.pipe({"new": b"bytes"}),
    "touch": lambda fs, path: fs.touch("new"),
    "touch without truncate": lambda fs, path: fs.touch(STATE, truncate=False),
    "put": lambda fs, path: fs.put(str(path), "new"),
    "put_file": lambda fs, path: fs.put_file(str(path), "new"),
    "mkdir": lambda fs, path: fs.mkdir("new"),
    "makedirs": lambda fs, path: fs.makedirs("episodes", exist_ok=True),
    "rmdir": lambda fs, path: fs.rmdir("episodes"),
    "rm": lambda fs, path: fs.rm(STATE),
    "rm recursive": lambda fs, path: fs.rm(["episodes", "meta"], recursive=True),
    "rm_file": lambda fs, path: fs.rm_file(STATE),
    "copy": lambda fs, path: fs.copy(STATE, "new"),
    "cp_file": lambda fs, path: fs.cp_file(STATE, "new"),
    "mv": lambda fs, path: fs.mv(STATE, "new"),
    "mv onto itself": lambda fs, path: fs.mv(STATE, STATE),
    "mapper": lambda fs, path: fs.get_mapper("episodes").__setitem__("new", b"bytes"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_writing_raises_read_only(robot: GlassfsFileSystem, name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(OSError) as caught:
        WRITERS[name](robot, tmp_path / "file")
    assert caught.value.errno == errno.EROFS and "\n" not in str(caught.value)


MISTAKES: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "no container": (
        lambda place: fsspec.open("glassfs://episodes.parquet"), ValueError,
        "no container is named: name it as in glassfs://episodes.parquet::run.kdb, or by fo=",
    ),
    "not a name": (
        lambda place: fsspec.filesystem("glassfs", fo=3), TypeError,
        "expected str, bytes or os.PathLike object, not int",
    ),
    "no such container": (
        lambda place: fsspec.open(f"glassfs://episodes.parquet::{place}/none.kdb").open(), FileNotFoundError,
        "{}/none.kdb: No such file or directory",
    ),
    "exists in no such container": (
        lambda place: fsspec.filesystem("glassfs", fo=place / "none.kdb").exists("a"), FileNotFoundError,
        "{}/none.kdb: No such file or directory",
    ),
    "glob in no such container": (
        lambda place: fsspec.filesystem("glassfs", fo=place / "none.kdb").glob("*"), FileNotFoundError,
        "{}/none.kdb: No such file or directory",
    ),
    "no container at all": (
        lambda place: fsspec.open(f"glassfs://a::{place}/notes.txt").open(), ValueError,
        "{}/notes.txt: is not a container of a known format",
    ),
    "wrong path": (
        lambda place: fsspec.open(f"glassfs://episodes/0/sate.npy::{place}/robot.kdb").open(), FileNotFoundError,
        "{}/robot.kdb: episodes/0/sate.npy: there is no such entry; the nearest: episodes/0/state.npy",
    ),
    "a directory": (
        lambda place: fsspec.open(f"glassfs://episodes/0::{place}/robot.kdb").open(), IsADirectoryError,
        "{}/robot.kdb: episodes/0: is a directory",
    ),
    "no such view": (
        lambda place: fsspec.filesystem("glassfs", fo=place / "robot.kdb", views="parket").ls(""), FileNotFoundError,
        "there is no view 'parket'",
    ),
    "no such option": (
        lambda place: fsspec.filesystem("glassfs", fo=place / "robot.kdb", view="all"), ValueError,
        "glassfs has no option view; those of the source go into target_options",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_in_one_line(place: Path, name: str) -> None:
    do, kind, sentence = MISTAKES[name]
    with pytest.raises(kind) as caught:
        do(place)
    assert str(caught.value).startswith(sentence.format(place)) and "\n" not in str(caught.value)
