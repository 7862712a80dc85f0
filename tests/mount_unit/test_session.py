"""What a session does without a kernel: its watch survives errors and notifies the kernel of changes."""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glassfs.formats import registry
from glassfs.mount import session as session_module
from glassfs.mount.errors import Failures
from glassfs.mount.inodes import ROOT
from glassfs.mount.operations import Stale
from glassfs.mount.options import MountOptions
from glassfs.mount.session import MountSession
from glassfs.settings import settings
from glassfs.tree import Symlink
from tests.memory_store import MemoryStore
from tests.mount_unit.kernel import nodes_of, served
from tests.tree.made import FORMAT, made


class Engine:
    """Notes what the kernel is to forget."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, str]] = []
        self.nodes: list[int] = []

    def invalidate(self, stale: Stale) -> bool:
        self.entries += stale.entries
        self.nodes += nodes_of(stale)
        return False


def session_over(sources: object, operations: object, is_ending: threading.Event) -> tuple[MountSession, Engine]:
    """A session that nothing is mounted by."""
    engine = Engine()
    session = MountSession.__new__(MountSession)
    fields: dict[str, Any] = {
        "sources": sources, "operations": operations, "engine": engine, "failures": Failures(), "shown_sources": ["x"],
        "mountpoint": "/mnt",
        "cache": SimpleNamespace(misses=0, drops=0, used=0), "_memory": SimpleNamespace(tick=lambda work: True),
        "_is_ending": is_ending, "_wake": threading.Event(), "_touched": threading.Event(), "_changed": set(),
        "_used": 1000.0,
    }
    for name, value in fields.items():
        setattr(session, name, value)
    return session, engine


@pytest.mark.parametrize("is_poll", [True, False])
def test_loops_survive_exceptions(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_poll: bool,
) -> None:
    """Without them nothing new would be shown any more; the log says what it was."""
    for name in ("watch", "rest"):
        monkeypatch.setattr(settings, name, 0)
    outcomes: list[list[str] | Exception] = [ValueError("unexpected"), ["/changed"], ValueError("unexpected")]
    is_ending = threading.Event()

    def changed() -> list[str]:
        outcome = outcomes.pop(0)
        if not outcomes:
            is_ending.set()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    sources = SimpleNamespace(refresh=changed, containers=SimpleNamespace(watcher=SimpleNamespace(changes=changed)))

    def stale(paths: set[str], is_first: bool = True) -> Stale:
        return Stale([(ROOT, path) for path in paths])

    operations = SimpleNamespace(stale=stale, unsettled=list, inodes=())
    session, engine = session_over(sources, operations, is_ending)
    event, do = (session._touched, session._poll) if is_poll else (session._wake, partial(session._notify, deque()))
    session._repeat(event, do)
    assert (session._changed == {"/changed"} and session._wake.is_set()) == is_poll
    assert ((ROOT, "/changed") in engine.entries) != is_poll
    assert [record.getMessage() for record in caplog.records] == ["ValueError: unexpected"] * 2
    assert session.failures.count == 2


def test_changes_are_notified_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one is for requests in progress, which may bring back old attributes."""
    monkeypatch.setattr(registry, "built_in", lambda: iter([FORMAT]))
    now = 1000.0
    monkeypatch.setattr(session_module, "time", SimpleNamespace(monotonic=lambda: now))
    store = MemoryStore({"c": made(a=b"a"), "other": made(a=b"a")})
    sources, kernel = served(store)
    idents = {kernel.find("/c"), kernel.find("/c/a.bin")}
    other = kernel.find("/other/a.bin")
    session, engine = session_over(sources, kernel.operations, threading.Event())
    again: deque[tuple[float, set[str], Stale]] = deque()
    session._notify(again)
    assert (engine.entries, engine.nodes) == ([], [])
    store.set_permissions("c", 0o600)
    for seconds, is_notified in ((0, True), (settings.watch / 2, False), (settings.watch, True), (9, False)):
        now = 1000.0 + seconds
        engine.entries, engine.nodes = [], []
        session._changed = set(sources.refresh())
        session._notify(again)
        assert ((ROOT, "c") in engine.entries) == is_notified
        assert (idents <= set(engine.nodes)) == is_notified
        assert other not in engine.nodes
    assert not again


def test_links_out_of_the_source_are_followed_only_on_request(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for name in ("source", "mnt"):
        (tmp_path / name).mkdir(mode=0o755)
    (tmp_path / "outside").write_text("text")
    (tmp_path / "source/link").symlink_to("../outside")
    for flags in (set[str](), {"follow_links"}):
        session = MountSession([str(tmp_path / "source")], str(tmp_path / "mnt"), MountOptions(flags=flags))
        with session.sources.tree as tree:
            assert isinstance(tree.lookup("link"), Symlink) != bool(flags)


def test_session_rests_when_nobody_uses_the_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then what is not reported is compared now and then."""
    now = 1000.0
    monkeypatch.setattr(session_module, "time", SimpleNamespace(monotonic=lambda: now))
    sources = SimpleNamespace(refresh=list, containers=SimpleNamespace(watcher=SimpleNamespace(changes=list)))
    session, _ = session_over(sources, SimpleNamespace(unsettled=list, inodes=()), threading.Event())

    def pauses() -> tuple[float | None, float | None]:
        return session._poll(), session._notify(deque())

    assert pauses() == (settings.watch, settings.watch)
    now += settings.rest_after + 1
    assert pauses() == (settings.rest, None)
    session.engine.tick = lambda: None  # type: ignore[method-assign]
    monkeypatch.setattr(settings, "watch", 0)
    session._tick()
    assert session._wake.is_set()
    assert session._touched.is_set()
    assert pauses() == (settings.watch, settings.watch)
