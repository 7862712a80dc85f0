"""Which notifications the kernel gets, and when, with a kernel and a clock that are made up."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from glassfs.errors import Changed
from glassfs.mount.engines import notices as notices_module
from glassfs.mount.engines import wire
from glassfs.mount.engines.crew import Task
from glassfs.mount.engines.notices import NODES_AT_ONCE, PRUNED_AT_ONCE, Notices
from glassfs.mount.engines.wire import Feature, Offer
from glassfs.mount.inodes import ROOT
from glassfs.mount.operations import Stale
from glassfs.settings import settings
from tests.mount_unit.protocol import GETATTR, LOOKUP, READ, READDIRPLUS

INODE, ENTRY, EPOCH, PRUNE = 2, 3, 8, 9
NEW, EXPIRING, OLD = Offer(45, 0, Feature.EXPIRE_ONLY), Offer(38, 0, Feature.EXPIRE_ONLY), Offer(31, 0, 0)


class Known:
    """The nodes of a version; ``held`` are references."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self._nodes = nodes
        self.held = len(nodes)

    def __iter__(self) -> Iterator[int]:
        return iter(self._nodes)

    def entries(self) -> Iterator[tuple[int, str]]:
        return ((5, str(node)) for node in self._nodes)


class World:
    """A kernel that notes its notifications, requests that are pending, and the table of node ids."""

    def __init__(self, offer: Offer = NEW) -> None:
        self.seen: list[tuple[int, object]] = []
        self.tasks: list[Task] = []
        self.now = 100.0
        self.named: dict[tuple[int, str], int] = {}
        self.parents: dict[int, int] = {}
        self.abandoned: dict[str, Sequence[int]] = {}
        self.abandoned_entries: list[tuple[int, str]] = []
        self.surplus: list[int] = []
        inodes = SimpleNamespace(
            named=lambda parent, name: self.named.get((parent, name)), parent=self._parent,
            abandoned=lambda: {version: Known(nodes) for version, nodes in self.abandoned.items()},
            is_abandoned=lambda ident: any(ident in nodes for nodes in self.abandoned.values()),
            abandoned_entries=lambda: list(self.abandoned_entries), surplus=self._surplus,
        )
        self.notices = Notices(self._notify, inodes, lambda: list(self.tasks))  # type: ignore[arg-type]
        self.notices.agree(offer)

    def _surplus(self) -> Known | None:
        surplus, self.surplus = self.surplus, []
        return Known(surplus) if surplus else None

    def _parent(self, ident: int) -> int:
        if ident not in self.parents:
            raise Changed("is no longer known")
        return self.parents[ident]

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def _notify(self, message: bytes) -> None:
        length, code, unique = struct.unpack_from("=IiQ", message)
        assert (length, unique) == (len(message), 0)
        body = message[16:]
        if code == INODE:
            ident, offset, _ = struct.unpack("=Qqq", body)
            assert offset < 0  # no pages
            self.seen.append((code, ident))
        elif code == ENTRY:
            parent, size, flags = struct.unpack_from("=QII", body)
            assert body[16:] == body[16 : 16 + size] + b"\0"
            self.seen.append((code, (parent, body[16 : 16 + size].decode(), flags)))
        elif code == PRUNE:
            count, *_ = struct.unpack_from("=IIQ", body)
            self.seen.append((code, list(struct.unpack_from(f"={count}Q", body, 16))))
            assert len(body) == 16 + 8 * count
        else:
            assert (code, body) == (EPOCH, b"")
            self.seen.append((code, None))

    def send(self, *entries: tuple[int, str], nodes: tuple[int, ...] = ()) -> list[tuple[int, object]]:
        """Send what is stale; return what the kernel got."""
        self.seen = []
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep)
        with patch.object(notices_module, "time", clock):
            self.notices.send(Stale(entries, nodes))
        return self.seen

    def begin(self, opcode: int, ident: int) -> Task:
        task = Task(opcode, len(self.tasks) + 1, ident, b"")
        self.tasks.append(task)
        return task


@pytest.mark.parametrize(("offer", "flags"), [(NEW, 1), (EXPIRING, 1), (OLD, 0)])
def test_names_expire_where_the_kernel_can_do_that(offer: Offer, flags: int) -> None:
    assert World(offer).send((5, "a"), nodes=(5, 6)) == [(INODE, 5), (INODE, 6), (ENTRY, (5, "a", flags))]


@pytest.mark.parametrize("opcode", [LOOKUP, READDIRPLUS])
def test_names_wait_while_a_request_holds_their_directory(opcode: int) -> None:
    world = World(OLD)
    world.begin(opcode, 5)
    assert world.send((5, "a"), (6, "b")) == [(ENTRY, (6, "b", 0))]
    world.now += 100
    assert world.send() == []
    world.tasks.clear()
    assert world.send() == [(ENTRY, (5, "a", 0))]
    assert world.send() == []


def test_requests_that_end_soon_delay_no_name() -> None:
    """Nor does it matter that others begin meanwhile: otherwise a busy folder would never be notified."""
    world = World()
    first = world.begin(LOOKUP, 5)

    def go_on(seconds: float) -> None:
        world.tasks = [Task(LOOKUP, world.tasks[0].unique + 1, 5, b"")]

    world._sleep = go_on  # type: ignore[method-assign]
    assert world.send((5, "a")) == [(ENTRY, (5, "a", 1))]
    assert world.tasks[0].unique == first.unique + 1


