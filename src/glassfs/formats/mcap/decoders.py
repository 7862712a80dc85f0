"""What decodes the messages of a topic, by their encoding and schema (docs/formats/mcap.md §3). Any thread."""

from __future__ import annotations

import json
from typing import Any, Protocol

from glassfs.content.texts import refuse_constant
from glassfs.errors import Damaged, NotInstalled
from glassfs.formats.mcap.cdr import Ros
from glassfs.formats.mcap.definitions import Struct, plan_of
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
        try:
            return json.loads(bytes(message).decode(), parse_constant=refuse_constant)
        except (ValueError, RecursionError) as error:
            raise Damaged("is no JSON") from error
