"""The episodes of all containers below a root as one table: rows, names, links, snapshots, faults, who sees what."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from glassfs.content.summary import COLUMNS, EPISODES
from glassfs.datasets.joined import Audience, Joins, joined_of
from glassfs.errors import Changed, GlassfsError, NotFound, TooLarge
from glassfs.formats import registry
from glassfs.settings import settings
from glassfs.source import Entry
from glassfs.tree import Directory, Sources, Symlink
from glassfs.view import by_task
from tests.datasets.takes import FORMAT, LastingStore, expire_at_once, joins_in, joins_of, rows_of, take, takes, tree_of
from tests.memory_store import MemoryStore
from tests.tree.made import FORMAT as MADE
from tests.tree.made import made
from tests.waiting import wait_until

TABLES = "parquet+jsonl+csv+by-task"
JOINED = ["episodes.parquet", "episodes.jsonl", "episodes.csv", "by-task", "by-success"]


@pytest.fixture(autouse=True)
def formats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "built_in", lambda: iter([FORMAT, MADE]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def store() -> LastingStore:
    return LastingStore({
        "b.take": takes(take("pick up"), take("put/down", success=True, fps=30, num_frames=4)),
        "a/z.take": takes(take("pick up", success=False)),
        "a b": b"not a container",
        "a.take": takes(take(), directory=""),
        "other.made": made(word=b"no episodes"),
    })


def named(sources: Sources) -> list[str]:
    return [node.name for node in sources.tree.root.listing()]


def attribute(sources: Sources, name: str, path: str = "/episodes.parquet") -> str:
    return sources.tree.lookup(path).xattrs().get(f"user.glassfs.{name}", b"").decode()


def test_views_of_the_joined_table_are_only_at_the_root(store: MemoryStore) -> None:
    with tree_of(store, views=TABLES).tree as tree:
        assert [node.name for node in tree.root.listing()][-len(JOINED):] == JOINED
        assert [node.name for node in tree.directory("a").listing()] == ["z.take"]
        for node in tree.root.listing():
            found = tree.lookup(node.name)
            assert (type(found), found.ino, found.mode) == (type(node), node.ino, node.mode)


def test_without_views_there_is_nothing_more(store: MemoryStore) -> None:
    for views in ("", "mp4"):
        sources = tree_of(store, views=views)
        assert not set(JOINED) & set(named(sources))
        with pytest.raises(NotFound):
            sources.tree.lookup("episodes.parquet")
    assert store.opens == 2 * 4, "files at the root were opened for their verdicts, and none for its rows"


def test_rows_are_sorted_by_path_and_position(store: MemoryStore) -> None:
    store.put("a\udcff\n.take", takes(take()))
    rows = rows_of(tree_of(store))
    assert [list(row) for row in rows] == [list(COLUMNS)] * 5
    assert [(row["container"], row["position"]) for row in rows] == [
        ("a%FF%0A.take", 0), ("a.take", 0), ("a/z.take", 0), ("b.take", 0), ("b.take", 1),
    ]
    last = rows[-1]
    assert (last["language_instruction"], last["success"], last["fps"], last["num_frames"]) == ("put/down", True, 30, 4)
    assert last["embodiment"] is None and last["channels"] is None


def test_values_of_wrong_types_are_left_out() -> None:
    wrong = {
        "embodiment": 3, "language_instruction": ["x"], "fps": "fast", "success": 1, "total_reward": True,
        "num_frames": 1 << 63, "state_dim": 2.5, "episode_id": -1, "channels": ["a", 1], "unheard_of": 1,
    }
    right = {"episode_id": (1 << 64) - 1, "fps": 10, "channels": ["a", "b"], "episode_name": "first"}
    sources = tree_of(MemoryStore({"x": takes(wrong, right, {"episode_id": "take-3"}, 7)}))  # type: ignore[arg-type]
    first, second, third, fourth = rows_of(sources)
    unknown = dict.fromkeys(COLUMNS)
    assert first == unknown | {"container": "x", "position": 0}
    assert second == unknown | {"container": "x", "position": 1} | right
    assert third == unknown | {"container": "x", "position": 2, "episode_name": "take-3"}
    assert fourth == unknown | {"container": "x", "position": 3}
    file = sources.tree.file("/episodes.parquet")
    assert file.read(0, file.size)[-4:] == b"PAR1"


def test_links_lead_to_the_episodes(store: MemoryStore) -> None:
    tree = tree_of(store).tree
    found = {path: node.target for path, node in tree.walk("/by-task") if isinstance(node, Symlink)}
    assert found == {
        "/by-task/pick up/a%2Fz.take~0": "../../a/z.take/episodes/0",
        "/by-task/pick up/b.take~0": "../../b.take/episodes/0",
        "/by-task/put%2Fdown/b.take~1": "../../b.take/episodes/1",
        "/by-task/pick/a.take~0": "../../a.take",
    }
    assert tree.lookup("/by-task/pick/../../a.take").name == "a.take"
    assert {path for path, node in tree.walk("/by-success") if isinstance(node, Directory)} == {
        "/by-success/true", "/by-success/false", "/by-success/unknown",
    }


def test_any_text_may_be_an_instruction() -> None:
    texts = ["\ud800", "\udcff", "\0/..", "..", "", "x" * 500, "</script>", "\u202e"]
    sources = tree_of(MemoryStore({"x": takes(*map(take, texts))}))
    assert [row["language_instruction"] for row in rows_of(sources)][2:] == texts[2:]
    assert len([node for _, node in sources.tree.walk("/by-task") if isinstance(node, Symlink)]) == len(texts)
    for name in ("episodes.parquet", "episodes.csv"):
        file = sources.tree.file(name)
        assert len(file.read(0, file.size)) == file.size


def test_names_that_a_folder_has_itself_win(store: MemoryStore) -> None:
    store.put("episodes.parquet", b"its own")
    store.put("by-task/x", b"its own")
    store.put("episodes~2.jsonl", b"its own, and in nobody's way")
    tree = tree_of(store, views=TABLES).tree
    assert tree.file("/episodes.parquet").read(0, 9) == b"its own"
    assert tree.file("/episodes~2.parquet").read(0, 4) == b"PAR1"
    assert tree.file("/by-task/x").read(0, 9) == b"its own"
    assert isinstance(tree.lookup("/by-task~2/pick"), Directory)
    names = [node.name for node in tree.root.listing()]
    assert names[-5:] == ["episodes~2.parquet", "episodes.jsonl", "episodes.csv", "by-task~2", "by-success"]
    for name in ("episodes~3.parquet", "by-task~3", "episodes"):
        with pytest.raises(NotFound):
            tree.lookup(name)


def test_sources_side_by_side_a_container_alone_and_links(store: MemoryStore) -> None:
    assert [row["container"] for row in rows_of(tree_of(store, "a", "b.take"))] == ["a/z.take", "b.take", "b.take"]
    assert named(tree_of(store, "b.take")) == []
    store.link("again", "a")
    assert len(rows_of(tree_of(store))) == 4, "links are not followed"


def test_an_unreadable_container_costs_only_its_rows(store: MemoryStore) -> None:
    many = [take(str(number)) for number in range(9000)]
    store.put("c/refused.take", takes(is_refused=True))
    store.put("c/short.take", takes(take(), declared=3))
    store.put("c/broken.take", takes(*many, a_block=100, broken_block=80))
    store.put("c/gone.take", takes(take()))
    store.opening["c/gone.take"] = GlassfsError("is forbidden")
    sources = tree_of(store)
    rows = [row for row in rows_of(sources) if row["container"] != "c/broken.take"]
    assert [row["container"] for row in rows] == ["a.take", "a/z.take", "b.take", "b.take", "c/short.take"]
    error = attribute(sources, "error")
    assert "c/refused.take: is of no use" in error and "c/gone.take" in error and "is forbidden" in error
    assert "c/broken.take: has a block that is broken" in error
    assert "c/short.take: has 1 rows, but its table should have 3" in error
    assert error.count("; ") == 3


def test_an_error_names_the_first_of_very_many() -> None:
    refused = {f"{number:03d}.take": takes(is_refused=True) for number in range(100)}
    store = MemoryStore(refused | {"z.take": takes(take())})
    error = attribute(tree_of(store), "error")
    assert "000.take: is of no use" in error and error.endswith("and 84 more")
    assert len(error) < 4096


def test_a_large_container_is_read_in_pieces() -> None:
    records = [take(f"task {number % 7}", total_reward=float(number)) for number in range(5_000)]
    store = MemoryStore({"large": takes(*records, a_block=256), "more": takes(take()), "some": takes(*records[:300])})
    sources = tree_of(store, budget=8 << 20)
    rows = rows_of(sources)
    assert [row["total_reward"] for row in rows[:5_000]] == [float(number) for number in range(5_000)]
    assert [row["position"] for row in rows] == [*range(5_000), 0, *range(300)]
    reads = store.reads
    sources.containers.services.cache.clear()
    assert rows_of(sources) == rows and store.reads == reads


def test_a_snapshot_is_valid_for_a_while_and_never_changes(
    store: LastingStore, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings, "table_valid", 3600.0)
    sources = tree_of(store)
    tree = sources.tree
    before = tree.file("/episodes.jsonl")
    lines = before.read(0, before.size)
    store.put("new.take", takes(take("new")))
    store.remove("b.take")
    assert tree.file("/episodes.jsonl").origin.identity == before.origin.identity
    monkeypatch.setattr(settings, "table_valid", 0.0)
    joins_in(sources).close()
    assert [row["container"] for row in rows_of(sources)] == ["a.take", "a/z.take", "new.take"]
    assert isinstance(tree.lookup("/by-task/new/new.take~0"), Symlink)
    sources.containers.services.cache.clear()
    assert before.read(0, before.size) == lines, "its rows are there for those who have it open"


def test_a_snapshot_expires_and_rows_missing_for_a_moment_come_back(
    store: LastingStore, monkeypatch: pytest.MonkeyPatch,
) -> None:
    expire_at_once(monkeypatch)
    sources = tree_of(store)
    identity = sources.tree.lookup("episodes.jsonl").origin.identity
    assert sources.tree.lookup("episodes.jsonl").origin.identity == identity
    store.set_permissions("b.take", 0o600)
    assert sources.tree.lookup("episodes.jsonl").origin.identity != identity
    store.opening["b.take"] = Changed("is changing")
    store.rewrite("b.take", takes(take(), take()))
    assert len(rows_of(sources)) == 2
    assert "b.take: is changing" in attribute(sources, "error")
    del store.opening["b.take"]
    assert len(rows_of(sources)) == 4


def test_concurrent_callers_share_one_walk(store: LastingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []

    class Slow(LastingStore):
        lists = 0

        def list(self, path: Any) -> Any:
            Slow.lists += 1
            wait_until(lambda: len(started) == 8)
            return super().list(path)

    monkeypatch.setattr(settings, "table_valid", 3600.0)
    joins = joins_of(Slow({"a/b.take": takes(take())}))
    found: list[object] = []

    def ask() -> None:
        started.append(1)
        found.append(joins.snapshot())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(map(id, found))) == 1
    assert Slow.lists == 2


def test_shared_tables_have_only_public_rows() -> None:
    class Private(MemoryStore):
        def entry(self, path: Any) -> Entry:
            found = super().entry(path)
            closed = {("private",): 0o750, ("denied",): 0o705}  # the latter to its group
            return found._replace(permissions=closed.get(path, found.permissions))

    store = Private({
        "open": takes(take()), "private/secret-name": takes(take("secret"), take("secret")),
        "private/refused": takes(is_refused=True), "refused-too": takes(is_refused=True),
        "manifest": takes(take("of parts"), parts=["part"]), "plain": b"plain", "denied/a": takes(take()),
        "denying": takes(take(), parts=["part of others"]),
    })
    for name, data, permissions in (
        ("own", takes(take("secret")), 0o640), ("part", b"part", 0o600), ("own-plain", b"plain", 0o600),
        ("group", takes(take()), 0o604), ("owner", takes(take()), 0o044), ("part of others", b"part", 0o604),
    ):
        store.put(name, data, permissions)
    alone, shared = tree_of(store), tree_of(store, audience=Audience(True, (7, 7)))
    assert {row["container"] for row in rows_of(alone)} == {
        "denied/a", "denying", "group", "manifest", "open", "own", "owner", "private/secret-name",
    }
    assert attribute(alone, "omitted") == ""
    assert [row["container"] for row in rows_of(shared)] == ["open"]
    assert attribute(shared, "omitted") == "7"
    assert attribute(shared, "error") == "refused-too: is of no use"
    assert "secret" not in "".join(path for path, _ in shared.tree.walk("/by-task"))


def test_private_tables_are_for_the_reader_only(store: MemoryStore) -> None:
    joint = tree_of(store).tree.lookup("episodes.jsonl")
    assert joint.mode & 0o777 == 0o444
    store.put("own", takes(take()), 0o640)
    joint = tree_of(store, audience=Audience(False, (7, 8))).tree.lookup("episodes.jsonl")
    assert joint.mode & 0o777 == 0o400 and joint.origin.access.uid == 7
    assert tree_of(store, audience=Audience(True, (7, 8))).tree.lookup("episodes.jsonl").mode & 0o777 == 0o444


def test_a_folder_exchanged_while_listed_is_not_public() -> None:
    class Exchanged(MemoryStore):
        number = 0

        def entry(self, path: Any) -> Entry:
            found = super().entry(path)
            if path == ("a",):
                Exchanged.number += 1
                return found._replace(stamp=f"{Exchanged.number}")
            return found

    store = Exchanged({"a/b/x": takes(take()), "y": takes(take())})
    assert joins_of(store).snapshot().table(EPISODES).rows == 2
    table = joins_of(store, Audience(is_shared=True)).snapshot().table(EPISODES)
    assert table.rows == 1 and table.attributes() == {"omitted": "1"}


def rows_and_opens(store: MemoryStore, has_catalogue: bool) -> tuple[list[dict[str, Any]], int]:
    """Return the rows, and how many files were opened for them."""
    opens = store.opens
    sources = tree_of(store, has_catalogue=has_catalogue)
    rows = rows_of(sources)
    sources.tree.close()
    return rows, store.opens - opens


def test_catalogued_rows_are_equal_and_open_nothing(store: LastingStore) -> None:
    records = [take(f"\udcff\ud800{number}", fps=1.5, channels=["a"]) for number in range(1500)]
    store.put("large", takes(*records, a_block=256))
    store.put("empty", takes())
    plain, _ = rows_and_opens(store, has_catalogue=False)
    first, opened = rows_and_opens(store, has_catalogue=True)
    again, nothing = rows_and_opens(store, has_catalogue=True)
    assert plain == first == again
    assert opened == 7 and nothing == 0
    store.rewrite("b.take", takes(take("other")))
    changed, one = rows_and_opens(store, has_catalogue=True)
    assert one == 1 and [row["language_instruction"] for row in changed if row["container"] == "b.take"] == ["other"]


def test_what_may_change_unnoticed_is_not_catalogued(store: LastingStore) -> None:
    """A file that was written just now may be written once more under the same mtime."""
    rows_and_opens(store, has_catalogue=True)
    store.put("new", takes(take()), mtime_ns=time.time_ns())
    assert [rows_and_opens(store, True)[1] for _ in range(2)] == [1, 1]
    store.remove("new")
    store.put("manifest", takes(take("of parts"), parts=["a b"]))
    assert [rows_and_opens(store, True)[1] for _ in range(2)] == [2, 2]
    passing = MemoryStore({"a.take": takes(take("first"))})
    assert [rows_and_opens(passing, True)[1] for _ in range(2)] == [1, 1]


def test_glimpses_evict_nothing_and_hold_nothing(store: LastingStore) -> None:
    for number in range(200):
        store.put(f"many/{number}.take", takes(take()))
    sources = tree_of(store)
    sources.tree.directory("/b.take").listing()
    before = [opened.lease for opened in sources.containers.all_open()]
    assert len(rows_of(sources)) == 204
    assert [opened.lease for opened in sources.containers.all_open()] == before
    assert len(store.held) <= len(before)


def test_the_table_of_whatever_there_is(store: LastingStore) -> None:
    for views in ("", "all"):
        tree = tree_of(store, views=views).tree
        for path, count in (("/", 4), ("/a", 1), ("/b.take", 2)):
            table = joined_of(tree.directory(path), EPISODES)
            assert table is not None and table.rows == count
        assert joined_of(tree.directory("/other.made"), EPISODES) is None
    side_by_side = tree_of(store, "a", "b.take", views="").tree
    table = joined_of(side_by_side.root, EPISODES)
    assert table is not None and table.rows == 3


def test_old_snapshots_leave_nothing_behind(store: LastingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    expire_at_once(monkeypatch)
    sources = tree_of(store)
    taken = []
    for number in range(20):
        store.put("changing.take", takes(take(f"{number}")))
        assert isinstance(sources.tree.lookup(f"/by-task/{number}/changing.take~0"), Symlink)
        taken.append(weakref.ref(joins_in(sources).snapshot()))
    gc.collect()
    assert len([snapshot for snapshot in taken if snapshot() is not None]) <= 3


def test_there_are_no_links_for_very_many(store: LastingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_task, "MOST", 3)
    with pytest.raises(TooLarge):
        tree_of(store).tree.directory("/by-task").listing()


def test_unknown_names_take_no_snapshot(store: LastingStore) -> None:
    sources = tree_of(store)
    named(sources)
    joins_in(sources).close()
    asked: list[Joins] = []
    joins_in(sources).snapshot = lambda: asked.append(joins_in(sources))  # type: ignore[assignment, return-value, func-returns-value]
    for name in (".git", "autorun.inf", "episodes", "episodes.xml"):
        with pytest.raises(NotFound):
            sources.tree.lookup(name)
    assert not asked
