"""Real servers for tests, each on a free port of loopback: moto (S3), rclone and sshd.

Each is a context manager that is entered once the server answers, and leaves no process behind. Where a program is
missing the test is skipped, or fails if GLASSFS_REQUIRE_SERVERS=1 says that all of them have to be there. Their output
is in a log in the folder that they are given.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

import pytest

from tests.optional import without
from tests.remote.ports import LOCALHOST, free_port

if TYPE_CHECKING:
    from botocore.client import BaseClient

PATIENCE = 60.0
ATTEMPTS = 5
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "glass", "AWS_SECRET_ACCESS_KEY": "see-through", "AWS_DEFAULT_REGION": "us-east-1"}


def missing(reason: str) -> NoReturn:
    """Skips the test, or fails it if GLASSFS_REQUIRE_SERVERS=1."""
    if os.environ.get("GLASSFS_REQUIRE_SERVERS") == "1":
        pytest.fail(f"{reason}, and GLASSFS_REQUIRE_SERVERS=1")
    pytest.skip(reason)


def program(name: str) -> str:
    """The path of a program: of this Python's environment, or of the system, of which root's programs are part."""
    places = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        missing(without(name))
    return found


def begins_with(start: bytes, question: bytes = b"") -> Callable[[int], bool]:
    """Whether what a server says on its port, to this question, begins so."""

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
    """The processes that a process has started, and those that they have started."""
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
    """Ends a server and the processes that it has for single connections."""
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
    until = time.monotonic() + PATIENCE
    while any(map(is_alive, found)) and time.monotonic() < until:
        time.sleep(0.01)


def bound_to_this(words: Sequence[str | Path]) -> Sequence[str | Path]:
    """The command, that it may end with the tests also where they are killed."""
    setpriv = shutil.which("setpriv")
    return words if setpriv is None else [setpriv, "--pdeathsig", "TERM", "--", *words]


@contextmanager
def running(
    command: Callable[[int], Sequence[str | Path]], answers: Callable[[int], bool], folder: Path,
    environment: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """A server, given by its command for a port; yields the port on which it answers."""
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
            if wait_until(lambda port=port: answers(port), process):
                yield port
                return
        finally:
            end(process)
        # Somebody else may have taken the port.
        if attempt == ATTEMPTS:
            raise AssertionError(f"{words[0]} does not answer:\n{log.read_text(errors='replace')[-4000:]}")


def wait_until(is_true: Callable[[], bool], process: subprocess.Popen[bytes]) -> bool:
    """Whether it became true while the process lived."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and process.poll() is None:
        if is_true():
            return process.poll() is None
        time.sleep(0.02)
    return False


# S3


@dataclass(frozen=True)
class S3:
    """A server that speaks S3, with the credentials in CREDENTIALS."""

    port: int

    @property
    def url(self) -> str:
        return f"http://{LOCALHOST}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """For a program that shall find it."""
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": self.url}

    def client(self) -> BaseClient:
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3", endpoint_url=self.url, region_name=CREDENTIALS["AWS_DEFAULT_REGION"],
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            config=Config(s3={"addressing_style": "path"}),
        )

    def make_bucket(self, bucket: str, contents: Mapping[str, bytes | Path] | None = None) -> None:
        self.client().create_bucket(Bucket=bucket)
        self.put(bucket, contents or {})

    def put(self, bucket: str, contents: Mapping[str, bytes | Path]) -> None:
        client = self.client()
        for key, content in contents.items():
            if isinstance(content, Path):
                client.upload_file(str(content), bucket, key)
            else:
                client.put_object(Bucket=bucket, Key=key, Body=content)


@contextmanager
def moto(folder: Path) -> Iterator[S3]:
    """moto's server. All is in its memory; it takes seconds to start."""
    command = program("moto_server")
    with running(lambda port: [command, "-H", LOCALHOST, "-p", str(port)], speaks_http, folder) as port:
        yield S3(port)


# rclone


@contextmanager
def rclone(kind: Literal["s3", "http", "webdav", "sftp", "ftp"], served: Path, folder: Path) -> Iterator[int]:
    """``rclone serve`` over a folder; of ``s3`` the folders in it are the buckets. Yields its port.

    ``s3``, ``sftp`` and ``ftp`` want the key (as the user's name) and the secret (as the password) of CREDENTIALS.
    """
    command = program("rclone")
    key, secret = CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
    password = ["--user", key, "--pass", secret]
    words = {"s3": ["--auth-key", f"{key},{secret}"], "sftp": password, "ftp": password}.get(kind, [])
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
    """A certificate for 127.0.0.1 and localhost that nobody but itself has signed, in one file with its key."""
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
    """The private key that opens it."""
    known_hosts: Path
    """The public key of the server, as ssh wants it."""


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
    """OpenSSH's server, which gives whoever has the key the whole file system over sftp, as the user of the test."""
    command = program("sshd")
    # Only root can see whether an account is locked; for others it is, unless PAM is asked.
    pam = "no" if os.getuid() == 0 else "yes"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("host_key", "user_key"):
        (folder / name).unlink(missing_ok=True)
        words = ["-q", "-t", "ed25519", "-N", "", "-f", folder / name]
        subprocess.run([program("ssh-keygen"), *words], check=True, capture_output=True)
    if os.getuid() == 0:
        # The system makes it when it starts the service, which does not run.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)

    def configured(port: int) -> Sequence[str | Path]:
        config = folder / "sshd_config"
        config.write_text(SSHD.format(folder=folder, pam=pam, address=LOCALHOST, port=port))
        return [command, "-D", "-e", "-f", config]

    with running(configured, speaks_ssh, folder) as port:
        known = folder / "known_hosts"
        known.write_text(f"[{LOCALHOST}]:{port} {(folder / 'host_key.pub').read_text()}")
        yield Ssh(port, pwd.getpwuid(os.getuid()).pw_name, folder / "user_key", known)
