"""iKv documents that are large, damaged or hostile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from writers.ikv import (
    ARRAY,
    INTEGER,
    OBJECT,
    Typed,
    ikv1,
    ikv2,
    ikv2_of,
    varint,
    write_ikv1,
)
from writers.ikv import node as node_bytes

from glassfs.content.allowance import LEAST, held
from glassfs.content.allowance import OBJECT as OBJECT_COST
from glassfs.errors import GlassfsError, Refused
from glassfs.formats.ikv.values import LARGEST_RENDERING, LARGEST_VALUE
from glassfs.formats.registry import open_container
from glassfs.view.json import render
from tests.conftest import ROOT
from tests.formats.exercise import peak_memory
from tests.formats.ikv_files import (
    V1,
    document_of,
    faults_of,
    members_of,
    opened_v1,
    root_of,
    value_of,
    values,
)
from tests.helpers import local, omitted_in, open_bytes, open_path, opening


@pytest.mark.slow
@pytest.mark.parametrize("node", [
    b"\6\0" + varint(10_000_000) + bytes(10_000_000),
    b"\6\5" + varint(3_000_000) + b"\5\0" * 3_000_000,
    b"\6\3" + varint(6_000_000) + bytes(48_000_000),
    b"\1" + varint(70_000_000) + b"x" * 70_000_000,
    b"\6\0\1" * 250 + b"\6\0" + varint(300_000) + bytes(300_000),  # mostly indent
], ids=["nulls", "objects", "doubles", "string", "indent"])
def test_too_large_documents_are_refused_in_bounded_memory(node: bytes, tmp_path: Path) -> None:
    path = tmp_path / "large.ikv"
    path.write_bytes(V1 + node)
    script = r"""if True:
        import re, sys
        from glassfs.errors import TooLarge
        from tests.formats.ikv_files import document_of
        from tests.helpers import open_path
        try:
            document_of(open_path(sys.argv[1]))
        except TooLarge:
            with open("/proc/self/status") as status:
                print(int(re.search(r"VmHWM:\s+(\d+)", status.read())[1]) >> 10)
    """
    peak = subprocess.check_output([sys.executable, "-c", script, str(path)], cwd=ROOT, text=True)
    assert int(peak) < 250


MANY = 3000
COSTLY = {
    "nulls": b"\6\0" + varint(MANY) + bytes(MANY),
    "objects": b"\6\5" + varint(MANY) + b"\5\0" * MANY,
    "members": b"\6\5" + varint(MANY) + b"\5\1\0\0" * MANY,
    "keys": b"\5" + varint(MANY) + b"".join(b"\4%04x\0" % number for number in range(MANY)),
    "levels": b"\6\5" + varint(12) + (b"\5\1\0" * 249 + b"\5\0") * 12,
    "nulls inside": b"\6\0\1" * 250 + b"\6\0" + varint(MANY) + bytes(MANY),
    "integers": b"\6\2" + varint(MANY) + (b"\xff" * 9 + b"\1") * MANY,
    "strings": b"\6\1" + varint(MANY) + b"".join(b"\2%02x" % (number & 0xFF) for number in range(MANY)),
    "escapes": b"\1" + varint(MANY * 8) + b"\1" * MANY * 8,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COSTLY)
def test_documents_take_no_more_memory_than_declared(name: str) -> None:
    """And declare no more than the limits allow, however much is stored."""
    for data in (V1 + COSTLY[name], ikv2_of([(b"k", COSTLY[name][0], COSTLY[name][1:])])):
        document = members_of(open_bytes(data).root)[b"document"]
        peak = peak_memory(lambda document=document: render(document.value()))
        assert len(render(document.value())) < peak <= document.cost
        assert document.cost <= LARGEST_VALUE + LARGEST_RENDERING * 5 // 4 + (1 << 20)


def test_the_cost_of_a_small_document_is_small() -> None:
    document = members_of(opened_v1(node_bytes({"soil": {"ph": [6.5, None, 7]}})).root)[b"document"]
    assert document.cost < 1 << 20


@pytest.mark.parametrize("count", [1, 5000, 300_000])
def test_integers_take_no_more_memory_than_declared(count: int) -> None:
    integers = members_of(root_of(open_bytes(ikv1({"a": np.arange(count) % 100}))))[b"a"].data
    ways = ((integers.whole, integers.cost), (lambda: sum(map(len, integers.pieces())), integers.stream_cost))
    for make, cost in ways:
        make()  # imports are not part of the cost
        assert peak_memory(make) <= cost <= 20 * 8 * count + (6 << 20)


def test_cached_integers_belong_to_one_file_version(tmp_path: Path) -> None:
    path = tmp_path / "a.ikv"
    write_ikv1(path, {"a": np.arange(1000)})
    source = local(path)
    array = members_of(root_of(open_container(opening(source))))[b"a"]
    assert array.data.key[0] == source.version
    assert source not in array.data.key


@pytest.mark.slow
def test_many_small_members_open_in_bounded_memory() -> None:
    count = 100_000
    data = V1 + bytes((OBJECT, 1)) + b"\1o" + bytes((OBJECT,)) + varint(count)
    data += b"".join(b"\4%04x\2\2" % (number & 0xFFFF) for number in range(count))
    found = []
    peak = peak_memory(lambda: found.extend(members_of(members_of(root_of(open_bytes(data)))[b"o"])))
    assert len(found) == 0x10000
    assert peak < 40 << 20


def test_too_many_members_are_omitted_with_a_reason(tmp_path: Path) -> None:
    count = 100_000
    (tmp_path / "many.ikv").write_bytes(ikv1({f"{number:06x}": None for number in range(count)}))
    container = open_path(tmp_path / "many.ikv", budget=1 << 20)
    root = root_of(container)
    listed = LEAST // (OBJECT_COST + held(b"123456"))
    assert sum(1 for _ in root.members()) == listed + 1
    reason = f"too many members: {count - listed} more are not listed; a larger cache_size allows more"
    assert omitted_in(root) == {"": reason}
    assert len(document_of(container)) == count


@given(st.dictionaries(st.text(max_size=150), values(st.floats(allow_nan=False)), max_size=8))
def test_what_is_written_is_read(value: dict[str, Any]) -> None:
    assert document_of(open_bytes(ikv1(value))) == value
    assert document_of(open_bytes(ikv2(value))) == value
    assert value_of(root_of(open_bytes(ikv2(value)))) == value
    assert faults_of(ikv1(value)) == faults_of(ikv2(value)) == []


def test_a_file_that_changes_after_opening_gives_no_other_error(tmp_path: Path) -> None:
    path = tmp_path / "a.ikv"
    write_ikv1(path, {"a": Typed(INTEGER, range(1000)), "o": {"p": 1}, "m": [1, None]})
    container = open_path(path)
    members = members_of(root_of(container))
    with path.open("r+b") as file:
        file.truncate(30)
    for read in (
        lambda: value_of(members[b"a"]), lambda: value_of(members[b"o"]), lambda: value_of(members[b"m"]),
        lambda: document_of(container),
    ):
        with pytest.raises(GlassfsError):
            read()


def test_damage_names_file_and_part() -> None:
    with pytest.raises(Refused) as caught:
        open_bytes(ikv1({"soil": "loam"})[:-1], "field.ikv")
    assert caught.value.source.endswith("/field.ikv")
    assert caught.value.part == "root"
    assert str(caught.value) == f"{caught.value.source}: root: {caught.value.reason}"
    container = open_bytes(ikv2_of([(b"soil", ARRAY, b"\0\2\0")]), "field.ikv")
    (fault,) = container.check()
    assert fault.place == "root/soil"
    assert "soil" not in fault.reason
