"""What the joined table does not wait for, and what it leaves out so that it ends and fits into memory."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from glassfs.cache import BlockCache, catalogue
from glassfs.content import Memory, Records, Table
from glassfs.content.summary import (
    AS_JSON,
    BLOCK_BYTES,
    COLUMNS,
    EPISODES,
    LONGEST,
    RECORD_COLUMNS,
    TEXT,
    TEXTS,
    ContainerPiece,
    Joined,
    JoinedBlock,
    JoinedRows,
    Layout,
    Piece,
    Summary,
    joined_block,
    piece_of,
    pieces_of,
    values_of,
)
from glassfs.datasets import files, joined, rows
from glassfs.datasets.files import TimedCalls
from glassfs.datasets.joined import Joins
from glassfs.errors import Changed, Damaged, DeviceFailed, GlassfsError
from glassfs.formats import registry
from glassfs.settings import settings
from glassfs.sizes import PIECE
from glassfs.source.local import LocalStore
from glassfs.tree import Directory
from glassfs.tree.containers.lease import Location
from tests.datasets.takes import (
    FORMAT,
    LastingStore,
    expire_at_once,
    joins_in,
    joins_of,
    rows_of,
    take,
    takes,
    tree_of,
    use_clock,
)
from tests.memory_store import MemoryStore
from tests.security import bombs
from tests.waiting import wait_until

BUILT_IN = registry.built_in


@pytest.fixture(autouse=True)
def formats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "built_in", lambda: iter([FORMAT]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


class Hanging(LastingStore):
    """A store in which some paths hang until ``goes_on`` is set."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.hanging: tuple[str, ...] = ()
        self.goes_on = threading.Event()

    def joins(self) -> Joins:
        """Return joins with a short timeout for calls that hang, and a long one for all others."""
        joins = joins_of(self)
        call = joins.calls.call

        def timed(key: Any, *arguments: Any) -> Any:
            hangs = isinstance(key, Location) and "/".join(key.path) in self.hanging
            joins.calls.timeout_seconds = 0.05 if hangs else 600.0
            return call(key, *arguments)

        joins.calls.call = timed  # type: ignore[method-assign]
        return joins

    def _wait(self, path: tuple[str, ...]) -> None:
        if "/".join(path) in self.hanging:
            self.goes_on.wait()

    def list(self, path: Any) -> Any:
        self._wait(path)
        return super().list(path)

    def open(self, path: Any) -> Any:
        self._wait(path)
        return super().open(path)


def helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "glassfs-timed-calls"]


def test_a_hanging_file_costs_only_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    expire_at_once(monkeypatch)
    store = Hanging({"a/x": takes(take()), "b/y": takes(take()), "c/z": takes(take())})
    store.hanging = ("a", "b/y")
    joins = store.joins()
    for _ in range(3):  # what still hangs is not waited for again
        table = joins.snapshot().table(EPISODES)
        assert table.rows == 1
        assert table.attributes()["error"] == "a: does not answer; b/y: does not answer"

    assert len(joins.calls._hanging) == 2
    store.goes_on.set()
    wait_until(lambda: joins.snapshot().table(EPISODES).rows == 3)
    wait_until(lambda: not helpers())


def test_a_few_containers_that_hang_cost_their_own_rows() -> None:
    store = Hanging({f"{number}": takes(take()) for number in range(TimedCalls.most_of_volume + 4)})
    store.hanging = tuple(f"{number}" for number in range(TimedCalls.most_of_volume))
    table = store.joins().snapshot().table(EPISODES)
    assert table.rows == 4
    assert table.attributes()["error"] == "; ".join(f"{name}: does not answer" for name in store.hanging)
    store.goes_on.set()


def test_a_walk_that_hangs_delays_no_other_lookup() -> None:
    store = Hanging({"a/x": takes(take()), "b": takes(take())})
    store.hanging = ("a",)
    sources = tree_of(store)
    found: list[object] = []
    asker = threading.Thread(target=lambda: found.append(sources.tree.lookup("episodes.jsonl")))
    asker.start()
    wait_until(helpers)
    assert isinstance(sources.tree.lookup("/b"), Directory) and sources.tree.lookup("/a/x").name == "x"
    assert not found
    store.goes_on.set()
    asker.join()
    assert len(found) == 1 and len(rows_of(sources)) == 2


def test_a_folder_that_cannot_be_listed_costs_its_part() -> None:
    class Forbidding(MemoryStore):
        def list(self, path: Any) -> Any:
            if path == ("a",):
                raise GlassfsError("is forbidden")
            return super().list(path)

    joins = joins_of(Forbidding({"a/x": takes(take()), "b": takes(take())}))
    assert joins.snapshot().table(EPISODES).rows == 1
    assert joins.snapshot().table(EPISODES).attributes() == {"error": "a: is forbidden"}


