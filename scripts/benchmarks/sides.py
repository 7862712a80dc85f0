"""The sides of the comparison. Each mounts its form of a dataset anew and always unmounts it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.data import GLASSFS, Dataset
from benchmarks.server import BUCKET, Server, serving

TIMEOUT_SECONDS = 60.0
CHUNK = 4 << 20
STATUS = ".glassfs/status.json"
FLOOR = Path(__file__).with_name("floor.c")
URL, WEB_URL = "{URL}", "{WEB_URL}"
FULL = ("--vfs-cache-mode", "full")


@dataclass(frozen=True)
class Place:
    """A mounted tree below ``root``. ``daemon`` is the process that serves it, if any.

    ``status`` is the status file of a glassfs mount; ``server`` has the image if it is remote.
    """

    dataset: Dataset
    root: Path
    daemon: int | None = None
    mount_seconds: float = 0.0
    status: Path | None = None
    server: Server | None = None

    def cpu(self) -> float:
        """Return the daemon's processor time so far, in seconds."""
        if self.daemon is None:
            return 0.0
        return time.clock_gettime((~self.daemon << 3) | 2)  # clock_getcpuclockid(3)

    def memory(self) -> int:
        """Return the daemon's resident memory in bytes."""
        lines = Path(f"/proc/{self.daemon}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))

    def descriptors(self) -> int:
        """Return how many files the daemon has open."""
        return len(os.listdir(f"/proc/{self.daemon}/fd"))

    def bytes_read(self) -> int:
        """Return the bytes that the daemon has read so far, including a few for the kernel's requests."""
        return int(Path(f"/proc/{self.daemon}/io").read_text().split()[1])

    def blocks_decoded(self) -> int:
        """Return the cache misses of glassfs so far; 0 on other sides."""
        return int(json.loads(self.status.read_bytes())["cache"]["misses"]) if self.status else 0


class Side(ABC):
    """One way to access the data of a container."""

    name: str

    def missing(self) -> str | None:
        """Return why this side cannot be measured here, or None."""
        return None

    @abstractmethod
    def image(self, dataset: Dataset) -> Path:
        """Return the image that this side reads, creating it if necessary."""

    @abstractmethod
    def opened(self, dataset: Dataset, part: str = "") -> AbstractContextManager[Place]:
        """Yield the tree, with cold caches between it and the image, and the image in the page cache.

        Of an image that is a folder, only ``part`` need be in the page cache.
        """


class Unmounted(Side):
    """Files without a mount: ``plain`` is the exported tree, ``memory`` the container for an in-memory reference."""

    def __init__(self, name: str) -> None:
        self.name = name

    def image(self, dataset: Dataset) -> Path:
        return dataset.tree if self.name == "plain" else dataset.container

    @contextlib.contextmanager
    def opened(self, dataset: Dataset, part: str = "") -> Iterator[Place]:
        image = self.image(dataset)
        warm(image, part)
        yield Place(dataset, image)


class Mount(Side):
    """A FUSE file system that daemonizes. ``form`` names its image among those of a Dataset.

    ``status`` is the path of its status file in the mount, if it has one.
    """

    def __init__(self, name: str, form: str, program: str, *arguments: str, below: str = "", status: str = "") -> None:
        self.name = name
        self.form = form
        self.command = (program, *arguments)
        self.below = below
        self.status = status

    def missing(self) -> str | None:
        if not os.path.exists("/dev/fuse"):
            return "there is no /dev/fuse"
        wanted = [self.command[0]] + ["mksquashfs"] * (self.form == "squashfs")
        absent = [name for name in wanted if shutil.which(name) is None]
        return f"{' and '.join(map(os.path.basename, absent))} not installed" if absent else None

    def image(self, dataset: Dataset) -> Path:
        image: Path = getattr(dataset, self.form)
        return image

    @contextlib.contextmanager
    def opened(self, dataset: Dataset, part: str = "") -> Iterator[Place]:
        image = self.image(dataset)
        warm(image, part)
        with self.mounted(dataset, functools.partial(self.start, image)) as place:
            yield place

    @contextlib.contextmanager
    def mounted(
        self, dataset: Dataset, start: Callable[[Path], None], server: Server | None = None,
    ) -> Iterator[Place]:
        """Call ``start`` with a mount point and yield the tree when it is mounted."""
        point = Path(tempfile.mkdtemp(prefix="glassfs-benchmark-"))
        daemon: int | None = None
        try:
            begin = time.perf_counter()
            start(point)
            _wait(lambda: os.path.ismount(point), f"{self.name} does not mount")
            seconds = time.perf_counter() - begin
            daemon = _daemon_of(point)
            status = point / self.status if self.status else None
            yield Place(dataset, point / self.below, daemon, seconds, status, server)
        finally:
            unmount(point)
            if daemon is not None:
                _wait(lambda: not os.path.exists(f"/proc/{daemon}"), f"{self.name} does not end")
            point.rmdir()

    def start(self, image: Path, point: Path) -> None:
        subprocess.run([*self.command, image, point], check=True, stdout=subprocess.DEVNULL)


class RemoteMount(Mount):
    """A mount of an image on a slow server. ``arguments`` may contain the words URL and WEB_URL."""

    def __init__(
        self, name: str, form: str, program: str, *arguments: str, status: str = "", stays: bool = False,
    ) -> None:
        """``stays``: the program does not daemonize."""
        super().__init__(name, form, program, *arguments, status=status)
        self.stays = stays

    def image(self, dataset: Dataset) -> Path:
        image = super().image(dataset)
        status = image.stat()
        if status.st_blocks * 512 >= status.st_size:  # holes are read without a disk
            warm(image)
        return image

    @contextlib.contextmanager
    def opened(self, dataset: Dataset, part: str = "") -> Iterator[Place]:
        with serving(self.image(dataset)) as server, self.beside(dataset, server) as place:
            yield place

    def beside(self, dataset: Dataset, server: Server, *options: str) -> AbstractContextManager[Place]:
        """Mount the same server once more."""
        urls = {URL: server.url, WEB_URL: server.web_url}
        command = [urls.get(word, word) for word in (*self.command, *options)]
        if self.stays:
            command = ["sh", "-c", '"$@" &', "sh", *command]

        def start(point: Path) -> None:
            subprocess.run([*command, point], check=True, stdout=subprocess.DEVNULL, env=server.environment)

        return self.mounted(dataset, start, server)


class Served(Side):
    """Files of a slow server, without a mount."""

    name = "served"

    def image(self, dataset: Dataset) -> Path:
        return dataset.container

    @contextlib.contextmanager
    def opened(self, dataset: Dataset, part: str = "") -> Iterator[Place]:
        image = self.image(dataset)
        warm(image, part)
        with serving(image) as server:
            yield Place(dataset, image, server=server)


class Compiled(Mount):
    """A FUSE file system in C, compiled at first use. It needs a C compiler."""

    def __init__(self, name: str, form: str, source: Path) -> None:
        super().__init__(name, form, "cc", "-O2", "-o")
        self.source = source

    def missing(self) -> str | None:
        if os.geteuid() != 0:
            return "only root mounts without a library"
        return super().missing() or self._fault

    def start(self, image: Path, point: Path) -> None:
        subprocess.run([self.program, image, point], check=True, stdout=subprocess.DEVNULL)

    @cached_property
    def program(self) -> Path:
        """Return the path of the program, valid after ``missing`` returned None and until this process ends."""
        folder = tempfile.TemporaryDirectory(prefix="glassfs-benchmark-")
        atexit.register(folder.cleanup)
        return Path(folder.name) / self.source.stem

    @cached_property
    def _fault(self) -> str | None:
        """Compile it; return why that fails, or None."""
        english = os.environ | {"LC_ALL": "C"}
        command = (*self.command, self.program, self.source)
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=english)
        if done.returncode == 0:
            return None
        errors = [line for line in done.stderr.splitlines() if "error" in line] or [f"{self.command[0]} failed"]
        return f"{self.source.name} does not compile: {errors[0]}"


