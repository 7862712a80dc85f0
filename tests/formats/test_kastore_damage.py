"""kastore stores with bytes that nobody wrote: an error of glassfs, or arrays that lie inside the file."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from writers.kastore import TYPES

from glassfs.content import Array
from glassfs.errors import GlassfsError
from tests.formats.test_kastore import DESCRIPTOR, HEADER, store
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


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("victims")
    plain = store({"a/b": np.arange(3, dtype="u1"), "c": np.arange(2.0), "d": np.array([], "i2")}, folder).read_bytes()
    return [plain, plain + plain + b"junk"]


EXTREME = st.sampled_from([2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 8, 2**64 - 1])
NUMBERS = st.one_of(st.integers(0, 300), EXTREME, st.integers(0, 2**64 - 1))
EDITS = st.lists(st.tuples(st.integers(0, 1 << 16), NUMBERS, st.sampled_from("BHIQ")), max_size=4)
KEYS = st.one_of(st.binary(max_size=12), st.sampled_from([b"a", b"format/name", b"uuid", b"nodes/time"]))


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choice=st.integers(0, 1), edits=EDITS)
def test_mutated_containers(victims: list[bytes], choice: int, edits: list[tuple[int, int, str]]) -> None:
    data = bytearray(victims[choice])
    for place, number, code in edits:
        size = struct.calcsize(code)
        struct.pack_into(f"<{code}", data, place % (len(data) - size), number & (256**size - 1))
    survives(bytes(data))


@settings(max_examples=300)
@given(
    keys=st.lists(KEYS, max_size=6),
    kinds=st.lists(st.integers(0, 9), min_size=6, max_size=6),
    lengths=st.lists(st.one_of(st.integers(0, 20), NUMBERS), min_size=6, max_size=6),
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
