"""Each test of this folder that mounts runs once through libfuse 3 and, but for short runs, once through libfuse 2.

Where /dev/fuse or a library is missing it is skipped, or fails if GLASSFS_REQUIRE_FUSE=1 says that both have to be
there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from tests.mount.gallery import Gallery, make_gallery
from tests.mount.mounts import Mount, require


class Faults:
    """What readers saw of a fault: a line of the table at the end of the tests, which sums up over both libfuses."""

    def __init__(self, record: Callable[[str, object], None]) -> None:
        self._record = record

    def add(self, fault: str, tries: int, seen: Mapping[str, int]) -> None:
        """Goes with the test's report, and so from the process that ran it to the one that prints."""
        self._record("fault", (fault, tries, dict(seen)))


@pytest.fixture
def faults(record_property: Callable[[str, object], None]) -> Faults:
    return Faults(record_property)


def table_of(reports: Iterable[pytest.TestReport]) -> list[str]:
    """The table in Markdown. Tests that lost something have failed, and are not in it."""
    tried: Counter[str] = Counter()
    seen: dict[str, Counter[str]] = {}
    for report in reports:
        for fault, tries, counts in (value for name, value in report.user_properties if name == "fault"):
            tried[fault] += tries
            seen.setdefault(fault, Counter()).update(counts)
    rows = [
        f"| {fault} | {tried[fault]:,} | {', '.join(f'{count:,} {what}' for what, count in sorted(counts.items()))} |"
        for fault, counts in sorted(seen.items())
    ]
    return ["| fault | times | what readers saw |", "|---|---|---|", *rows] if rows else []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed = [report for report in terminalreporter.getreports("passed") if isinstance(report, pytest.TestReport)]
    lines = table_of(passed)
    if lines:
        terminalreporter.section("faults")
        terminalreporter.write("\n".join(lines) + "\n")


class Mounted(Protocol):
    """``with mounted(source, …) as mount``: a mount at a new directory, gone at the end of the block."""

    def __call__(
        self, *sources: Path | str, options: Sequence[str] = (), at: Path | None = None, foreground: bool = False,
    ) -> AbstractContextManager[Mount]: ...


@pytest.fixture(scope="session", params=[
    pytest.param("3", id="libfuse3"), pytest.param("2", id="libfuse2", marks=pytest.mark.slow),
])
def fuse(request: pytest.FixtureRequest) -> str:
    """The libfuse of this run of the test. In short runs it is libfuse 3; test_real_files has both."""
    generation: str = request.param
    require(generation)
    return generation


@pytest.fixture(scope="session")
def mounted(fuse: str, tmp_path_factory: pytest.TempPathFactory) -> Mounted:
    @contextmanager
    def mounting(
        *sources: Path | str, options: Sequence[str] = (), at: Path | None = None, foreground: bool = False,
    ) -> Iterator[Mount]:
        place = tmp_path_factory.mktemp("mount")
        path = at
        if path is None:
            path = place / "mnt"
            path.mkdir()
        mount = Mount(sources, path, place / "log", fuse, options, foreground)
        try:
            yield mount
        finally:
            mount.end()

    return mounting


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """A folder with a container of each format, and what a mount of it has to show."""
    return make_gallery(tmp_path_factory.mktemp("gallery"))


@pytest.fixture(scope="session")
def shown(mounted: Mounted, gallery: Gallery) -> Iterator[Mount]:
    """The gallery, mounted for all tests that only look. Blocks over 4 MiB do not fit its cache."""
    with mounted(gallery.folder, options=["cache_size=8M"]) as mount:
        yield mount


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user may enter, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="glassfs-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can do this")


@pytest.fixture
def libfuse3(fuse: str) -> None:
    """For what libfuse 2 cannot do: each file is opened, nodes are names for all versions, and nothing is counted."""
    if fuse != "3":
        pytest.skip("only libfuse 3 can do this")