def _beside_python(program: str) -> str:
    """Return a program of this virtual environment, else of the PATH."""
    own = Path(sys.executable).with_name(program)
    return str(own) if own.exists() else program


IN_MEMORY = ("--foreground", "--index-file", ":memory:")
# The server's ETags are no checksums, and it has no times of rclone's own.
RCLONE = (
    _beside_python("rclone"), "mount", f"slow:{BUCKET}", "--daemon", "--read-only", "--use-server-modtime",
    "--no-checksum",
)

SIDES: dict[str, Side] = {
    side.name: side
    for side in (
        Mount("glassfs", "container", GLASSFS, "mount", status=STATUS),
        Unmounted("plain"),
        Mount("squashfuse_ll", "squashfs", "squashfuse_ll"),
        Mount("ratarmount", "tar", _beside_python("ratarmount")),
        Compiled("C server", "tree", FLOOR),
        Unmounted("memory"),
        RemoteMount("remote glassfs", "container", GLASSFS, "mount", URL, status=STATUS),
        RemoteMount("rclone", "container", *RCLONE),
        RemoteMount("rclone, full cache", "container", *RCLONE, *FULL),
        RemoteMount("remote ratarmount", "tar", _beside_python("ratarmount"), *IN_MEMORY, WEB_URL, stays=True),
        Served(),
    )
}


def warm(image: Path, part: str = "") -> None:
    """Read the file ``image``, or all files below ``part`` of the folder, into the page cache."""
    if image.is_dir():
        files = [os.path.join(folder, name) for folder, _, names in os.walk(image / part) for name in names]
    else:
        files = [os.fspath(image)]
    buffer = bytearray(CHUNK)
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer) == CHUNK:
                pass


def make_ready(size: int) -> None:
    """Touch ``size`` bytes of free memory, so that the next allocation is fast.

    A virtual machine may have returned free memory to its host. Getting 1 GiB of it back takes up to two seconds, which
    would be added to the time of a random side.
    """
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemFree"))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    mmap.mmap(-1, max(CHUNK, min(size, free * 3 // 4)), flags=flags).close()


def unmount(point: Path) -> None:
    """Unmount ``point`` if it is a mount point; lazily if it stays busy."""
    for attempt in range(50):
        if not os.path.ismount(point) and not _is_dead(point):
            return
        lazily = attempt > 30
        if os.geteuid() == 0:
            command = ["umount", *(["-l"] if lazily else []), str(point)]
        else:
            program = "fusermount3" if shutil.which("fusermount3") else "fusermount"
            command = [program, "-u", *(["-z"] if lazily else []), str(point)]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            time.sleep(0.1)


def _is_dead(point: Path) -> bool:
    """Return whether the daemon of the mount at ``point`` is gone."""
    try:
        os.stat(point)
    except OSError:
        return True
    return False


def _daemon_of(point: Path) -> int | None:
    """Return the process with the mount point among its arguments."""
    wanted = os.fsencode(point)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (process / "cmdline").read_bytes().split(b"\0"):
                return int(process.name)
    return None


def _wait(is_done: Callable[[], bool], complaint: str) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not is_done():
        if time.monotonic() > end:
            raise TimeoutError(f"{complaint} within {TIMEOUT_SECONDS:.0f} s")
        time.sleep(0.001)
