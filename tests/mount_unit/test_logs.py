"""What lines of the log look like, and that none of them makes logging raise. The kernel has no part in it."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glassfs.mount import logs
from tests.conftest import DATA

AWKWARD = "a\nb\rc\x1b[31md\x9be\u2028f\u202eg\x85h\udcffi\ud800j\tk"
SHOWN = r"a\nb\rc\x1b[31md\x9be\u2028f\u202eg\x85h\xffi\ud800j\tk"


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """As it was, afterwards."""
    root = logging.getLogger()
    handlers, level, raises = root.handlers[:], root.level, logging.raiseExceptions
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raises


def record(error: BaseException | None = None) -> logging.LogRecord:
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("glassfs", logging.ERROR, "file.py", 1, "%s is damaged", (AWKWARD,), exc_info)


def test_lines_of_a_traceback_cannot_pass_for_records() -> None:
    sentence = f"{AWKWARD}\n2026-01-01 00:00:00,000 ERROR forged\n<0>forged"
    try:
        raise ValueError(sentence)
    except ValueError as error:
        first, *rest = logs.LineFormatter().format(record(error)).split("\n")
    assert first == f"{SHOWN} is damaged"
    assert rest[0] == "    Traceback (most recent call last):"
    assert [line for line in rest if "forged" in line] == [
        "    2026-01-01 00:00:00,000 ERROR forged", "    <0>forged",
    ]
    assert all(line.isprintable() and line.startswith("    ") for line in rest)


def test_repeated_error_is_logged_again_after_ten_minutes() -> None:
    once, passed = logs.Once(), list[float]()
    for seconds in (0.0, 1.0, 599.0, 601.0, 602.0):
        fault = record()
        fault.created = 1e9 + seconds
        passed += [seconds] if once.filter(fault) else []
    assert passed == [0.0, 601.0]
    for number in range(3000):
        once.filter(logging.LogRecord("x", logging.ERROR, "f", 1, f"block {number}", (), None))
    assert len(once._logged.items()) <= 1000


def test_stderr_takes_all_text_in_any_locale(tmp_path: Path) -> None:
    script = "from glassfs.mount import logs; import logging; logs.configure(None, False); logging.error('é \\udcff')"
    variables = os.environ | {"PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", script], env=variables, capture_output=True, check=False)
    assert done.returncode == 0
    assert done.stderr.endswith(rb" ERROR \xe9 \xff" + b"\n")
    assert done.stderr.count(b"\n") == 1


def test_syslog_gets_one_line_if_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = tmp_path / "log"
    monkeypatch.setattr(logs, "SYSLOG", str(address))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(address))
        channel.settimeout(20)
        logs.configure(None, is_daemon=True)
        logging.getLogger("glassfs.test").error("%s", AWKWARD)
        assert channel.recv(4096).rstrip(b"\0").decode() == f"<11>glassfs[{os.getpid()}]: {SHOWN}"
    for _ in range(2):  # nobody listens there, and nothing is there
        logs.configure(None, is_daemon=True)
        logging.getLogger("glassfs.test").error("nobody hears that")
        address.unlink(missing_ok=True)


def test_log_that_cannot_be_written_hurts_nobody(tmp_path: Path) -> None:
    script = (
        "from glassfs.mount import logs; import logging, resource, signal\n"
        f"logs.configure({str(tmp_path / 'log')!r}, True)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "for number in range(3): logging.error('the disk is full')\nlogging.shutdown(); print('goes on')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("goes on\n", "")


@pytest.mark.parametrize("name", ["log", "log-\udcff"])
def test_log_takes_all_text_after_what_it_has_and_is_never_reached_through_a_link(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("before\n")
    logs.configure(str(path), is_daemon=True)
    logging.getLogger("glassfs.test").error("%s", AWKWARD)
    first, second = path.read_bytes().decode().splitlines()
    assert first == "before" and second.endswith(f" ERROR {SHOWN}")
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="is a symbolic link; name a file"):
        logs.configure(str(tmp_path / "link"), is_daemon=True)


def test_rotated_log_is_begun_again_in_its_folder(tmp_path: Path) -> None:
    """What somebody else put in its place stays, and the renamed file gets the lines meanwhile."""
    folder = tmp_path / "logs"
    folder.mkdir()
    logs.configure(str(folder / "log"), is_daemon=True)
    log = logging.getLogger("glassfs.test")
    log.error("one")
    (folder / "log").rename(folder / "log.1")
    (tmp_path / "victim").write_text("mine\n")
    (folder / "log").symlink_to(tmp_path / "victim")
    log.error("two")
    (folder / "log").unlink()
    folder.rename(tmp_path / "moved")
    folder.mkdir()
    log.error("three")
    said = [[line[-3:] for line in (tmp_path / "moved" / name).read_text().splitlines()] for name in ("log.1", "log")]
    assert said == [["one", "two"], ["ree"]]
    assert (tmp_path / "victim").read_text() == "mine\n" and not list(folder.iterdir())


def test_no_container_becomes_a_log(tmp_path: Path) -> None:
    """Of every format: a name of a container may be typed in place of that of a log."""
    suffixes = ".idv", ".ikv", ".kas", ".kdb", ".safetensors", ".wshard"
    samples = {path.suffix: path for path in sorted(DATA.glob("*/*")) if path.suffix in suffixes and path.is_file()}
    assert samples.keys() == set(suffixes)
    for suffix, sample in samples.items():
        path = tmp_path / f"run{suffix}"
        path.write_bytes(sample.read_bytes())
        with pytest.raises(OSError, match="is not a log, as it is not text; name another file"):
            logs.configure(str(path), is_daemon=True)
        assert path.read_bytes() == sample.read_bytes()
