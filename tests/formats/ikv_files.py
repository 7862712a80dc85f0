"""Helpers of the iKv tests: opening values and bytes, and reading the values of expected.json files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from glassfs.content import Array, Container, Content, Document, Fault, Group, Null, Scalar, Text
from tests.helpers import open_bytes

V1 = b"iKv1b\1\0\0\0\4root"


def members_of(group: Content) -> dict[bytes, Content]:
    assert isinstance(group, Group)
    return {b"/".join(member.name): member.content for member in group.members()}


def root_of(container: Container) -> Content:
    return members_of(container.root)[b"root"]


def document_of(container: Container) -> Any:
    document = members_of(container.root)[b"document"]
    assert isinstance(document, Document)
    return document.value()


def opened_v1(node: bytes) -> Container:
    return open_bytes(V1 + node)


def faults_of(data: bytes) -> list[Fault]:
    return list(open_bytes(data).check())


def value_of(content: Content) -> Any:
    """A content as the value that an expected.json has for it."""
    if isinstance(content, Group):
        return {as_text(member.name[0]): value_of(member.content) for member in content.members()}
    if isinstance(content, Array):
        assert isinstance(content.shape, tuple)
        return np.frombuffer(content.data.whole(), content.dtype).reshape(content.shape).tolist()
    if isinstance(content, Text):
        return as_text(content.data.whole())
    if isinstance(content, Document):
        return content.value()
    if isinstance(content, Null):
        return None
    assert isinstance(content, Scalar)
    return content.value


def as_text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def expected_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.with_name(path.name + ".expected.json").read_text())
    return found


def values(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for JSON-like values with 64-bit integers and these ``numbers``."""
    return st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | numbers | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
        max_leaves=15,
    )
