"""Files of layouts, and the expressions in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.layouts.expressions import parse
from glassfs.layouts.form import LayoutError, read
from glassfs.layouts.known import BUILT_IN, chosen

GOOD = """name = "mine"
match = ["a/*"]
[episodes]
whole = true
[steps]
count = "a/b"
"""


@pytest.mark.parametrize(("wrong", "line", "reason"), [
    ("nam = 1\n" + GOOD, 1, "unknown key 'nam'"),
    (GOOD + "[rolls]\naction = 'a'\n", 7, "unknown key 'rolls'"),
    (GOOD + "[roles]\nactions = 'a'\n", 8, "unknown key 'actions'; known here are action, state, reward"),
    (GOOD + "[columns]\nsucces = '@a'\n", 8, "unknown key 'succes'"),
    (GOOD + "[columns]\nsuccess = ['sum(']\n", 8, "a value is missing"),
    (GOOD + "[columns]\nsuccess = 'mean(a)'\n", 8, "there is no function 'mean'"),
    (GOOD + "[columns]\nsuccess = 'any(3)'\n", 8, "takes a path"),
    (GOOD + "[columns]\nsuccess = {when = 'a'}\n", 8, "a condition has the texts"),
    (GOOD + "[columns]\nsplits = 'keys(mask)'\n", 8, "takes a pattern in quotes"),
    (GOOD + "[cameras]\nnames = {'a(' = 'b'}\n", 8, "unterminated"),
    (GOOD + "[cameras]\nnames = {'a' = '{1}'}\n", 8, "refers to a group"),
    (GOOD.replace("whole = true", "whole = false"), 4, "can only be true"),
    (GOOD.replace("whole = true", "each = 'demo'"), 4, "must be one path with {number}"),
    (GOOD.replace("whole = true", "whole = true\nlast = 'a'"), 5, "exactly one of each, whole"),
    (GOOD.replace("whole = true", "omit = 'a'"), 3, "exactly one of each, whole"),
    (GOOD.replace('"a/*"', '"../a"'), 2, "cannot be a path"),
    (GOOD.replace('["a/*"]', "[]"), 2, "needs paths to match"),
    (GOOD.replace('"a/b"', '"a/*"'), 6, "without wildcards"),
    (GOOD.replace('"mine"', '"My layout"'), 1, "needs a name"),
    ("episodes = 3\n" + GOOD.replace("[episodes]\nwhole = true\n", ""), 1, "[episodes] must be a table"),
])
def test_wrong_layouts_are_refused_with_their_line(wrong: str, line: int, reason: str) -> None:
    with pytest.raises(LayoutError) as caught:
        read(wrong.encode(), "mine.toml")
    assert str(caught.value).startswith(f"mine.toml:{line}: ") and reason in str(caught.value)


@pytest.mark.parametrize("wrong", [b"\xff", b"name = ", b"[" * 5000, b" " * ((1 << 20) + 1)])
def test_what_is_no_toml_is_refused(wrong: bytes) -> None:
    with pytest.raises(LayoutError, match=r"mine\.toml: is "):
        read(wrong, "mine.toml")


def test_layouts_of_glassfs_are_read_in_their_order() -> None:
    assert [known.layout.name for known in chosen() if known.origin == "glassfs"] == list(BUILT_IN)


class Known:
    """An episode with a few values."""

    def attribute(self, level: int, name: str) -> Any:
        return {(0, "good"): True, (1, "args"): '{"a": {"b": 5}}', (-1, "rate"): 30.0}.get((level, name))

    def content(self, level: int, path: str) -> Any:
        return {(0, "rewards"): np.array([0.0, 2.0, 1.0]), (-1, "task"): ["pick", "up"]}.get((level, path))

    def lists(self, pattern: str) -> list[str] | None:
        return ["train"] if pattern == "mask/*" else None


@pytest.mark.parametrize(("text", "value"), [
    ("@good", True), ("../@args:a.b", 5), ("../@args:a.c", None), ("/@rate", 30.0), ("@none", None), ("3", 3),
    ("-2.5e1", -25.0), ("true", True), ("'a b'", "a b"), ("sum(rewards)", 3.0), ("len(rewards)", 3),
    ("first(rewards)", 0.0), ("last( rewards )", 1.0), ("any(rewards > 1)", True), ("all(rewards>=1)", False),
    ("sum(rewards) = 3", True), ("../@args:a.b != 5", False), ("/task", ["pick", "up"]), ("len(/task)", 2),
    ("sum(/task)", None), ("keys('mask/*')", ["train"]), ("keys('other')", None), ("@good < 'a'", None),
    ("any(none)", None),
])
def test_expressions_have_values(text: str, value: Any) -> None:
    assert parse(text).value(Known()) == value


@given(st.text(alphabet="ab(),@:./'=<>! 3*é", max_size=20))
def test_every_text_is_an_expression_or_refused(text: str) -> None:
    try:
        expression = parse(text)
    except ValueError:
        return
    expression.value(Known())
