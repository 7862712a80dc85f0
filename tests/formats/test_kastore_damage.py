"""Damaged kastore stores: an error of glassfs, or arrays inside the file."""

from __future__ import annotations

import itertools
import struct

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from writers.kastore import TYPES

from glassfs.content import Array
from glassfs.errors import GlassfsError
from tests.formats.exercise import NUMBERS
from tests.formats.test_kastore import DESCRIPTOR, HEADER
from tests.helpers import open_bytes, walk


def survives(data: bytes) -> None:
    """Opens, lists, reads and verifies; only glassfs's own exceptions may come out."""
    try:
        container = open_bytes(data)
        for _, content in itertools.islice(walk(container.root), 500):
            if isinstance(content, Array):
                assert content.data.size <= len(data)
                content.data.whole()
    except GlassfsError:
        return
    for fault in itertools.islice(container.check(), 500):
        assert fault.reason
KEYS = st.one_of(st.binary(max_size=12), st.sampled_from([b"a", b"format/name", b"uuid", b"nodes/time"]))


@settings(max_examples=300)
@given(
    keys=st.lists(KEYS, max_size=6),
    kinds=st.lists(st.integers(0, 9), min_size=6, max_size=6),
    lengths=st.lists(
        st.one_of(st.integers(0, 20), st.sampled_from(NUMBERS), st.integers(0, 2**64 - 1)), min_size=6, max_size=6,
    ),
    tail=st.binary(max_size=300),
)
def test_generated_stores_with_lengths_that_lie(
    keys: list[bytes], kinds: list[int], lengths: list[int], tail: bytes,
) -> None:
    key_start = HEADER + DESCRIPTOR * len(keys)
    array_start = (key_start + sum(map(len, keys)) + 7) & ~7
    index = b""
    for key, kind, length in zip(keys, kinds, lengths, strict=False):
        index += struct.pack("<B7xQQQQ24x", kind, key_start, len(key), array_start & (2**64 - 1), length)
        key_start += len(key)
        end = array_start + length * np.dtype(TYPES[kind]).itemsize
        array_start = (end + 7) & ~7
    size = HEADER + len(index) + len(b"".join(keys)) + len(tail)
    survives(struct.pack("<8sHHIQ40x", b"\x89KAS\r\n\x1a\n", 1, 0, len(keys), size) + index + b"".join(keys) + tail)
