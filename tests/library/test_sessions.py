"""Threads, forks, other processes, changes, closing, and Ctrl-C: it ends reading, and later reads work."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import make_samples
import numpy as np
import pytest
from writers.kinodb import KinoWriter
from writers.wshard import WShardWriter

import glassfs
from glassfs import work
from glassfs.errors import Changed, Closed, NotFound
from glassfs.library import session
from glassfs.settings import settings
from glassfs.view.parquet import RecordPages
from tests.conftest import Scale
from tests.helpers import in_fork
from tests.library.conftest import write_store
from tests.security.bombs import write_episodes, write_holes
from tests.waiting import SECONDS, wait_for, wait_until

STATE = "run1.kdb/episodes/0/state"


def read(entry: glassfs.Entry) -> tuple[str, list[float]]:
    """Read an entry, also in another process."""
    return entry.path, entry.numpy()[-1].tolist()


@pytest.mark.slow
def test_spawned_processes_open_it_again(data: glassfs.Library, scale: Scale) -> None:
    entries = [episode["state"] for episode in data.glob("*/episodes/*")]
    with multiprocessing.get_context("spawn").Pool(scale(2, 8)) as pool:
        assert pool.map(read, entries, chunksize=1) == [read(entry) for entry in entries]


def test_unpickling_opens_nothing(tmp_path: Path) -> None:
    """What a pickle names is opened at the first access, with the rights of that process."""
    write_store(tmp_path / "store.kas")
    with glassfs.open(tmp_path) as library:
        pickled = pickle.dumps([library, library["store.kas"]])
    del session._sessions[library._session.token]
    (tmp_path / "store.kas").unlink()
    before = sorted(os.listdir("/proc/self/fd"))
    _, container = pickle.loads(pickled)
    assert sorted(os.listdir("/proc/self/fd")) == before
    with pytest.raises(NotFound):
        list(container)


def test_pickled_entries_share_what_was_opened(data: glassfs.Library) -> None:
    here = pickle.loads(pickle.dumps(data[STATE]))
    assert here == data[STATE] and here._session is data._session
    pickled = pickle.dumps([data, data[STATE], data["run1.kdb"]])
    del session._sessions[data._session.token]
    there, state, container = pickle.loads(pickled)
    assert isinstance(there, glassfs.Library) and there[STATE] == state and container[STATE.partition("/")[2]] == state
    assert there._session is state._session is not data._session
    assert (state.numpy() == data[STATE].numpy()).all()
    there.close()
    assert data[STATE].shape == (24, 7)


def test_names_are_those_of_the_first_process(datasets: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(datasets.parent)
    with glassfs.open("datasets") as data:
        pickled = pickle.dumps(data)
        del session._sessions[data._session.token]
        monkeypatch.chdir(tmp_path)
        with pickle.loads(pickled) as there:
            assert there[STATE].shape == (24, 7)


def test_a_pickled_entry_is_of_the_same_version(tmp_path: Path) -> None:
    write_store(tmp_path / "a.kas")
    with glassfs.open(tmp_path) as data:
        pickled = pickle.dumps([data, data["a.kas/small"]])
        write_store(tmp_path / "a.kas", 2.0)
        del session._sessions[data._session.token]
        there, entry = pickle.loads(pickled)
        with pytest.raises(Changed, match=r"a\.kas/small\.npy: has been replaced"):
            entry.numpy()
        assert there["a.kas/small"].numpy().tolist() == [0, 1, 2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_opens_its_own_tree(data: glassfs.Library) -> None:
    entry, expected = data[STATE], data[STATE].numpy()

    def child() -> bool:
        is_equal = bool((entry.numpy() == expected).all()) and data["run2.kdb/episodes/1/action"].shape == (24, 7)
        data.close()
        gc.collect()
        return is_equal

    assert in_fork(child)
    assert (data[STATE].numpy() == expected).all()


def test_lookups_find_the_current_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "container_valid", 0.0)
    write_store(tmp_path / "a.kas")
    with glassfs.open(tmp_path) as folder, glassfs.open(tmp_path / "a.kas") as container:
        for value in (1.0, 2.0, 3.0):
            write_store(tmp_path / "new", value)
            os.replace(tmp_path / "new", tmp_path / "a.kas")
            assert folder["a.kas/large"].numpy()[0] == container["large"].numpy()[0] == value
        (tmp_path / "a.kas").unlink()
        assert "a.kas" not in folder and "a.kas/large" not in folder
        write_store(tmp_path / "a.kas", 4.0)
        assert folder["a.kas/large"].numpy()[0] == container["large"].numpy()[0] == 4.0


def write_state(path: Path, value: float) -> None:
    """Replace a container by one of one episode, whose state is ``value``."""
    with KinoWriter(path.with_suffix(".new")) as writer:
        state = np.full((3, 2), value, np.float32)
        writer.add_episode(state, state, images=[{"cam": np.full((4, 4, 3), int(value), np.uint8)}] * 3)
    os.replace(path.with_suffix(".new"), path)


def test_a_container_is_compared_again_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    write_state(tmp_path / "a.kdb", 1)
    with glassfs.open(tmp_path) as data:
        episode = data["a.kdb/episodes/0"]
        write_state(tmp_path / "a.kdb", 2)
        now += 0.09
        assert data["a.kdb/episodes/0/state"].path == episode["state"].path
        now += 0.02
        assert (episode["state"].numpy() == 2).all()


def aged(data: glassfs.Library) -> None:
    """Expire the snapshot of a folder."""
    data._session.paths.sources.overview.close()


@pytest.mark.parametrize("views", ["", "by-task"])
def test_joined_tables_show_the_current_files(tmp_path: Path, views: str) -> None:
    make_samples.write_kinodb(tmp_path / "a.kdb")
    task = "by-task/open the drawer"
    with glassfs.open(tmp_path, views=views) as data:
        assert list(data[task]) == ["a.kdb~1"] and data[f"{task}/a.kdb~1/state"].shape == (24, 7)
        make_samples.write_kinodb(tmp_path / "b.kdb")
        aged(data)
        assert list(data[task]) == ["a.kdb~1", "b.kdb~1"] and data[f"{task}/b.kdb~1/state"].shape == (24, 7)
        (tmp_path / "a.kdb").unlink()
        aged(data)
        assert list(data[task]) == ["b.kdb~1"] and f"{task}/a.kdb~1/state" not in data


def test_a_link_of_a_folder_leads_where_it_does_now(tmp_path: Path) -> None:
    for name, value in (("a", 1.0), ("b", 2.0)):
        write_store(tmp_path / f"{name}.kas", value)
    (tmp_path / "latest").symlink_to("a.kas")
    with glassfs.open(tmp_path) as data:
        assert data["latest/large"].numpy()[0] == 1
        (tmp_path / "new").symlink_to("b.kas")
        os.replace(tmp_path / "new", tmp_path / "latest")
        assert data["latest/large"].numpy()[0] == 2


def write_video(path: Path, value: int) -> None:
    with WShardWriter(path.with_suffix(".new")) as writer:
        writer.add_channel("rgb", np.full((4, 6, 8, 3), value, np.uint8), modality="rgb", codec="zstd")
    os.replace(path.with_suffix(".new"), path)


def test_a_video_is_of_the_version_of_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "container_valid", 0.0)
    write_video(tmp_path / "w.wshard", 1)
    with glassfs.open(tmp_path) as data:
        video = data["w.wshard/signal/rgb"]
        assert (video.numpy() == 1).all()
        write_video(tmp_path / "w.wshard", 2)
        for use in (video.numpy, lambda: video.shape, lambda: video.dtype):
            with pytest.raises(Changed, match=r"w\.wshard/signal/rgb: has been replaced"):
                use()
        assert (data["w.wshard/signal/rgb"].numpy() == 2).all()
        (tmp_path / "w.wshard").unlink()
        with pytest.raises(Changed):
            video.numpy()


def test_the_table_of_a_directory_is_of_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "container_valid", 0.0)
    make_samples.write_kinodb(tmp_path / "a.kdb")
    with glassfs.open(tmp_path) as data:
        episodes = data["a.kdb/episodes"]
        assert len(episodes.table()) == 3
        make_samples.write_kinodb(tmp_path / "new")
        os.replace(tmp_path / "new", tmp_path / "a.kdb")
        with pytest.raises(Changed):
            episodes.table()
        assert len(data["a.kdb/episodes"].table()) == 3


def test_threads_that_unpickle_share_one_session(datasets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first thread blocks in the constructor of the session until the second has begun."""
    with glassfs.open(datasets) as data:
        pickled = pickle.dumps(data)
        del session._sessions[data._session.token]
        second_is_there = threading.Event()
        begin = session.LibrarySession.__init__

        def slow(*arguments: object) -> None:
            wait_for(second_is_there)
            begin(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(session.LibrarySession, "__init__", slow)

        def load(number: int) -> glassfs.Library:
            if number:
                second_is_there.set()
            loaded: glassfs.Library = pickle.loads(pickled)
            return loaded

        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(load, range(2))
        assert first._session is second._session


def test_closed_entries_raise_closed(datasets: Path) -> None:
    with glassfs.open(datasets) as data:
        entry, array = data[STATE], data["store.kas/large"].numpy()
        file = data[STATE].open()
    assert data.closed
    for use in (entry.numpy, lambda: data[STATE], lambda: list(data), lambda: STATE in data, entry.bytes):
        with pytest.raises(Closed, match="was closed"):
            use()
    assert repr(entry) and repr(data)
    assert (array == 1).all()
    with file:
        assert np.load(file).shape == (24, 7)
    data.close()


def test_closing_releases_all_descriptors(datasets: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with glassfs.open(datasets) as data:
        for episode in data.glob("*/episodes/*"):
            episode["state"].numpy()
            episode["images/front/000000"].image()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


# Ctrl-C in a Python program, or a closed cell of a notebook.


AT_MOST_SECONDS = 20.0
"""Generous: what is not interrupted takes minutes."""


def interrupted(read: Callable[[], object], is_begun: Callable[[], object]) -> float:
    """Call ``read``, interrupt it once ``is_begun``, and return how many seconds later it ended."""
    sent: list[float] = []

    def interrupt() -> None:
        wait_until(is_begun)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        try:
            read()
        finally:
            helper.join(SECONDS)  # so that the signal always comes within the block
    return time.monotonic() - sent[0]


def computed(seconds: float) -> Callable[[], bool]:
    until = time.process_time() + seconds
    return lambda: time.process_time() > until


def test_ctrl_c_ends_listing_and_globbing(tmp_path: Path) -> None:
    write_holes(tmp_path / "a.kdb")
    with glassfs.open(tmp_path) as data:
        images = data["a.kdb/episodes/0/images"]
        for read in (lambda: list(images), lambda: data["a.kdb/episodes/1/images/cam/000009"].bytes(),
                     lambda: list(data.glob("*/episodes/*/images/**"))):
            assert interrupted(read, computed(0.2)) < AT_MOST_SECONDS
        assert data["a.kdb/meta/file.json"].json()["format"] == "kinodb"
        assert len(data["a.kdb/episodes"]) == 200


@pytest.mark.parametrize("method", ["to_pandas", "to_arrow", "to_polars"])
def test_ctrl_c_ends_reading_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Also while a library reads the file in threads of its own, which does not see the signal before its end."""
    pytest.importorskip({"to_arrow": "pyarrow"}.get(method, method.removeprefix("to_")))
    write_episodes(tmp_path / "a.kdb", 20)
    read_into = RecordPages.read_into
    begun = threading.Event()

    def slow(pages: RecordPages, buffer: memoryview, offset: int) -> None:
        until = time.monotonic() + 2 * AT_MOST_SECONDS
        begun.set()
        while time.monotonic() < until:
            work.check()
        read_into(pages, buffer, offset)

    with glassfs.open(tmp_path) as data:
        monkeypatch.setattr(RecordPages, "read_into", slow)
        assert interrupted(getattr(data.episodes(), method), begun.is_set) < AT_MOST_SECONDS
        monkeypatch.setattr(RecordPages, "read_into", read_into)
        assert len(getattr(data.episodes(), method)()) == 20
