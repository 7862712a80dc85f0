"""The index of a model in shards: the tensors that it names, each in one of the files beside it (§8). Any thread.

All headers are read when the index is opened, a little of each file: types and sizes are in them, and a reader may see
no more than every file allows. A shard that is missing, damaged, or without a tensor that the index names costs no more
than these tensors. Opening raises Damaged for the index itself, and Refused if no shard can be read.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from sys import getsizeof
from typing import Any

from glassfs import work
from glassfs.content import Container, Member, Omitted
from glassfs.content.allowance import OBJECT
from glassfs.errors import GlassfsError, NotFound, Passing, Refused, TooLarge
from glassfs.formats.mistaken import mistaken, some
from glassfs.formats.registry import HEAD, Head, Opening
from glassfs.formats.safetensors.header import TensorHeader, hint, is_safetensors, model, parsed
from glassfs.source import Source
from glassfs.threads import DaemonPool

AT_ONCE = 16
"""Shards of a remote model that are requested at a time, as each takes a round trip."""
_NAME = re.compile(r"\.safetensors\.index(?:\.[^.]+)?\.json$", re.IGNORECASE)
_OBJECT = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*["}]')
_WEIGHTS = re.compile(rb'"weight_map"\s{0,9}:\s{0,9}\{\s{0,99}"[^"]*"\s{0,9}:\s{0,9}"[^"]*\.safetensors"')
_ahead = DaemonPool("shards", AT_ONCE)


def is_index(head: Head) -> bool:
    """Return whether a file is a JSON object with the name of an index, or with shards of a model in its first bytes.
    """
    return _OBJECT.match(head) is not None and bool(_NAME.search(head.name) or _WEIGHTS.search(head))


def open_index(opening: Opening) -> Container:
    """Open an index and its shards. Raises Refused, Damaged, TooLarge, and Passing if it cannot be determined now."""
    source, allowance = opening.source, opening.allowance
    index = parsed(source, 0, source.size, allowance.part(), "the index")
    weights, metadata = index.pop("weight_map", None), index.pop("metadata", None)
    if type(weights) is not dict or not all(type(name) is str for name in weights.values()):
        raise source.damage("is JSON without a weight_map of files, such as the answer of a server about an error")
    tensors_of: dict[str, dict[str, str]] = {}
    for tensor, name in weights.items():
        if name not in tensors_of:
            allowance.take(16 * OBJECT + getsizeof(name), "shards")
        allowance.take(OBJECT + getsizeof(tensor), "tensors")
        tensors_of.setdefault(name, {})[tensor] = tensor
    del weights
    metadata = metadata if type(metadata) is dict else {}
    described = {key: value for key, value in metadata.items() if not isinstance(value, (dict, list))}
    cost = sum(OBJECT + getsizeof(key) + getsizeof(value) for key, value in described.items())
    allowance.take(cost, "metadata")
    shards = _Shards(opening)
    for name, opened in _each(opening, list(tensors_of)):
        # The names of its tensors are in its header from now on, or dropped.
        shards.add(name, tensors_of.pop(name), opened)
    headers = [header for _, header in shards.headers]
    cost += sum(header.metadata_cost for header in headers) + 8 * OBJECT * len(shards.facts)
    if shards.facts and not headers:
        first = f"{shards.facts[0]['name'][:255]} {shards.facts[0]['unreadable']}"
        raise Refused(f"none of its {len(shards.facts):,} shards can be read: {first}", source.name)
    lost = len(shards.facts) - len(headers)
    facts = {"shards": len(shards.facts), **({"unreadable_shards": lost} if lost else {})}
    document = {"metadata": described or None, "shards": shards.facts}
    return model(shards.sources, headers, cost, document, shards.members, facts)


class _Shards:
    """The shards of a model: their sources after that of the index, their headers with the tensors that the index names
    in each, facts of each for a document, and what is left out of the model.
    """

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self.sources = [opening.source]
        self.headers: list[tuple[str, TensorHeader]] = []
        self.facts: list[dict[str, Any]] = []
        self._omitted: list[Omitted] = []

    def members(self) -> Iterator[Member]:
        for name, header in self.headers:
            yield from header.members(name)
        for omitted in self._omitted:
            yield Member((omitted.key,), omitted)

    def add(self, name: str, tensors: Mapping[str, str], opened: Callable[[], Source]) -> None:
        """Add a shard in which the index names these tensors."""
        try:
            header = self._header(opened(), tensors)
        except (Passing, TooLarge) as error:
            raise type(error)(error.reason, self._opening.source.name, name) from error
        except GlassfsError as error:
            reason = error.reason if isinstance(error, NotFound) else error.without_source
            self.facts.append({"name": name, "unreadable": reason})
            self._omit(name, f"{reason}, and with it ", tensors, is_damage=True)
            return
        self.facts.append({"name": name, **header.facts()})
        self.headers.append((name, header))
        found = {tensor.name for tensor in header.tensors}
        self._omit(name, "lacks ", [tensor for tensor in tensors if tensor not in found], is_damage=True)
        self._omit(name, "not in the index: ", sorted(found - tensors.keys()))
        header.tensors = [tensor for tensor in header.tensors if tensor.name in tensors]

    def _header(self, shard: Source, tensors: Mapping[str, str]) -> TensorHeader:
        self.sources.append(shard)
        try:
            head = Head.of(shard, shard.read_ahead(HEAD))
            if not is_safetensors(head):
                raise Refused(hint(head) or mistaken(head) or "is no safetensors file")
            return TensorHeader(shard, self._opening.allowance, tensors)
        finally:
            shard.drop_ahead()
            if not self._opening.known:  # there may be more shards than descriptors: reading opens them again
                shard.park()
                shard.keep()

    def _omit(self, name: str, reason: str, tensors: Iterable[str], is_damage: bool = False) -> None:
        names = [tensor[:100] for tensor in tensors]
        if names:
            said = f"{reason}{len(names):,} tensor{'' if len(names) == 1 else 's'}: {some(names)}"
            self._omitted.append(Omitted(name.encode(), said, is_damage))


def _each(opening: Opening, names: Iterable[str]) -> Iterator[tuple[str, Callable[[], Source]]]:
    """Yield each name with a function that returns the source of the shard, or raises why it cannot be opened."""
    def opened(name: str) -> Source:
        shard = opening.sibling(name)
        shard.read_ahead(HEAD)
        return shard

    if not opening.source.is_remote:
        yield from ((name, partial(opened, name)) for name in names)
        return
    ahead, waiting = work.derived(), iter(names)
    begin = lambda name: (name, _ahead.submit(partial(work.done_for, ahead, partial(opened, name))))  # noqa: E731
    begun = deque(map(begin, islice(waiting, AT_ONCE)))
    try:
        while begun:
            name, future = begun.popleft()
            work.is_done(future)
            begun.extend(map(begin, islice(waiting, 1)))
            yield name, future.result
    finally:
        ahead.cancel()
