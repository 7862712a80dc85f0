"""Messages of Protocol Buffers, decoded by google.protobuf (docs/formats/mcap.md §3). Any thread."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Sequence_
from typing import Any

from glassfs.errors import Damaged, NotInstalled
from glassfs.formats.mcap.definitions import (
    DEEPEST,
    LARGEST,
    LONGEST_NAME,
    MOST_FIELDS,
    PRIMITIVES,
    Node,
    Number,
    Sequence,
    Struct,
    Text,
    Time,
    float32,
    numbers_shown,
)
from glassfs.formats.mcap.recording import Schema
from glassfs.lazy import np

TIMES = ("google.protobuf.Timestamp", "google.protobuf.Duration")
BYTES = PRIMITIVES["uint8"]
FLOAT, BYTES_FIELD, ENUM = 2, 12, 14
KINDS: dict[int, Number | Time | Text] = {
    number: PRIMITIVES[name] for number, name in (
        (1, "float64"), (FLOAT, "float32"), (3, "int64"), (4, "uint64"), (5, "int32"), (6, "uint64"), (7, "uint32"),
        (8, "bool"), (9, "string"), (13, "uint32"), (ENUM, "int32"), (15, "int32"), (16, "int64"), (17, "int32"),
        (18, "int64"),
    )
}
"""Types of fields by their numbers (``FieldDescriptorProto.Type``), except for messages, groups and bytes."""


class Protobuf:
    """Decodes messages with a FileDescriptorSet. Maps, types that contain themselves and bytes are in JSON only.

    The bytes of a field ``data`` of the message itself are an exception, as images are there. Raises Damaged, and
    NotInstalled.
    """

    def __init__(self, schema: Schema) -> None:
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
        except ImportError as error:
            raise NotInstalled("decoding Protocol Buffers needs protobuf: install glassfs[mcap]") from error
        if len(schema.data) > LARGEST:
            raise Damaged(f"the definition of {schema.name} is larger than {LARGEST} bytes")
        self._error = message.Error
        try:
            files = {one.name: one for one in descriptor_pb2.FileDescriptorSet.FromString(schema.data).file}
            pool, added = descriptor_pool.DescriptorPool(), set[str]()

            def add(name: str) -> None:
                if name in files and name not in added:  # those that it imports first
                    added.add(name)
                    for other in files[name].dependency:
                        add(other)
                    pool.Add(files[name])

            for name in files:
                add(name)
            self._type = pool.FindMessageTypeByName(schema.name)
            self._class = message_factory.GetMessageClass(self._type)
        except (message.Error, TypeError, KeyError, RecursionError) as error:
            raise Damaged(f"the definition of {schema.name} cannot be used") from error
        self.plan = _plan(self._type, (), iter(range(MOST_FIELDS)))

    def values(self, message: memoryview) -> list[Any]:
        """Return the values of all fields, defaults of those that are missing. Raises Damaged."""
        found: list[Any] = []
        self._read(message, lambda one: _append(self.plan, one, found))
        return found

    def json(self, message: memoryview) -> Any:
        """Return a message as a JSON value, with null for what is missing. Raises Damaged."""
        return self._read(message, _shown)

    def _read(self, message: memoryview, read: Callable[[Any], Any]) -> Any:
        try:
            return read(self._class.FromString(bytes(message)))
        # The file may call fields like attributes of the library, and define well-known types otherwise.
        except (self._error, AttributeError, TypeError, ValueError, KeyError) as error:
            raise Damaged("is no message of its type") from error


def _plan(described: Any, around: Sequence_[str], left: Any) -> Struct:
    """Return the plan of a type. Raises Damaged for too many fields."""
    fields = list[tuple[str, Node]]()
    around = (*around, described.full_name)
    for field in described.fields:
        inner = field.message_type
        node: Node | None = None
        if next(left, None) is None or len(field.name) > LONGEST_NAME:
            raise Damaged(f"the type {described.full_name} has too many fields, or too long names")
        if inner is not None and inner.full_name in TIMES and [one.type for one in inner.fields] == [3, 5]:
            node = Time("qi", ("seconds", "nanos"))
        elif inner is not None:
            if not inner.GetOptions().map_entry and inner.full_name not in around and len(around) < DEEPEST:
                node = _plan(inner, around, left)
        elif field.type == BYTES_FIELD:
            node = Sequence(BYTES) if field.name == "data" and len(around) == 1 else None
        else:
            node = KINDS[field.type]
        if node is not None:
            fields.append((field.name, Sequence(node) if _is_repeated(field) else node))  # type: ignore[arg-type]
    return Struct(tuple(fields))


def _is_repeated(field: Any) -> bool:
    # protobuf 5 has no is_repeated, and later releases deprecate label.
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


def _append(plan: Struct, message: Any, found: list[Any]) -> None:
    """Append the values of a message."""
    for name, node in plan.fields:
        value = getattr(message, name)
        if isinstance(node, Struct):
            _append(node, value, found)
        elif isinstance(node, Time):
            found += value.seconds, value.nanos
        elif not isinstance(node, Sequence):
            found.append(_decoded(value))
        elif isinstance(value, bytes):
            found.append(np.frombuffer(value, np.uint8))
        elif isinstance(node.item, Number):
            found.append(np.array(value, node.item.dtype))
        elif isinstance(node.item, Time):
            found.append(np.array([(one.seconds, one.nanos) for one in value], "<i8,<i8"))
        elif isinstance(node.item, Text):
            found.append(list(map(_decoded, value)))
        else:
            items: list[list[Any]] = [[] for _ in value]
            for one, inner in zip(value, items, strict=True):
                _append(node.item, one, inner)
            found.append(items)


def _decoded(value: Any) -> Any:
    """Return a value of a field; proto2 allows strings that are no UTF-8, which are bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _shown(message: Any) -> Any:
    """Return a message as a JSON value."""
    if message.DESCRIPTOR.full_name in TIMES:
        return {"seconds": message.seconds, "nanos": message.nanos}
    found = {}
    for field in message.DESCRIPTOR.fields:
        value, item = getattr(message, field.name), KINDS.get(field.type)
        if _is_repeated(field) and field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            value = {str(key): _value(inner, value[key]) for key in sorted(value)}
        elif _is_repeated(field) and isinstance(item, Number) and field.type != ENUM:
            value = numbers_shown(np.array(value, item.dtype), item)
        elif _is_repeated(field):
            value = [_value(field, one) for one in value]
        else:
            value = None if field.has_presence and not message.HasField(field.name) else _value(field, value)
        found[field.name] = value
    return found


def _value(field: Any, value: Any) -> Any:
    """Return a value of a field as a JSON value."""
    if field.message_type is not None:
        return _shown(value)
    if isinstance(value, bytes):
        return {"bytes": len(value)}
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    return float32(value) if field.type == FLOAT else value
