"""Secrets that servers repeat: whole, in part and encoded, none of it is left in a message."""

from __future__ import annotations

import base64
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.errors import DeviceFailed, NotAllowed
from glassfs.source.remote.secrets import MOST_NOTED, PART, Secrets

TOKEN = "IQoJb3JpZ2luX2VjEJr/wEaCXVzLWVhc3QtMSJHMEUCIQDx+7r==&"


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize("said", [
    TOKEN, TOKEN.upper(), TOKEN[:20], TOKEN[7:15], TOKEN[-PART:], quote(TOKEN), quote(TOKEN, safe=""),
    quote_plus(TOKEN).lower(), TOKEN.replace("&", "&amp;"), b64(TOKEN),
    *(b64(f"{user}:{TOKEN}") for user in ("", "a", "me")),
    base64.urlsafe_b64encode(TOKEN.encode()).decode(),
])
def test_forms_of_secrets_are_cut(said: str) -> None:
    cut = Secrets((TOKEN,)).cut(f"before {said} after")
    assert cut.startswith("before ") and cut.endswith(" after") and "…" in cut
    kept = cut.removeprefix("before ").removesuffix(" after").replace("…", "")
    assert len(kept) < PART, "what is left at the edges of base64 depends on its neighbors, too"


@given(st.text(min_size=PART, max_size=80), st.data())
def test_no_long_part_of_a_secret_is_left(secret: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(secret) - PART))
    end = data.draw(st.integers(start + PART, len(secret)))
    said = data.draw(st.text(max_size=20)) + secret[start:end] + data.draw(st.text(max_size=20))
    cut = Secrets((secret,)).cut(said)
    assert not any(secret[at : at + PART] in cut for at in range(start, end - PART + 1))


def test_other_text_stays() -> None:
    secrets = Secrets((TOKEN, "", b"", None, 7, "p", "hunter2", {"more": ["nested one"]}))
    text = "access denied (HTTP 403, SignatureDoesNotMatch): check the credentials, IQoJb3J"
    assert secrets.cut(text) == text
    error = DeviceFailed(text, "s3://bucket/name")
    assert secrets.cut_from(error) is error
    assert secrets.cut("xhunter2x p up nested one") == "x…x … up …"
    found = secrets.cut_from(NotAllowed(f"said {TOKEN}", "s3://bucket", "part"))
    assert (type(found), str(found)) == (NotAllowed, "s3://bucket: part: said …")


def test_secrets_of_the_environment_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2024&sig=Zm9vYmFy")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    assert Secrets(()).cut("sig=Zm9vYmFy of AKIAIOSFODNN7EXAMPLE") == "… of AKIAIOSFODNN7EXAMPLE"


def test_queries_and_tokens_of_known_shapes_are_cut() -> None:
    secrets = Secrets((), "X-Amz-Signature=hunter2&X-Amz-Credential=me%2Fyou")
    assert secrets.cut("hunter2, me/you, X-Amz-Cred") == "…, …, …"
    assert secrets.cut("at https://me:pass@host/a?sig=1#x") == "at https://host/a"
    assert secrets.cut("Bearer eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiIx.c2ln, ya29.c.b0AXv0zTN") == "Bearer …, …"


def test_only_the_last_noted_secrets_are_kept() -> None:
    secrets = Secrets(())
    tokens = [f"{number:03}" * PART for number in range(MOST_NOTED + 1)]
    for token in (*tokens, *tokens[1:], None):
        secrets.note(token)
        assert token is None or secrets.cut(token) == "…"
    assert [secrets.cut(token) == "…" for token in tokens] == [False] + [True] * MOST_NOTED
