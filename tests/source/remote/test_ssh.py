"""SFTP and FTP against real servers: OpenSSH's and rclone's."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from glassfs import threads
from glassfs.errors import Changed, DeviceFailed, NotAllowed, NotFound
from glassfs.source.remote.fsspecs import FsspecServer
from glassfs.source.remote.server import Facts
from glassfs.source.remote.url import Connection
from tests.conftest import Scale
from tests.optional import package
from tests.remote import servers
from tests.source.remote.helpers import check_reads, listed, server

paramiko = package("paramiko")

from paramiko.sftp import CMD_DATA, CMD_NAME, CMD_READDIR, CMD_STATUS  # noqa: E402

from glassfs.source.remote.ssh import REQUEST_BYTES, SftpSession, connected  # noqa: E402

DATA = random.Random(5).randbytes(300_000)


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Ssh]:
    with servers.sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty ~/.ssh: no keys, no known hosts."""
    folder = tmp_path / "home/.ssh"
    folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return folder


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.kdb").write_bytes(DATA)
    (folder / "empty").touch()
    (folder / "link").symlink_to("a.kdb")
    (folder / "new\nline").write_bytes(b"n")
    os.mkfifo(folder / "fifo")
    return folder


def reached(home: Path, sshd: servers.Ssh, **extra: object) -> FsspecServer:
    """The server, whose key is known."""
    (home / "known_hosts").write_text(sshd.known_hosts.read_text())
    options = Connection(timeout=60, extra={"key_filename": str(sshd.key), **extra})
    return server(f"sftp://{sshd.user}@127.0.0.1:{sshd.port}", options)


def test_ssh_lists_and_reads(sshd: servers.Ssh, home: Path, files: Path, scale: Scale) -> None:
    found = reached(home, sshd)
    path = files.parts[1:]
    names = listed(found, path)
    assert {name: facts and facts.size for name, facts in names.items()} == {
        "a.kdb": len(DATA), "empty": 0, "sub": None, "new\nline": 1,
    }
    assert names["a.kdb"] == Facts(len(DATA), "", int((files / "a.kdb").stat().st_mtime) * 10**9)
    check_reads(found, (*path, "a.kdb"), DATA, scale(50, 1000))
    assert (found.begin((*path, "empty"), 9) or pytest.fail())[1] == b""
    with pytest.raises(NotFound):
        found.list((*path, "nothing"))
    with pytest.raises(NotFound, match="is a folder"):
        found.begin((*path, "sub"), 1)
    Path(os.fsdecode(bytes(files) + b"/latin\xe9")).touch()
    with pytest.raises(DeviceFailed, match="UnicodeDecodeError"):
        found.list(path)
    found.close()


@pytest.mark.parametrize("known", ["", "another"])
def test_ssh_refuses_unknown_hosts(sshd: servers.Ssh, home: Path, files: Path, known: str) -> None:
    found = reached(home, sshd, host_key_policy="auto_add")
    another = sshd.key.with_suffix(".pub").read_text()
    (home / "known_hosts").write_text(f"[127.0.0.1]:{sshd.port} {another}" if known else "")
    with pytest.raises(NotAllowed, match=r"^sftp://127\.0\.0\.1:\d+/x: its host key"):
        found.begin(("x",), 1)


def test_ssh_without_a_key_is_denied(sshd: servers.Ssh, home: Path) -> None:
    (home / "known_hosts").write_text(sshd.known_hosts.read_text())
    with pytest.raises(NotAllowed, match="the host accepts no key of yours"):
        server(f"sftp://127.0.0.1:{sshd.port}").begin(("x",), 1)


def test_ssh_without_a_server_fails(home: Path) -> None:
    with pytest.raises(DeviceFailed, match="NoValidConnectionsError"):
        server(f"sftp://127.0.0.1:{servers.free_port()}", Connection(timeout=1)).begin(("x",), 1)


def test_ssh_replaced_file_is_changed(sshd: servers.Ssh, home: Path, files: Path) -> None:
    found = reached(home, sshd)
    path = (*files.parts[1:], "a.kdb")
    facts, _ = found.begin(path, 10) or pytest.fail()
    (files / "new").write_bytes(DATA[::-1])
    os.utime(files / "new", (1, 1))
    (files / "new").rename(files / "a.kdb")
    with pytest.raises(Changed):
        found.fetch(path, 5, 10, facts).result()
    other, first = found.begin(path, 10, facts) or pytest.fail()
    assert first == DATA[::-1][:10]
    os.truncate(files / "a.kdb", 7)
    with pytest.raises(Changed):
        found.fetch(path, 5, 10, other).result()