def test_depth_and_number_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore({"/".join("d" * depth) + "/x": takes(take()) for depth in range(1, 6)})
    monkeypatch.setattr(files, "DEEPEST", 3)
    table = joins_of(store).snapshot().table(EPISODES)
    assert table.rows == 2 and table.attributes() == {"error": "d/d/d: is more than 3 folders deep"}
    monkeypatch.setattr(joined, "LEAST", 3000)
    joins = joins_of(MemoryStore({f"{n}": takes(take()) for n in range(9)}), cache=BlockCache(0))
    table = joins.snapshot().table(EPISODES)
    assert table.rows == 4 and "it and others are left out: takes" in table.attributes()["error"]
    joins = joins_of(MemoryStore({"d" * 800 + f"/{n}": takes(take()) for n in range(9)}), cache=BlockCache(0))
    assert joins.snapshot().table(EPISODES).rows < 4, "long names count more"


def test_very_long_texts_are_cut() -> None:
    channels = ["name"] * LONGEST
    store = LastingStore({"a": takes(take("é" * LONGEST + "more", channels=channels)), "b": takes(take("x" * LONGEST))})
    first, second = rows_of(tree_of(store))
    assert (first["language_instruction"], first["channels"]) == ("é" * LONGEST, ["name"] * (LONGEST // 5))
    assert second["language_instruction"] == "x" * LONGEST


def test_a_block_has_no_more_bytes_than_fit_into_memory() -> None:
    store = LastingStore({f"{number}": takes(take("\u2028" * LONGEST, number=number)) for number in range(12)})
    found = joins_of(store).snapshot().rows(EPISODES)
    assert found.rows == 12 and len(found.blocks) > 1
    assert max(block.size for block in found.blocks) <= BLOCK_BYTES + 4096


@pytest.mark.parametrize(("spool", "error"), [
    ({"spool_size": 8 << 20}, "rows beyond 2.0M in all are left out: a larger spool_size allows more"),
    ({"spool_directory": "/none"}, "rows cannot be kept in the spool folder: No such file or directory"),
])
def test_rows_without_space_are_left_out(spool: dict[str, Any], error: str) -> None:
    store = LastingStore({f"{number}": takes(take("\u2028" * LONGEST)) for number in range(12)})
    table = joins_of(store, cache=BlockCache(64 << 20, **spool)).snapshot().table(EPISODES)
    assert 0 < table.rows < 8 and error in table.attributes()["error"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["episodes.parquet", "episodes.jsonl"])
def test_rows_larger_than_the_cache_are_made_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str,
) -> None:
    """However often they are read for the sizes of columns and for the file."""
    made: list[int] = []

    def counted(*arguments: Any) -> Iterator[Piece]:
        for piece in pieces_of(*arguments):
            made.append(piece.rows)
            yield piece

    monkeypatch.setattr(registry, "built_in", BUILT_IN)
    monkeypatch.setattr(rows, "pieces_of", counted)
    count, text = 560, "\x01" * 65535
    bombs.write_episodes(tmp_path / "a.kdb", count)
    file = tree_of(LocalStore(tmp_path), budget=64 << 20).tree.file(f"/{name}")
    size = file.size
    shown = b"".join(file.read(start, min(1 << 20, size - start)) for start in range(0, size, 1 << 20))
    assert len(shown) == size
    assert sum(made) == count
    found = (
        pq.read_table(io.BytesIO(shown)).to_pylist() if name == "episodes.parquet"
        else [json.loads(line) for line in shown.splitlines()]
    )
    assert [row["episode_id"] for row in found] == list(range(count))
    assert {row["embodiment"] for row in found} == {row["language_instruction"] for row in found} == {text}


def test_texts_of_pieces_and_blocks_are_restored() -> None:
    long = 300
    texts = [None, "", "é" * long, "\ud800" * (long + 1), "x" * 3 * long, "\U0001f916" * 2 * long]
    lists = [None, [], ["x" * 2 * long, "y", "é" * 2 * long], ["z"], [""], ["\x01" * 2 * long]]
    wanted: dict[str, list[Any]] = {name: list(range(len(texts))) for name, _ in RECORD_COLUMNS}
    wanted |= {name: texts if dtype == TEXT else lists for name, dtype in COLUMNS.items() if dtype in (TEXT, TEXTS)}
    del wanted["container"]
    piece = piece_of(list(wanted.values()), RECORD_COLUMNS)
    assert values_of(piece) == list(wanted.values())
    with pytest.raises(Damaged, match="other rows than were counted"):
        values_of(piece._replace(rows=5))
    layout = Layout(RECORD_COLUMNS)
    block = Memory(joined_block([ContainerPiece("a", 0, piece), ContainerPiece("b", 5, piece)], layout.columns))
    found = JoinedRows([block], [2 * piece.rows], [JoinedBlock(block).sizes], layout.shown())
    table = Joined(EPISODES, lambda: found)
    for column in table.columns():
        name = column.name.decode()
        assert column.content.block(0) == {  # type: ignore[union-attr]
            "container": ["a"] * piece.rows + ["b"] * piece.rows, "position": [*range(6), *range(5, 11)],
        }.get(name, 2 * wanted.get(name, [])), name


def test_large_rows_are_made_in_reserved_memory() -> None:
    taken: list[int] = []

    class Noting(BlockCache):
        @contextmanager
        def reserved(self, size: int) -> Iterator[None]:
            taken.append(size)
            yield
            taken.append(-size)

    def block(number: int) -> list[dict[str, Any]]:
        assert sum(taken) == (PIECE + 1 if number else 0)
        return [take(f"{number}" * 400)] * 1000

    table = Table(b"", 2000, list, Records(b"", 2, block, cost=lambda number: PIECE + number))
    for _ in pieces_of(Summary(RECORD_COLUMNS, table), Noting()):
        assert not sum(taken)
    reserved = [size for size in taken if size > 0]
    assert len(reserved) == 3
    assert reserved[1] == PIECE + 1
    assert min(reserved[0], reserved[2]) > AS_JSON * 400 * 1000  # while the rows of each piece become JSON


def test_the_catalogue_gives_rows_a_few_bytes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    store = LastingStore({f"{number}": takes(take(f"{number}")) for number in range(9)})
    store.put("3 is none", b"")
    before = tree_of(store, has_catalogue=True)
    rows = rows_of(before)
    before.tree.close()
    found: list[int] = []
    find = catalogue.Catalogue.find

    def found_by(*arguments: Any) -> Any:
        some = find(*arguments)
        found.append(len([one for one in some if one is not None]))
        return some

    monkeypatch.setattr(catalogue, "MOST_FOUND", 400)
    monkeypatch.setattr(catalogue.Catalogue, "find", found_by)
    opens = store.opens
    sources = tree_of(store, has_catalogue=True)
    joins_in(sources).snapshot().rows(EPISODES)
    assert store.opens == opens and len(rows) == 9
    assert sum(found) == 10 and max(found) < 10
    assert rows_of(sources) == rows
    sources.tree.close()


class Slow(LastingStore):
    """A store that takes a minute for each folder and file."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.now = 0.0

    def list(self, path: Any) -> Any:
        self.now += 60
        return super().list(path)

    def open(self, path: Any) -> Any:
        self.now += 60
        return super().open(path)


def slow_joins(monkeypatch: pytest.MonkeyPatch, store: Slow) -> Joins:
    use_clock(monkeypatch, lambda: store.now)
    return joins_of(store, has_catalogue=True)


def test_a_walk_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    joins = slow_joins(monkeypatch, Slow({f"{name}/x": takes(take()) for name in "abcd"}))
    table = joins.snapshot().table(EPISODES)
    assert table.rows == 1
    assert "it and others are left out: listing folders took" in table.attributes()["error"]


def test_a_pass_ends_and_the_next_gets_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "pass_longest", 150.0)
    store = Slow({f"{number}": takes(take()) for number in range(5)})
    joins = slow_joins(monkeypatch, store)
    snapshot = joins.snapshot()
    store.now += 10_000
    table = snapshot.table(EPISODES)
    assert table.rows == 3
    assert "3: it and others are left out: reading containers took" in table.attributes()["error"]
    assert joins.snapshot() is snapshot, "it is not begun anew at once"
    store.now += 10_000
    again = joins.snapshot()
    assert again is not snapshot and again.table(EPISODES).rows == 5
    assert "others" not in again.table(EPISODES).attributes()["error"]
    joins.containers.close()


# Calls that may hang: results and errors come back, and a volume of which several hang is left alone.


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def calls() -> TimedCalls:
    return TimedCalls(600.0)


def hang(
    calls: TimedCalls, key: object, volume: str, do: Callable[[], object], probe: Callable[[], object] | None = None,
) -> None:
    """Make a call that does not return; only these have a short timeout."""
    calls.timeout_seconds = 0.05
    with pytest.raises(DeviceFailed):
        calls.call(key, volume, do, probe)
    calls.timeout_seconds = 600.0


def test_results_and_errors_come_back(calls: TimedCalls) -> None:
    threads = {calls.call("key", "disk", threading.get_ident) for _ in range(20)}
    assert threading.get_ident() not in threads

    def fail() -> None:
        raise Changed("was replaced")

    for _ in range(2):
        with pytest.raises(Changed, match="was replaced"):
            calls.call("key", "disk", fail)


@pytest.mark.parametrize("is_probed", [False, True])
def test_a_dead_volume_is_left_alone(calls: TimedCalls, go_on: threading.Event, is_probed: bool) -> None:
    for number in range(TimedCalls.most_of_volume):
        hang(calls, number, "dead", go_on.wait, go_on.wait if is_probed else None)
    with pytest.raises(DeviceFailed):
        calls.call("well", "dead", lambda: pytest.fail("it is tried"), lambda: pytest.fail("it is tried"))
    assert calls.call("well", "other", lambda: 1) == 1
