"""Which notifications the kernel gets, and when. None may wait for a request: the kernel waits uninterruptibly, so that
a daemon that is killed then would leave processes that cannot be killed.

- **Attributes** of a node (offset -1) wait for no page. Pages are never dropped: nodes whose bytes may have changed get
  new ids instead (``Inodes.detach``).
- **A name** needs the lock of its directory. While a look-up or a listing there is pending, the notification would
  wait for it, and all later look-ups for the notification. So it is sent once none has been pending for more than a
  few milliseconds, and after ``settings.patience`` all names are made stale instead, if the kernel can do that.
  Names expire, if the kernel can do that. Otherwise it drops all below them, which may wait for pages, so no READ of a
  node there may be pending.
- **Versions that were replaced** are pruned again and again until the kernel has forgotten their nodes: it may have
  looked some up meanwhile, and keeps those whose directory was in use.
- Some thousand nodes are sent at a time, some of each version: one with many nodes delays no other.
- A node with a pending READ is neither pruned nor mentioned: if its readers were killed, the kernel may wait for its
  pages whenever it is asked for the node.

A request that no thread has taken yet is not known here. That is a matter of microseconds, and ``guard`` is for that.
One thread at a time may call ``send``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from itertools import islice

from glassfs.errors import Changed
from glassfs.mount.engines import wire
from glassfs.mount.engines.crew import Task
from glassfs.mount.engines.wire import Feature, Offer, Opcode
from glassfs.mount.inodes import ROOT, Inodes
from glassfs.mount.operations import Stale
from glassfs.names import raw
from glassfs.settings import settings

PRUNED_AT_ONCE = 4096
"""Nodes in one notification."""
NODES_AT_ONCE, OF_VERSION = 32_768, 256
"""Nodes of versions that one call of ``send`` is about, and those of one version in a row."""
SURPLUS = "surplus"
"""Stands for the version of nodes that are given up for their number."""
IN_DIRECTORY = (Opcode.LOOKUP, Opcode.READDIRPLUS)
"""Requests during which the kernel holds the lock of a directory, the node that they are about."""

Entry = tuple[int, str]
Passes = dict[Hashable, Iterator[int]]
"""Nodes by version, each as far as it was not passed yet."""
Notify = Callable[[bytes], object]
"""Sends a notification. The kernel refuses those about nodes that it does not know."""


class Notices:
    """The notifications of one mount. ``pending`` returns the requests that were taken and not answered yet."""

    def __init__(self, notify: Notify, inodes: Inodes, pending: Callable[[], Sequence[Task]]) -> None:
        self._notify = notify
        self._inodes = inodes
        self._pending = pending
        self._expires = self._has_epoch = self._prunes = False
        self._entries: dict[Entry, float] = {}
        """Names to be sent, and since when."""
        self._nodes: list[int] = []
        """Nodes to be sent again, as they were being read."""
        self._changed: Passes = {}
        """The nodes of versions whose attributes changed that are still to be sent."""
        self._abandoned: Passes = {}
        """The nodes of replaced versions that are still to be pruned in this attempt."""
        self._pause = settings.prune_least
        self._next_attempt = 0.0
        self._left = 0, 0
        """Replaced versions, and references to them, at the last attempt to have them forgotten."""

    def agree(self, offer: Offer) -> None:
        """Use what the kernel offers."""
        self._expires = bool(offer.features & Feature.EXPIRE_ONLY)
        self._has_epoch = offer.minor >= wire.EPOCH_MINOR
        self._prunes = offer.minor >= wire.PRUNE_MINOR
        self._inodes.remembers_names = not self._prunes

    def send(self, stale: Stale) -> bool:
        """Have the kernel forget ``stale`` and all that could not be sent before; return whether something is left.

        Call this a few times a second.
        """
        now = time.monotonic()
        for entry in stale.entries:
            self._entries.setdefault(entry, now)
        for version, nodes in stale.versions.items():
            self._changed[version] = iter(nodes)
        if stale.nodes or self._nodes or self._changed:
            self._send_nodes([*self._nodes, *stale.nodes, *_some(self._changed)])
        if self._entries:
            self._send_entries(now)
        if now >= self._next_attempt:
            self._give_up(now)
        self._relieve()
        if self._abandoned:
            self._prune()
        return bool(self._entries or self._nodes or self._changed or self._abandoned or self._left[0])

    def _send_nodes(self, idents: Iterable[int]) -> None:
        reading = self._reading()
        self._nodes = []
        for ident in dict.fromkeys(idents):
            if ident in reading:
                self._nodes.append(ident)
            else:
                self._notify(wire.inval_inode(ident))

    def _send_entries(self, now: float) -> None:
        # The kernel takes the lock of the directory to drop a name, and a look-up there that hangs holds it. Where
        # names do not expire, all below is dropped as well, and pages of pending READs may be among that.
        slow = self._slow({parent for parent, _ in self._entries})
        above_reads = set() if self._expires else self._above(self._reading())
        for parent, name in list(self._entries):
            below = self._inodes.named(parent, name)
            if parent not in slow and (parent if below is None else below) not in above_reads:
                del self._entries[parent, name]
                self._notify(wire.inval_entry(parent, raw(name), self._expires))
        begun = now - settings.patience
        late = [entry for entry, since in self._entries.items() if entry[0] in slow and since <= begun]
        if late and self._has_epoch:
            self._notify(wire.inc_epoch())
            self._entries = {entry: since for entry, since in self._entries.items() if entry[0] not in slow}

    def _give_up(self, now: float) -> None:
        """Have the kernel forget versions that were replaced, unless a process still uses them."""
        found = self._inodes.abandoned()
        left = len(found), sum(known.held for known in found.values())
        # Attempts that have no effect become rare: a program may keep an old version open for days.
        is_unchanged = left == self._left
        self._left = left
        self._pause = min(2 * self._pause, settings.prune_longest) if found and is_unchanged else settings.prune_least
        self._next_attempt = now + self._pause
        if self._prunes:
            for version, known in found.items():
                self._abandoned.setdefault(version, iter(known))
        elif found and not any(self._inodes.is_abandoned(ident) for ident in self._reading()):
            self._drop(list(self._inodes.abandoned_entries()))

    def _relieve(self) -> None:
        """Have the kernel forget the oldest nodes that no process uses, if it knows too many."""
        surplus = self._inodes.surplus() if SURPLUS not in self._abandoned else None
        if surplus is None:
            return
        if self._prunes:
            self._abandoned[SURPLUS] = iter(surplus)
        else:
            above_reads = self._above(self._reading())
            self._drop([entry for entry in surplus.entries() if self._inodes.named(*entry) not in above_reads])

    def _prune(self) -> None:
        """Prune some nodes of replaced versions."""
        reading = self._reading()
        rest = [ident for ident in _some(self._abandoned) if ident not in reading]
        for start in range(0, len(rest), PRUNED_AT_ONCE):
            self._notify(wire.prune(rest[start : start + PRUNED_AT_ONCE]))

    def _drop(self, entries: Sequence[Entry]) -> None:
        """Drop names and all below them, for kernels that cannot prune. They keep what is in use."""
        slow = self._slow({parent for parent, _ in entries})
        for parent, name in entries:
            if parent not in slow:
                self._notify(wire.inval_entry(parent, raw(name), is_expired=False))

    def _reading(self) -> Set[int]:
        """Return the nodes that a pending READ is about."""
        return {task.ident for task in self._pending() if task.opcode == Opcode.READ}

    def _above(self, idents: Iterable[int]) -> set[int]:
        """Return these nodes and all directories above them."""
        found: set[int] = set()
        for ident in idents:
            while ident not in found:
                found.add(ident)
                if ident != ROOT:
                    try:
                        ident = self._inodes.parent(ident)
                    except Changed:
                        break
        return found

    def _slow(self, directories: Set[int]) -> Set[int]:
        """Return those directories in which a request is pending for more than a few milliseconds."""
        # Most requests take microseconds: only those that are still there after some checks count.
        waiting = {
            task.unique: task.ident for task in self._pending()
            if task.opcode in IN_DIRECTORY and task.ident in directories
        }
        for _ in range(5):
            if not waiting:
                break
            time.sleep(settings.slow_check)
            still = {task.unique for task in self._pending()}
            waiting = {unique: ident for unique, ident in waiting.items() if unique in still}
        return set(waiting.values())


def _some(passes: Passes) -> list[int]:
    """Take up to NODES_AT_ONCE nodes, some of each version in turn; versions without further nodes are removed."""
    found: list[int] = []
    while passes and len(found) < NODES_AT_ONCE:
        version = next(iter(passes))
        nodes = passes.pop(version)
        some = list(islice(nodes, OF_VERSION))
        found += some
        if len(some) == OF_VERSION:
            passes[version] = nodes
    return found