def test_ssh_reconnects_after_a_lost_connection(sshd: servers.Ssh, home: Path, files: Path) -> None:
    found = reached(home, sshd)
    path = (*files.parts[1:], "a.kdb")
    facts, _ = found.begin(path, 10) or pytest.fail()
    found._idle[0][1].client.get_transport().sock.close()
    assert found.fetch(path, 5, 10, facts).result() == DATA[5:15]


@pytest.mark.parametrize("url", ["sftp", "ftp"])
def test_silent_server_times_out(home: Path, url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = server(f"{url}://127.0.0.1:{silent.getsockname()[1]}", Connection(timeout=0.3))
        answers = [found.fetch(("x",), 0, 1, Facts(1, "", 1)) for _ in range(6)]
        for answer in answers:
            with pytest.raises(DeviceFailed):
                answer.result()


class OddAnswers(SftpSession):  # type: ignore[misc]
    """A session whose answers come in any order, with as many bytes as ``lengths`` says, and eventually none."""

    def __init__(self, lengths: Iterator[int]) -> None:
        self.lengths = lengths
        self.handle = b"handle"
        self.requests: list[tuple[int, int]] = []

    def open(self, key: str, bufsize: int = -1) -> Any:
        return nullcontext(self)

    def _async_request(self, answers: Any, kind: int, handle: bytes, offset: Any, length: int) -> int:
        self.requests.append((len(self.requests), int(offset)))
        return len(self.requests) - 1

    def _read_response(self) -> None:
        number, offset = self.requests.pop(random.randrange(len(self.requests)))
        data = DATA[offset : offset + next(self.lengths, 0)]
        message = paramiko.Message()
        message.add_string(data)
        message.rewind()
        self._async_response(CMD_DATA if data else CMD_STATUS, message, number)

    def _convert_status(self, message: Any) -> None:
        raise EOFError


def test_ssh_answers_of_another_length_are_not_joined() -> None:
    for start in range(0, 200_001, 40_000):
        good, odd = repeat(REQUEST_BYTES), iter((REQUEST_BYTES - 1, REQUEST_BYTES + 1))
        size = 3 * REQUEST_BYTES
        assert OddAnswers(good).read_range("x", start, size) == DATA[start : start + size]
        assert OddAnswers(odd).read_range("x", start, size - REQUEST_BYTES) == b""
        assert OddAnswers(iter((REQUEST_BYTES,))).read_range("x", start, size) == b""


class Endless(paramiko.SFTPServer):  # type: ignore[misc]
    """Sends parts of a listing without entries, for ever."""

    def _process(self, kind: int, number: int, message: Any) -> None:
        if kind == CMD_READDIR:
            answer = paramiko.Message()
            answer.add_int(number)
            answer.add_int(0)
            self._send_packet(CMD_NAME, answer)
        else:
            super()._process(kind, number, message)


class Folder(paramiko.SFTPServerInterface):  # type: ignore[misc]
    def list_folder(self, path: str) -> list[Any]:
        return []


class Anyone(paramiko.ServerInterface):  # type: ignore[misc]
    def check_auth_password(self, username: str, password: str) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, number: int) -> int:
        return paramiko.OPEN_SUCCEEDED


def test_ssh_listing_without_end_is_given_up(home: Path) -> None:
    """Nothing goes on after it."""
    key = paramiko.RSAKey.generate(2048)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        (home / "known_hosts").write_text(f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n")

        def serve() -> None:
            transport = paramiko.Transport(listening.accept()[0])
            transport.add_server_key(key)
            transport.set_subsystem_handler("sftp", Endless, Folder)
            transport.start_server(server=Anyone())

        threads.start("server", serve)
        session = connected("127.0.0.1", 2.0, port=port, password="any")
        with session.client, pytest.raises(DeviceFailed, match="its listing does not end"):
            list(session.ls("/folder"))


def test_ssh_accepts_a_password_from_programs(home: Path, files: Path, tmp_path: Path) -> None:
    """Against rclone's server, which has passwords."""
    user, password = servers.CREDENTIALS["AWS_ACCESS_KEY_ID"], servers.CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
    (files / "fifo").unlink()
    with servers.rclone("sftp", files, tmp_path / "rclone") as port:
        with paramiko.Transport(("127.0.0.1", port)) as transport:
            transport.start_client(timeout=60)
            key = transport.get_remote_server_key()
        (home / "known_hosts").write_text(f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n")
        found = server(f"sftp://{user}@127.0.0.1:{port}", Connection(timeout=60, extra={"password": password}))
        assert {"a.kdb", "sub"} <= listed(found, ()).keys()
        check_reads(found, ("a.kdb",), DATA, 20)
        found.close()
        with pytest.raises(NotAllowed) as caught:
            server(f"sftp://{user}@127.0.0.1:{port}", Connection(timeout=60, extra={"password": "wrong"})).list(())
        assert "wrong" not in str(caught.value)
