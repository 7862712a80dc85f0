"""Decodes messages, by their encoding and schema (docs/formats/mcap.md §3). Any thread.

Those of ROS (CDR of ROS 2, and the serialization of ROS 1) and of JSON are decoded here. A message of ROS becomes a
flat list: the values of all fields in order, those of structures in their places. Numbers between strings and sequences
are one run, which ``struct`` reads at once.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Protocol, TypeAlias

from glassfs.content.texts import refuse_constant
from glassfs.errors import Damaged, NotInstalled
from glassfs.formats.mcap.definitions import Node, Number, Sequence, Struct, Text, Time, float32, numbers_shown, plan_of
from glassfs.formats.mcap.recording import Schema
from glassfs.lazy import np
from glassfs.sizes import PIECE

HEADER_SIZE = 4
MOST_ITEMS = 1 << 20
KINDS = {0: (">", 8), 1: ("<", 8), 6: (">", 4), 7: ("<", 4)}
"""The order of bytes and the largest alignment, by the encapsulation: CDR, and XCDR2 of final types."""

Step: TypeAlias = Callable[[memoryview, int, list[Any]], int]
"""Appends the values at a position, and returns the position behind them."""


class Decoder(Protocol):
    """Decodes messages; of those without a ``plan`` of fields only ``json``."""

    plan: Struct

    def values(self, message: memoryview) -> list[Any]:
        """Return the values of all fields, those of structures in their places. Raises Damaged."""

    def json(self, message: memoryview) -> Any:
        """Return a message as a JSON value. Raises Damaged."""


def decoder_of(encoding: str, schema: Schema | None) -> Decoder:
    """Return what decodes messages. Raises Damaged for a schema that cannot be used, and NotInstalled."""
    language = schema.encoding if schema else ""
    if encoding == "json" and language in ("", "jsonschema"):
        return _Json()
    if schema is not None and (encoding, language) in (("cdr", "ros2msg"), ("cdr", "ros2idl"), ("ros1", "ros1msg")):
        return Ros(plan_of(schema), encoding == "ros1")
    if schema is not None and encoding == language == "protobuf":
        from glassfs.formats.mcap.protobuf import Protobuf

        return Protobuf(schema)
    raise NotInstalled(f"messages of {encoding or 'no encoding'} with {language or 'no'} schema are shown as bytes")


class _Json:
    """Messages that are JSON. What a JSON Schema says of them is no promise that fields are there."""

    plan = Struct(())

    def values(self, message: memoryview) -> list[Any]:
        return []

    def json(self, message: memoryview) -> Any:
        if len(message) > 4 * PIECE:  # its values may take a hundred times the memory
            raise Damaged("is JSON of more than 4 MiB")
        try:
            return json.loads(bytes(message).decode(), parse_constant=refuse_constant)
        except (ValueError, RecursionError) as error:
            raise Damaged("is no JSON") from error


class Ros:
    """Decodes messages with a plan: those of ROS 1 if ``is_ros1``."""

    def __init__(self, plan: Struct, is_ros1: bool) -> None:
        self.plan, self._is_ros1 = plan, is_ros1
        self._steps = cache(self._made)

    def values(self, message: memoryview) -> list[Any]:
        """Return the values of a message. Those of sequences of numbers refer to its bytes. Raises Damaged."""
        kind = ("<", 1)
        if not self._is_ros1:
            if len(message) < HEADER_SIZE or message[0] or message[1] not in KINDS:
                raise Damaged(f"begins with {bytes(message[:2]).hex()}, which is no CDR that glassfs knows")
            kind, message = KINDS[message[1]], message[HEADER_SIZE:]
        found: list[Any] = []
        try:
            self._steps(*kind)(message, 0, found)
        except (struct.error, ValueError) as error:
            raise Damaged("is shorter than its type says") from error
        return found

    def _made(self, order: str, align: int) -> Step:
        return _Maker(order, align).of(self.plan)

    def json(self, message: memoryview) -> Any:
        """Return a message as a JSON value. Raises Damaged."""
        return _shown(self.plan, iter(self.values(message)))


def _shown(node: Node, values: Iterator[Any]) -> Any:
    """Return the next value as a JSON value."""
    if isinstance(node, Struct):
        return {name: _shown(inner, values) for name, inner in node.fields}
    if isinstance(node, Time):
        return {name: next(values) for name in node.names}
    value = next(values)
    if isinstance(node, Number):
        return float32(value) if node.form == "f" else value
    if isinstance(node, Text) or isinstance(node.item, Text):
        return value
    if isinstance(node.item, Struct):
        return [_shown(node.item, iter(one)) for one in value]
    if isinstance(node.item, Time):
        return [dict(zip(node.item.names, one, strict=True)) for one in value.tolist()]
    return numbers_shown(value, node.item)


class _Maker:
    """Makes what reads the values of plans, for one order of bytes and one alignment (1 for ROS 1)."""

    def __init__(self, order: str, align: int) -> None:
        self._order, self._align = order, align
        self._counted = _counter(order, min(4, align))

    def of(self, plan: Node) -> Step:
        steps, run = list[Step](), ""
        for node in _leaves(plan, has_dummies=self._align > 1):
            if isinstance(node, (Number, Time, str)):
                run += node if isinstance(node, str) else node.form if isinstance(node, Number) else node.forms
                continue
            steps += [self._run(run)] if run else []
            steps.append(self._sequence(node) if isinstance(node, Sequence) else self._text())
            run = ""
        steps += [self._run(run)] if run else []

        def read(data: memoryview, position: int, found: list[Any]) -> int:
            for step in steps:
                position = step(data, position, found)
            return position

        return steps[0] if len(steps) == 1 else read

    def _run(self, forms: str) -> Step:
        @cache
        def layout(place: int) -> struct.Struct:
            made = self._order
            for form in forms:
                size = 0 if form == "x" else struct.calcsize(f"<{form}")
                padding = -place % min(size or 1, self._align)
                place += padding + (size or 1)
                made += f"{padding}x{form}"
            return struct.Struct(made)

        align = self._align

        def read(data: memoryview, position: int, found: list[Any]) -> int:
            known = layout(position % align)
            found.extend(known.unpack_from(data, position))
            return position + known.size

        return read

    def _text(self) -> Step:
        counted, end = self._counted, "\0" if self._align > 1 else ""

        def read(data: memoryview, position: int, found: list[Any]) -> int:
            size, position = counted(data, position)
            found.append(str(data[position : position + size], "utf-8", "replace").removesuffix(end))
            return position + size

        return read

    def _sequence(self, node: Sequence) -> Step:
        item, length, counted = node.item, node.length, self._counted
        if isinstance(item, (Number, Time)):
            forms = item.form if isinstance(item, Number) else item.forms
            parts = [("", f"{self._order}{form}") for form in forms]
            dtype = np.dtype(parts if len(parts) > 1 else parts[0][1])
            align = min(np.dtype(forms[0]).itemsize, self._align)

            def numbers(data: memoryview, position: int, found: list[Any]) -> int:
                count, position = (length, position) if length is not None else counted(data, position)
                if count:  # no items need no padding
                    position += -position % align
                found.append(np.frombuffer(data, dtype, count, position) if count else np.empty(0, dtype))
                return position + count * dtype.itemsize

            return numbers
        one = self.of(item)

        def items(data: memoryview, position: int, found: list[Any]) -> int:
            count, position = (length, position) if length is not None else counted(data, position)
            inner: list[Any] = []
            if count > MOST_ITEMS:
                raise Damaged(f"has more than {MOST_ITEMS} items, each of which takes memory")
            for _ in range(count):
                values = inner if isinstance(item, Text) else list[Any]()
                start, position = position, one(data, position, values)
                # Arrays of such items in one another would take a time that no message bounds.
                if position == start:
                    raise Damaged("has items without bytes, whose number could be any")
                if values is not inner:
                    inner.append(values)
            found.append(inner)
            return position

        return items


def _counter(order: str, align: int) -> Callable[[memoryview, int], tuple[int, int]]:
    """Return what reads the count at a position, and returns it with the position behind it."""
    unpack = struct.Struct(f"{order}I").unpack_from

    def counted(data: memoryview, position: int) -> tuple[int, int]:
        position += -position % align
        (count,) = unpack(data, position)
        if count > len(data) - position - 4:  # each item has a byte at least
            raise ValueError
        return count, position + 4

    return counted


def _leaves(node: Node, has_dummies: bool) -> Iterator[Node | str]:
    """Yield the fields of a plan that have values, and "x" for a structure without fields that is a byte in CDR."""
    if not isinstance(node, Struct):
        yield node
        return
    if not node.fields and has_dummies:
        yield "x"
    for _, inner in node.fields:
        yield from _leaves(inner, has_dummies)
