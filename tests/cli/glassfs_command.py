"""Running the program as a person does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


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
    command = [sys.executable, "-m", "glassfs", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, check=False, env=os.environ | {"TZ": "UTC"} | environment)
    return Done(done.returncode, done.stdout, done.stderr)


def fails(done: Done, message: str, status: int = 1) -> None:
    """Nothing on the output, one line of errors, the exit status."""
    assert (done.errors, done.output, done.status) == ([f"glassfs: {message}"], b"", status)
