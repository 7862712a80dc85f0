"""Run the S3 server of the tests in a separate process, with a delay for each request and a shared bandwidth.

``python -m benchmarks.server PATH`` serves a file or a folder until its standard input ends. It prints its URL, and
for each line of input the number of requests so far; the line ``reset`` starts a new count.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent.parent
DELAY = 0.05
BANDWIDTH = 100e6  # bytes per second
BUCKET = "benchmark"
RESET, COUNT = "reset", "count"
LIST, SENT = "LIST", "sent"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "glass", "AWS_SECRET_ACCESS_KEY": "see-through", "AWS_DEFAULT_REGION": "us-east-1",
}


class Server:
    """The server process and the URLs of the file or folder that it serves."""

    def __init__(self, process: subprocess.Popen[str], served: Path) -> None:
        self._process = process
        self._address: str = self._answer()
        slash = "/" if served.is_dir() else ""
        self.url = f"s3://{BUCKET}/{served.name}{slash}"
        self.web_url = f"{self._address}/{BUCKET}/{served.name}"

    def reset(self) -> None:
        """Start a new count."""
        self._say(RESET)

    def counts(self) -> Counter[str]:
        """Return the requests as LIST or by method, and the bytes of bodies as ``sent``."""
        return Counter(self._say(COUNT))

    @property
    def environment(self) -> dict[str, str]:
        """Return variables that lead programs to the server; for rclone it is the remote ``slow``."""
        rclone = {
            "RCLONE_CONFIG": os.devnull, "RCLONE_CONFIG_SLOW_TYPE": "s3", "RCLONE_CONFIG_SLOW_PROVIDER": "Other",
            "RCLONE_CONFIG_SLOW_ENDPOINT": self._address, "RCLONE_CONFIG_SLOW_ENV_AUTH": "true",
            "RCLONE_CONFIG_SLOW_LIST_VERSION": "2",
            "RCLONE_CONFIG_SLOW_REGION": CREDENTIALS["AWS_DEFAULT_REGION"],
        }
        return os.environ | CREDENTIALS | rclone | {"AWS_ENDPOINT_URL": self._address}

    def _say(self, word: str) -> Any:
        assert self._process.stdin is not None
        print(word, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise OSError("the server has ended")
        return json.loads(line)


@contextlib.contextmanager
def serving(path: Path) -> Iterator[Server]:
    """Yield a server of the file, or of all files in the folder, under their names."""
    command = [sys.executable, "-m", "benchmarks.server", path]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=SCRIPTS,
    ) as process:
        yield Server(process, path)
        # Popen closes the standard input, which ends the server.


def _serve(path: Path) -> None:
    sys.path.insert(0, str(SCRIPTS.parent))
    from tests.remote.requests import Request
    from tests.remote.s3 import Bucket, S3Server

    bucket = Bucket()
    if path.is_dir():
        bucket.put_folder(path, f"{path.name}/")
    else:
        bucket.put(path.name, path)

    def counted(requests: Sequence[Request]) -> Counter[str]:
        found = Counter(LIST if request.is_listing else request.method for request in requests)
        found[SENT] = sum(request.sent for request in requests)
        return found

    with S3Server({BUCKET: bucket}, delay=DELAY, bandwidth=BANDWIDTH) as server:
        print(json.dumps(server.url), flush=True)
        for line in sys.stdin:
            if line.strip() == RESET:
                server.reset()
            print(json.dumps(counted(server.requests)), flush=True)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
