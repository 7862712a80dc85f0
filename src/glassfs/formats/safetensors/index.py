"""The index of a model in shards: the tensors that it names, each in one of the files beside it (§8). Any thread.

All headers are read when the index is opened, a little of each file: types and sizes are in them, and a reader may see
no more than every file allows. So listing tensors reads nothing, and listing a remote folder opens nothing. Shards of
a remote model are requested some at a time, as each takes a round trip.

A shard that is missing, damaged, or without a tensor that the index names costs no more than these tensors. Opening
raises Damaged for the index itself, and Refused if no shard can be read.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from sys import getsizeof
from typing import Any, NamedTuple

from glassfs import work
from glassfs.content import Container, Member, Omitted
from glassfs.content.allowance import OBJECT
from glassfs.errors import GlassfsError, NotFound, Passing, Refused, TooLarge
from glassfs.formats.mistaken import mistaken
from glassfs.formats.registry import HEAD, Head, Opening
from glassfs.formats.safetensors.header import TensorHeader, demand_encodable, hint, is_safetensors, model, parsed
from glassfs.source import Source
from glassfs.threads import DaemonPool

AT_ONCE = 16
"""Shards of a remote model that are requested at a time."""
_NAME = re.compile(r"\.safetensors\.index(?:\.[^.]+)?\.json$")
_OBJECT = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*["}]')
_WEIGHTS = re.compile(rb'"weight_map"\s{0,9}:\s{0,9}\{\s{0,99}"[^"]*"\s{0,9}:\s{0,9}"[^"]*\.safetensors"')
_ahead = DaemonPool("shards", AT_ONCE)


class Shard(NamedTuple):
    """A file of a model: its header with the tensors that the index names in it, and what is left out of it.

    Without a ``header`` it cannot be read, and ``reason`` says why.
    """

    name: str
    header: TensorHeader | None
    omitted: list[Omitted]
    reason: str = ""

    def members(self) -> Iterator[Member]:
        if self.header is not None:
            yield from self.header.members(self.name)
        for omitted in self.omitted:
            yield Member((omitted.key,), omitted)

    def facts(self) -> dict[str, Any]:
        return {"name": self.name, **(self.header.facts() if self.header is not None else {"unreadable": self.reason})}


def is_index(head: Head) -> bool:
    """Return whether a file is a JSON object with the name of an index, or with shards of a model in its first bytes.
    """
    return _OBJECT.match(head) is not None and bool(_NAME.search(head.name) or _WEIGHTS.search(head))


def open_index(opening: Opening) -> Container:
    """Open an index and its shards. Raises Refused, Damaged, TooLarge, and Passing if it cannot be determined now."""
    source, allowance = opening.source, opening.allowance
    index = parsed(source, 0, source.size, allowance.part(), "the index")
    weights, metadata = index.get("weight_map"), index.get("metadata")
    if type(weights) is not dict:
        raise source.damage("is JSON without a weight_map, such as the answer of a server about an error")
    tensors_of: dict[str, dict[str, str]] = {}
    for tensor, name in weights.items():
        demand_encodable(source, tensor, "the index")
        if type(name) is not str:
            raise source.damage("has no name of a file", f"weight_map/{tensor[:100]}")
        demand_encodable(source, name, "the index")
        if name not in tensors_of:
            allowance.take(16 * OBJECT + getsizeof(name), "shards")
        allowance.take(OBJECT + getsizeof(tensor), "tensors")
        tensors_of.setdefault(name, {})[tensor] = tensor
    described = _described(source, metadata) if type(metadata) is dict else {}
    cost = sum(OBJECT + getsizeof(key) + getsizeof(value) for key, value in described.items())
    allowance.take(cost, "metadata")
    del index, weights, metadata
    shards, sources = [], [source]
    for name, opened in _each(opening, list(tensors_of)):
        # Names of tensors are dropped with the last reference: those of a shard are in its header from now on.
        shards.append(_shard(opening, name, tensors_of.pop(name), opened, sources))
    headers = [shard.header for shard in shards if shard.header is not None]
    if shards and not headers:
        first = f"{shards[0].name[:255]} {shards[0].reason}"
        raise Refused(f"none of its {len(shards):,} shards can be read: {first}", source.name)
    facts = {"shards": len(shards)}
    if len(headers) < len(shards):
        facts["unreadable_shards"] = len(shards) - len(headers)
    cost += sum(8 * OBJECT + header.metadata_cost for header in headers) + 8 * OBJECT * len(shards)

    def members() -> Iterator[Member]:
        for shard in shards:
            yield from shard.members()

    return model(sources, headers, cost, lambda: {
        "metadata": described or None, "shards": [shard.facts() for shard in shards],
    }, members, facts)


def _described(source: Source, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of an index; lists and objects in it as JSON."""
    described = {}
    for key, value in metadata.items():
        try:
            described[key] = json.dumps(value) if isinstance(value, (dict, list)) else value
        except RecursionError:
            raise source.damage("is JSON nested too deeply", "the index") from None
        demand_encodable(source, f"{key}{described[key]}", "the index")
    return described


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


def _shard(
    opening: Opening, name: str, tensors: Mapping[str, str], opened: Callable[[], Source], sources: list[Source],
) -> Shard:
    """Return a shard in which the index names these tensors, and add its source to ``sources``."""
    key = name.encode()
    try:
        shard = opened()
        sources.append(shard)
        head = Head.of(shard, shard.read_ahead(HEAD))
        if not is_safetensors(head):
            raise Refused(hint(head) or mistaken(head) or "is no safetensors file")
        header = TensorHeader(shard, opening.allowance, tensors)
        shard.drop_ahead()
        if not opening.known:  # there may be more shards than descriptors: each is opened again when it is read
            shard.park()
            shard.keep()
    except (Passing, TooLarge) as error:
        raise type(error)(error.reason, opening.source.name, name) from error
    except GlassfsError as error:
        reason = error.without_source
        if isinstance(error, NotFound):
            reason = error.reason if error.part else "is missing"
        what = f"{reason}, and with it {_counted(tensors)}"
        return Shard(name, None, [Omitted(key, what, is_damage=True)], reason)
    found = {tensor.name for tensor in header.tensors}
    omitted = []
    if lacking := [tensor for tensor in tensors if tensor not in found]:
        omitted.append(Omitted(key, f"lacks {_counted(lacking)}", is_damage=True))
    if unnamed := [tensor for tensor in found if tensor not in tensors]:
        omitted.append(Omitted(key, f"not in the index: {_counted(sorted(unnamed))}"))
        header.tensors = [tensor for tensor in header.tensors if tensor.name in tensors]
    return Shard(name, header, omitted)


def _counted(tensors: Iterable[str]) -> str:
    """Return the number of tensors and the names of the first ones."""
    names = list(tensors)
    shown = ", ".join(name[:100] for name in names[:3]) + (", …" if len(names) > 3 else "")
    return f"{len(names):,} tensor{'' if len(names) == 1 else 's'}: {shown}"
