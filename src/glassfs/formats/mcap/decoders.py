"""What decodes the messages of a topic, by their encoding and schema (docs/formats/mcap.md §3). Any thread."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Protocol

from glassfs.errors import Damaged, NotInstalled
from glassfs.formats.mcap.cdr import Cdr
from glassfs.formats.mcap.definitions import Node, Number, Struct, Text, Time, float32, numbers_shown, plan_of
from glassfs.formats.mcap.records import Schema


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
        return _Ros(plan_of(schema), encoding == "ros1")
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
        try:
            return json.loads(bytes(message).decode(), parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise Damaged("is no JSON") from error


class _Ros:
    """Messages of ROS."""

    def __init__(self, plan: Struct, is_ros1: bool) -> None:
        self.plan = plan
        self.values = Cdr(plan, is_ros1).values

    def json(self, message: memoryview) -> Any:
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


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