def test_all_names_become_stale_if_one_waits_for_long() -> None:
    world = World()
    world.begin(LOOKUP, 5)
    world.begin(GETATTR, 6)
    assert world.send((5, "a")) == []
    world.now += settings.patience / 2
    assert world.send((6, "b")) == [(ENTRY, (6, "b", 1))]
    world.now += settings.patience
    assert world.send((5, "c")) == [(EPOCH, None)]
    world.now += settings.patience
    assert world.send() == []


def test_nothing_is_dropped_above_a_pending_read() -> None:
    """By kernels that cannot expire a name: they would wait for its pages. Others beside it are not delayed."""
    world = World(OLD)
    world.named = {(ROOT, "folder"): 2, (2, "c"): 3, (2, "d"): 4}
    world.parents = {2: ROOT, 3: 2, 9: 3}
    world.begin(READ, 9)
    assert world.send((ROOT, "folder"), (2, "c"), (2, "d"), (2, "none")) == [(ENTRY, (2, "d", 0))]
    world.tasks.clear()
    assert [body for _, body in world.send()] == [(ROOT, "folder", 0), (2, "c", 0), (2, "none", 0)]
    world.begin(READ, 9)
    world.notices.agree(NEW)
    assert world.send((2, "c")) == [(ENTRY, (2, "c", 1))]


def test_nodes_that_are_read_are_mentioned_later() -> None:
    world = World()
    world.begin(READ, 9)
    assert world.send(nodes=(8, 9)) == [(INODE, 8)]
    assert world.send() == []
    world.tasks.clear()
    assert world.send() == [(INODE, 9)]
    assert world.send() == []


def test_replaced_versions_are_pruned_until_they_are_forgotten() -> None:
    """More rarely while nothing comes of it, as long as they are in use."""
    world = World()
    world.abandoned = {"v": [12, 11, 10]}
    world.begin(READ, 11)
    assert world.send() == [(PRUNE, [12, 10])]
    assert world.send() == []
    world.tasks.clear()
    times = []
    while world.now < 110:
        world.now += 0.1
        if world.send():
            times.append(world.now)
    assert 4 < len(times) < 12
    world.abandoned = {}
    world.now += 10
    assert world.send() == []


def test_version_of_very_many_nodes_delays_no_other() -> None:
    """One call is about a bounded number of nodes; the next one goes on."""
    world = World()
    world.abandoned = {"large": range(10**12, 1, -1), "small": [7, 6]}
    pruned = [ident for _, some in world.send() for ident in some]  # type: ignore[attr-defined]
    assert {7, 6} < set(pruned)
    assert len(pruned) <= NODES_AT_ONCE + PRUNED_AT_ONCE
    world.abandoned["next"] = [9]
    world.now += 10
    further = [ident for _, some in world.send() for ident in some]  # type: ignore[attr-defined]
    assert 9 in further
    assert not {*pruned, 9} & set(further) - {7, 6, 9}
    world.abandoned = {}
    world.notices._abandoned.clear()
    world.seen = []
    world.notices.send(Stale(versions={"large": range(10**12), "small": [5]}))
    assert (INODE, 5) in world.seen
    assert len(world.seen) <= NODES_AT_ONCE + PRUNED_AT_ONCE


def test_names_of_replaced_versions_are_dropped_without_pruning() -> None:
    world = World(OLD)
    world.abandoned, world.abandoned_entries = {"v": [12, 11]}, [(11, "x"), (13, "y")]
    world.begin(READ, 12)
    assert world.send() == []
    world.now += 10
    world.tasks[:] = []
    world.begin(LOOKUP, 13)
    assert world.send() == [(ENTRY, (11, "x", 0))]


def test_too_many_nodes_are_pruned() -> None:
    world = World()
    world.surplus = [12, 11, 10]
    world.begin(READ, 11)
    assert world.send() == [(PRUNE, [12, 10])]
    assert world.send() == []


def test_names_of_too_many_nodes_are_dropped_without_pruning() -> None:
    """But no name that a request waits below: a look-up in the folder, or a READ in the container."""
    world = World(OLD)
    world.named, world.parents = {(5, "10"): 10, (5, "11"): 11}, {20: 11, 11: 5, 10: 5, 5: ROOT}
    world.begin(READ, 20)
    world.surplus = [11, 10]
    assert world.send() == [(ENTRY, (5, "10", 0))]
    world.begin(LOOKUP, 5)
    world.surplus = [10]
    assert world.send() == []


def test_reply_to_init() -> None:
    """The layout of <linux/fuse.h>: 64 bytes, of which a kernel before 7.23 would take the first 24."""
    offered = 0x73FFFFFB | 1 << 35
    message = struct.pack("=IIQQIIII4I", 104, 26, 1, 0, 0, 0, 0, 0, 7, 45, 131072, offered & 0xFFFFFFFF)
    message += struct.pack("=I11I", offered >> 32, *[0] * 11)
    offer = wire.offer_of(message)
    assert offer == Offer(45, 131072, offered)
    assert wire.offer_of(message[:56]) == Offer(45, 131072, offered & 0xFFFFFFFF)
    reply = wire.init_out(offer, 1 << 20, 4096)
    assert len(reply) == 64
    assert struct.unpack_from("=3I4x2HI", reply) == (7, 45, 131072, 4096, 3072, 1 << 20)
    assert wire.init_out(Offer(31, 0, 0), 1 << 20, 1)[12:16] == bytes(4)
