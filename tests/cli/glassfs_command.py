"""Run the command line in this process, or in one of its own if the test requires it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from glassfs.cli import execute

OWN_PROCESS = {"--jobs", "--scheduler"}
"""Options that start worker processes, which import the main module."""


class Done:
    """Exit status, standard output as bytes, and the lines of standard error."""

    def __init__(self, status: int, output: bytes, errors: bytes) -> None:
        self.status = status
        self.output = output
        self.raw_errors = errors
        self.errors = errors.decode().splitlines()

    @property
    def lines(self) -> list[str]:
        return self.output.decode().splitlines()


def glassfs(*arguments: str | Path, **environment: str) -> Done:
    """Run a command, in a process of its own if it has an ``environment``, worker processes or a signed URL."""
    words = [str(argument) for argument in arguments]
    if environment or OWN_PROCESS & set(words) or any("://" in word and "?" in word for word in words):
        command = [sys.executable, "-m", "glassfs", *words]
        done = subprocess.run(command, capture_output=True, check=False, env=os.environ | {"TZ": "UTC"} | environment)
        return Done(done.returncode, done.stdout, done.stderr)
    written = io.BytesIO(), io.BytesIO()
    output, errors = (io.TextIOWrapper(one, "utf-8", "backslashreplace", newline="") for one in written)
    with mock.patch.dict(os.environ, TZ="UTC"), redirect_stdout(output), redirect_stderr(errors):
        time.tzset()
        status = execute(words)
    time.tzset()
    output.flush()
    errors.flush()
    return Done(status, *(one.getvalue() for one in written))


def fails(done: Done, message: str, status: int = 1) -> None:
    """Assert that a command printed nothing but one error, and its exit status."""
    assert (done.errors, done.output, done.status) == ([f"glassfs: {message}"], b"", status)
