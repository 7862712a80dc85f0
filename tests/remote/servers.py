"""Real servers for tests, each on a free port of loopback: moto (S3), rclone and sshd.

Each is a context manager that is entered once the server answers, and leaves no process behind. If a program is
missing, the test is skipped, or fails with GLASSFS_REQUIRE_SERVERS=1. Servers log to the folder that they are given.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import pytest

from glassfs.cache import BlockCache
from glassfs.source import Connection, Store, locate
from tests.optional import without
from tests.remote.ports import LOCALHOST, free_port
from tests.waiting import wait_until

ATTEMPTS = 5
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "glass", "AWS_SECRET_ACCESS_KEY": "see-through", "AWS_DEFAULT_REGION": "us-east-1"}


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail it with GLASSFS_REQUIRE_SERVERS=1."""
    if os.environ.get("GLASSFS_REQUIRE_SERVERS") == "1":
        pytest.fail(f"{reason}, and GLASSFS_REQUIRE_SERVERS=1")
    pytest.skip(reason)


def program(name: str) -> str:
    """Return the path of a program, of this Python's environment or of the system, root's included."""
    places = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        missing(without(name))
    return found


def begins_with(start: bytes, question: bytes = b"") -> Callable[[int], bool]:
    """Return a function of a port: whether the server's answer to ``question`` begins so."""

    def answers(port: int) -> bool:
        try:
            with socket.create_connection((LOCALHOST, port), timeout=5) as connection:
                connection.sendall(question)
                return connection.recv(len(start), socket.MSG_WAITALL) == start
        except OSError:
            return False

    return answers


speaks_http = begins_with(b"HTTP/", b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
speaks_ftp = begins_with(b"220 ")
speaks_ssh = begins_with(b"SSH-2.0-")


def descendants(process: int) -> list[int]:
    """Return the processes that a process has started, directly or indirectly."""
    found, numbers = [], [process]
    for number in numbers:
        try:
            children = [each.read_text() for each in Path(f"/proc/{number}/task").glob("*/children")]
        except OSError:
            continue
        new = [int(word) for word in " ".join(children).split()]
        found += new
        numbers += new
    return found


def is_alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def end(process: subprocess.Popen[bytes]) -> None:
    """End a server and the processes that it started for connections."""
    found = descendants(process.pid)
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for number in found:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, found)))


def bound_to_this(words: Sequence[str | Path]) -> Sequence[str | Path]:
    """Return the command, changed so that the server ends even if the tests are killed."""
    setpriv = shutil.which("setpriv")
    return words if setpriv is None else [setpriv, "--pdeathsig", "TERM", "--", *words]


@contextmanager
def running(
    command: Callable[[int], Sequence[str | Path]], answers: Callable[[int], bool], folder: Path,
    environment: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """Run a server, given by its command for a port; yield the port once it answers."""
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, ATTEMPTS + 1):
        port = free_port()
        words = command(port)
        log = folder / f"{Path(words[0]).name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                bound_to_this(words), stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder,
                env={**os.environ, **(environment or {})},
            )
        try:
            wait_until(lambda port=port, process=process: process.poll() is not None or answers(port))
            if process.poll() is None:
                yield port
                return
        finally:
            end(process)
        # Another process may have taken the port.
        if attempt == ATTEMPTS:
            raise AssertionError(f"{words[0]} does not answer:\n{log.read_text(errors='replace')[-4000:]}")


# S3


@contextmanager
def moto(folder: Path) -> Iterator[str]:
    """Run moto's S3 server, which stores everything in memory and takes seconds to start; yield its URL."""
    command = program("moto_server")
    with running(lambda port: [command, "-H", LOCALHOST, "-p", str(port)], speaks_http, folder) as port:
        yield f"http://{LOCALHOST}:{port}"


# rclone


@contextmanager
def rclone(kind: Literal["http", "webdav", "sftp", "ftp"], served: Path, folder: Path) -> Iterator[int]:
    """Run ``rclone serve`` for a folder and yield its port.

    SFTP takes the key of CREDENTIALS as user and its secret as password; FTP takes any.
    """
    command = program("rclone")
    key, secret = CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
    words = ["--user", key, "--pass", secret] if kind == "sftp" else []
    own = {"RCLONE_CONFIG": str(folder / "none.conf"), "RCLONE_CACHE_DIR": str(folder / "cache")}
    with running(
        lambda port: [
            command, "serve", kind, served, "--addr", f"{LOCALHOST}:{port}", "--read-only", "--dir-cache-time", "0s",
            *words,
        ],
        {"sftp": speaks_ssh, "ftp": speaks_ftp}.get(kind, speaks_http), folder, own,
    ) as port:
        yield port


def make_certificate(folder: Path) -> Path:
    """Make a self-signed certificate for 127.0.0.1 and localhost, in one file with its key."""
    folder.mkdir(parents=True, exist_ok=True)
    key, certificate, both = folder / "key.pem", folder / "certificate.pem", folder / "both.pem"
    subprocess.run([
        program("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-days", "30", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
        "-keyout", key, "-out", certificate,
    ], check=True, capture_output=True)
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    return both


# sshd


@dataclass(frozen=True)
class Ssh:
    port: int
    user: str
    key: Path
    """The file of the user's private key."""
    known_hosts: Path
    """The file with the public key of the server."""


SSHD = """
ListenAddress {address}
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM {pam}
UseDNS no
MaxStartups 100
MaxSessions 100
PerSourceMaxStartups none
Subsystem sftp internal-sftp
ForceCommand internal-sftp
"""


@contextmanager
def sshd(folder: Path) -> Iterator[Ssh]:
    """Run OpenSSH's server, which serves the whole file system over SFTP as the user of the test."""
    command = program("sshd")
    # Only root can see whether an account is locked; to other users it seems so without PAM.
    pam = "no" if os.getuid() == 0 else "yes"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("host_key", "user_key"):
        (folder / name).unlink(missing_ok=True)
        words = ["-q", "-t", "ed25519", "-N", "", "-f", folder / name]
        subprocess.run([program("ssh-keygen"), *words], check=True, capture_output=True)
    if os.getuid() == 0:
        # The service would make it, but it does not run.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)

    def configured(port: int) -> Sequence[str | Path]:
        config = folder / "sshd_config"
        config.write_text(SSHD.format(folder=folder, pam=pam, address=LOCALHOST, port=port))
        return [command, "-D", "-e", "-f", config]

    with running(configured, speaks_ssh, folder) as port:
        known = folder / "known_hosts"
        known.write_text(f"[{LOCALHOST}]:{port} {(folder / 'host_key.pub').read_text()}")
        yield Ssh(port, pwd.getpwuid(os.getuid()).pw_name, folder / "user_key", known)


def store_of(
    name: str, cache: BlockCache | None = None, is_file: Callable[[str], bool] = lambda name: True,
    timeout: float = 20.0, **options: Any,
) -> Store:
    """Return the store of a URL, with a cache of blocks."""
    (found,) = locate([name], Connection(timeout=timeout, **options), is_file, cache=cache or BlockCache())
    return found.store
