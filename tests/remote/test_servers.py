"""Each server that the tests start serves a range, and is gone afterwards. (moto: `test_s3.py`.)"""

from __future__ import annotations

import base64
import ftplib
import http.client
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.optional import package
from tests.remote import servers
from tests.remote.proxy import Proxy

CONTENT = bytes(range(256)) * 400
WANTED = CONTENT[1000:2000]
NAME = "ä b.kdb"
QUOTED = "%C3%A4%20b.kdb"


@pytest.fixture
def served(tmp_path: Path) -> Path:
    folder = tmp_path / "served"
    (folder / "deeper").mkdir(parents=True)
    (folder / NAME).write_bytes(CONTENT)
    (folder / "deeper/other").write_bytes(b"other")
    return folder


def get_range(
    port: int, path: str, headers: dict[str, str] | None = None, context: ssl.SSLContext | None = None,
) -> tuple[http.client.HTTPResponse, bytes]:
    made = http.client.HTTPConnection("127.0.0.1", port, timeout=60) if context is None else (
        http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
    )
    with closing(made) as connection:
        connection.request("GET", path, headers={"Range": "bytes=1000-1999", **(headers or {})})
        response = connection.getresponse()
        return response, response.read()


def is_listened_to(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def nothing_left() -> Iterator[None]:
    before = set(servers.descendants(os.getpid()))
    yield
    assert set(servers.descendants(os.getpid())) <= before


@pytest.mark.parametrize("kind", ["http", "webdav"])
def test_rclone_serves_a_folder(kind: str, served: Path, tmp_path: Path, nothing_left: None) -> None:
    with servers.rclone(kind, served, tmp_path / "rclone") as port:
        response, body = get_range(port, f"/{QUOTED}")
        assert (response.status, body) == (206, WANTED)
    assert not is_listened_to(port)


def test_rclone_serves_s3_with_signatures(served: Path, tmp_path: Path, nothing_left: None) -> None:
    with servers.rclone("s3", served, tmp_path / "rclone") as port, Proxy(port) as proxy:
        client = servers.S3(proxy.port).client()
        found = client.get_object(Bucket="deeper", Key="other")
        assert found["Body"].read() == b"other"
        assert get_range(port, "/deeper/other")[0].status in (400, 403)


def test_rclone_serves_sftp(served: Path, tmp_path: Path, nothing_left: None) -> None:
    paramiko = package("paramiko")

    user, password = (servers.CREDENTIALS[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    with servers.rclone("sftp", served, tmp_path / "rclone") as port, paramiko.SSHClient() as client:
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        client.connect("127.0.0.1", port, username=user, password=password, allow_agent=False, look_for_keys=False)
        with client.open_sftp() as sftp, sftp.open(f"/{NAME}") as file:
            file.seek(1000)
            assert file.read(1000) == WANTED


def test_rclone_serves_ftp(served: Path, tmp_path: Path, nothing_left: None) -> None:
    user, password = (servers.CREDENTIALS[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    received: list[bytes] = []
    with servers.rclone("ftp", served, tmp_path / "rclone") as port, ftplib.FTP(encoding="utf-8") as client:
        client.connect("127.0.0.1", port, timeout=60)
        client.login(user, password)
        client.retrbinary(f"RETR {NAME}", received.append, rest=1000)
    assert b"".join(received) == CONTENT[1000:]


def test_nginx_serves_ranges_with_etags_and_lists_folders(served: Path, tmp_path: Path, nothing_left: None) -> None:
    with servers.nginx(served, tmp_path / "nginx", autoindex=True) as web:
        response, body = get_range(web.port, f"/{QUOTED}")
        assert (response.status, body) == (206, WANTED)
        etag = response.headers["ETag"]
        assert get_range(web.port, f"/{QUOTED}", {"If-Match": etag})[0].status == 206
        assert get_range(web.port, f"/{QUOTED}", {"If-Match": '"other"'})[0].status == 412
        assert QUOTED.encode() in get_range(web.port, "/")[1]
    assert not is_listened_to(web.port)


def test_nginx_asks_for_a_password_and_speaks_tls(
    served: Path, tmp_path: Path, certificate: Path, nothing_left: None,
) -> None:
    context = ssl.create_default_context(cafile=str(certificate))
    with servers.nginx(served, tmp_path / "nginx", user=("me", "glass:1"), certificate=certificate) as web:
        assert web.url.startswith("https://")
        assert get_range(web.port, f"/{QUOTED}", context=context)[0].status == 401
        password = {"Authorization": f"Basic {base64.b64encode(b'me:glass:1').decode()}"}
        response, body = get_range(web.port, f"/{QUOTED}", password, context)
        assert (response.status, body) == (206, WANTED)
        with pytest.raises(ssl.SSLCertVerificationError):
            get_range(web.port, f"/{QUOTED}", context=ssl.create_default_context())


def test_sshd_serves_files_to_whoever_has_the_key(served: Path, tmp_path: Path, nothing_left: None) -> None:
    paramiko = package("paramiko")

    before = set(servers.descendants(os.getpid()))
    with servers.sshd(tmp_path / "sshd") as server:
        client = paramiko.SSHClient()
        client.load_host_keys(str(server.known_hosts))
        client.connect(
            "127.0.0.1", server.port, username=server.user, key_filename=str(server.key), allow_agent=False,
            look_for_keys=False,
        )
        with client.open_sftp().open(str(served / NAME)) as file:
            file.seek(1000)
            assert file.read(1000) == WANTED
        processes = {*servers.descendants(os.getpid())} - before
    # The connection was still open, and had a process of its own.
    assert len(processes) > 1
    assert not [number for number in processes if servers.is_alive(number)]
    client.close()
    assert not is_listened_to(server.port)


def test_what_is_missing_skips_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASSFS_REQUIRE_SERVERS", "1")
    with pytest.raises(pytest.fail.Exception, match="no-such-server is not installed"):
        servers.program("no-such-server")
    monkeypatch.delenv("GLASSFS_REQUIRE_SERVERS")
    with pytest.raises(pytest.skip.Exception, match="no-such-server is not installed"):
        servers.program("no-such-server")


def test_a_server_that_does_not_start_tells_why(tmp_path: Path, nothing_left: None) -> None:
    words = ["/bin/sh", "-c", "echo the reason >&2; exit 3"]
    with pytest.raises(AssertionError, match="the reason"), servers.running(
        lambda port: words, servers.speaks_http, tmp_path,
    ):
        pass
